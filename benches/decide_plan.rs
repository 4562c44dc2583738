//! The time of the pure functions for one pod of three containers, from a recommendation to the ordered steps.
//!
//!     cargo bench --bench decide_plan [-- --quick]

#[allow(dead_code, reason = "shared by benchmarks of which none needs all of it")]
mod common;

use std::hint::black_box;
use std::time::{Duration, Instant};

use common::{Samples, Table};
use jiff::Timestamp;
use serde_json::{Value, json};
use vscaled::decide::{EarlierDecisions, Index, Options, decide_pod};
use vscaled::model::objects::Pod;
use vscaled::model::{CgroupVersion, Driver, KubeletVersion, NodeTraits, PageSize, RuntimeKind, WeightFormula};
use vscaled::plan::{Plan, hierarchy, in_force};
use vscaled::sources::{KnownObjects, parse_manifests};

const NAMES: [&str; 3] = ["app", "proxy", "logs"];

fn main() -> anyhow::Result<()> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let runs = if quick { 2_000 } else { 20_000 };
    let view = parse_manifests("benchmark", &manifests())?.view;
    let pod = view.pods.first().ok_or_else(|| anyhow::anyhow!("no pod was parsed"))?;
    for version in [CgroupVersion::V1, CgroupVersion::V2] {
        let traits = NodeTraits {
            version,
            driver: Driver::Cgroupfs,
            runtime: RuntimeKind::Containerd,
            container_weight: WeightFormula::Quadratic,
            kubelet: KubeletVersion::NEWEST,
            page: PageSize::KIB_4,
        };
        measure(&view, pod, &traits, runs)?.print()?;
    }
    Ok(())
}

/// Repeats the computation, and times each part by itself. The first tenth only warms up.
fn measure(view: &KnownObjects, pod: &Pod, traits: &NodeTraits, runs: usize) -> anyhow::Result<Table> {
    let (now, options) = (Timestamp::now(), Options::default());
    let index = Index::new([view]);
    let observed = hierarchy(pod, &in_force(pod), traits).created();
    let mut parts: [Samples; 4] = Default::default();
    let mut steps = 0;
    for run in 0..runs + runs / 10 {
        let start = Instant::now();
        let decision = decide_pod(black_box(pod), &index, now, &options, EarlierDecisions::default());
        let decided = start.elapsed();
        let wanted = hierarchy(pod, &decision.amounts, traits).wanted();
        let levels = start.elapsed();
        let plan = Plan::between(black_box(&observed), &wanted, traits)?;
        let planned = start.elapsed();
        steps = black_box(plan.steps.len());
        if run >= runs / 10 {
            let times: [Duration; 4] = [decided, levels - decided, planned - levels, planned];
            for (part, time) in parts.iter_mut().zip(times) {
                part.push(time);
            }
        }
    }
    anyhow::ensure!(steps > 0, "nothing was planned: this measures the wrong thing");
    let version = traits.version;
    let mut table = Table::new("decide", format!("decide and plan, cgroup {version:?}: {steps} steps"));
    let names = ["decide", "what each level must hold", "plan", "together"];
    for (name, samples) in names.into_iter().zip(parts) {
        table.row(name, samples);
    }
    Ok(table)
}

/// A pod of a Deployment, and its VPA.
fn manifests() -> String {
    let owner = |kind, name| json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "controller": true}]);
    let container = |name: &str| {
        json!({"name": name, "resources": {
            "requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "200m", "memory": "256Mi"}}})
    };
    let recommended = |name: &str| {
        json!({"containerName": name, "lowerBound": {"cpu": "250m", "memory": "190Mi"},
            "target": {"cpu": "260m", "memory": "200Mi"}, "upperBound": {"cpu": "300m", "memory": "250Mi"}})
    };
    let documents: [Value; 4] = [
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": "web-1", "ownerReferences": owner("Deployment", "web")}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}}}),
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web-1-a", "uid": "6c4b2d1e-58ff-4d36-9d5c-0a6f4c9f2a11", "labels": {"app": "web"},
                "ownerReferences": owner("ReplicaSet", "web-1")},
            "spec": {"nodeName": "node", "containers": NAMES.map(container)},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}}),
        json!({"apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler", "metadata": {"name": "web"},
            "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "updatePolicy": {"updateMode": "InPlaceOrRecreate"}},
            "status": {"recommendation": {"containerRecommendations": NAMES.map(recommended)}}}),
    ];
    documents.map(|document| document.to_string()).join("\n---\n")
}
