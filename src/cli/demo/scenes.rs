//! The chapters: what is done to the pod, and what vscaled makes of it.

use std::fs;
use std::time::Instant;

use super::daemon::put_manifest;
use super::error::DemoError;
use super::screen::took;
use super::show;
use super::story::{Story, amounts, mebibytes};
use crate::actuate::Cause;
use crate::control::proto;
use crate::decide::Reason;
use crate::plan::PodTree;
use crate::resources::{Bytes, CpuMax, CpuQuota, Setting, Settings};
use crate::sources::parse_manifests;

/// The pod's name for the daemon.
const POD: &str = "shop/web-0";
/// The container that most is done to.
const APP: &str = "app";

impl Story<'_> {
    /// A recommendation for more than the VPA's author allows.
    pub(super) async fn grow(&mut self) -> Result<(), DemoError> {
        self.screen.chapter("A recommendation arrives: more of everything")?;
        self.recommend(include_str!("grow.yaml")).await
    }

    /// A recommendation for less: children shrink before their parent, and memory stays above what is used.
    pub(super) async fn shrink(&mut self) -> Result<(), DemoError> {
        self.screen.chapter("Another recommendation: less of everything")?;
        self.recommend(include_str!("shrink.yaml")).await?;
        let used = self.tree.memory_in_use(APP)?;
        self.screen
            .say(&format!("{APP} keeps its {} in memory", mebibytes(used)))
    }

    async fn recommend(&mut self, manifest: &str) -> Result<(), DemoError> {
        let view = parse_manifests("vpa.yaml", manifest)?.view;
        let vpa = view
            .vpas
            .first()
            .ok_or_else(|| unexpected("the manifest holds no VPA"))?;
        let began = Instant::now();
        if let Some(daemon) = &self.stage.daemon {
            put_manifest(&daemon.manifests, "vpa.yaml", manifest)?;
        }
        let vpa_name = vpa.metadata.name.clone();
        let reason = Reason::OutOfBounds;
        let cause = Cause::Recommendation {
            vpa: vpa_name,
            resource_version: String::new(),
            reason,
        };
        let change = self.change(&cause).await?;
        let arrived = began.elapsed();
        expect_outcome(&change, "Applied")?;
        let reply = self.client.explain(POD.to_owned()).await?;
        let recommended = vpa
            .status
            .recommendation
            .iter()
            .flat_map(|said| &said.container_recommendations);
        let recommended = recommended.map(|said| (said.container_name.as_str(), amounts(said.target)));
        self.screen.table(&show::decision(&reply, recommended))?;
        let because: Vec<&str> = [change.cause.as_str()]
            .into_iter()
            .chain(reply.notes.iter().map(String::as_str))
            .collect();
        self.screen.say(&because.join("; "))?;
        self.screen.table(&show::steps(&change.steps))?;
        if let Some(value) = reply.values.iter().find(|value| !value.difference.is_empty()) {
            return Err(unexpected(&format!(
                "{} of {}: {}",
                value.file, value.path, value.difference
            )));
        }
        self.screen.confirm(&show::total(&change, arrived))?;
        self.still_the_same().await
    }

    /// Somebody else writes a value that is ours.
    pub(super) async fn drift(&mut self) -> Result<(), DemoError> {
        self.screen
            .chapter("Something else writes into a file that vscaled keeps")?;
        let before = self.tree.read()?;
        let cgroup = self.tree.container(APP)?;
        let foreign = before
            .containers
            .get(APP)
            .and_then(halved_quota)
            .ok_or_else(|| unexpected("the container has no cpu quota"))?;
        let held = cgroup
            .read(foreign.file())?
            .ok_or_else(|| unexpected("the file is not there"))?;
        let file = cgroup
            .directory(crate::cgroup::Controller::Cpu)
            .join(foreign.file().name());
        let began = Instant::now();
        fs::write(&file, foreign.to_write()).map_err(DemoError::file("write", &file))?;
        let change = self.change(&Cause::Drift).await?;
        let repaired = began.elapsed();
        expect_outcome(&change, "Applied")?;
        self.expect_values(&before)?;
        self.screen.say(&format!(
            "{} of {APP}: {held}, and somebody writes {foreign}",
            foreign.file()
        ))?;
        self.screen
            .confirm(&format!("noticed, and {held} again {} after the write", took(repaired)))
    }

    /// A limit below what is in use would make the kernel kill: it is refused before anything is written.
    pub(super) async fn refuse(&mut self) -> Result<(), DemoError> {
        self.screen
            .chapter("An operator asks for a memory limit below what is in use")?;
        let before = self.tree.read()?;
        let used = self.tree.memory_in_use(APP)?;
        let limit = Bytes::new((used.get() / 2) >> 20 << 20);
        self.screen.say(&format!(
            "vscalectl resize {POD} -c {APP} --memory-request {limit} --memory-limit {limit}"
        ))?;
        self.screen.say(&format!("{APP} uses {}", mebibytes(used)))?;
        let memory = |amount: Bytes| proto::Amounts {
            memory: Some(amount.to_string()),
            cpu: None,
        };
        let change = self.resize(Some(memory(limit)), Some(memory(limit)), false).await?;
        expect_outcome(&change, "Refused")?;
        self.expect_values(&before)?;
        let reason = show::shortened(&change.reason, &self.tree);
        self.screen.confirm(&format!("refused: {reason}"))?;
        self.screen.confirm(&format!(
            "nothing was written: {} are as they were",
            show::count(&before)
        ))
    }

    /// Everything about one container.
    pub(super) async fn explain(&mut self) -> Result<(), DemoError> {
        self.screen
            .chapter(&format!("vscalectl explain {POD}, the part about {APP}"))?;
        let reply = self.client.explain(POD.to_owned()).await?;
        self.screen.table(&show::values(&reply, APP))?;
        self.screen.say(&reply.next)
    }

    /// A resize that is only shown.
    pub(super) async fn rehearse(&mut self) -> Result<(), DemoError> {
        let command = format!("vscalectl resize {POD} -c {APP} --cpu-limit 300m --memory-limit 160Mi --dry-run");
        self.screen.chapter(&command)?;
        let before = self.tree.read()?;
        let limits = proto::Amounts {
            cpu: Some("300m".to_owned()),
            memory: Some("160Mi".to_owned()),
        };
        let change = self.resize(None, Some(limits), true).await?;
        expect_outcome(&change, "Planned")?;
        self.expect_values(&before)?;
        self.screen.table(&show::steps(&change.steps))?;
        self.screen.confirm(&format!(
            "nothing was written: {} are as they were",
            show::count(&before)
        ))
    }

    async fn resize(
        &mut self,
        requests: Option<proto::Amounts>,
        limits: Option<proto::Amounts>,
        dry_run: bool,
    ) -> Result<proto::Change, DemoError> {
        let values = Some(proto::Requirements { requests, limits });
        let request = proto::ResizeRequest {
            pod: POD.to_owned(),
            containers: vec![proto::ContainerValues {
                name: APP.to_owned(),
                values,
            }],
            ttl_us: Some(60_000_000),
            reason: "demo".to_owned(),
            dry_run,
            ..proto::ResizeRequest::default()
        };
        let reply = self.client.resize(request).await?;
        reply
            .change
            .ok_or_else(|| unexpected("vscaled's answer says nothing about what was done"))
    }

    /// Whether every file holds what it held.
    fn expect_values(&self, before: &PodTree) -> Result<(), DemoError> {
        let now = self.tree.read()?;
        if now == *before {
            Ok(())
        } else {
            Err(unexpected(&format!("values are not what they were: {now:?}")))
        }
    }
}

fn expect_outcome(change: &proto::Change, outcome: &str) -> Result<(), DemoError> {
    if change.outcome == outcome {
        return Ok(());
    }
    let (found, reason) = (&change.outcome, &change.reason);
    Err(unexpected(&format!(
        "expected the outcome {outcome}, and it was {found}: {reason}"
    )))
}

/// Half of a cgroup's cpu quota, for the file that holds it.
fn halved_quota(settings: &Settings) -> Option<Setting> {
    settings.iter().find_map(|setting| match setting {
        Setting::CfsQuota(CpuQuota::Micros(quota)) => Some(Setting::CfsQuota(CpuQuota::Micros(quota / 2))),
        Setting::CpuMax(CpuMax {
            quota: CpuQuota::Micros(quota),
            period_us,
        }) => Some(Setting::CpuMax(CpuMax {
            quota: CpuQuota::Micros(quota / 2),
            period_us,
        })),
        _ => None,
    })
}

fn unexpected(what: &str) -> DemoError {
    DemoError::Unexpected(what.to_owned())
}
