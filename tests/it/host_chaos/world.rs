//! The complete scene, and the execution of events.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::json;
use vscaled::model::{CgroupPath, Settings};

use super::action::{Action, Failpoint, KubeletFault};
use super::clock::Clock;
use super::operators::{Limits, Overrides};
use super::pods::{CERTAIN, CONTAINERS, GUARDED, KILLED, NODE, REAL, Slot, bystander, kubelet_writes};
use super::runtime::Runtime;
use crate::reports::receiver::{Manner, Receiver};
use crate::support::agent::Agent;
use crate::support::allocator::Allocator;
use crate::support::amounts::Amounts;
use crate::support::apimodel::{ApiModel, Fault, Link, ResizeResult};
use crate::support::bare::{BareNode, BarePod};
use crate::support::http;
use crate::support::mounts::unmount_below;
use crate::support::victims::{holding, victim};

/// The kernel logs ten kills in five seconds for the whole machine.
const BETWEEN_KILLS: Duration = Duration::from_millis(700);
/// The agent stops correcting a foreign writer after three writes.
const FOREIGN_WRITES: u32 = 2;
/// The longest time for an agent to reach its failpoint.
const TO_THE_POINT: Duration = Duration::from_millis(1000);
/// More memory than any limit permits, in bytes.
const TOO_MUCH: u64 = 512 << 20;
/// The size of the state directory's disk in KiB.
const DISK: usize = 2048;

pub(super) struct World {
    // The agent uses the disk until it has ended; still, the mount is dropped first.
    pub(super) disk: Disk,
    pub(super) agent: Agent,
    pub(super) api: ApiModel,
    pub(super) receiver: Receiver,
    /// The process in the pod with temporary limits, and the number of kills there before its start.
    pub(super) growth: Option<(Allocator, u64)>,
    pub(super) node: BareNode,
    pub(super) runtime: Runtime,
    clock: Clock,
    pub(super) slots: Vec<Slot>,
    pub(super) overrides: Vec<Overrides>,
    bystander: BarePod,
    /// The values that no writer has a reason to change.
    untouched: BTreeMap<CgroupPath, Settings>,
    victims: Vec<(Child, usize)>,
    last_kill: Option<Instant>,
    /// The processes that the kernel has killed, by pid.
    pub(super) killed: Vec<u32>,
    pub(super) crashes: BTreeMap<&'static str, u32>,
    /// The failpoint of the running agent.
    armed: Failpoint,
    link_returns: Option<Instant>,
    kubelet_recovers: Option<Instant>,
    began: Instant,
    launched: Instant,
    /// Whether the disk was full, and the agent has not yet reported a complete save.
    unsaved: bool,
    /// Whether an agent was killed before it could save its decisions.
    forgot: bool,
}

/// A small file system at the agent's state directory.
pub(super) struct Disk {
    directory: PathBuf,
    full_until: Option<Instant>,
}

impl World {
    pub(super) async fn start(seed: u64) -> Self {
        let runtime = Runtime::start().await;
        let clock = Clock::right();
        let mut node = runtime.node();
        let kubepods = node.kubepods();
        let api = ApiModel::start(NODE, &json!({"cpu": "64", "memory": "64Gi"})).await;
        let manner = if seed.is_multiple_of(2) {
            Manner::BySequence
        } else {
            Manner::ById
        };
        let receiver = Receiver::start(manner).await;
        let agent = Agent::new(&kubepods)
            .with("--source", "kubernetes")
            .with("--node-name", NODE)
            .with("--kubeconfig", api.kubeconfig())
            .with("--sweep-interval", "1s")
            .with("--http-address", "127.0.0.1:0")
            .with("--runtime-socket", runtime.socket())
            .with("--runtime-timeout", "1s")
            .with("--guard-reserve", "100Mi")
            .with("--guard-pod-budget", "100%")
            .with("--guard-node-budget", "100%")
            .with("--guard-quiet-period", "1s")
            .with_variables(clock.variables())
            // The audit log shares the small disk with what must be saved.
            .with("--audit-log-size", "64Ki")
            .with("--audit-log-files", "2")
            .with("--report-grpc-endpoint", &receiver.address)
            .with("--report-grpc-max-backoff", "1s");
        let disk = Disk::mount(agent.state_directory());
        let slots = Slot::all(&mut node, &api, &runtime.pod());
        let bystander = bystander(&mut node, &api);
        kubelet_writes(&node, &api);
        let mut world = Self {
            disk,
            agent,
            api,
            receiver,
            overrides: slots.iter().map(|_| Overrides::none()).collect(),
            slots,
            bystander,
            untouched: BTreeMap::new(),
            victims: Vec::new(),
            last_kill: None,
            killed: Vec::new(),
            crashes: BTreeMap::new(),
            armed: None,
            link_returns: None,
            kubelet_recovers: None,
            began: Instant::now(),
            launched: Instant::now(),
            growth: None,
            clock,
            runtime,
            unsaved: false,
            forgot: false,
            node,
        };
        world.agent.start().await;
        let watches = || world.agent.watches_kills();
        world.agent.wait_for("the agent to watch", watches).await;
        world.untouched = world.read_untouched();
        world
    }

    pub(super) fn runs_for(&self) -> Duration {
        self.began.elapsed()
    }

    /// Prints an event; the output appears when the test fails.
    pub(super) fn note(&self, line: &str) {
        println!("{:9.3} {line}", self.runs_for().as_secs_f64());
    }

    fn read_untouched(&self) -> BTreeMap<CgroupPath, Settings> {
        let kubepods = self.node.kubepods();
        let containers = self
            .bystander
            .containers
            .values()
            .map(|container| container.cgroup.clone());
        let all = containers.chain([self.bystander.cgroup.clone(), kubepods]);
        all.map(|cgroup| {
            let settings = self.node.cgroups().settings(&cgroup);
            (cgroup, settings)
        })
        .collect()
    }

    pub(super) fn check_untouched(&self) {
        assert_eq!(
            self.read_untouched(),
            self.untouched,
            "nobody has a reason to write these"
        );
    }

    /// Executes one event if it is possible.
    pub(super) async fn execute(&mut self, action: Action) {
        self.end_due_faults().await;
        self.note(&format!("{action:?}"));
        match action {
            Action::Recommend { pod, sizes } => self.slots[pod].recommend(&self.api, sizes),
            Action::RestartContainer { pod: REAL, container } => self.restart_real(container).await,
            Action::RestartContainer { pod, container } if !self.is_dying(pod, container) => {
                if pod == GUARDED {
                    self.end_growth();
                }
                self.slots[pod].restart(&mut self.node, &self.api, CONTAINERS[container]);
            }
            Action::ReplacePod {
                pod: CERTAIN | REAL, ..
            } => {}
            Action::ReplacePod { pod, unseen } if !self.is_dying(pod, 0) && !self.is_dying(pod, 1) => {
                // With two calls in progress, the test could not tell which one an answer belongs to.
                if !self.overrides[pod].is_waiting() {
                    if unseen {
                        self.crash("at random");
                    }
                    self.replace(pod);
                    if unseen {
                        self.launch(None);
                    }
                }
            }
            Action::RestartContainer { .. } | Action::ReplacePod { .. } => {}
            Action::Foreign {
                pod,
                container,
                memory,
                amount,
            } => self.foreign_writes(
                pod,
                container,
                memory && ![KILLED, REAL, GUARDED].contains(&pod),
                amount,
            ),
            Action::Fault {
                verb,
                resource,
                times,
                effect,
            } => self.api.fault(Fault {
                verb,
                resource,
                times: Some(times),
                effect,
            }),
            Action::Outage { silent, lasts } => {
                self.api.link(if silent { Link::Silent } else { Link::Cut });
                self.link_returns = Some(Instant::now() + lasts);
            }
            Action::Compact => self.api.compact(),
            Action::Kubelet { fault, lasts } => self.set_kubelet_fault(fault, lasts),
            Action::Resize {
                pod: CERTAIN | GUARDED, ..
            }
            | Action::Release { pod: CERTAIN | GUARDED } => {}
            Action::Grow { until, rate } => self.grow(until, rate),
            Action::Runtime { hangs, lasts } => self.runtime.start_outage(hangs, lasts),
            // The end of an override that is being set would be of another clock than its request.
            Action::Clock { .. } if self.overrides.iter().any(Overrides::is_waiting) => {}
            Action::Clock { seconds } => self.clock.jump(seconds),
            Action::Resize { pod, cpu, memory, ttl } => {
                let memory = memory.filter(|_| ![KILLED, REAL].contains(&pod));
                if cpu.is_some() || memory.is_some() {
                    self.operator_asks(pod, Some(Limits { cpu, memory }), ttl);
                }
            }
            Action::Release { pod } => self.operator_asks(pod, None, None),
            // With a full disk, an override in progress may not be saved.
            Action::FullDisk { lasts } if !self.overrides.iter().any(Overrides::is_waiting) => {
                self.disk.fill(lasts);
                self.unsaved = true;
            }
            Action::FullDisk { .. } => {}
            Action::Kill { container } => self.kill_one(container),
            Action::Noise { lines } => noise(lines),
            // An agent with a failpoint gets time to reach it.
            Action::Crash { .. } if self.armed.is_some() && self.launched.elapsed() < TO_THE_POINT => {}
            Action::Crash { down, next } => {
                self.crash("at random");
                tokio::time::sleep(down).await;
                self.launch(next);
            }
            Action::Stop { next } => {
                if self.agent.is_launched() {
                    // An agent that has only just started may end with an error.
                    let status = self.agent.end_somehow();
                    self.forgot |= self.unsaved;
                    self.note(&format!("told to stop: {status}"));
                    assert!(status.success() || matches!(status.signal(), Some(9 | 15)), "{status}");
                }
                self.launch(next);
            }
        }
    }

    fn replace(&mut self, pod: usize) {
        if pod == GUARDED {
            self.end_growth();
        }
        self.slots[pod].replace(&mut self.node, &self.api);
        self.overrides[pod] = Overrides::none();
    }

    /// Replaces the pods whose original limits are unknown: an agent that was killed before a save does not know
    /// which limits in the specs are the pods' own.
    pub(super) fn forgets_what_was_not_saved(&mut self) {
        self.unsaved = false;
        if std::mem::take(&mut self.forgot) {
            self.note("new pods for all, because an agent could not save what it had decided");
            let pods = (0..self.slots.len()).filter(|pod| *pod != REAL);
            pods.for_each(|pod| self.replace(pod));
        }
    }

    /// Ends faults that are due, and notices processes that ended.
    pub(super) async fn end_due_faults(&mut self) {
        let now = Instant::now();
        if self.link_returns.take_if(|at| *at <= now).is_some() {
            self.api.link(Link::Up);
        }
        if self.kubelet_recovers.take_if(|at| *at <= now).is_some() {
            self.kubelet_is_well();
        }
        self.runtime.end_outage(Some(now)).await;
        self.disk.empty_when_due(now);
        self.count_kills();
        for number in 0..self.overrides.len() {
            let answered = self.overrides[number].answered(false).await;
            self.note_answer(number, answered);
        }
        if let Some(status) = self.agent.has_ended() {
            let armed = self.armed.filter(|_| status.signal() == Some(9));
            let (point, _) = armed.unwrap_or_else(|| panic!("the agent ended by itself: {status}"));
            self.crash(point);
            self.launch(None);
        }
    }

    pub(super) fn note_answer(&self, number: usize, answered: Option<String>) {
        if let Some(answered) = answered {
            self.note(&format!("pod {number}: {answered}"));
        }
    }

    pub(super) fn crash(&mut self, point: &'static str) {
        if self.agent.is_launched() {
            self.agent.kill();
            self.forgot |= self.unsaved;
            *self.crashes.entry(point).or_default() += 1;
            self.note(&format!("killed {point}"));
        }
    }

    pub(super) fn launch(&mut self, next: Failpoint) {
        self.agent.arm(next.map(|(point, times)| format!("{point}:{times}")));
        self.armed = next;
        self.launched = Instant::now();
        self.agent.launch();
    }

    /// Descriptors of the agent: the number of sockets, and all others.
    pub(super) fn descriptors(&self) -> (usize, Vec<String>) {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.agent.pid())).unwrap();
        let targets = entries.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        let names = targets.map(|target| target.to_string_lossy().into_owned());
        // Opened with the first change by an operator, and kept.
        let names = names.filter(|name| !name.ends_with("/audit.operators.jsonl"));
        let (sockets, others): (Vec<_>, Vec<_>) = names.partition(|name| name.starts_with("socket:"));
        (sockets.len(), others)
    }

    /// The number of the agent's tasks.
    pub(super) async fn tasks(&self) -> f64 {
        let said = || {
            let log = self.agent.log();
            let (_, rest) = log.rsplit_once(" http=")?;
            let address = rest.split_whitespace().next()?.parse().ok()?;
            let (_, text) = http::get(address, "/metrics")?;
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("vscaled_process_tasks "))?;
            line.parse::<f64>().ok()
        };
        self.agent.until("the agent's metrics", async || said()).await
    }

    /// Ends all faults.
    pub(super) async fn end_all_faults(&mut self) {
        self.note("all is well");
        self.api.mend();
        // Gives up calls that hang.
        self.api.link(Link::Cut);
        self.api.link(Link::Up);
        self.link_returns = None;
        self.kubelet_is_well();
        self.kubelet_recovers = None;
        self.disk.empty();
        self.runtime.end_outage(None).await;
        self.clock.jump(0);
        if self.armed.is_some() {
            self.crash("at random");
        }
        if !self.agent.is_launched() {
            self.launch(None);
        }
    }

    fn kubelet_is_well(&self) {
        self.api.kubelet(|kubelet| {
            kubelet.asleep = false;
            kubelet.result = ResizeResult::Done;
        });
    }

    fn set_kubelet_fault(&mut self, fault: KubeletFault, lasts: Duration) {
        self.api.kubelet(|kubelet| match fault {
            KubeletFault::Asleep => kubelet.asleep = true,
            KubeletFault::Deferred => kubelet.result = ResizeResult::Deferred("Node didn't have enough resource: cpu"),
            KubeletFault::Infeasible => {
                kubelet.result =
                    ResizeResult::Infeasible("Node didn't have enough capacity: cpu, requested: 9000, capacity: 4000");
            }
            KubeletFault::Failing => kubelet.result = ResizeResult::Error("failed to actuate"),
        });
        self.kubelet_recovers = Some(Instant::now() + lasts);
    }

    fn operator_asks(&mut self, pod: usize, wanted: Option<Limits>, ttl: Option<Duration>) {
        // The end of an override is a time of day, so it is another moment where the clock is wrong.
        let ttl = ttl.filter(|_| self.clock.is_right);
        if !self.overrides[pod].is_waiting() && self.disk.is_well() {
            let name = self.slots[pod].pod.full_name();
            self.overrides[pod].ask(self.agent.socket(), name, wanted, ttl);
        }
    }

    /// Sets limits that stay in force, because no operator sends other requests for this pod.
    pub(super) async fn set_certain_override(&mut self, random: &mut fastrand::Rng) {
        let limits = Limits {
            cpu: Some(random.u64(850..1200)),
            memory: Some(random.u64(200..300)),
        };
        self.operator_asks(CERTAIN, Some(limits), None);
        let answered = self.overrides[CERTAIN].answered(true).await;
        self.note_answer(CERTAIN, answered);
        assert!(
            self.overrides[CERTAIN].is_certain(),
            "not in force although all is well"
        );
    }

    fn foreign_writes(&mut self, pod: usize, container: usize, memory: bool, amount: u64) {
        let slot = &mut self.slots[pod];
        if slot.foreign == FOREIGN_WRITES {
            return;
        }
        slot.foreign += 1;
        let theirs = Amounts {
            cpu: amount,
            cpu_limit: Some(amount),
            memory: amount,
            memory_limit: Some(amount),
        };
        let cgroup = &slot.pod.containers[CONTAINERS[container]].cgroup;
        let theirs = theirs.settings(self.node.cgroups().version());
        let theirs: Vec<_> = theirs
            .iter()
            .filter(|setting| setting.memory().is_some() == memory)
            .collect();
        self.node
            .cgroups()
            .try_put(cgroup, theirs[usize::try_from(amount).unwrap() % theirs.len()]);
    }

    fn is_dying(&self, pod: usize, container: usize) -> bool {
        pod == KILLED && self.victims.iter().any(|(_, other)| *other == container)
    }

    fn kill_one(&mut self, container: usize) {
        if self.last_kill.is_none_or(|last| last.elapsed() > BETWEEN_KILLS) {
            self.last_kill = Some(Instant::now());
            let cgroup = &self.slots[KILLED].pod.containers[CONTAINERS[container]].cgroup;
            let child = victim(self.node.cgroups(), cgroup, &holding(TOO_MUCH));
            self.victims.push((child, container));
        }
    }

    pub(super) fn kill_one_now(&mut self) {
        self.last_kill = None;
        self.kill_one(0);
    }

    /// Counts dead processes as kills. Returns whether other processes still live.
    pub(super) fn count_kills(&mut self) -> bool {
        let before = self.killed.len();
        let killed = &mut self.killed;
        self.victims.retain_mut(|(child, _)| match child.try_wait().unwrap() {
            None => true,
            Some(status) => {
                assert_eq!(status.signal(), Some(9), "not killed; is there swap?");
                killed.push(child.id());
                false
            }
        });
        if self.killed.len() > before {
            self.note(&format!("{} were killed for want of memory", self.killed.len()));
        }
        !self.victims.is_empty()
    }
}

impl Disk {
    fn mount(directory: PathBuf) -> Self {
        fs::create_dir_all(&directory).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={DISK}k,mode=700"), "tmpfs"])
            .arg(&directory)
            .status();
        assert!(mounted.unwrap().success());
        Self {
            directory,
            full_until: None,
        }
    }

    /// Whether the disk has room.
    pub(super) const fn is_well(&self) -> bool {
        self.full_until.is_none()
    }

    fn ballast(&self) -> PathBuf {
        self.directory.join("ballast")
    }

    fn fill(&mut self, lasts: Duration) {
        // Fills the remaining room.
        let filled = fs::write(self.ballast(), vec![0; DISK << 10]);
        assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
        self.full_until = Some(Instant::now() + lasts);
    }

    fn empty_when_due(&mut self, now: Instant) {
        if self.full_until.is_some_and(|until| until <= now) {
            self.empty();
        }
    }

    fn empty(&mut self) {
        if self.full_until.take().is_some() {
            fs::remove_file(self.ballast()).unwrap();
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in ["state.json", "kills.log"] {
                let content = fs::read(self.directory.join(name)).unwrap_or_default();
                println!("{name}:\n{}", String::from_utf8_lossy(&content));
            }
        }
        unmount_below(&self.directory);
    }
}

/// Writes lines into the kernel's log, which accepts only some lines from each open file.
fn noise(lines: u32) {
    for line in 0..lines {
        fs::write("/dev/kmsg", format!("<6>vscaled-test: line {line} of {lines}")).unwrap();
    }
}
