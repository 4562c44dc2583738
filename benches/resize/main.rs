//! How long it takes from a decision until the kernel holds it, measured on the built daemon with real cgroups.
//!
//!     cargo bench --bench resize [-- [--quick] [--containers COUNT,...] [PART...]]      as root
//!
//! Parts, all of them by default:
//! - `files`: one pod of three containers, through cgroup files alone;
//! - `api`: one pod whose kubelet resizes in place, from a VPA's status at an API server of the benchmark's own;
//! - `legacy`: one pod of three containers whose kubelet cannot, from a VPA's status at a real kube-apiserver (needs
//!   `scripts/kube-parts`), and on the same node the pod made again instead;
//! - `crowd`: 50 and then 250 pods changed by one recommendation;
//! - `rest`: memory, processor time and descriptors of the agent that looks after 250, 500 and 1,000 containers when nothing
//!   happens;
//! - `api-rest`: the same of an agent that follows 250 pods at an API server, and how often it calls there;
//! - `runtime`: one pod of three containers of a real containerd, and on the same containers what one would call instead:
//!   `runc update`, containerd's task service, CRI.
//!
//! Everything is made below a cgroup and a temporary directory of its own and removed again. Times inside the agent are
//! its own (`Stages` of each change, as `vscalectl watch` gets them); all others are taken here.

mod agent;
mod alternatives;
mod api;
mod api_rest;
#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "shared by benchmarks of which none needs all of it")]
mod common;
mod crowd;
mod files;
mod legacy;
mod machine;
mod rest;
mod rounds;
mod through_cri;
mod workload;

#[path = "../../tests/it/support/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the tests' own helpers, which fail by panicking; not all of them are needed here"
)]
mod support;

use std::time::Duration;

use clap::{Parser, ValueEnum};

/// How much to measure.
#[derive(Debug, Parser)]
struct Arguments {
    /// Fewer and shorter measurements: about a minute in all.
    #[arg(long)]
    quick: bool,
    /// How many containers an agent at rest has, one measurement after the other; the first of them with --quick.
    #[arg(long, value_delimiter = ',', num_args = 1, default_value = "250,500,1000")]
    containers: Vec<usize>,
    /// What cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
    /// What to measure; everything by default.
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Files,
    Api,
    Legacy,
    Crowd,
    Rest,
    ApiRest,
    Runtime,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let wanted = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    let several = |quick, full| if arguments.quick { quick } else { full };
    machine::print()?;
    if wanted(Part::Files) {
        files::measure(several(100, 1000)).await?;
    }
    if wanted(Part::Api) {
        api::measure(several(30, 300)).await?;
    }
    if wanted(Part::Legacy) {
        legacy::measure(several(50, 300), several(5, 20)).await?;
    }
    if wanted(Part::Crowd) {
        for pods in [50, 250, 1000] {
            crowd::measure(pods, several(5, 30)).await?;
        }
    }
    if wanted(Part::Rest) {
        let period = Duration::from_secs(if arguments.quick { 10 } else { 60 });
        let containers = several(1, arguments.containers.len());
        rest::measure(&arguments.containers[..containers], period).await?;
    }
    if wanted(Part::ApiRest) {
        api_rest::measure(250, Duration::from_secs(60)).await?;
    }
    if wanted(Part::Runtime) {
        through_cri::measure(several(15, 100)).await?;
    }
    machine::print_load()
}
