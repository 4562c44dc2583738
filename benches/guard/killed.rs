//! The agent killed at random moments of what the guard does, and started again: what is wrong then.
//!
//! Each time with a pod, or three, of its own, so that there is something to lend. A moment is random within the time that
//! the guard has to act in. What a process may not do without an agent, being killed at its limit, is not wrong.

use std::fs;
use std::time::Duration;

use vscaled::control::proto;
use vscaled::model::{CgroupPath, CgroupVersion, CpuQuota, MemoryLimit};

use crate::scene::Scene;
use crate::support::allocator::{Allocator, Appetite, End};
use crate::support::amounts::Amounts;
use crate::support::bare::BarePod;

/// A process takes so much, from a limit of 128 MiB.
const GROWTH: Appetite = Appetite { rate: 200, until: 300 };
/// Each of two processes would take so much, and all pods together may have [`TOGETHER`].
const RACE: Appetite = Appetite { rate: 200, until: 1000 };
const TOGETHER: u64 = 700;
/// Of so many kills one is amid cpu lending, which takes ten seconds to begin.
const CPU: usize = 8;

/// What a container has that is lent cpu: a limit that one process comes to on any machine.
const HELD_BACK: Amounts = Amounts::doubled(50, 64);

/// What was found.
#[derive(Default)]
struct Tally {
    kills: usize,
    /// When the agent was killed, it had lent something.
    lent: usize,
    wrong: Vec<String>,
}

pub(crate) async fn measure(kills: usize) -> anyhow::Result<()> {
    println!("\nthe agent killed at random moments and started again");
    let mut random = Random(u64::from(std::process::id()));
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
            tally.lent,
            tally.wrong.len()
        );
        for wrong in &tally.wrong {
            println!("    {wrong}");
        }
    }
    Ok(())
}

/// One process runs towards its limit; after the kill another does, and must get there.
async fn growth(tally: &mut Tally, random: &mut Random) {
    let mut scene = Scene::start(1, true).await;
    let first = takes(&scene, 0, GROWTH);
    tokio::time::sleep(random.below(Duration::from_millis(1600))).await;
    scene.agent.kill();
    tally.look(&scene);
    scene.agent.start().await;
    scene.lives().await;
    drop(first);
    let mut second = takes(&scene, 0, GROWTH);
    if let End::Killed(taken) = second.wait() {
        tally
            .wrong
            .push(format!("killed at {taken} MiB although the agent is back"));
    }
    tally.settles(&scene).await;
}

/// Two processes run for the last memory while a third keeps what it has.
async fn races(tally: &mut Tally, random: &mut Random) {
    let mut scene = Scene::start(3, true).await;
    let kubepods = scene.node.kubepods();
    let limit = MemoryLimit::Bytes(TOGETHER << 20);
    scene.node.cgroups().limit_memory(&kubepods, limit);
    let mut still = takes(&scene, 2, Appetite { rate: 400, until: 100 });
    still.wait();
    let racers = [takes(&scene, 0, RACE), takes(&scene, 1, RACE)];
    tokio::time::sleep(random.below(Duration::from_millis(2500))).await;
    scene.agent.kill();
    tally.look(&scene);
    scene.agent.start().await;
    scene.lives().await;
    // The racers go on, as far as they are let.
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

/// A process is throttled until it is lent cpu.
async fn throttled(tally: &mut Tally, random: &mut Random) {
    let mut scene = Scene::of(1, true, HELD_BACK).await;
    let cgroup = scene.pods[0].containers["app"].cgroup.clone();
    scene.node.spawn(&cgroup, "while :; do :; done");
    tokio::time::sleep(Duration::from_millis(9500) + random.below(Duration::from_secs(3))).await;
    scene.agent.kill();
    tally.look(&scene);
    scene.agent.start().await;
    scene.lives().await;
    tally.settles(&scene).await;
}

impl Tally {
    /// Looks at what a killed agent has left: every level in order, whatever was being done.
    fn look(&mut self, scene: &Scene) {
        let mut lent = false;
        for pod in &scene.pods {
            let held = scene.node.held(pod);
            let (app, above) = (&held["app"], &held["pod"]);
            lent |= app.memory_limit() > Some(MemoryLimit::Bytes(128 << 20)) || milli(app) > decided(pod);
            if app.memory_limit() > above.memory_limit() || milli(app) > milli(above) {
                self.wrong.push(format!("{}: the container is above its pod", pod.name));
            }
            if is_frozen(scene, pod) {
                self.wrong.push(format!("{} is frozen", pod.name));
            }
        }
        self.lent += usize::from(lent);
    }

    /// Waits until the agent is content, and looks whether the files hold what stands.
    async fn settles(&mut self, scene: &Scene) {
        for pod in &scene.pods {
            // Not managed: what it has is recommended, and nothing is lent.
            let content = |found: &proto::Pod| ["InSync", "NotManaged"].contains(&found.state.as_str());
            let found = async || scene.agent.pod(pod.name).await.filter(content);
            let found = scene.agent.until("the pod to be in order", found).await;
            let held = scene.node.held(pod);
            let (app, above) = (&held["app"], &held["pod"]);
            let lent = |resource: &str| found.leases.iter().any(|lease| lease.resource == resource);
            let memory = MemoryLimit::Bytes(128 << 20);
            if !lent("memory") && app.memory_limit() != Some(memory) {
                self.wrong.push(format!(
                    "{}: nothing is lent, and the limit is {:?}",
                    pod.name,
                    app.memory_limit()
                ));
            }
            if !lent("cpu") && milli(app) != decided(pod) {
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
    /// Waits until the agent knows that all pods live, and guards them.
    async fn lives(&self) {
        for pod in &self.pods {
            let live = async || self.agent.pod(pod.name).await.filter(has_ids);
            self.agent.until("the pod to live", live).await;
        }
    }
}

fn has_ids(pod: &proto::Pod) -> bool {
    pod.containers.iter().all(|container| container.id.is_some())
}

fn takes(scene: &Scene, pod: usize, appetite: Appetite) -> Allocator {
    Allocator::start(
        scene.node.cgroups(),
        &scene.pods[pod].containers["app"].cgroup,
        appetite,
    )
}

/// The cpu limit without a loan, in thousandths.
fn decided(pod: &BarePod) -> u64 {
    pod.containers["app"].amounts.cpu_limit.unwrap_or(u64::MAX)
}

/// A cpu limit in thousandths.
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

/// How often a cgroup's own memory limit was hit.
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

/// Random moments, from a number that is another one in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, longest: Duration) -> Duration {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let part = u32::try_from(self.0 >> 33).unwrap_or(u32::MAX);
        longest.mul_f64(f64::from(part) / f64::from(u32::MAX >> 1))
    }
}
