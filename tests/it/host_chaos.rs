//! Promise: whatever happens, and whenever the agent is killed, in the end every container has what was last decided or granted
//! for it, nothing stands still, nobody else's values were touched, and every kill was told once.
//!
//! The real agent against live cgroups and a live containerd, with a generator that draws what happens from a seed:
//! recommendations, operators, foreign writers, pods and containers that come and go, an API server, a kubelet and a runtime that
//! refuse, lie, hang and go away, a full disk, a clock that is moved, processes that take memory and are lent it, kills for want
//! of memory, and an agent that is killed at random moments or at a named point inside an operation. Every few seconds all of
//! that stops, and everything has to become right.
//!
//! `VSCALED_CHAOS_SEED` and `VSCALED_CHAOS_SECONDS` choose the seed and how long it runs; `scripts/chaos` runs many. A run that
//! fails prints both with all that happened. The same seed draws the same; only the kernel's scheduling is not repeated. With
//! `VSCALED_CHAOS_PACE` things happen so many times slower: the guest of `scripts/v2lab` has one processor, on which an agent needs
//! seconds to start. That takes minutes for each seed, so that `scripts/test` runs this on this machine's cgroup version alone.

mod action;
mod checks;
mod clock;
mod loans;
mod operators;
mod pods;
mod runtime;
mod world;

use std::time::Duration;

use action::Action;
use world::World;

/// How long it runs, in seconds, unless told otherwise.
const SECONDS: u64 = 8;
/// How long things go wrong before they have to become right.
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
    let mut random = fastrand::Rng::with_seed(seed);
    let pace = u32::try_from(number("VSCALED_CHAOS_PACE").unwrap_or(1)).unwrap();
    while world.runs_for() < Duration::from_secs(seconds) {
        world.an_operator_is_sure(&mut random).await;
        let end = world.runs_for() + ROUND * pace;
        while world.runs_for() < end {
            let action = Action::draw(&mut random);
            let pause = Duration::from_micros(random.u64(..120_000));
            world.goes_on(action).await;
            tokio::time::sleep(pause * pace).await;
        }
        world.becomes_right().await;
    }
    world.leaves_nothing_open(&mut random, ROUND / 2).await;
    world.ends().await;
}
