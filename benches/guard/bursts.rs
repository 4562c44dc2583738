//! Services that need 100 ms of cpu for each request, and few requests: their average is within the limit, and they are throttled in
//! most requests.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use vscaled::cgroup::{Cgroup, Hierarchy};
use vscaled::model::{CgroupPath, CgroupVersion, CpuQuota, CpuShares, CpuWeight, Setting};

use crate::common::{Figures, Samples};
use crate::scene::{Scene, vpa};
use crate::support::amounts::Amounts;

/// Requests after which the guard has raised what it raises.
const WARM_UP: usize = 40;

/// Each request waits for the one before it, and then takes 100 ms on a processor. Prints the microseconds from the arrival of each
/// to its end. In come their number, the least time between two of them, and how much longer it may be, in seconds.
const SERVICE: &str = r#"use Time::HiRes qw(clock_gettime sleep CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID);
$| = 1;
srand(1);
my ($requests, $least, $spread) = @ARGV;
my $arrival = clock_gettime(CLOCK_MONOTONIC);
for (1 .. $requests) {
  $arrival += $least + rand($spread);
  my $pause = $arrival - clock_gettime(CLOCK_MONOTONIC);
  sleep($pause) if $pause > 0;
  my $end = clock_gettime(CLOCK_PROCESS_CPUTIME_ID) + 0.1;
  1 while clock_gettime(CLOCK_PROCESS_CPUTIME_ID) < $end;
  printf "%d\n", 1e6 * (clock_gettime(CLOCK_MONOTONIC) - $arrival);
}
"#;

pub(crate) async fn measure(requests: usize) -> anyhow::Result<()> {
    for (part, app, [least, spread]) in [
        ("bursts", Amounts::doubled(250, 64), [0.3, 0.2]),
        ("tight-bursts", Amounts::doubled(125, 64), [0.5, 0.3]),
    ] {
        let title = format!(
            "a service with a limit of {}m, {requests} requests of 100 ms of cpu, {least} to {} s apart",
            2 * app.cpu,
            least + spread
        );
        let mut figures = Figures::new(part, title);
        for (name, burst, guard) in [
            ("neither", None, false),
            ("burst 50%", Some("50%"), false),
            ("burst 100%", Some("100%"), false),
            ("guard", None, true),
            ("guard and burst 100%", Some("100%"), true),
        ] {
            let mut scene = Scene::of(1, guard, app).await;
            if let Some(burst) = burst {
                give(&scene, app, burst).await;
            }
            let pod = scene.pods[0].clone();
            favour(&scene)?;
            let [latencies, program] = ["latencies", "service.pl"].map(|name| scene.agent.path().join(name));
            fs::write(&program, SERVICE)?;
            let container = &pod.containers["app"].cgroup;
            let cgroup = Cgroup::open(&Hierarchy::discover(None)?, container)?;
            let all = WARM_UP + requests;
            let (program, output) = (program.display(), latencies.display());
            scene.node.spawn(
                container,
                &format!("exec perl {program} {all} {least} {spread} >{output}"),
            );
            let served = async |count| loop {
                let text = fs::read_to_string(&latencies).unwrap_or_default();
                let lines: Vec<_> = text.lines().skip(WARM_UP).map(str::to_owned).collect();
                if text.lines().count() >= count {
                    return lines;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            };
            served(WARM_UP).await;
            let before = cgroup.periods()?;
            let lines = served(all).await;
            let after = cgroup.periods()?;
            let samples: Samples = lines
                .iter()
                .map(|line| Ok(Duration::from_micros(line.parse()?)))
                .collect::<anyhow::Result<_>>()?;
            let max = scene.node.held(&pod)["app"].cpu_max().context("no quota")?;
            let limit_millis = match max.quota {
                CpuQuota::Micros(micros) => json!(micros * 1000 / max.period_us),
                CpuQuota::Max => Value::Null,
            };
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
                ("limit_at_the_end_millis", limit_millis),
            ]);
        }
        figures.print()?;
    }
    Ok(())
}

/// Annotates the VPA, and waits for the burst.
async fn give(scene: &Scene, app: Amounts, burst: &str) {
    let pod = &scene.pods[0];
    let annotated = vpa(pod.name, app).replacen(
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
