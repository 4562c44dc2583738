//! Reports to test with.

use futures::future::{BoxFuture, FutureExt as _};
use jiff::Timestamp;
use proptest::prelude::*;

use super::content::Report;
use super::events::ContainerFacts;
use super::outbox::PodMetadata;
use crate::kubernetes::events::PodReference;
use crate::model::objects::PodUid;
use crate::oom::{
    Candidates, Confidence, Evidence, HitLimit, KillFacts, Level, OomReport, OwnWrite, ReportedContainer,
    ReportedMemory, ReportedPod, Role, Victim,
};

/// A kill of the container `app` of that pod, unlike those of other numbers.
pub(crate) fn kill_of(pod: &str, number: u64) -> OomReport {
    let second = i64::try_from(number).unwrap();
    OomReport {
        id: format!("{pod}-{number}"),
        time: Timestamp::from_second(1_700_000_000 + second).unwrap(),
        facts: KillFacts {
            node: "node-1".to_owned(),
            pod: Some(ReportedPod {
                namespace: "shop".to_owned(),
                name: pod.to_owned(),
                uid: format!("uid-of-{pod}"),
            }),
            container: Some(ReportedContainer {
                name: "app".to_owned(),
                id: format!("id-of-{pod}"),
            }),
            level: Level::Container,
            limit: HitLimit {
                cgroup: Some(format!("/kubepods/{pod}/app")),
                limit_bytes: Some(64 << 20),
                usage_bytes: Some(64 << 20),
                peak_bytes: None,
            },
            container_limit: None,
        },
        cgroup: Some(format!("/kubepods/{pod}/app")),
        victim: Some(Victim {
            pid: u32::try_from(number).unwrap(),
            comm: "app".to_owned(),
            role: Role::Child.into(),
            memory: None,
            oom_score_adj: None,
            uid: None,
        }),
        group: Vec::new(),
        own_write: None,
        evidence: None,
        confidence: Confidence::Exact,
        candidates: Candidates::default(),
        more_candidates: 0,
        while_down: false,
    }
}

/// A node without pods, or one whose pods do not become known.
#[derive(Debug)]
pub(crate) enum NoPods {
    Known,
    Unknown,
}

impl PodMetadata for NoPods {
    fn wait_until_known(&self) -> BoxFuture<'static, ()> {
        match self {
            Self::Known => std::future::ready(()).boxed(),
            Self::Unknown => std::future::pending().boxed(),
        }
    }

    fn complete_names(&self, _: &mut KillFacts) {}

    fn is_init(&self, _: &PodReference) -> bool {
        false
    }

    fn has_pod(&self, _: &PodUid) -> bool {
        false
    }

    fn container_facts(&self, _: &Report) -> Option<ContainerFacts> {
        None
    }
}

fn arbitrary_time() -> impl Strategy<Value = Timestamp> {
    (0i64..4_000_000_000_000_000).prop_map(|micros| Timestamp::from_microsecond(micros).unwrap())
}

fn arbitrary_victim() -> impl Strategy<Value = Victim> {
    let memory = prop::option::of(any::<[u64; 4]>().prop_map(|bytes| ReportedMemory {
        total_vm_bytes: bytes[0],
        anon_rss_bytes: bytes[1],
        file_rss_bytes: bytes[2],
        shmem_rss_bytes: bytes[3],
    }));
    let role = prop::sample::select(vec![Role::Main, Role::Child, Role::Unspecified]);
    (
        any::<u32>(),
        ".{0,15}",
        role,
        memory,
        any::<(Option<i32>, Option<u32>)>(),
    )
        .prop_map(|(pid, comm, role, memory, (oom_score_adj, uid))| Victim {
            pid,
            comm,
            role: role.into(),
            memory,
            oom_score_adj,
            uid,
        })
}

fn arbitrary_limit() -> impl Strategy<Value = HitLimit> {
    (prop::option::of("/[a-z]{1,4}"), any::<[Option<u64>; 3]>()).prop_map(|(cgroup, bytes)| HitLimit {
        cgroup,
        limit_bytes: bytes[0],
        usage_bytes: bytes[1],
        peak_bytes: bytes[2],
    })
}

/// Any confidence.
pub(crate) const CONFIDENCES: [Confidence; 6] = [
    Confidence::Exact,
    Confidence::Procfs,
    Confidence::OnlyCounterThatRose,
    Confidence::Ambiguous,
    Confidence::CounterAlone,
    Confidence::LogAlone,
];

/// Any kill, of one of few containers.
pub(crate) fn arbitrary_kill() -> impl Strategy<Value = OomReport> {
    let whose = (
        prop::option::of("p[ab]"),
        prop::option::of("c[ab]"),
        prop::option::of("/[a-z]{1,9}"),
    );
    let what = (
        (arbitrary_limit(), prop::option::of(arbitrary_limit())),
        prop::option::of(arbitrary_victim()),
        prop::collection::vec(any::<u32>(), 0..3),
        prop::collection::vec(arbitrary_victim(), 0..3),
        prop::option::of((arbitrary_time(), ".{0,9}")),
    );
    let kind = (
        prop::sample::select(Level::all().collect::<Vec<_>>()),
        prop::sample::select(&CONFIDENCES[..]),
        any::<bool>(),
    );
    ("[a-z0-9/:]{1,20}", arbitrary_time(), whose, what, kind).prop_map(
        |(
            id,
            time,
            (pod, container, cgroup),
            ((limit, container_limit), victim, group, candidates, own),
            (level, confidence, down),
        )| {
            OomReport {
                id,
                time,
                facts: KillFacts {
                    node: "n".to_owned(),
                    pod: pod.map(|name| ReportedPod {
                        namespace: "shop".to_owned(),
                        uid: format!("uid-{name}"),
                        name,
                    }),
                    container: container.map(|name| ReportedContainer {
                        id: format!("id-{name}"),
                        name,
                    }),
                    level,
                    limit,
                    container_limit,
                },
                cgroup,
                victim,
                group,
                evidence: own.as_ref().map(|(time, what)| Evidence {
                    time: time.to_string(),
                    path: Some(what.clone()),
                    exit_code: None,
                    unfinished: None,
                }),
                own_write: own.map(|(time, what)| OwnWrite { time, what }),
                confidence,
                more_candidates: u32::from(down),
                candidates: candidates.into(),
                while_down: down,
            }
        },
    )
}
