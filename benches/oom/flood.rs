//! More kills than the kernel logs, over a longer time.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use procfs::process::Process;
use serde_json::{Value, json};

use crate::common::{Figures, Samples, Table};
use crate::scene::{Observations, Scene, Watching, at_the_socket, rereader};
use crate::stamps::Stamps;
use crate::support::agent::Agent;
use crate::victim::Victims;

const EACH_SECOND: u32 = 75;
const PODS: usize = 100;
/// The time until late reports have arrived.
const AFTERWARDS: Duration = Duration::from_secs(5);

pub(crate) async fn measure(period: Duration) -> anyhow::Result<()> {
    let scene = Scene::new(PODS);
    let agent = scene.agent().await;
    let told = at_the_socket(&scene, &agent).await?;
    // The time until the work of the start is done.
    tokio::time::sleep(AFTERWARDS).await;
    let before = Cost::of(&agent)?;
    let (pids, took, stamps, most) = flood(&scene, Some(&agent), period).await?;
    let after = Cost::of(&agent)?;
    let title = format!(
        "{} kills in {took:.1?}, {PODS} containers, {} of them explained by the kernel",
        pids.len(),
        stamps.explained
    );
    let mut table = Table::new("flood", format!("{title}: from the kernel's stamp"));
    table.row(
        "the agent has kept it and told its socket",
        samples(&told, &pids, &stamps),
    );
    let share = |used: Duration| used.as_secs_f64() / took.as_secs_f64() * 100.0;
    let mebibytes = |kilobytes: u64| kilobytes as f64 / 1024.0;
    let mut figures = Figures::new(
        "flood-told",
        format!(
            "{} kills in {took:.1?}, of which the kernel explained {}",
            pids.len(),
            stamps.explained
        ),
    );
    let agents = told.observer.with(|seen| reported_of(seen, &pids));
    figures.row(agents.into_iter().chain([
        (
            "core_percent",
            json!(share(after.processor.saturating_sub(before.processor))),
        ),
        ("anonymous_mib_before", json!(mebibytes(before.anonymous))),
        ("anonymous_mib_at_most", json!(mebibytes(most))),
    ]));
    drop((told, agent));

    let (again, used) = rereader(Duration::from_secs(1));
    let (pids, took, stamps, _) = flood(&scene, None, period).await?;
    table.row("reading the log again each second", samples(&again, &pids, &stamps));
    table.print()?;
    let used = *used.lock().unwrap_or_else(PoisonError::into_inner);
    let again = again.observer.with(|seen| found_again(seen, &pids));
    figures.row(again.into_iter().chain([
        ("core_percent", json!(used.as_secs_f64() / took.as_secs_f64() * 100.0)),
        ("anonymous_mib_before", Value::Null),
        ("anonymous_mib_at_most", Value::Null),
    ]));
    figures.print()
}

fn reported_of(seen: &Observations, pids: &[u32]) -> [(&'static str, Value); 6] {
    let named = pids.iter().filter(|pid| seen.by_process.contains_key(pid)).count();
    [
        ("by", json!("agent")),
        ("kills", json!(pids.len())),
        ("told", json!(seen.kills.len())),
        ("with_container", json!(seen.placed)),
        ("with_process", json!(named)),
        ("told_twice", json!(seen.twice)),
    ]
}

fn found_again(seen: &Observations, pids: &[u32]) -> [(&'static str, Value); 6] {
    let found = pids.iter().filter(|pid| seen.by_process.contains_key(pid)).count();
    let explained = pids.iter().filter(|pid| seen.explained.contains(pid)).count();
    [
        ("by", json!("reading the log again")),
        ("kills", json!(pids.len())),
        ("told", json!(found)),
        ("with_container", json!(explained)),
        ("with_process", json!(found)),
        ("told_twice", json!(0)),
    ]
}

fn samples(watching: &Watching, pids: &[u32], stamps: &Stamps) -> Samples {
    watching.observer.with(|seen| {
        let time = |pid: &u32| stamps.since(*pid, *seen.by_process.get(pid)?);
        pids.iter().filter_map(time).collect()
    })
}

/// Kills processes at a steady rate. Returns their pids, the total time, the time of each kill, and the agent's
/// highest anonymous memory in kilobytes.
async fn flood(
    scene: &Scene,
    agent: Option<&Agent>,
    period: Duration,
) -> anyhow::Result<(Vec<u32>, Duration, Stamps, u64)> {
    let mut stamps = Stamps::new()?;
    let cgroups = scene.cgroups();
    let mut victims = Victims::in_all(scene.node.cgroups(), &cgroups)?;
    let (mut pids, mut most) = (Vec::new(), 0);
    let start = Instant::now();
    let mut seconds = 0;
    for number in 0_u32.. {
        let due = Duration::from_secs(1) * number / EACH_SECOND;
        if due >= period {
            break;
        }
        tokio::time::sleep(due.saturating_sub(start.elapsed())).await;
        pids.push(victims.start()?);
        if due.as_secs() > seconds {
            seconds = due.as_secs();
            stamps.update()?;
            if let Some(agent) = agent {
                most = most.max(Cost::of(agent)?.anonymous);
            }
        }
    }
    victims.all_killed(scene.node.cgroups(), &cgroups).await?;
    let took = start.elapsed();
    stamps.update()?;
    tokio::time::sleep(AFTERWARDS).await;
    Ok((pids, took, stamps, most))
}

/// The resources that the agent has used so far.
struct Cost {
    /// Of all threads, including ended ones.
    processor: Duration,
    /// In kilobytes.
    anonymous: u64,
}

impl Cost {
    fn of(agent: &Agent) -> anyhow::Result<Self> {
        let clock = nix::time::clock_getcpuclockid(nix::unistd::Pid::from_raw(agent.pid()))?;
        let status = Process::new(agent.pid())?.status()?;
        Ok(Self {
            processor: clock.now()?.into(),
            anonymous: status.rssanon.unwrap_or(0),
        })
    }
}
