//! The conditions that must hold after all faults have ended.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use vscaled::model::CgroupPath;
use vscaled::report::proto::{Report, Victim};

use super::action::{Action, Size};
use super::pods::{CONTAINERS, GUARDED, Sizes};
use super::world::World;
use crate::support::amounts::Amounts;

/// The longest time until everything is right: longer than an agent waits for an answer that never comes.
const PATIENCE: Duration = Duration::from_secs(150);
/// The number of connections varies, and so does the number of their tasks.
const CONNECTIONS: f64 = 8.0;

impl World {
    /// Stops all faults, waits until everything is right, and checks for effects that must never happen.
    pub(super) async fn becomes_right(&mut self) {
        self.end_all_faults().await;
        let mut waited = Instant::now();
        while self.count_kills() {
            assert!(waited.elapsed() < PATIENCE, "a victim was not killed");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // While a process grows, a temporary limit may be in the kernel and not yet in the spec.
        self.end_growth();
        for number in 0..self.overrides.len() {
            let answered = self.overrides[number].answered(true).await;
            self.note_answer(number, answered);
            self.overrides[number].end_by_themselves().await;
        }
        waited = Instant::now();
        self.agent.answers().await;
        // The agent must get there without a new decision.
        self.eventually(waited, "what was granted", Self::holds_what_was_granted)
            .await;
        self.note("holds what was granted");
        self.saves_again().await;
        self.forgets_what_was_not_saved();
        self.temporary_limits_are_recorded().await;
        let random = |number: u64| Size {
            cpu: 200 + number % 97,
            memory: 40 + number % 31,
        };
        let fresh = u64::try_from(self.runs_for().as_millis()).unwrap();
        for slot in &mut self.slots {
            let number = fresh + 7 * slot.number as u64;
            slot.recommend(&self.api, [random(number), random(number / 3)]);
        }
        waited = Instant::now();
        self.eventually(waited, "what was decided", Self::holds_what_was_decided)
            .await;
        self.note("holds what was decided");
        self.temporary_limits_are_recorded().await;
        self.overrides_are_recorded().await;
        self.eventually(waited, "nothing to stand still", Self::nothing_is_frozen)
            .await;
        self.check_untouched();
        self.kills_were_reported().await;
        let log = self.agent.log();
        assert!(!log.contains("panicked"), "the agent panicked");
    }

    async fn eventually(&mut self, since: Instant, what: &str, holds: impl Fn(&Self) -> Result<(), String>) {
        while let Err(why) = holds(self) {
            if since.elapsed() > PATIENCE {
                for slot in &self.slots {
                    let explained = self.agent.client().await.explain(slot.pod.full_name()).await;
                    println!("{explained:#?}");
                }
                panic!("waited in vain for {what}: {why}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Checks that the kernel holds the values of the specs, and that the kubelet has reported them.
    pub(super) fn holds_what_was_granted(&self) -> Result<(), String> {
        self.slots.iter().try_for_each(|slot| {
            let spec = slot.spec(&self.api);
            let name = slot.pod.name;
            if !slot.is_confirmed(&self.api) {
                return Err(format!("{name}: the kubelet has not confirmed {spec:?}"));
            }
            let containers: Vec<_> = spec.iter().map(|(name, amounts)| (*name, *amounts)).collect();
            if self.node.holds_as_specified(&slot.pod, &containers) {
                return Ok(());
            }
            Err(format!("{name}: {:#?} instead of {spec:?}", self.node.held(&slot.pod)))
        })
    }

    /// Checks that the specs have the recommended values, with the operators' overrides.
    fn holds_what_was_decided(&self) -> Result<(), String> {
        self.holds_what_was_granted()?;
        for (slot, overrides) in self.slots.iter().zip(&self.overrides) {
            let mut recommended = decided(slot.recommended);
            let spec = slot.spec(&self.api);
            if slot.number == GUARDED {
                // Another check covers the temporary limit.
                let app = recommended.get_mut(CONTAINERS[0]).unwrap();
                app.memory_limit = spec[CONTAINERS[0]].memory_limit;
            }
            let may_be = overrides.over(&recommended);
            if !may_be.iter().any(|(_, sizes)| *sizes == spec) {
                return Err(format!("{}: {spec:?} is none of {may_be:?}", slot.pod.name));
            }
        }
        Ok(())
    }

    /// Checks that the agent knows the existing overrides and reports InSync.
    async fn overrides_are_recorded(&mut self) {
        for number in (0..self.slots.len()).filter(|number| *number != GUARDED) {
            let slot = &self.slots[number];
            let spec = slot.spec(&self.api);
            let may_be = self.overrides[number].over(&decided(slot.recommended));
            let pod = self.agent.reaches(slot.pod.name, "InSync").await;
            assert_eq!(pod.uid, slot.pod.uid);
            let is_one = pod.r#override.is_some();
            let found = may_be.iter().rposition(|(set, sizes)| *set == is_one && *sizes == spec);
            let Some(found) = found else {
                panic!("{}: {:?} is none of {may_be:?}", pod.name, pod.r#override);
            };
            self.overrides[number].settle(found);
        }
    }

    fn nothing_is_frozen(&self) -> Result<(), String> {
        let markers = fs::read_dir(self.agent.state_directory().join("frozen"))
            .unwrap()
            .count();
        let frozen = |cgroup: &CgroupPath| {
            self.node.cgroups().directories(cgroup).iter().any(|directory| {
                let read = |file| fs::read_to_string(directory.join(file)).unwrap_or_default();
                read("cgroup.freeze").trim() == "1" || read("cgroup.events").contains("frozen 1")
            })
        };
        for slot in &self.slots {
            let containers = slot.pod.containers.values().map(|container| &container.cgroup);
            if containers.chain([&slot.pod.cgroup]).any(frozen) {
                return Err(format!("{} stands still", slot.pod.name));
            }
        }
        if markers > 0 {
            Err(format!("{markers} markers are left"))
        } else {
            Ok(())
        }
    }

    /// Checks that the agent saves the state that the full disk refused.
    async fn saves_again(&self) {
        let saves = async || {
            let problems = self.agent.get().await.agent?.problems;
            (!problems.iter().any(|problem| problem.contains("stateDir"))).then_some(())
        };
        self.agent.until("the disk to be used again", saves).await;
    }

    /// Checks that every kill has reached the receiver exactly once.
    async fn kills_were_reported(&mut self) {
        let (since, kills) = (Instant::now(), self.killed.len());
        let told = loop {
            let told = self.told();
            if told.len() >= kills {
                break told;
            }
            let ids = told.keys();
            assert!(
                since.elapsed() < PATIENCE,
                "{} of {kills} kills were told: {ids:#?}; killed: {:?}",
                ids.len(),
                self.killed
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        // Other processes of the machine may be killed at the same time. Such a report is of either process, and the
        // report of the other one may name the process alone.
        let is_foreign = |victim: &Victim| !self.killed.contains(&victim.pid);
        let unsure = told.values().filter(|report| report.candidates.iter().any(is_foreign));
        assert!(
            told.len() - unsure.count() <= kills,
            "{kills} kills were told: {told:#?}; killed: {:?}",
            self.killed
        );
    }

    /// The reports of kills in these pods at the receiver, by id. Where the kernel dropped the lines that name the cgroup,
    /// and the cgroup is gone, a report names the process alone.
    fn told(&self) -> BTreeMap<String, Report> {
        let kubepods = self.node.kubepods();
        let got = self.receiver.got.lock().unwrap();
        let is_ours = |report: &&Report| match (CgroupPath::new(&report.cgroup), &report.victim) {
            (Ok(cgroup), _) => cgroup.below(&kubepods).is_some(),
            (Err(_), Some(victim)) => self.killed.contains(&victim.pid),
            (Err(_), None) => false,
        };
        let ours = got.reports.iter().filter(is_ours);
        let ours: BTreeMap<_, _> = ours.map(|report| (report.id.clone(), report.clone())).collect();
        assert!(ours.values().all(|report| report.count == 1), "{ours:#?}");
        ours
    }

    /// Checks that the end of one agent's lifetime leaves nothing open.
    pub(super) async fn leaves_nothing_open(&mut self, random: &mut fastrand::Rng, lasts: Duration) {
        self.crash("at random");
        self.becomes_right().await;
        let (sockets, others) = self.descriptors();
        let tasks = self.tasks().await;
        let end = self.runs_for() + lasts;
        while self.runs_for() < end {
            match Action::draw(random) {
                Action::Crash { .. } | Action::Stop { .. } => {}
                action => self.execute(action).await,
            }
            tokio::time::sleep(Duration::from_micros(random.u64(..120_000))).await;
        }
        self.becomes_right().await;
        self.eventually(Instant::now(), "descriptors to be closed", |world| {
            let (now, all) = world.descriptors();
            let more = all.iter().filter(|name| !others.contains(name));
            let gone: Vec<_> = more.filter(|name| name.ends_with(" (deleted)")).collect();
            let count = |all: &[String]| all.iter().filter(|name| is_counted(name)).count();
            if now <= sockets + 2 && count(&all) <= count(&others) && gone.is_empty() {
                return Ok(());
            }
            Err(format!("{now} sockets and {all:#?} after {sockets} and {others:#?}"))
        })
        .await;
        let since = Instant::now();
        loop {
            let now = self.tasks().await;
            if now <= tasks + CONNECTIONS {
                self.note(&format!("{now} tasks, {tasks} before"));
                return;
            }
            assert!(
                since.elapsed() < PATIENCE,
                "waited in vain for tasks to end: {now}, and {tasks} before"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Checks that one more kill is reported once.
    pub(super) async fn ends(&mut self) {
        self.kill_one_now();
        self.becomes_right().await;
        self.temporary_limits_end().await;
        let all: u32 = self.crashes.values().sum();
        println!(
            "killed {all} times: {:?}; {} kills for want of memory",
            self.crashes,
            self.killed.len()
        );
    }
}

fn decided(recommended: [Size; 2]) -> Sizes {
    let amounts = recommended.map(|Size { cpu, memory }| Amounts::doubled(cpu, memory));
    CONTAINERS.into_iter().zip(amounts).collect()
}

/// Whether the number of such descriptors is fixed. Cgroup files and their notifications depend on the pods of recent
/// passes.
fn is_counted(descriptor: &str) -> bool {
    !descriptor.starts_with("/sys/fs/cgroup/") && descriptor != "anon_inode:[eventfd]"
}
