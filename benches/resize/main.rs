//! The time from a decision until the kernel holds the values, measured on the built daemon with real cgroups.
//!
//!     cargo bench --bench resize [-- [--quick] [--containers COUNT,...] [PART...]]      as root
//!
//! Parts, all of them by default:
//! - `files`: one pod of three containers, through cgroup files alone;
//! - `call`: one container resized at the socket;
//! - `api`: one pod whose kubelet resizes in place, from a VPA's status at the benchmark's own API server;
//! - `legacy`: one pod of three containers whose kubelet cannot, from a VPA's status at a real kube-apiserver (needs
//!   `scripts/kube-parts`), and for comparison the pod created again on the same node;
//! - `today`: one container whose kubelet resizes, all real and of today, beside the kubelet alone (cgroup v2 only);
//! - `crowd`: 50 and then 250 pods changed by one recommendation;
//! - `rest`: memory, processor time and descriptors of an idle agent with 250, 500 and 1,000 containers;
//! - `api-rest`: the same of an agent that follows 250 pods at an API server, and the number of its calls there;
//! - `runtime`: one pod of three containers of a real containerd, and on the same containers the calls that replace
//!   vscaled: `runc update`, containerd's task service, CRI.
//!
//! The benchmark creates everything below its own cgroup and temporary directory, and removes it again. Times inside
//! the agent are the agent's own (`Stages` of each change, as in `vscalectl watch`). The benchmark takes all other
//! times itself.

mod agent;
mod alternatives;
mod api;
mod api_rest;
mod call;
#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "shared by benchmarks of which none needs all of it")]
mod common;
mod crowd;
mod files;
mod legacy;
mod levels;
mod machine;
mod rest;
mod rounds;
mod through_cri;
mod today;
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

/// The extent of the measurement.
#[derive(Debug, Parser)]
struct Arguments {
    /// Fewer and shorter measurements: about a minute in all.
    #[arg(long)]
    quick: bool,
    /// The numbers of containers of an idle agent, one measurement each; only the first with --quick.
    #[arg(long, value_delimiter = ',', num_args = 1, default_value = "250,500,1000")]
    containers: Vec<usize>,
    /// The flag that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
    /// The parts to measure; everything by default.
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Files,
    Call,
    Api,
    Legacy,
    Today,
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
    if wanted(Part::Call) {
        call::measure(several(100, 1000)).await?;
    }
    if wanted(Part::Api) {
        api::measure(several(30, 100)).await?;
    }
    if wanted(Part::Legacy) {
        legacy::measure(several(20, 50), several(5, 20)).await?;
    }
    if wanted(Part::Today) {
        today::measure(several(20, 60)).await?;
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
