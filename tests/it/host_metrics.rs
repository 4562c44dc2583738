//! Promise: a running agent serves the documented metrics, their values match the events, and their number does not
//! grow with the node. A real Prometheus can run every query of the dashboard.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::observability::selectors::{Matcher, Selector, groupings, selectors};
use crate::observability::{dashboard, delivered, documented, sample_names};
use crate::support::agent::Agent;
use crate::support::amounts::{Amounts, vpa_manifest};
use crate::support::bare::{BareNode, BarePod};
use crate::support::http;
use crate::support::prometheus::Prometheus;

const AT_FIRST: [(&str, Amounts); 1] = [("app", Amounts::doubled(100, 64))];

/// An agent that serves metrics, and its pods.
struct Scene {
    agent: Agent,
    metrics: SocketAddr,
    pods: Vec<BarePod>,
    node: BareNode,
}

impl Scene {
    async fn with_pods(names: &[&'static str], uids: &[&'static str]) -> Self {
        let mut node = BareNode::new();
        let mut agent = Agent::new(&node.kubepods()).with("--http-address", "127.0.0.1:0");
        let mut pods = Vec::new();
        for (name, uid) in names.iter().zip(uids) {
            let pod = node.run(name, uid, &AT_FIRST);
            agent.write(&format!("{name}.yaml"), &pod.manifest());
            pods.push(pod);
        }
        agent.start().await;
        let metrics = agent.http_address().await;
        Self {
            agent,
            metrics,
            pods,
            node,
        }
    }

    /// Gives every pod a recommendation.
    async fn resize(&self, cpu: u64) {
        let target = [("app", Amounts::doubled(cpu, 96))];
        for pod in &self.pods {
            let vpa = vpa_manifest(pod.name, pod.name, &target);
            self.agent.write(&format!("vpa-{}.yaml", pod.name), &vpa);
        }
        for pod in &self.pods {
            let held = || self.node.holds(pod, &target);
            self.agent.wait_for("the recommended values", held).await;
            self.agent.reaches(pod.name, "InSync").await;
        }
    }

    fn scrape(&self) -> Scrape {
        let (status, text) = http::get(self.metrics, "/metrics").expect("an answer");
        assert_eq!(status, 200, "{text}");
        Scrape(text)
    }
}

/// The text of a scrape.
struct Scrape(String);

impl Scrape {
    /// Families with their types, by the names of their samples.
    fn families(&self) -> BTreeMap<String, String> {
        let types = self
            .0
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        types
            .map(|(name, kind)| {
                let ending = if kind == "counter" { "_total" } else { "" };
                (format!("{name}{ending}"), kind.to_owned())
            })
            .collect()
    }

    /// Every series: name, labels, value.
    fn series(&self) -> impl Iterator<Item = (&str, &str, f64)> {
        let samples = self.0.lines().filter(|line| !line.starts_with('#'));
        samples.map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            (name, labels.trim_end_matches('}'), value.parse().unwrap())
        })
    }

    fn value(&self, wanted: &str, labels: &str) -> f64 {
        let mut found = self
            .series()
            .filter(|(name, with, _)| *name == wanted && *with == labels);
        found
            .next()
            .unwrap_or_else(|| panic!("no {wanted}{{{labels}}} in\n{}", self.0))
            .2
    }
}

#[tokio::test]
async fn a_scrape_has_exactly_the_declared_families_with_their_labels() {
    let scene = Scene::with_pods(&["web"], &["0a1b2c3d-0000-4000-8000-000000000051"]).await;
    scene.resize(200).await;
    let scrape = scene.scrape();
    let declared = documented()
        .into_iter()
        .map(|family| (family.name.to_owned(), family.kind.to_owned()));
    assert_eq!(
        scrape.families(),
        declared.collect(),
        "left: what is served; right: docs/metrics.md, each family of which is to be registered at the start"
    );
    let labels: BTreeMap<_, _> = documented()
        .into_iter()
        .map(|family| (family.name, family.labels))
        .collect();
    for (name, with, _) in scrape.series() {
        assert!(sample_names().contains(name), "{name} is of no declared family");
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|part| labels.get(name.strip_suffix(part)?));
        let declared: BTreeSet<&str> = family.or_else(|| labels.get(name)).unwrap().iter().copied().collect();
        let used = with.split(',').filter_map(|label| Some(label.split_once('=')?.0));
        assert_eq!(
            used.filter(|name| *name != "le").collect::<BTreeSet<_>>(),
            declared,
            "{name}{{{with}}}"
        );
    }
}

/// Whether Prometheus adds a label to each series, or renames a label of ours that it has itself.
fn is_from_prometheus(label: &str) -> bool {
    ["cluster", "instance", "job", "namespace"].contains(&label) || label.starts_with("exported_")
}

#[tokio::test]
async fn everything_that_alerts_and_dashboard_select_is_in_a_scrape() {
    let scene = Scene::with_pods(&["web"], &["0a1b2c3d-0000-4000-8000-000000000054"]).await;
    let scrape = scene.scrape();
    let (served, series) = (scrape.families(), scrape.series().collect::<Vec<_>>());
    let parts = ["_bucket", "_sum", "_count"];
    // The kubelet's metrics are in no scrape of the agent; the dashboard's test covers them.
    let of_ours = |expression: &String| !expression.contains("kubelet_");
    for expression in delivered::expressions().into_iter().filter(of_ours) {
        for Selector { name, matchers } in selectors(&expression) {
            let histogram = parts.iter().find_map(|part| name.strip_suffix(part));
            assert!(
                served.contains_key(&name) || histogram.is_some_and(|name| served[name] == "histogram"),
                "{name} is not served: {expression}"
            );
            let family = documented()
                .into_iter()
                .find(|family| family.name == histogram.unwrap_or(&name))
                .unwrap();
            let ours: Vec<_> = series.iter().filter(|(served, ..)| *served == name).collect();
            for Matcher {
                label,
                comparison,
                value,
            } in &matchers
            {
                if is_from_prometheus(label) {
                    continue;
                }
                assert!(
                    label == "le" || family.labels.contains(&label.as_str()),
                    "{label}: {expression}"
                );
                let exactly = format!("{label}=\"{value}\"");
                // Without an API server or a receiver, the agent has no metrics about them.
                assert!(
                    comparison != "=" || ours.is_empty() || ours.iter().any(|(_, labels, _)| labels.contains(&exactly)),
                    "no series has {exactly}: {expression}"
                );
            }
        }
        let known: BTreeSet<&str> = documented().into_iter().flat_map(|family| family.labels).collect();
        for label in groupings(&expression) {
            assert!(
                known.contains(label) || label == "le" || is_from_prometheus(label),
                "{label}: {expression}"
            );
        }
    }
}

#[tokio::test]
async fn what_happens_to_pods_is_counted() {
    let scene = Scene::with_pods(&["web"], &["0a1b2c3d-0000-4000-8000-000000000052"]).await;
    scene.resize(200).await;
    let app = &scene.pods[0].containers["app"].cgroup;
    let foreign = Amounts::doubled(70, 40).settings(scene.node.cgroups().version());
    scene.node.put(app, &foreign);
    let repaired = || {
        let scrape = scene.scrape();
        let repairs = scrape
            .series()
            .filter(|(name, ..)| *name == "vscaled_drift_repairs_total");
        repairs.map(|(.., count)| count).sum::<f64>() > 0.0
    };
    scene.agent.wait_for("drift repairs to be counted", repaired).await;
    let scrape = scene.scrape();
    assert!(scrape.value("vscaled_resizes_total", r#"outcome="applied""#) >= 2.0);
    let verified = scrape.value(
        "vscaled_resize_duration_seconds_count",
        r#"stage="total",outcome="applied""#,
    );
    assert!(verified >= 2.0, "{verified}");
    assert!(scrape.value("vscaled_steps_total", r#"via="cgroup",outcome="verified""#) >= 4.0);
    assert!(scrape.value("vscaled_decisions_total", r#"action="resize",reason="OutOfBounds""#) >= 1.0);
    let standing = || {
        let scrape = scene.scrape();
        let in_sync = scrape.value("vscaled_pods", r#"state="in_sync""#);
        let decided: f64 = scrape
            .series()
            .filter(|(name, ..)| *name == "vscaled_pods_decided")
            .map(|(.., n)| n)
            .sum();
        (in_sync - 1.0).abs() < 0.5 && (decided - 1.0).abs() < 0.5
    };
    scene
        .agent
        .wait_for("the pod to be counted as in order", standing)
        .await;
}

#[tokio::test]
async fn series_do_not_grow_with_the_node() {
    let uids = [
        "0a1b2c3d-0000-4000-8000-000000000061",
        "0a1b2c3d-0000-4000-8000-000000000062",
        "0a1b2c3d-0000-4000-8000-000000000063",
        "0a1b2c3d-0000-4000-8000-000000000064",
    ];
    let mut counts = Vec::new();
    for pods in [1, 4] {
        let scene = Scene::with_pods(&["web", "api", "db", "cache"][..pods], &uids[..pods]).await;
        scene.resize(200).await;
        let scrape = scene.scrape();
        for pod in &scene.pods {
            assert!(
                !scrape.0.contains(pod.uid) && !scrape.0.contains(&format!("\"{}\"", pod.name)),
                "{}",
                scrape.0
            );
        }
        counts.push(
            scrape
                .series()
                .map(|(name, labels, _)| format!("{name}{labels}"))
                // These metrics exist once for each workload by design.
                .filter(|series| !series.starts_with("vscaled_workload_"))
                // Passes without changes depend on time, not on the number of pods.
                .filter(|series| !series.contains("outcome=\"unchanged\""))
                .collect::<BTreeSet<_>>(),
        );
    }
    assert_eq!(counts[0], counts[1]);
}

#[tokio::test]
async fn prometheus_answers_every_query_of_the_dashboard() {
    let scene = Scene::with_pods(&["web"], &["0a1b2c3d-0000-4000-8000-000000000053"]).await;
    let prometheus = Prometheus::scraping(scene.metrics);
    let samples = |query: &str| prometheus.query(query).unwrap().len();
    prometheus.until("a first scrape", || {
        samples(r#"vscaled_resizes_total{outcome="applied"} == 0"#) == 1
    });
    scene.resize(200).await;
    prometheus.until("the resize to be seen", || {
        samples(r#"vscaled_resizes_total{outcome="applied"} > 0"#) == 1
    });
    prometheus.until("two scrapes", || {
        samples("rate(vscaled_process_cpu_seconds_total[1m])") == 1
            && samples("rate(vscaled_workload_avoided_kills_total[1m])") == 1
            && samples("rate(kubelet_container_requested_resizes_total[1m])") == 2
    });

    // Only the agent writes to these cgroups. It has no runtime, API server or receiver, and no process is killed.
    let empty = [
        "Drift repairs",
        "Calls by outcome",
        "Calls, p95",
        "Kills by container",
        "Receivers that cannot be reached",
        "API calls",
        "API errors",
        "Watches that ended",
    ];
    for (panel, query) in dashboard::queries() {
        let answer = prometheus.query(&dashboard::filled_in(&query)).unwrap();
        assert_eq!(
            answer.is_empty(),
            empty.contains(&panel.as_str()),
            "{panel}: {query}: {answer:?}"
        );
    }
    prometheus.until("every alert to be evaluated", || {
        let rules = prometheus.rules();
        assert!(
            rules.len() > 5 && rules.iter().all(|(_, health)| health != "err"),
            "{rules:?}"
        );
        rules.iter().all(|(_, health)| health == "ok")
    });
    assert_eq!(
        samples("ALERTS"),
        0,
        "a healthy agent alerts: {:?}",
        prometheus.query("ALERTS")
    );
}
