//! Converts the state of the controller to messages of the control protocol. Only [`planned`] reads anything.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::actuate::{Job, Node, preview};
use crate::control::{names_container, proto};
use crate::model::objects::PodId;
use crate::model::{
    Cause, ChangeRecord, ContainerId, ContainerName, ControlFile, HookEnd, NamedRequirements, Outcome, StepRecord,
    micros,
};
use crate::observe::audit::{Actor, known_pid};
use crate::oom::{OomReport, Victim};
use crate::reconcile::desired::TemporaryLimit;
use crate::reconcile::overrides::Override;
use crate::reconcile::pod::{PodState, explained};

/// The agent, and the node as discovery found it.
pub(super) fn agent(node: Option<&Node>, problems: Vec<String>) -> proto::Agent {
    let known = |text: fn(&Node) -> String| node.map(text).unwrap_or_default();
    proto::Agent {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cgroup_version: known(|node| node.traits.version.to_string()),
        cgroup_driver: known(|node| node.traits.driver.to_string()),
        kubepods: known(|node| node.kubepods.path.to_string()),
        runtime: known(|node| node.runtime_name.clone().unwrap_or_else(|| "none".to_owned())),
        weight_formula: known(|node| node.traits.container_weight.to_string()),
        problems,
    }
}

pub(super) fn pod(state: &PodState, now: Timestamp, quiet: SignedDuration) -> proto::Pod {
    let metadata = &state.pod.metadata;
    let wanted = state.desired.targets_or_spec(&state.pod);
    let (live, inits) = (state.live.as_ref(), &state.pod.spec.init_containers);
    let (temporary, refused) = (state.desired.temporary.iter(), explained::not_grown(state, now));
    let not_grown = |(container, why): (&ContainerName, &String)| format!("container {container}: {why}");
    let container = |named: &NamedRequirements| proto::Container {
        name: named.name.clone(),
        id: live.and_then(|live| Some(live.containers.get(&*named.name)?.id.to_string())),
        wanted: Some((&named.resources).into()),
        spec: state.pod.container(&named.name).map(|spec| (&spec.resources).into()),
        sidecar: inits.iter().any(|init| init.name == named.name),
        ..proto::Container::default()
    };
    proto::Pod {
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: uid_of(state),
        qos_class: state.pod.qos_class().to_string(),
        vpa: state.decision.vpa.clone(),
        action: state.decision.action().to_string(),
        reason: state.decision.reason.to_string(),
        state: explained::status(state, now).to_string(),
        detail: explained::detail(state, now),
        workload: Some(proto::Workload {
            kind: state.decision.workload.kind.clone(),
            name: state.decision.workload.name.clone(),
        }),
        containers: wanted.containers.iter().map(container).collect(),
        r#override: state.desired.overridden.as_ref().map(overridden),
        labels: metadata.labels.clone(),
        leases: temporary.map(|limit| lease(limit, quiet)).collect(),
        not_grown: refused.map(not_grown).collect(),
        ..proto::Pod::default()
    }
}

/// The UID of the pod that runs here, or else of its object.
fn uid_of(state: &PodState) -> String {
    let live = state.live.as_ref();
    live.map_or(&*state.pod.metadata.uid, |live| &*live.id.uid).to_owned()
}

/// The names, the UID and the container ids of a pod, by which a caller may name it.
pub(super) fn identifiers(state: &PodState) -> proto::Pod {
    let live = state.live.iter().flat_map(|live| live.containers.values());
    let container = |id: &ContainerId| proto::Container {
        id: Some(id.to_string()),
        ..proto::Container::default()
    };
    proto::Pod {
        namespace: state.pod.metadata.namespace.clone(),
        name: state.pod.metadata.name.clone(),
        uid: uid_of(state),
        containers: live.map(|live| container(&live.id)).collect(),
        ..proto::Pod::default()
    }
}

fn lease(limit: &TemporaryLimit, quiet: SignedDuration) -> proto::Lease {
    let denial = |why: &String| format!("{}; the API server denies it: {why}", limit.why);
    let (until, reason) = match &limit.denied {
        Some(denied) => (denied.ends, denial(&denied.why)),
        None => (limit.until(quiet), limit.why.clone()),
    };
    proto::Lease {
        container: limit.container.clone(),
        resource: limit.resource.to_string(),
        from: limit.resource.quantity(limit.from),
        to: limit.resource.quantity(limit.to),
        since: limit.since.to_string(),
        until: until.to_string(),
        reason,
    }
}

fn overridden(overridden: &Override) -> proto::Override {
    proto::Override {
        uid: overridden.uid,
        pid: known_pid(overridden.pid),
        reason: overridden.reason.clone(),
        since: overridden.since.to_string(),
        until: overridden.until.map(|until| until.to_string()),
    }
}

pub(super) fn change(record: &ChangeRecord) -> proto::Change {
    let stages = &record.stages;
    let mut reason = record.outcome.reason().unwrap_or_default().to_owned();
    if let Outcome::Hook(HookEnd { output, .. }) = &record.outcome
        && !output.is_empty()
    {
        reason += &format!("; it printed: {output}");
    }
    proto::Change {
        sequence: record.sequence,
        at: record.at.to_string(),
        namespace: record.pod.namespace.clone(),
        name: record.pod.name.clone(),
        uid: record.pod.uid.to_string(),
        cause: record.cause.to_string(),
        outcome: record.word().to_owned(),
        reason,
        steps: record.steps.iter().map(step).collect(),
        stages: Some(proto::Stages {
            decide_us: micros(stages.decide),
            queued_us: micros(stages.queued),
            ask_us: micros(stages.ask),
            observe_us: micros(stages.observe),
            plan_us: micros(stages.plan),
            prepare_us: micros(stages.prepare),
            write_us: micros(stages.write),
            runtime_us: micros(stages.runtime),
            verified_us: micros(stages.verified),
        }),
        who: Some(who(&record.cause)),
        ..proto::Change::default()
    }
}

/// The steps that a pass would do.
///
/// Errors: a sentence that names the unreadable file or the reason why there is no plan.
pub(super) async fn planned(node: Arc<Node>, job: Job) -> Result<proto::Change, String> {
    let pod = job.targets.bound.live().id.clone();
    let mut record = ChangeRecord::new(pod, job.cause.clone(), Outcome::Unchanged);
    record.steps = preview(node, job).await?;
    record.at = Timestamp::now();
    Ok(proto::Change {
        outcome: "Planned".to_owned(),
        stages: None,
        ..change(&record)
    })
}

/// The result for one of several pods.
pub(super) fn result(
    pod: &PodId,
    containers: Vec<String>,
    ended: Result<proto::Change, impl ToString>,
) -> proto::PodResult {
    proto::PodResult {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.to_string(),
        containers,
        error: ended.as_ref().err().map(ToString::to_string).unwrap_or_default(),
        change: ended.ok(),
    }
}

/// The actor behind the cause of a pass.
fn who(cause: &Cause) -> proto::Who {
    let actor = Actor::from(cause);
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    proto::Who {
        kind: actor.kind.to_owned(),
        name: text(actor.name),
        resource_version: text(actor.resource_version),
        uid: actor.uid,
        pid: actor.pid,
        reason: text(actor.reason),
    }
}

fn step(record: &StepRecord) -> proto::Step {
    let (from, to) = record.change.texts();
    proto::Step {
        via: record.change.via().to_string(),
        level: record.target.level().to_owned(),
        name: record.target.container().unwrap_or_default().to_owned(),
        file: record.change.file().map_or("", ControlFile::name).to_owned(),
        from,
        to,
        took_us: micros(record.took),
        error: record.error.clone().unwrap_or_default(),
        rollback: record.rollback,
    }
}

pub(in crate::agent) fn kill(report: &OomReport) -> proto::OomKill {
    let facts = &report.facts;
    proto::OomKill {
        id: report.id.clone(),
        node: facts.node.clone(),
        time: report.time.to_string(),
        pod: facts.pod.clone(),
        container: facts.container.clone(),
        cgroup: report.cgroup.clone(),
        level: facts.level.to_string(),
        limit: Some(facts.limit.clone()),
        limit_of: facts.limit_of().to_string(),
        container_limit: facts.container_limit.clone(),
        victim: report.victim.as_ref().map(victim),
        group: report.group.clone(),
        own_write: report.own_write.as_ref().map(|write| proto::OomOwnWrite {
            time: write.time.to_string(),
            what: write.what.clone(),
        }),
        evidence: report.evidence.clone(),
        confidence: report.confidence.to_string(),
        candidates: report.candidates.iter().map(victim).collect(),
        more_candidates: report.more_candidates,
        while_down: report.while_down,
    }
}

/// Whether a kill is of the pod that a caller names: by `namespace/name`, a UID, or the beginning of a container's id. An
/// empty text names every kill. Only the kill itself still names a pod that has gone.
pub(in crate::agent) fn is_kill_of(report: &OomReport, text: &str) -> bool {
    let (pod, container) = (report.facts.pod.as_ref(), report.facts.container.as_ref());
    text.is_empty()
        || pod.is_some_and(|pod| pod.uid == text || text.split_once('/') == Some((&pod.namespace, &pod.name)))
        || container.is_some_and(|container| names_container(text, &container.id))
}

fn victim(victim: &Victim) -> proto::OomVictim {
    proto::OomVictim {
        pid: victim.pid,
        comm: victim.comm.clone(),
        role: victim.role().to_string(),
        memory: victim.memory,
        oom_score_adj: victim.oom_score_adj,
        uid: victim.uid,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::decide::PodDecision;
    use crate::model::{Change, LivePod, MemoryLimit, MilliCpu, PodAmounts, Resource, Setting, Stages, Step, Target};
    use crate::oom::{Confidence, Evidence, HitLimit, Level, OwnWrite, ReportedMemory};
    use crate::reconcile::desired::{Denied, InForce, Recommended};
    use crate::report::testing::kill_of;
    use crate::sources::parse_manifests;

    /// An operator's change that was undone, with every field.
    fn undone() -> ChangeRecord {
        let setting = |bytes| Setting::MemoryMax(MemoryLimit::Bytes(bytes));
        let (from, to) = (setting(9), setting(5));
        let planned = StepRecord::planned(&Step {
            target: Target::Container("app".into()),
            change: Change::File { from, to },
        });
        let us = Duration::from_micros;
        ChangeRecord {
            sequence: 7,
            at: Timestamp::from_second(1_700_000_000).unwrap(),
            steps: vec![StepRecord {
                took: us(10),
                error: Some("busy".to_owned()),
                rollback: true,
                ..planned
            }],
            stages: Stages {
                decide: us(1),
                queued: us(2),
                ask: us(3),
                observe: us(4),
                plan: us(5),
                prepare: us(6),
                write: us(7),
                runtime: us(8),
                verified: us(9),
            },
            ..ChangeRecord::new(
                PodId {
                    uid: "u".into(),
                    namespace: "shop".to_owned(),
                    name: "web".to_owned(),
                },
                Cause::Operator {
                    uid: 1000,
                    pid: 42,
                    reason: "test".to_owned(),
                },
                Outcome::RolledBack("memory.max: busy".to_owned()),
            )
        }
    }

    #[test]
    fn a_change_is_shown_with_all_its_fields() {
        let expected = proto::Change {
            sequence: 7,
            at: "2023-11-14T22:13:20Z".to_owned(),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            uid: "u".to_owned(),
            cause: "operator (uid 1000, pid 42): test".to_owned(),
            outcome: "RolledBack".to_owned(),
            reason: "memory.max: busy".to_owned(),
            steps: vec![proto::Step {
                via: "cgroup".to_owned(),
                level: "container".to_owned(),
                name: "app".to_owned(),
                file: "memory.max".to_owned(),
                from: "9".to_owned(),
                to: "5".to_owned(),
                took_us: 10,
                error: "busy".to_owned(),
                rollback: true,
            }],
            stages: Some(proto::Stages {
                decide_us: 1,
                queued_us: 2,
                ask_us: 3,
                observe_us: 4,
                plan_us: 5,
                prepare_us: 6,
                write_us: 7,
                runtime_us: 8,
                verified_us: 9,
            }),
            who: Some(proto::Who {
                kind: "operator".to_owned(),
                uid: Some(1000),
                pid: Some(42),
                reason: "test".to_owned(),
                ..proto::Who::default()
            }),
            ..proto::Change::default()
        };
        assert_eq!(change(&undone()), expected);
    }

    #[test]
    fn the_output_of_a_hook_is_shown() {
        let hook = HookEnd {
            how: Ok("ended".to_owned()),
            output: "dumped".to_owned(),
            evidence: None,
        };
        let of_hook = ChangeRecord {
            outcome: Outcome::Hook(hook),
            ..undone()
        };
        assert_eq!(change(&of_hook).reason, "ended; it printed: dumped");
    }

    /// A kill with every field.
    fn whole_kill() -> OomReport {
        let mut report = kill_of("web", 3);
        let own = HitLimit {
            limit_bytes: Some(63 << 20),
            ..HitLimit::default()
        };
        (report.facts.level, report.facts.container_limit) = (Level::Pod, Some(own));
        let of = report.victim.as_mut().unwrap();
        (of.oom_score_adj, of.uid) = (Some(5), Some(7));
        of.memory = Some(ReportedMemory {
            total_vm_bytes: 1,
            anon_rss_bytes: 2,
            file_rss_bytes: 3,
            shmem_rss_bytes: 4,
        });
        report.candidates = vec![of.clone()].into();
        report.own_write = Some(OwnWrite {
            time: report.time,
            what: "lowered".to_owned(),
        });
        report.evidence = Some(Evidence {
            time: "noon".to_owned(),
            path: Some("/dump".to_owned()),
            exit_code: Some(1),
            unfinished: None,
        });
        (report.group, report.confidence) = (vec![3, 4], Confidence::Ambiguous);
        (report.more_candidates, report.while_down) = (2, true);
        report
    }

    #[test]
    fn a_kill_is_shown_with_all_its_fields() {
        let report = whole_kill();
        let victim = proto::OomVictim {
            pid: 3,
            comm: "app".to_owned(),
            role: "child".to_owned(),
            memory: report.victim.as_ref().unwrap().memory,
            oom_score_adj: Some(5),
            uid: Some(7),
        };
        let facts = report.facts.clone();
        let expected = proto::OomKill {
            id: "web-3".to_owned(),
            node: "node-1".to_owned(),
            time: "2023-11-14T22:13:23Z".to_owned(),
            pod: facts.pod,
            container: facts.container,
            cgroup: Some("/kubepods/web/app".to_owned()),
            level: "pod".to_owned(),
            limit: Some(facts.limit),
            limit_of: "container".to_owned(),
            container_limit: facts.container_limit,
            victim: Some(victim.clone()),
            group: vec![3, 4],
            own_write: Some(proto::OomOwnWrite {
                time: "2023-11-14T22:13:23Z".to_owned(),
                what: "lowered".to_owned(),
            }),
            evidence: report.evidence.clone(),
            confidence: "ambiguous".to_owned(),
            candidates: vec![victim],
            more_candidates: 2,
            while_down: true,
        };
        assert_eq!(kill(&report), expected);
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    #[test]
    fn a_temporary_limit_is_shown_with_its_end() {
        let (app, why) = ("app".to_owned(), "used 60 MiB".to_owned());
        let mut limit = TemporaryLimit::given(app, Resource::Memory, (64 << 20, 96 << 20), why, at(0));
        limit.renewed = at(60);
        let shown = proto::Lease {
            container: "app".to_owned(),
            resource: "memory".to_owned(),
            from: "64Mi".to_owned(),
            to: "96Mi".to_owned(),
            since: "2023-11-14T22:13:20Z".to_owned(),
            until: "2023-11-14T22:24:20Z".to_owned(),
            reason: "used 60 MiB".to_owned(),
        };
        let quiet = SignedDuration::from_mins(10);
        assert_eq!(lease(&limit, quiet), shown);
        limit.denied = Some(Denied {
            ends: at(5),
            why: "quota".to_owned(),
        });
        let denied = proto::Lease {
            until: "2023-11-14T22:13:25Z".to_owned(),
            reason: "used 60 MiB; the API server denies it: quota".to_owned(),
            ..shown
        };
        assert_eq!(lease(&limit, quiet), denied);
    }

    #[test]
    fn an_override_is_shown_with_its_author() {
        let ends = Some("2023-11-14T22:14:20Z".to_owned());
        for (until, shown, pid, known) in [(Some(at(60)), ends, 42, Some(42)), (None, None, 0, None)] {
            let set = Override {
                uid: 1000,
                pid,
                reason: "test".to_owned(),
                since: at(0),
                until,
                values: PodAmounts::default(),
            };
            let expected = proto::Override {
                uid: 1000,
                pid: known,
                reason: "test".to_owned(),
                since: "2023-11-14T22:13:20Z".to_owned(),
                until: shown,
            };
            assert_eq!(overridden(&set), expected);
        }
    }

    #[test]
    fn a_kill_is_found_by_its_pod() {
        let report = kill_of("web", 3);
        for text in [
            "",
            "shop/web",
            "uid-of-web",
            "id-of-web",
            "id-of",
            "containerd://id-of-web",
        ] {
            assert!(is_kill_of(&report, text), "{text}");
        }
        for text in ["web", "shop", "shop/we", "bank/web", "uid-of", "id-of-web-2", "id-"] {
            assert!(!is_kill_of(&report, text), "{text}");
        }
        let mut nobodys = report;
        (nobodys.facts.pod, nobodys.facts.container) = (None, None);
        assert!(is_kill_of(&nobodys, "") && !is_kill_of(&nobodys, "shop/web"));
    }

    #[test]
    fn a_pod_has_wanted_and_declared_amounts() {
        let manifest = "{kind: Pod, metadata: {name: web, namespace: shop, uid: other, labels: {app: web}}, spec: {initContainers: \
            [{name: mesh, restartPolicy: Always}], containers: [{name: app, resources: {requests: {cpu: 200m}}}]}}";
        let pod = Arc::clone(&parse_manifests("test", manifest).unwrap().view.pods[0]);
        let mut state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
        state.live = Some(Arc::new(LivePod::on_files(["app"])));
        let mut targets = pod.requirements();
        targets.containers[0].resources.requests.cpu = Some(MilliCpu::new(400));
        state.desired.recommended = Some(Recommended {
            vpa: None,
            at: at(0),
            targets,
            in_force: InForce::Nothing,
        });
        state.decision.vpa = Some("of-web".to_owned());
        (state.decision.workload.kind, state.decision.workload.name) = ("Job".to_owned(), "batch".to_owned());
        let given = TemporaryLimit::given("app".to_owned(), Resource::Memory, (1, 2), String::new(), at(0));
        state.desired.temporary.push(given);
        let shown = super::pod(&state, at(0), SignedDuration::from_mins(10));
        let identity = [&shown.namespace, &shown.name, &shown.uid, &shown.qos_class];
        assert_eq!(identity, ["shop", "web", "u", "Burstable"]);
        assert_eq!(
            (shown.action.as_str(), shown.reason.as_str()),
            ("none", "SourcesSilent")
        );
        assert_eq!(shown.labels["app"], "web");
        let workload = shown.workload.clone().unwrap();
        assert_eq!([&workload.kind, &workload.name], ["Job", "batch"]);
        assert_eq!((shown.vpa.as_deref(), shown.leases.len()), (Some("of-web"), 1));
        let cpu = |amounts: &Option<proto::Requirements>| amounts.clone()?.requests?.cpu;
        let of = |container: &proto::Container| {
            let amounts = [&container.wanted, &container.spec].map(cpu);
            (container.name.clone(), container.id.clone(), amounts, container.sidecar)
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(
            shown.containers.iter().map(of).collect::<Vec<_>>(),
            [
                ("app".to_owned(), text("app"), [text("400m"), text("200m")], false),
                ("mesh".to_owned(), None, [None, None], true),
            ]
        );
        let named = identifiers(&state);
        assert_eq!(
            (named.name.as_str(), named.uid.as_str(), named.containers.len()),
            ("web", "u", 1)
        );
    }

    #[test]
    fn the_agent_is_shown_with_its_node() {
        let root = tempfile::tempdir().unwrap();
        let mut node = Node::on_files(root.path());
        let shown = agent(Some(&node), vec!["a problem".to_owned()]);
        let texts = [
            &shown.cgroup_version,
            &shown.cgroup_driver,
            &shown.kubepods,
            &shown.runtime,
            &shown.weight_formula,
        ];
        assert_eq!(texts, ["v2", "cgroupfs", "/kubepods", "none", "quadratic"]);
        assert_eq!(shown.problems, ["a problem"]);
        node.runtime_name = Some("containerd 2.1".to_owned());
        assert_eq!(agent(Some(&node), Vec::new()).runtime, "containerd 2.1");
        assert_eq!(agent(None, Vec::new()).runtime, "");
    }
}
