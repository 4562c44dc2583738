//! The recipes of `docs/hooks.md` with the runtimes of this machine have the documented effect.

use std::fs;

use crate::support::amounts::Amounts;
use crate::support::runtimes::{Held, Language};

const FULL: Amounts = Amounts::doubled(1000, 192);
const LOWER: Amounts = Amounts::doubled(1000, 96);
const HIGHER: Amounts = Amounts::doubled(1000, 256);

/// The running program and an agent that knows it; prints the reason and returns `None` where the runtime is missing.
async fn held(language: Language) -> Option<Held> {
    match Held::new(language, FULL).await {
        Ok(mut held) => {
            // ZGC starts late on a busy machine: the program's usual garbage then exceeds the soft limit, and what the agent has
            // seen counts for ten minutes.
            fs::write(held.shared("calm"), "").unwrap();
            held.describe(language.hooks());
            held.agent.start().await;
            held.begins().await;
            Some(held)
        }
        Err(why) => {
            eprintln!(
                "SKIPPED kernel_agent_containerd::host_recipes: {}: {why}",
                language.name()
            );
            None
        }
    }
}

/// The first run of the hook in the history.
async fn told(held: &Held) -> String {
    let told = async || {
        let history = held.agent.history().await;
        let hook = history.into_iter().find(|change| change.cause.starts_with("hook "))?;
        Some(format!("{}: {}", hook.outcome, hook.reason))
    };
    held.agent.until("the hook to end", told).await
}

/// Checks that a program which holds more than the lower limit is below it after the hook.
async fn runs_hook_and_shrinks(language: Language) {
    let Some(held) = held(language).await else { return };
    let before = held.usage();
    assert!(before > 192 << 20, "{} holds {} MiB", language.name(), before >> 20);
    held.recommend(LOWER);
    let told = told(&held).await;
    assert!(
        told.starts_with("HookRan: ") && told.contains("fits the new limit"),
        "{told}"
    );
    held.agent
        .wait_for("the limit to come down", || held.limit() == 192 << 20)
        .await;
    eprintln!(
        "{}: {} MiB, then {} MiB; {told}",
        language.name(),
        before >> 20,
        held.usage() >> 20
    );
    assert_eq!(held.kills(), 0);
}

#[tokio::test]
async fn hotspot_gives_back_what_it_frees() {
    runs_hook_and_shrinks(Language::HotspotG1).await;
}

#[tokio::test]
async fn hotspot_with_zgc_follows_a_soft_limit() {
    runs_hook_and_shrinks(Language::HotspotZ).await;
}

#[tokio::test]
async fn a_go_program_sets_its_memory_limit() {
    runs_hook_and_shrinks(Language::Go).await;
}

#[tokio::test]
async fn a_node_program_drops_its_cache() {
    runs_hook_and_shrinks(Language::Node).await;
}

#[tokio::test]
async fn a_python_program_drops_its_cache() {
    runs_hook_and_shrinks(Language::Python).await;
}

#[tokio::test]
async fn nginx_replaces_its_workers() {
    let Some(held) = held(Language::Nginx).await else {
        return;
    };
    let workers = || held.processes().len() > 1;
    held.agent.wait_for("workers", workers).await;
    let before = held.processes();
    held.recommend(HIGHER);
    let told = told(&held).await;
    assert!(told.starts_with("HookRan: SIGHUP was sent"), "{told}");
    let replaced = || held.processes().iter().filter(|pid| before.contains(pid)).count() == 1 && workers();
    held.agent.wait_for("workers to be replaced", replaced).await;
}
