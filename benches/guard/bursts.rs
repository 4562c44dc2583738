//! A service that needs 100 ms of cpu for each request, and few requests: it uses a quarter of a core on average, within a limit of
//! half a core, and is throttled in most requests.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;
use vscaled::cgroup::{Cgroup, Hierarchy};
use vscaled::model::{CgroupPath, CgroupVersion, CpuShares, CpuWeight, Setting};

use crate::common::{Figures, Samples};
use crate::scene::{Scene, vpa};
use crate::support::amounts::Amounts;

/// A limit of half a core: 50 ms in a period of 100 ms.
const APP: Amounts = Amounts::doubled(250, 64);

/// Requests come 0.3 to 0.5 seconds apart. Each waits for the one before it, and then takes 100 ms on a processor. Prints the
/// microseconds from the arrival of each to its end.
const SERVICE: &str = r#"use Time::HiRes qw(clock_gettime sleep CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID);
srand(1);
my $arrival = clock_gettime(CLOCK_MONOTONIC);
for (1 .. $ARGV[0]) {
  $arrival += 0.3 + rand(0.2);
  my $pause = $arrival - clock_gettime(CLOCK_MONOTONIC);
  sleep($pause) if $pause > 0;
  my $end = clock_gettime(CLOCK_PROCESS_CPUTIME_ID) + 0.1;
  1 while clock_gettime(CLOCK_PROCESS_CPUTIME_ID) < $end;
  printf "%d\n", 1e6 * (clock_gettime(CLOCK_MONOTONIC) - $arrival);
}
"#;

pub(crate) async fn measure(requests: usize) -> anyhow::Result<()> {
    let title =
        format!("a service with a limit of half a core, {requests} requests of 100 ms of cpu, 0.3 to 0.5 s apart");
    let mut figures = Figures::new("bursts", title);
    for (name, burst, guard) in [
        ("neither", None, false),
        ("burst 50%", Some("50%"), false),
        ("burst 100%", Some("100%"), false),
        ("guard", None, true),
    ] {
        let mut scene = Scene::of(1, guard, APP).await;
        if let Some(burst) = burst {
            give(&scene, burst).await;
        }
        let pod = scene.pods[0].clone();
        favour(&scene)?;
        let (latencies, program) = (
            scene.agent.path().join("latencies"),
            scene.agent.path().join("service.pl"),
        );
        fs::write(&program, SERVICE)?;
        let container = &pod.containers["app"].cgroup;
        let cgroup = Cgroup::open(&Hierarchy::discover(None)?, container)?;
        let before = cgroup.periods()?;
        let command = format!("exec perl {} {requests} >{}", program.display(), latencies.display());
        scene.node.spawn(container, &command);
        let read = || fs::read_to_string(&latencies).unwrap_or_default();
        // Perl writes them all when it ends.
        while read().lines().count() < requests {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let after = cgroup.periods()?;
        let text = read();
        let samples: Samples = text
            .lines()
            .map(|line| Ok(Duration::from_micros(line.parse()?)))
            .collect::<anyhow::Result<_>>()?;
        let history = scene.agent.history().await;
        let growths = history
            .iter()
            .filter(|change| change.cause.starts_with("guard:"))
            .count();
        let millis = |percent| json!(samples.percentile(percent).as_secs_f64() * 1e3);
        let throttled = after.throttled_for.saturating_sub(before.throttled_for);
        figures.row([
            ("with", json!(name)),
            ("p50_ms", millis(50)),
            ("p99_ms", millis(99)),
            ("longest_ms", millis(100)),
            ("periods", json!(after.all - before.all)),
            ("throttled", json!(after.throttled - before.throttled)),
            ("throttled_seconds", json!(throttled.as_secs_f64())),
            ("growths", json!(growths)),
        ]);
    }
    figures.print()
}

/// Annotates the VPA, and waits for the burst.
async fn give(scene: &Scene, burst: &str) {
    let pod = &scene.pods[0];
    let annotated = vpa(pod.name, APP).replacen(
        "namespace: test}",
        &format!("namespace: test, annotations: {{vscaled.io/cpu-burst: {burst:?}}}}}"),
        1,
    );
    let manifests = format!("{}---\n{annotated}", pod.manifest());
    scene.agent.write(&format!("{}.yaml", pod.name), &manifests);
    let held = || scene.node.held(pod)["app"].burst().and_then(Setting::burst_us) > Some(0);
    scene.agent.wait_for("the burst", held).await;
}

/// Gives the pods the largest share of a busy machine: the limit alone is to hold the service back.
fn favour(scene: &Scene) -> anyhow::Result<()> {
    let path = scene.node.kubepods().to_string();
    let root = path.split('/').nth(1).context("kubepods is the root")?;
    ensure!(!root.is_empty(), "{path}");
    let root = CgroupPath::new(&format!("/{root}"))?;
    let weight = match scene.node.cgroups().version() {
        CgroupVersion::V1 => Setting::CpuShares(CpuShares::MAX),
        CgroupVersion::V2 => Setting::CpuWeight(CpuWeight::MAX),
    };
    scene.node.cgroups().put(&root, weight);
    Ok(())
}
