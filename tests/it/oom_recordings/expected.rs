//! The kills in each recording, in the order of the log.

mod bursts;

use vscaled::oom::Level;

pub(super) struct Recording {
    pub(super) file: &'static str,
    pub(super) kills: Vec<Kill>,
}

/// A kill, as read in the recording by a person.
#[derive(Clone)]
pub(super) struct Kill {
    pid: u32,
    comm: &'static str,
    limit: Option<String>,
    task: Option<String>,
    pub(super) level: Level,
    pub(super) pod: Option<&'static str>,
    pub(super) container: Option<&'static str>,
}

impl Kill {
    pub(super) fn explanation(&self) -> (u32, &str, Option<&str>, Option<&str>) {
        (self.pid, self.comm, self.limit.as_deref(), self.task.as_deref())
    }
}

const POD: &str = "6c4b2d1e-7a55-4d6b-9c3e-2f0b8a9d1c77";
const A: &str = "a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1";
const B: &str = "b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2";
const C: &str = "c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3";
const D: &str = "d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0";
const E: &str = "e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5";

/// The pod's slice in the guests.
fn slice() -> String {
    let slice = POD.replace('-', "_");
    format!("/oomlab/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice")
}

fn scope(id: &str) -> String {
    format!("{}/cri-containerd-{id}.scope", slice())
}

/// A kill in a cgroup outside of pods and containers.
fn elsewhere(pid: u32, comm: &'static str, cgroup: &str) -> Kill {
    Kill {
        pid,
        comm,
        limit: Some(cgroup.to_owned()),
        task: Some(cgroup.to_owned()),
        level: Level::Other,
        pod: None,
        container: None,
    }
}

/// A kill without a report from the kernel.
fn unexplained(pid: u32, comm: &'static str) -> Kill {
    let mut kill = elsewhere(pid, comm, "");
    (kill.limit, kill.task, kill.level) = (None, None, Level::Unspecified);
    kill
}

/// A kill in container A of the guests' pod, which hit its own limit.
fn in_a(pid: u32, comm: &'static str) -> Kill {
    Kill {
        level: Level::Container,
        pod: Some(POD),
        container: Some(A),
        ..elsewhere(pid, comm, &scope(A))
    }
}

/// A kill in container A because of the limit of its pod.
fn in_a_for_pod(pid: u32, comm: &'static str) -> Kill {
    Kill {
        limit: Some(slice()),
        level: Level::Pod,
        ..in_a(pid, comm)
    }
}

/// The guests' kills because the node had no memory left: container B, then the process in the root cgroup that used
/// it.
fn node(pids: [u32; 2]) -> Vec<Kill> {
    let [bystander, hog] = pids;
    let bystander = Kill {
        limit: None,
        level: Level::Node,
        pod: Some(POD),
        container: Some(B),
        ..elsewhere(bystander, "bystander", &scope(B))
    };
    let hog = Kill {
        limit: None,
        level: Level::Node,
        ..elsewhere(hog, "sysmem-hog", "/")
    };
    vec![bystander, hog]
}

pub(super) fn all() -> Vec<Recording> {
    let recording = |file, kills| Recording { file, kills };
    vec![
        recording("guest-5.10-v1-g12-global-oom.txt", node([123, 124])),
        recording("guest-5.10-v1-g2-pod-limit-hit.txt", vec![in_a_for_pod(85, "main-a")]),
        recording("guest-5.10-v2-g1-leaf-limit.txt", vec![in_a(83, "hog")]),
        recording(
            "guest-5.10-v2-g4-oom-group.txt",
            vec![
                in_a(92, "worker-9"),
                in_a(89, "bash"),
                in_a(90, "idle-1"),
                in_a(91, "idle-2"),
            ],
        ),
        recording("guest-6.1-v2-g12-global-oom.txt", node([157, 158])),
        recording("guest-6.1-v2-g2-pod-limit-hit.txt", vec![in_a_for_pod(96, "main-a")]),
        recording(
            "guest-6.1-v2-g4b-oom-group-podlimit.txt",
            vec![
                in_a_for_pod(106, "worker-9"),
                in_a_for_pod(104, "bash"),
                in_a_for_pod(105, "idle-1"),
            ],
        ),
        recording("guest-6.1-v2-g6-memory-max-shrink-oom.txt", vec![in_a(141, "hog")]),
        recording(
            "guest-6.12-v2-g3-child-killed-main-survives.txt",
            vec![in_a(153, "worker-1")],
        ),
        recording("guest-6.12-v2-g5-burst30.txt", bursts::thirty()),
        recording("guest-7.2-v2-g1-leaf-limit.txt", vec![in_a(112, "hog")]),
        recording("guest-7.2-v2-g12-global-oom.txt", node([172, 173])),
        recording(
            "guest-7.2-v2-g4-oom-group.txt",
            vec![
                in_a(120, "worker-9"),
                in_a(117, "bash"),
                in_a(118, "idle-1"),
                in_a(119, "idle-2"),
            ],
        ),
        recording("s1-leaf-limit-v1.txt", vec![elsewhere(9270, "hog", "/oomlab/s1")]),
        recording("s2-pod-limit-hit-v1.txt", vec![pod_limit()]),
        recording(
            "s3-child-killed-main-survives-v1.txt",
            vec![worker(7309, "worker-1"), worker(7313, "worker-2")],
        ),
        recording("s3b-adversarial-comm-v1.txt", hostile_commands()),
        recording("s4-burst50-parallel-tracefs-mark_victim.txt", vec![]),
        recording("s4-burst50-parallel-v1.txt", bursts::fifty()),
        recording("s5a-kind-nested-path-v1.txt", vec![nested(4172, "")]),
        recording("s5d-path-huge-v1.txt", vec![nested(4265, &huge())]),
        recording("s7-forged-from-userspace.txt", vec![]),
    ]
}

fn pod_limit() -> Kill {
    let pod = format!("/oomlab/kubepods/burstable/pod{POD}");
    Kill {
        limit: Some(pod.clone()),
        task: Some(format!("{pod}/{A}")),
        ..in_a_for_pod(6346, "main-a")
    }
}

fn worker(pid: u32, comm: &'static str) -> Kill {
    const WORKERS: &str = "0f6a3c58-1c2d-4e1b-8a8f-5f3b9d2e7a10";
    Kill {
        level: Level::Container,
        pod: Some(WORKERS),
        container: Some(C),
        ..elsewhere(pid, comm, &format!("/oomlab/kubepods/burstable/pod{WORKERS}/{C}"))
    }
}

fn hostile_commands() -> Vec<Kill> {
    let commands = [
        (7406, "a,pid=1,uid=0"),
        (7415, "x) total-vm:9kB"),
        (7416, "new\nline"),
        (7444, "ünï\\côdé"),
        (7463, "(sd-pam)"),
        (7474, "kworker/0:1 [x]"),
        (7486, " lead"),
        (7518, "tab\there"),
        (7569, ""),
    ];
    commands
        .map(|(pid, comm)| elsewhere(pid, comm, "/oomlab/weird"))
        .to_vec()
}

/// A container of a node that is itself a container (kind), with the victim in a cgroup below it.
fn nested(pid: u32, below: &str) -> Kill {
    let slice = POD.replace('-', "_");
    let limit = format!(
        "/oomlab/docker/{D}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/\
         kubelet-kubepods-burstable-pod{slice}.slice/cri-containerd-{E}.scope"
    );
    Kill {
        task: Some(limit.clone() + below),
        level: Level::Container,
        pod: Some(POD),
        container: Some(E),
        ..elsewhere(pid, "long", &limit)
    }
}

fn huge() -> String {
    format!("/{}/{}/{}", "x".repeat(250), "y".repeat(250), "z".repeat(200))
}
