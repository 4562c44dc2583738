//! Errors after the agent is killed at random moments of the guard's work and started again.
//!
//! Each time has its own pod, or three, so that the guard has a reason to act. The moment is random within the time
//! that the guard has for its action. A kill at the limit is not an error, because it would also happen without an
//! agent.

use std::fs;
use std::time::Duration;

use vscaled::control::proto;
use vscaled::model::{CgroupPath, CgroupVersion, CpuQuota, MemoryLimit};

use crate::scene::Scene;
use crate::support::allocator::{Allocation, Allocator, End};
use crate::support::amounts::Amounts;
use crate::support::bare::BarePod;

/// A process allocates this much, from a limit of 128 MiB.
const GROWTH: Allocation = Allocation { rate: 200, until: 300 };
/// Each of two processes tries to allocate this much, and all pods together may have [`TOGETHER`].
const RACE: Allocation = Allocation { rate: 200, until: 1000 };
const TOGETHER: u64 = 700;
/// One in this many kills happens during temporary cpu limits, which take ten seconds to begin.
const CPU: usize = 8;

/// The amounts of a container that gets a temporary cpu limit: one process reaches this limit on any machine.
const HELD_BACK: Amounts = Amounts::doubled(50, 64);

/// The results.
#[derive(Default)]
struct Tally {
    kills: usize,
    /// The agent had given a temporary limit when it was killed.
    raised: usize,
    wrong: Vec<String>,
}

pub(crate) async fn measure(kills: usize) -> anyhow::Result<()> {
    println!("\nthe agent killed at random moments and started again");
    let mut random = fastrand::Rng::new();
    let cpu = kills / CPU;
    let race = (kills - cpu) / 2;
    for (name, count) in [("growth", kills - cpu - race), ("race", race), ("cpu", cpu)] {
        let mut tally = Tally::default();
        for _ in 0..count {
            match name {
                "growth" => growth(&mut tally, &mut random).await,
                "race" => races(&mut tally, &mut random).await,
                _ => throttled(&mut tally, &mut random).await,
            }
            tally.kills += 1;
        }
        println!(
            "  amid {name:<7} {:>4} times, {:>3} of them with something lent; wrong afterwards: {}",
            tally.kills,
            tally.raised,
            tally.wrong.len()
        );
        for wrong in &tally.wrong {
            println!("    {wrong}");
        }
    }
    Ok(())
}

/// One process grows towards its limit. After the kill another does, and must succeed.
async fn growth(tally: &mut Tally, random: &mut fastrand::Rng) {
    let mut scene = Scene::start(1, true).await;
    let first = takes(&scene, 0, GROWTH);
    tokio::time::sleep(Duration::from_millis(1600).mul_f64(random.f64())).await;
    scene.agent.kill();
    tally.check_values(&scene);
    scene.agent.start().await;
    scene.all_pods_run().await;
    drop(first);
    let mut second = takes(&scene, 0, GROWTH);
    if let End::Killed(taken) = second.wait() {
        tally
            .wrong
            .push(format!("killed at {taken} MiB although the agent is back"));
    }
    tally.settles(&scene).await;
}

/// Two processes compete for the last memory while a third keeps its own.
async fn races(tally: &mut Tally, random: &mut fastrand::Rng) {
    let mut scene = Scene::start(3, true).await;
    let kubepods = scene.node.kubepods();
    let limit = MemoryLimit::Bytes(TOGETHER << 20);
    scene.node.cgroups().limit_memory(&kubepods, limit);
    let mut still = takes(&scene, 2, Allocation { rate: 400, until: 100 });
    still.wait();
    let racers = [takes(&scene, 0, RACE), takes(&scene, 1, RACE)];
    tokio::time::sleep(Duration::from_millis(2500).mul_f64(random.f64())).await;
    scene.agent.kill();
    tally.check_values(&scene);
    scene.agent.start().await;
    scene.all_pods_run().await;
    // The processes continue, as far as the limits permit.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    if !still.lives() {
        tally.wrong.push("a bystander died".to_owned());
    }
    let hits = hits(&scene, &kubepods);
    if hits != 0 {
        tally
            .wrong
            .push(format!("all pods together came to their limit {hits} times"));
    }
    drop((racers, still));
    tally.settles(&scene).await;
}

/// A process is throttled until it gets a temporary cpu limit.
async fn throttled(tally: &mut Tally, random: &mut fastrand::Rng) {
    let mut scene = Scene::of(1, true, HELD_BACK).await;
    let cgroup = scene.pods[0].containers["app"].cgroup.clone();
    scene.node.spawn(&cgroup, "while :; do :; done");
    tokio::time::sleep(Duration::from_millis(9500) + Duration::from_secs(3).mul_f64(random.f64())).await;
    scene.agent.kill();
    tally.check_values(&scene);
    scene.agent.start().await;
    scene.all_pods_run().await;
    tally.settles(&scene).await;
}

impl Tally {
    /// Checks the values that a killed agent has left: every level is in order at any moment.
    fn check_values(&mut self, scene: &Scene) {
        let mut raised = false;
        for pod in &scene.pods {
            let held = scene.node.held(pod);
            let (app, above) = (&held["app"], &held["pod"]);
            raised |= app.memory_limit() > Some(MemoryLimit::Bytes(128 << 20)) || milli(app) > decided(pod);
            if app.memory_limit() > above.memory_limit() || milli(app) > milli(above) {
                self.wrong.push(format!("{}: the container is above its pod", pod.name));
            }
            if is_frozen(scene, pod) {
                self.wrong.push(format!("{} is frozen", pod.name));
            }
        }
        self.raised += usize::from(raised);
    }

    /// Waits until the agent reports every pod as InSync, and checks that the files hold the values in force.
    async fn settles(&mut self, scene: &Scene) {
        for pod in &scene.pods {
            // NotManaged: the current values are recommended, and there is no temporary limit.
            let in_order = |found: &proto::Pod| ["InSync", "NotManaged"].contains(&found.state.as_str());
            let found = async || scene.agent.pod(pod.name).await.filter(in_order);
            let found = scene.agent.until("the pod to be in order", found).await;
            let held = scene.node.held(pod);
            let (app, above) = (&held["app"], &held["pod"]);
            let has_temporary = |resource: &str| found.leases.iter().any(|lease| lease.resource == resource);
            let memory = MemoryLimit::Bytes(128 << 20);
            if !has_temporary("memory") && app.memory_limit() != Some(memory) {
                self.wrong.push(format!(
                    "{}: nothing is lent, and the limit is {:?}",
                    pod.name,
                    app.memory_limit()
                ));
            }
            if !has_temporary("cpu") && milli(app) != decided(pod) {
                self.wrong.push(format!(
                    "{}: nothing is lent, and the cpu limit is {}m",
                    pod.name,
                    milli(app)
                ));
            }
            if app.memory_limit() != above.memory_limit() || milli(app) != milli(above) || is_frozen(scene, pod) {
                self.wrong.push(format!(
                    "{}: its only container holds {app:?}, and it {above:?}",
                    pod.name
                ));
            }
        }
    }
}

impl Scene {
    /// Waits until the agent knows that all pods run, and guards them.
    async fn all_pods_run(&self) {
        for pod in &self.pods {
            let live = async || self.agent.pod(pod.name).await.filter(has_ids);
            self.agent.until("the pod to live", live).await;
        }
    }
}

fn has_ids(pod: &proto::Pod) -> bool {
    pod.containers.iter().all(|container| container.id.is_some())
}

fn takes(scene: &Scene, pod: usize, allocation: Allocation) -> Allocator {
    Allocator::start(
        scene.node.cgroups(),
        &scene.pods[pod].containers["app"].cgroup,
        allocation,
    )
}

/// The cpu limit without a temporary limit, in millicores.
fn decided(pod: &BarePod) -> u64 {
    pod.containers["app"].amounts.cpu_limit.unwrap_or(u64::MAX)
}

/// A cpu limit in millicores.
fn milli(settings: &vscaled::model::Settings) -> u64 {
    match settings.cpu_max().map(|max| (max.quota, max.period_us)) {
        Some((CpuQuota::Micros(quota), period_us)) => quota * 1000 / period_us,
        Some((CpuQuota::Max, _)) | None => u64::MAX,
    }
}

fn is_frozen(scene: &Scene, pod: &BarePod) -> bool {
    [&pod.cgroup, &pod.containers["app"].cgroup].into_iter().any(|cgroup| {
        let directories = scene.node.cgroups().directories(cgroup);
        directories
            .iter()
            .any(|directory| fs::read_to_string(directory.join("cgroup.freeze")).is_ok_and(|text| text.trim() == "1"))
    })
}

/// The number of times that a cgroup's own memory limit was hit.
fn hits(scene: &Scene, cgroup: &CgroupPath) -> u64 {
    let tree = scene.node.cgroups();
    let file = match tree.version() {
        CgroupVersion::V1 => "memory.failcnt",
        CgroupVersion::V2 => "memory.events.local",
    };
    let texts = tree
        .directories(cgroup)
        .into_iter()
        .map(|directory| fs::read_to_string(directory.join(file)));
    let text: String = texts.filter_map(Result::ok).collect();
    let number = text.lines().find_map(|line| {
        line.strip_prefix("max ")
            .or_else(|| Some(line).filter(|_| !line.contains(' ')))
    });
    number.and_then(|number| number.trim().parse().ok()).unwrap_or(u64::MAX)
}
