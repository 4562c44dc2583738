//! Pods whose containers have very low memory limits, and the observers of kills in them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use vscaled::cgroup::Hierarchy;
use vscaled::feed::Feed;
use vscaled::model::objects::PodId;
use vscaled::model::{CgroupPath, ContainerId, LiveContainer, LivePod};
use vscaled::oom::kmsg::monotonic;
use vscaled::oom::watch::{Links, NodePods, start};

use crate::log::{Content, Log};
use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::bare::{BareNode, BarePod};

/// A limit of 4 MiB.
const SMALL: Amounts = Amounts::doubled(1000, 2);

/// The pods. Dropping the value ends and removes everything.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) node: BareNode,
    pods: Vec<BarePod>,
}

impl Scene {
    /// Creates pods of one container.
    pub(crate) fn new(pods: usize) -> Self {
        let mut node = BareNode::new();
        let pods = (0..pods)
            .map(|number| {
                let uid: &'static str = format!("0a1b2c3d-0000-4000-9000-{number:012x}").leak();
                let name: &'static str = format!("web-{number}").leak();
                node.run(name, uid, &[("app", SMALL)])
            })
            .collect();
        Self { node, pods }
    }

    pub(crate) fn cgroups(&self) -> Vec<CgroupPath> {
        self.pods
            .iter()
            .map(|pod| pod.containers["app"].cgroup.clone())
            .collect()
    }

    /// An agent that knows the pods and watches for kills.
    pub(crate) async fn agent(&self) -> Agent {
        let mut agent = Agent::new(&self.node.kubepods());
        for pod in &self.pods {
            agent.write(&format!("{}.yaml", pod.name), &pod.manifest());
        }
        agent.start().await;
        let live = async || {
            let known = agent.get().await.pods;
            let live = |pod: &vscaled::control::proto::Pod| pod.containers.iter().all(|one| one.id.is_some());
            (known.len() == self.pods.len() && known.iter().all(live)).then_some(())
        };
        agent.until("all pods to live", live).await;
        agent.wait_for("the agent to watch", || agent.watches_kills()).await;
        agent
    }

    /// The pods in the form in which the agent gives them to the watcher.
    fn residents(&self) -> anyhow::Result<NodePods> {
        let live = |pod: &BarePod| {
            let container = |(name, one): (&&str, &crate::support::bare::BareContainer)| {
                let live = LiveContainer {
                    id: ContainerId::parse(&one.id)?,
                    path: one.cgroup.clone(),
                };
                Some(((*name).into(), live))
            };
            Arc::new(LivePod {
                id: PodId {
                    uid: pod.uid.into(),
                    namespace: "test".to_owned(),
                    name: pod.name.to_owned(),
                },
                path: pod.cgroup.clone(),
                containers: pod.containers.iter().filter_map(container).collect(),
            })
        };
        Ok(NodePods {
            tree: Some((Hierarchy::discover(None)?, self.node.kubepods())),
            pods: self.pods.iter().map(live).collect(),
        })
    }
}

/// The time at which an observer learned of each process's kill, on CLOCK_MONOTONIC, and counts of the kills.
#[derive(Debug, Default)]
pub(crate) struct Observations {
    pub(crate) by_process: HashMap<u32, Duration>,
    /// Kills, by their ids.
    pub(crate) kills: HashSet<String>,
    /// Kills with more than one report.
    pub(crate) twice: usize,
    /// Kills with a known container.
    pub(crate) placed: usize,
    /// Processes whose cgroup the kernel logged.
    pub(crate) explained: HashSet<u32>,
}

/// The same, shared with a running observer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observer(Arc<Mutex<Observations>>);

impl Observer {
    pub(crate) fn with<T>(&self, use_it: impl FnOnce(&mut Observations) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn record_kill(&self, id: String, pid: Option<u32>, container: bool) {
        let now = monotonic();
        self.with(|seen| {
            seen.placed += usize::from(container);
            seen.twice += usize::from(!seen.kills.insert(id));
            if let Some(pid) = pid {
                seen.by_process.insert(pid, now);
            }
        });
    }
}

/// A running observer. Dropping the value ends it.
#[derive(Debug)]
pub(crate) struct Watching {
    pub(crate) observer: Observer,
    _end: End,
}

/// The handle that ends the observer.
#[derive(Debug)]
#[expect(dead_code, reason = "held for what dropping it does")]
enum End {
    Watcher(
        tokio_util::sync::DropGuard,
        watch::Sender<Arc<NodePods>>,
        Feed<Arc<vscaled::model::ChangeRecord>>,
    ),
    Reader(tokio_util::sync::DropGuard),
    Socket(tokio::task::JoinHandle<anyhow::Result<()>>),
}

/// The watcher alone, in this process: its output to the reporter.
pub(crate) async fn watcher(scene: &Scene) -> anyhow::Result<Watching> {
    let tree = scene.node.kubepods();
    let (residents, pods) = watch::channel(Arc::new(scene.residents()?));
    let changes = Feed::default();
    let (batches, mut taken) = mpsc::channel::<vscaled::oom::watch::Batch>(64);
    let (problems, _) = watch::channel(Vec::new());
    let stop = CancellationToken::new();
    let observer = Observer::default();
    let (recorder, (ready, is_ready)) = (observer.clone(), tokio::sync::oneshot::channel());
    let taker = async move {
        let mut ready = Some(ready);
        while let Some(batch) = taken.recv().await {
            for report in batch.reports {
                let ours = report.cgroup.as_deref().and_then(|path| CgroupPath::new(path).ok());
                if ours.is_some_and(|path| path.below(&tree).is_some()) {
                    let pid = report.victim.as_ref().map(|victim| victim.pid);
                    recorder.record_kill(report.id, pid, report.facts.container.is_some());
                }
            }
            // The first batch means that everything from before has been read.
            if let Some(ready) = ready.take() {
                ready.send(()).unwrap_or_default();
            }
        }
    };
    start(
        Links {
            kmsg: "/dev/kmsg".into(),
            node_name: "bench".to_owned(),
            checkpoint: None,
            pods,
            changes: changes.listen(),
            batches,
            problems,
            stop: stop.clone(),
        },
        taker,
    )?;
    is_ready.await?;
    let _end = End::Watcher(stop.drop_guard(), residents, changes);
    Ok(Watching { observer, _end })
}

/// A client at the agent's socket.
pub(crate) async fn at_the_socket(scene: &Scene, agent: &Agent) -> anyhow::Result<Watching> {
    let mut watch = agent.client().await.watch().await?;
    let tree = scene.node.kubepods();
    let observer = Observer::default();
    let recorder = observer.clone();
    let task = tokio::spawn(async move {
        loop {
            let change = watch.next().await?;
            anyhow::ensure!(change.missed == 0, "{} kills were missed", change.missed);
            let Some(kill) = change.kill else { continue };
            let ours = kill.cgroup.as_deref().and_then(|path| CgroupPath::new(path).ok());
            if ours.is_some_and(|path| path.below(&tree).is_some()) {
                recorder.record_kill(kill.id, kill.victim.map(|victim| victim.pid), kill.container.is_some());
            }
        }
    });
    let _end = End::Socket(task);
    Ok(Watching { observer, _end })
}

/// A reader that reads the whole log again and again with a pause, as `dmesg` does. Also returns the processor time
/// of the reads so far.
pub(crate) fn rereader(pause: Duration) -> (Watching, Arc<Mutex<Duration>>) {
    let observer = Observer::default();
    let stop = CancellationToken::new();
    let used = Arc::new(Mutex::new(Duration::ZERO));
    let (recorder, stopped, using) = (observer.clone(), stop.clone(), Arc::clone(&used));
    std::thread::spawn(move || {
        let mut next = 0;
        while !stopped.is_cancelled() {
            match Log::from_the_beginning().and_then(|mut log| log.read()) {
                Ok(records) => {
                    let end = records.iter().map(|record| record.number + 1).max();
                    for record in records.into_iter().filter(|record| record.number >= next) {
                        match record.content {
                            Content::Killed(pid) => recorder.record_kill(record.number.to_string(), Some(pid), false),
                            Content::Explained(pid) => recorder.with(|seen| {
                                seen.explained.insert(pid);
                            }),
                            Content::Written(_) => {}
                        }
                    }
                    next = next.max(end.unwrap_or(0));
                }
                Err(error) => eprintln!("the kernel's log: {error}"),
            }
            if let Ok(time) = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID) {
                *using.lock().unwrap_or_else(PoisonError::into_inner) = time.into();
            }
            std::thread::sleep(pause);
        }
    });
    let _end = End::Reader(stop.drop_guard());
    (Watching { observer, _end }, used)
}
