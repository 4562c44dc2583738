//! The chapters of the demo, in order. Every chapter checks its claims; the first false claim ends the demo.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use vscaled::control::proto::{Change, Step};
use vscaled::control::{Client, Watch};
use vscaled::model::Bytes;

use super::pod::Pod;
use super::screen::{Screen, took};
use super::stage::{AGAIN, Stage, program};

const POD: &str = "shop/web-0";
/// The container of most chapters.
const APP: &str = "app";
const MIB: u64 = 1 << 20;
/// The memory that each container's process holds.
const HOLDS: [(&str, u64); 3] = [(APP, 40 * MIB), ("cache", 24 * MIB), ("logs", 4 * MIB)];
/// Longest wait for anything; slow machines are slow.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time over which the pace of work is measured.
const PACE: Duration = Duration::from_millis(600);
/// Longest time between the end of a process's connections and its own end.
const SOON: Duration = Duration::from_secs(2);

/// The state of a running demo.
struct Story<'a> {
    stage: &'a mut Stage,
    screen: &'a mut Screen,
    pod: Pod,
    watch: Watch,
    /// The blocks per second that each process checked in the last measurement.
    paces: Vec<f64>,
}

/// Shows everything up to the end of vscaled.
pub(crate) async fn show(stage: &mut Stage, screen: &mut Screen) -> Result<Pod> {
    let shown = chapters(stage, screen).await;
    if shown.as_ref().is_err_and(|error| !super::is_closed_pipe(error)) {
        // If vscaled has ended, that is the reason for every other failure.
        let began = Instant::now();
        while began.elapsed() < SOON {
            stage.check_agent()?;
            tokio::time::sleep(AGAIN).await;
        }
    }
    shown
}

async fn chapters(stage: &mut Stage, screen: &mut Screen) -> Result<Pod> {
    let (pod, paces) = make_pod(stage, screen).await?;
    let watch = start_agent(stage, screen).await?;
    let mut story = Story {
        stage,
        screen,
        pod,
        watch,
        paces,
    };
    story
        .recommend(
            "A recommendation arrives: more of everything",
            include_str!("grow.yaml"),
        )
        .await?;
    story
        .recommend(
            "Another recommendation: less of everything",
            include_str!("shrink.yaml"),
        )
        .await?;
    story.drift().await?;
    story.refuse()?;
    story.screen.chapter(&format!("Where the values of {APP} come from"))?;
    story.command(&["explain", POD], &["container app ", "next"])?;
    story.rehearse()?;
    Ok(story.pod)
}

async fn make_pod(stage: &mut Stage, screen: &mut Screen) -> Result<(Pod, Vec<f64>)> {
    let version = stage.cgroup_version();
    screen.chapter(&format!(
        "A pod of three containers, as a kubelet would have made it on cgroup {version}"
    ))?;
    let pod = Pod::make(stage, &stage.put_manifest("web.yaml", include_str!("web.yaml"))?)?;
    for (container, bytes) in HOLDS {
        stage.start_worker(&pod, container, bytes)?;
    }
    let paces = paces(stage).await?;
    screen.facts("CONTAINER  MEMORY USED  PROCESS  WORK")?;
    for ((container, child), pace) in stage.workers.iter().zip(&paces) {
        let (used, pid) = (pod.memory_in_use(container)? / MIB, child.id());
        screen.facts(&format!(
            "{container:9}  {used:9}Mi  {pid:<7}  {pace:.0} blocks checked a second"
        ))?;
    }
    Ok((pod, paces))
}

async fn start_agent(stage: &mut Stage, screen: &mut Screen) -> Result<Watch> {
    screen.chapter("vscaled starts, without a container runtime, on a directory of manifests")?;
    let (began, pid) = (Instant::now(), stage.start_agent()?);
    let mut client = loop {
        if let Ok(mut client) = Client::connect(&stage.path("vscaled.sock")).await {
            let pods = client.get().await?.pods;
            if pods
                .iter()
                .any(|pod| pod.containers.iter().all(|container| container.id.is_some()))
            {
                break client;
            }
        }
        stage.check_agent()?;
        ensure!(
            began.elapsed() < PATIENCE,
            "vscaled did not find the pod{}",
            stage.log_end()
        );
        tokio::time::sleep(AGAIN).await;
    };
    screen.confirm(&format!(
        "process {pid} answers and has found the pod after {}",
        took(began.elapsed())
    ))?;
    if cfg!(debug_assertions) {
        screen.facts("(a debug build: a release build is faster than the times below)")?;
    }
    Ok(client.watch().await?)
}

impl Story<'_> {
    async fn recommend(&mut self, title: &str, manifest: &str) -> Result<()> {
        self.screen.chapter(title)?;
        let began = Instant::now();
        self.stage.put_manifest("vpa.yaml", manifest)?;
        let change = self.change("recommendation of VPA web").await?;
        let arrived = took(began.elapsed());
        self.command(&["explain", POD], &["CONTAINER ", "why"])?;
        self.screen.facts(&change.steps.iter().map(row).collect::<String>())?;
        let verified = took(Duration::from_micros(change.stages.unwrap_or_default().verified_us));
        self.screen.confirm(&format!(
            "{} steps, all read back: {verified} after the decision, {arrived} after the file's arrival",
            change.steps.len(),
        ))?;
        self.still_the_same().await
    }

    /// Another program writes a value that vscaled controls.
    async fn drift(&mut self) -> Result<()> {
        self.screen
            .chapter("Something else writes into a file that vscaled keeps")?;
        let before = self.pod.read()?;
        let file = self.pod.file(APP, &["cpu.max", "cpu.cfs_quota_us"])?;
        let held = fs::read_to_string(&file)?;
        let quota: u64 = held.split_whitespace().next().unwrap_or_default().parse()?;
        let foreign = (quota / 2).to_string();
        self.screen
            .facts(&self.pod.shorten(&format!("echo {foreign} > {}", file.display())))?;
        let began = Instant::now();
        fs::write(&file, foreign)?;
        self.change("drift").await?;
        let repaired = took(began.elapsed());
        self.pod.expect(&before)?;
        self.screen.confirm(&format!(
            "noticed, and {} again {repaired} after the write",
            held.trim()
        ))
    }

    /// A limit below the usage would make the kernel kill, so vscaled refuses before any write.
    fn refuse(&mut self) -> Result<()> {
        self.screen
            .chapter("An operator asks for a memory limit below the memory in use")?;
        let before = self.pod.read()?;
        let limit = Bytes::new(self.pod.memory_in_use(APP)? / 2 / MIB * MIB).to_string();
        let arguments = [
            "resize",
            POD,
            "-c",
            APP,
            "--memory-request",
            &limit,
            "--memory-limit",
            &limit,
        ];
        self.screen.output(&format!("$ vscalectl {}", arguments.join(" ")))?;
        let output = self.stage.try_vscalectl(&arguments)?;
        let text = String::from_utf8(output.stdout)?;
        ensure!(output.status.code() == Some(1), "vscaled should have refused: {text}");
        self.screen.output(&self.pod.shorten(&text))?;
        self.screen
            .confirm(&format!("nothing was written: {}", self.pod.expect(&before)?))
    }

    fn rehearse(&mut self) -> Result<()> {
        self.screen.chapter("What a resize by hand would do")?;
        let before = self.pod.read()?;
        let limits = ["--cpu-limit", "300m", "--memory-limit", "160Mi", "--dry-run"];
        self.command(&[&["resize", POD, "-c", APP][..], &limits].concat(), &[""])?;
        self.screen.confirm(&self.pod.expect(&before)?)
    }

    /// Runs `vscalectl` and prints the paragraphs of its output that begin with one of `wanted`.
    fn command(&mut self, arguments: &[&str], wanted: &[&str]) -> Result<()> {
        self.screen.output(&format!("$ vscalectl {}", arguments.join(" ")))?;
        let text = self.pod.shorten(&self.stage.vscalectl(arguments)?);
        let is_wanted = |part: &&str| wanted.iter().any(|begin| part.starts_with(begin));
        let parts: Vec<&str> = text.split("\n\n").filter(is_wanted).collect();
        ensure!(parts.len() >= wanted.len(), "vscalectl prints something else: {text}");
        self.screen.output(&parts.join("\n"))
    }

    /// Waits for the next change to the pod that has this cause, which must have been applied.
    async fn change(&mut self, cause: &str) -> Result<Change> {
        let next = async {
            loop {
                let change = self.watch.next().await?;
                if change.cause.starts_with(cause) {
                    return anyhow::Ok(change);
                }
            }
        };
        let change = tokio::time::timeout(PATIENCE, next).await;
        let change =
            change.map_err(|_| anyhow!("vscaled made no change because of {cause}{}", self.stage.log_end()))??;
        ensure!(
            change.outcome == "Applied",
            "{cause}: {}: {}",
            change.outcome,
            change.reason
        );
        Ok(change)
    }

    /// Shows that the started processes still run, and how their pace changed.
    async fn still_the_same(&mut self) -> Result<()> {
        let old = std::mem::replace(&mut self.paces, paces(self.stage).await?);
        let pids: Vec<String> = self
            .stage
            .workers
            .iter()
            .map(|(_, child)| child.id().to_string())
            .collect();
        let pids = pids.join(", ");
        let same = "are the ones that were started, and no work was lost";
        self.screen
            .confirm(&format!("nothing restarted: processes {pids} {same}"))?;
        let paces = HOLDS.iter().zip(old.iter().zip(&self.paces));
        let paces: Vec<String> = paces
            .map(|((name, _), (old, new))| format!("{name} {old:.0} → {new:.0}"))
            .collect();
        self.screen
            .facts(&format!("blocks checked a second: {}", paces.join(", ")))
    }
}

/// The blocks per second that each process checks. Waits for [`PACE`], and until each process has worked.
async fn paces(stage: &mut Stage) -> Result<Vec<f64>> {
    let (before, began) = (stage.blocks_checked()?, Instant::now());
    loop {
        tokio::time::sleep(AGAIN).await;
        let (now, elapsed) = (stage.blocks_checked()?, began.elapsed());
        let gains = before.iter().zip(&now).map(|(before, now)| now.checked_sub(*before));
        let gains: Vec<u64> = gains.collect::<Option<_>>().context("work was lost")?;
        if elapsed >= PACE && gains.iter().all(|gain| *gain > 0) {
            #[expect(clippy::cast_precision_loss, reason = "shown without decimals")]
            return Ok(gains.iter().map(|gain| *gain as f64 / elapsed.as_secs_f64()).collect());
        }
        ensure!(elapsed < PATIENCE, "a process does not work on: {gains:?}");
    }
}

/// A step as a line of a table; amounts of memory have a unit.
fn row(step: &Step) -> String {
    let level = if step.name.is_empty() { &step.level } else { &step.name };
    let amount = |text: &str| match text.parse() {
        Ok(bytes) if step.file.starts_with("memory") => Bytes::new(bytes).to_string(),
        _ => text.to_owned(),
    };
    let took = took(Duration::from_micros(step.took_us));
    let change = format!("{} → {}", amount(&step.from), amount(&step.to));
    format!("{level:6} {:27} {change:32} {took:>10}\n", step.file)
}

/// Leaves the pod to the reader until vscaled or a process ends.
pub(crate) async fn invite(stage: &mut Stage, screen: &mut Screen) -> Result<()> {
    screen.chapter("Now you, as root in another terminal; Ctrl-C here ends it")?;
    let vscalectl = program("vscalectl")?.canonicalize()?;
    let programs = vscalectl.parent().context("it lies in no directory")?;
    screen.facts(&format!("export PATH={}:$PATH", programs.display()))?;
    screen.facts(&format!(
        "export VSCALED_SOCKET={}",
        stage.path("vscaled.sock").display()
    ))?;
    for arguments in [
        "get",
        "watch",
        "explain shop/web-0",
        "resize shop/web-0 -c cache --cpu-limit 300m",
    ] {
        screen.facts(&format!("vscalectl {arguments}"))?;
    }
    screen.facts(&format!("$EDITOR {}", stage.path("manifests/vpa.yaml").display()))?;
    loop {
        tokio::time::sleep(PACE).await;
        stage.check_agent()?;
        stage.blocks_checked()?;
    }
}

/// Stops vscaled, which leaves every value as it is.
pub(crate) fn stop(pod: &Pod, stage: &mut Stage, screen: &mut Screen) -> Result<()> {
    screen.chapter("vscaled stops; what it set stays")?;
    let before = pod.read()?;
    let (status, after) = stage.stop_agent()?.context("vscaled had ended already")?;
    ensure!(status.success(), "vscaled ended with {status} after SIGTERM");
    let (after, unchanged) = (took(after), pod.expect(&before)?);
    screen.confirm(&format!("ended {after} after SIGTERM, with status 0; {unchanged}"))
}
