//! Promise: after any sequence of faults, and wherever the agent is killed, every container has the values that were
//! last decided or granted for it. No operation hangs, values of other owners stay untouched, and the agent reports
//! every kill once.
//!
//! The real agent runs with live cgroups and a live containerd. A seeded generator draws the events: recommendations,
//! operators, foreign writers, pods and containers that start and end, an API server, a kubelet and a runtime that
//! refuse, give wrong answers, hang and restart, a full disk, a moved clock, processes that allocate memory and get
//! temporary limits, kills, a hostile tenant of another namespace, and an agent that is killed at random moments or at a
//! failpoint. Every few seconds all faults stop, and the system must become right.
//!
//! `VSCALED_CHAOS_SEED` and `VSCALED_CHAOS_SECONDS` set the seed and the duration; `scripts/chaos` runs many seeds. A
//! failing run prints both with a list of its events. The same seed draws the same events; only the kernel's
//! scheduling differs. `VSCALED_CHAOS_PACE` slows the events down by a factor: the guest of `scripts/v2lab` has one
//! processor, on which an agent needs seconds to start. A run there takes minutes for each seed, so `scripts/test`
//! runs this test on this machine's cgroup version only.

mod action;
mod checks;
mod clock;
mod operators;
mod pods;
mod runtime;
mod temporary_limits;
mod tenant;
mod world;

use std::time::Duration;

use action::Action;
use tenant::Tenant;
use world::World;

/// The default duration in seconds.
const SECONDS: u64 = 8;
/// The duration of the faults before the system must become right.
const ROUND: Duration = Duration::from_secs(7);

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text}: not a number")),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_everything_becomes_right_again() {
    runs(number("VSCALED_CHAOS_SEED").unwrap_or(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_with_what_a_second_seed_draws() {
    runs(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_with_what_a_third_seed_draws() {
    runs(3).await;
}

async fn runs(seed: u64) {
    let seconds = number("VSCALED_CHAOS_SECONDS").unwrap_or(SECONDS);
    println!("VSCALED_CHAOS_SEED={seed} VSCALED_CHAOS_SECONDS={seconds}");
    let mut world = World::start(seed).await;
    world.becomes_right().await;
    let (mut random, mut tenant) = (fastrand::Rng::with_seed(seed), Tenant::new(seed));
    let pace = u32::try_from(number("VSCALED_CHAOS_PACE").unwrap_or(1)).unwrap();
    while world.runs_for() < Duration::from_secs(seconds) {
        world.set_certain_override(&mut random).await;
        let end = world.runs_for() + ROUND * pace;
        while world.runs_for() < end {
            let action = Action::draw(&mut random);
            let pause = Duration::from_micros(random.u64(..120_000));
            world.execute(action).await;
            if let Some(act) = tenant.acts(&world.api, &world.slots) {
                world.note(&act);
            }
            tokio::time::sleep(pause * pace).await;
        }
        world.becomes_right().await;
    }
    world.leaves_nothing_open(&mut random, ROUND / 2).await;
    world.ends().await;
}
