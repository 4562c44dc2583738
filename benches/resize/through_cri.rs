//! One pod of three containers of a real containerd: the agent, and then the calls that replace it.

use vscaled::model::MemoryLimit;
use vscaled::runtime::proto::LinuxContainerResources;

use crate::agent::Agent;
use crate::alternatives;
use crate::common::{Samples, Table, shown};
use crate::files::run;
use crate::machine;
use crate::rounds::{Round, round_rows, stage_rows};
use crate::support::containerd::{Containerd, OciRuntime};
use crate::support::pods::{ContainerSpec, Pod, PodSpec};
use crate::workload::Workload;

const UID: &str = "0a1b2c3d-0000-4000-8000-000000000000";
const MIB: i64 = 1 << 20;

pub(crate) async fn measure(rounds: usize) -> anyhow::Result<()> {
    let containerd = Containerd::start(OciRuntime::Runc).await;
    let pod = containerd.run(&pod()).await;
    let pids = pids(&pod);
    let done = with_agent(&containerd, rounds).await?;
    let alternatives = alternatives::measure(&containerd, &pod, rounds).await?;
    for pid in pids {
        anyhow::ensure!(
            std::path::Path::new("/proc").join(pid.to_string()).exists(),
            "a container ended while it was measured"
        );
    }

    let mut table = Table::new(
        "runtime",
        format!(
            "one pod of three containers of {}, through files and CRI (cgroup {})",
            alternatives::versions()?,
            machine::version()?
        ),
    );
    stage_rows(&mut table, &done);
    let verified: Samples = done
        .iter()
        .flat_map(|round| round.stage(|stages| stages.verified_us))
        .collect();
    let told: Samples = done
        .iter()
        .flat_map(|round| round.stage(|stages| stages.verified_us + stages.runtime_us))
        .collect();
    table.row("decision → runtime told, files read again", told.clone());
    round_rows(&mut table, &done)?;
    for (name, samples) in &alternatives {
        table.row(*name, samples.clone());
    }
    table.print()?;

    println!("\n  how many times as long as vscaled, p50 (p99), for the same three containers");
    for (name, samples) in &alternatives {
        let times = |percent, than: &Samples| {
            samples.percentile(percent).as_secs_f64() / than.percentile(percent).as_secs_f64()
        };
        println!(
            "  {name:<44} until the kernel holds it: {:.0} ({:.0}); until the runtime knows: {:.2} ({:.2})",
            times(50, &verified),
            times(99, &verified),
            times(50, &told),
            times(99, &told)
        );
    }
    println!(
        "  vscaled: {} and {}",
        shown(verified.percentile(50)),
        shown(told.percentile(50))
    );
    Ok(())
}

async fn with_agent(containerd: &Containerd, rounds: usize) -> anyhow::Result<Vec<Round>> {
    let workload = Workload::new(1, 3);
    anyhow::ensure!(workload.uids == [UID], "the manifests describe another pod");
    let kubepods = containerd.cgroups().make("kubepods");
    let start = async || Agent::start(&kubepods, Some(&containerd.socket()), &workload.pods(), 1).await;
    run(start, &workload, rounds).await
}

/// The same values as in the manifests, so that the first pass finds no difference.
fn pod() -> PodSpec {
    let container = |name| ContainerSpec {
        name,
        script: "while true; do sleep 1000; done",
        mounts: Vec::new(),
        resources: LinuxContainerResources {
            cpu_shares: 51,
            cpu_quota: 10_000,
            cpu_period: 100_000,
            memory_limit_in_bytes: 64 * MIB,
        },
    };
    PodSpec {
        name: "web-0",
        uid: UID,
        memory_limit: MemoryLimit::Bytes(192 << 20),
        containers: ["c0", "c1", "c2"].map(container).into(),
    }
}

fn pids(pod: &Pod) -> Vec<i32> {
    pod.containers.iter().map(|container| container.pid).collect()
}
