//! Metrics about the API server, as Prometheus and the dashboard use them.

use super::Scene;
use crate::observability::dashboard;
use crate::support::cluster::objects;
use crate::support::prometheus::Prometheus;

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_shows_calls_refusals_and_watches() {
    let Some(mut scene) = Scene::new("cluster_api::metrics::the_dashboard_shows_calls") else {
        return;
    };
    scene
        .cluster
        .kubectl(&["delete", "--filename=deploy/base/rbac.yaml"], "");
    scene.agent.set("--http-address", "127.0.0.1:0");
    scene.agent.start().await;
    scene.agent.reports(&["lacks the rule"]).await;
    let prometheus = Prometheus::scraping(scene.agent.http_address().await);
    let counted = |query: &str| !prometheus.query(query).unwrap().is_empty();
    prometheus.until("refusals to be counted", || {
        counted(r#"vscaled_api_calls_total{verb="list", resource="pods", code="403"} > 0"#)
    });
    scene.cluster.grant(objects::LEGACY);
    scene.agent.reaches(scene.pod.name, "NotManaged").await;
    prometheus.until("watches to be counted", || {
        counted(r#"rate(vscaled_api_watches_total{resource="pods", end="silent"}[1m]) == 0"#)
    });
    for (panel, query) in dashboard::queries() {
        if ["API calls", "API errors", "Watches that ended", "Events"].contains(&panel.as_str()) {
            prometheus.until(&panel, || counted(&dashboard::filled_in(&query)));
        }
    }
}
