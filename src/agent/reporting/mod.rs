//! Starts the receivers that the configuration names.
//!
//! [`AgentMetadata`] describes the pods and containers of reports, from the view of the sources and from the inventory.

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::config::Config;
use crate::decide::{self, Index};
use crate::feed::FeedListener;
use crate::kubernetes::ApiClient;
use crate::kubernetes::events::PodReference;
use crate::kubernetes::metrics::EventMetrics;
use crate::model::objects::{Pod, PodUid, VerticalPodAutoscaler, pod_of_uid};
use crate::model::{ChangeRecord, Resource};
use crate::oom::kmsg::BootId;
use crate::oom::watch::NodePods;
use crate::oom::{KillFacts, ReportedContainer};
use crate::report::events::{ContainerFacts, PodEvents, VpaEvents, pod_id};
use crate::report::grpc::GrpcDelivery;
use crate::report::log::{KillLog, Recovered};
use crate::report::metrics::ReportMetrics;
use crate::report::outbox::{ChangeEvents, EventPlan, KillEvents, Outbox, PodMetadata, read_memory};
use crate::report::{Destination, Report, Reporter};
use crate::sources::{KnownObjects, NodeView};

/// The file with the time of each container's latest Event for the VPA recommender.
const VPA_EVENTS: &str = "vpa-events.json";

/// Opens the kill log and starts to deliver its pending reports, and, if there is an API server, Events about kills and changes.
/// Returns the log's content from an earlier agent: the watcher resumes from its checkpoint. Blocks while it reads the log.
pub(super) fn start(
    config: &Config,
    api: Option<(ApiClient, FeedListener<Arc<ChangeRecord>>)>,
    known: AgentMetadata,
    registry: &mut Registry,
    stop: &CancellationToken,
) -> (Reporter, Recovered) {
    let grpc = config.report.grpc().map(|options| {
        let boot_id = BootId::current().map(|boot| boot.0).unwrap_or_default();
        GrpcDelivery::new(options, config.node_name.clone(), boot_id)
    });
    let plans = if api.is_some() { event_plans(config) } else { Vec::new() };
    let selected = plans.iter().map(|(destination, _)| *destination);
    let selected = selected.chain(grpc.as_ref().map(|_| Destination::Grpc)).collect();
    let (log, recovered) = KillLog::open(&config.state_dir, config.report.bounds(), selected);
    let metrics = ReportMetrics::register(registry, log.totals());
    if let Some(problem) = &recovered.problem {
        tracing::error!("{problem}");
    }
    let reporter = Reporter::start(log, &metrics, stop);
    if let Some(grpc) = grpc {
        let span = tracing::debug_span!("receiver", destination = Destination::Grpc.as_str());
        reporter.spawn(grpc.run(reporter.queue(Destination::Grpc)).instrument(span));
    }
    let changes = ChangeEvents::new(EventMetrics::register(registry));
    let Some((client, records)) = api else {
        return (reporter, recovered);
    };
    let kills = plans.into_iter();
    let kills = kills.map(|(destination, plan)| KillEvents::new(reporter.queue(destination), plan));
    let outbox = Outbox {
        client,
        node: config.node_name.clone(),
        metadata: Arc::new(known),
        changes,
        kills: kills.collect(),
    };
    reporter.spawn(outbox.run(records));
    (reporter, recovered)
}

fn event_plans(config: &Config) -> Vec<(Destination, Box<dyn EventPlan>)> {
    let mut plans: Vec<(Destination, Box<dyn EventPlan>)> = Vec::new();
    if config.report.pod_events() {
        // The reports of one namespace alone never fill the window.
        let events = PodEvents::new(Destination::PodEvents.window() / 2);
        plans.push((Destination::PodEvents, Box::new(events)));
    }
    if let Some(window) = config.report.vpa_events() {
        let memory = config.state_dir.join(VPA_EVENTS);
        let events = VpaEvents::new(window, read_memory(&memory), memory);
        plans.push((Destination::VpaEvents, Box::new(events)));
    }
    plans
}

/// Finds pods and containers in the view and in the inventory.
#[derive(Debug)]
pub(in crate::agent) struct AgentMetadata {
    pub(in crate::agent) view: watch::Receiver<Arc<NodeView>>,
    pub(in crate::agent) node_pods: watch::Receiver<Arc<NodePods>>,
}

impl PodMetadata for AgentMetadata {
    fn wait_until_known(&self) -> BoxFuture<'static, ()> {
        // No clone has seen more than the view at the start, which has only pods that an earlier agent knew.
        let mut view = self.view.clone();
        // An error: the agent is ending, and there are no more views.
        async move { view.changed().await.unwrap_or(()) }.boxed()
    }

    fn complete_names(&self, facts: &mut KillFacts) {
        let (Some(pod), container) = (&mut facts.pod, &mut facts.container) else {
            return;
        };
        let view = Arc::clone(&self.view.borrow());
        let is_nameless = pod.name.is_empty() || container.as_ref().is_some_and(|container| container.name.is_empty());
        let Some(known) = pod_of_uid(view.pods(), &pod.uid).filter(|_| is_nameless) else {
            return;
        };
        pod.namespace.clone_from(&known.metadata.namespace);
        pod.name.clone_from(&known.metadata.name);
        if let Some(container) = container
            && let Some(status) = known.statuses().find(|status| status.bare_id() == Some(&container.id))
        {
            container.name.clone_from(&status.name);
        }
    }

    fn is_init(&self, reference: &PodReference) -> bool {
        let view = self.view.borrow();
        let pods = view.pods().filter(|pod| pod.describes(&reference.pod));
        let mut init = pods.flat_map(|pod| &pod.spec.init_containers);
        let name = reference.container.as_ref();
        name.is_some_and(|name| init.any(|container| container.name == *name))
    }

    fn has_pod(&self, uid: &PodUid) -> bool {
        // Not the view: an object without a UID may describe the pod.
        self.node_pods.borrow().pods.iter().any(|pod| pod.id.uid == *uid)
    }

    fn container_facts(&self, report: &Report) -> Option<ContainerFacts> {
        let view = Arc::clone(&self.view.borrow());
        let (id, container) = (pod_id(report.facts().pod.as_ref()?), report.facts().container.as_ref()?);
        let known = view.namespaces.get(&id.namespace)?;
        let pod = known.pods.iter().find(|pod| pod.describes(&id))?;
        let vpa = controlling(known, pod);
        Some(ContainerFacts {
            regular: pod.spec.containers.iter().any(|regular| regular.name == container.name),
            vpa: vpa.is_some(),
            pinned: vpa.is_some_and(|vpa| is_pinned(vpa, &container.name)),
            survived: survived(pod, container, &self.node_pods.borrow()),
        })
    }
}

/// The VPA of the pod's namespace that controls it, of any mode and recommender.
fn controlling<'a>(known: &'a KnownObjects, pod: &Pod) -> Option<&'a VerticalPodAutoscaler> {
    let index = Index::new([known]);
    let earlier = decide::EarlierDecisions::default();
    let name = decide::decide_pod(pod, &index, Timestamp::now(), &decide::Options::default(), earlier).vpa?;
    let mut vpas = known.vpas.iter().map(|vpa| &**vpa);
    vpas.find(|vpa| vpa.metadata.name == name)
}

/// Whether `maxAllowed` or the recommender's own limit holds down the recommendation for a container's memory.
fn is_pinned(vpa: &VerticalPodAutoscaler, container: &str) -> bool {
    let Some(recommended) = vpa.recommendation_for(container) else {
        return false;
    };
    let memory = recommended.target.amount(Resource::Memory);
    let max = vpa
        .policy_for(container)
        .and_then(|policy| policy.max_allowed.get(Resource::Memory));
    recommended.uncapped_target.amount(Resource::Memory) > memory || max.is_some_and(|max| max > 0 && memory >= max)
}

/// Whether the container that had the kill runs on, by the pod's status and by the inventory.
fn survived(pod: &Pod, container: &ReportedContainer, node_pods: &NodePods) -> Option<bool> {
    let status = pod.container_status(&container.name)?;
    let id = status.bare_id()?;
    if id != container.id || status.state.terminated.is_some() {
        return Some(false);
    }
    let mut living = node_pods.pods.iter().flat_map(|pod| pod.containers.values());
    Some(living.any(|live| *live.id == *id))
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::StatusCode;
    use tokio::sync::mpsc;

    use super::*;
    use crate::config::tests::load;
    use crate::feed::Feed;
    use crate::model::objects::PodId;
    use crate::model::{CgroupPath, ContainerId, LiveContainer, LivePod};
    use crate::report::log::Bounds;
    use crate::report::testing::kill_of;
    use crate::sources::parse_manifests;

    const POD: &str = "
kind: Pod
metadata: {name: web, namespace: shop, uid: uid-of-web, labels: {app: web}, ownerReferences: [
  {kind: ReplicaSet, name: web, controller: true, apiVersion: apps/v1, uid: r}]}
spec: {nodeName: n, containers: [{name: app}], initContainers: [{name: first}]}
status: {containerStatuses: [{name: app, containerID: 'containerd://CID', STATE}]}
---
kind: ReplicaSet
apiVersion: apps/v1
metadata: {name: web, namespace: shop}
spec: {selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}}}
";
    const VPA: &str = "
---
kind: VerticalPodAutoscaler
apiVersion: autoscaling.k8s.io/v1
metadata: {name: web, namespace: shop}
spec: {targetRef: {apiVersion: apps/v1, kind: ReplicaSet, name: web}, updatePolicy: {updateMode: 'Off'},
  resourcePolicy: {containerPolicies: [{containerName: '*', maxAllowed: {memory: 1Gi}}]}}
status: {recommendation: {containerRecommendations: [{containerName: app, target: {memory: TARGET}}]}}
";

    fn facts(text: &str, lives: bool) -> ContainerFacts {
        let report = kill_of("web", 1).into();
        known(text, lives).container_facts(&report).unwrap()
    }

    fn known(text: &str, lives: bool) -> AgentMetadata {
        let live = LiveContainer {
            id: ContainerId::of_test("id-of-web"),
            path: CgroupPath::root(),
        };
        let pod = LivePod {
            id: PodId {
                uid: "uid-of-web".into(),
                namespace: "shop".to_owned(),
                name: "web".to_owned(),
            },
            path: CgroupPath::root(),
            containers: lives.then(|| ("app".into(), live)).into_iter().collect(),
        };
        let node_pods = NodePods {
            tree: None,
            pods: vec![Arc::new(pod)],
        };
        let view = parse_manifests("test.yaml", text).unwrap().view;
        AgentMetadata {
            view: watch::channel(Arc::new(view.into())).1,
            node_pods: watch::channel(Arc::new(node_pods)).1,
        }
    }

    fn running() -> String {
        POD.replace("CID", "id-of-web").replace("STATE", "restartCount: 0")
    }

    #[test]
    fn kills_become_the_events_of_the_configuration() {
        let state_dir = tempfile::tempdir().unwrap();
        let state_dir = format!("--state-dir={}", state_dir.path().display());
        let planned = |more: &[&str]| {
            let cluster = ["--source=kubernetes", "--node-name=n", &state_dir];
            let config = load(&[&cluster[..], more].concat()).unwrap();
            let plans = event_plans(&config).into_iter();
            plans.map(|(destination, _)| destination).collect::<Vec<_>>()
        };
        assert_eq!(planned(&[]), [Destination::PodEvents]);
        let both = [Destination::PodEvents, Destination::VpaEvents];
        assert_eq!(planned(&["--report-vpa-events"]), both);
        assert_eq!(planned(&["--report-pod-events=false"]), []);
    }

    #[test]
    fn a_container_with_its_cgroup_has_survived() {
        assert_eq!(facts(&running(), true).survived, Some(true));
        assert_eq!(facts(&running(), false).survived, Some(false), "its cgroup is gone");
        let other = POD.replace("CID", "another").replace("STATE", "restartCount: 1");
        assert_eq!(facts(&other, true).survived, Some(false), "it was replaced");
        let state = "state: {terminated: {reason: OOMKilled}}";
        let ended = POD.replace("CID", "id-of-web").replace("STATE", state);
        assert_eq!(facts(&ended, true).survived, Some(false));
        let unseen = running().replace("containerd://id-of-web", "");
        assert_eq!(facts(&unseen, true).survived, None);
    }

    #[test]
    fn a_vpa_of_any_mode_counts() {
        let with = |target: &str| facts(&(running() + &VPA.replace("TARGET", target)), true);
        assert!(with("512Mi").vpa && !with("512Mi").pinned);
        assert!(with("1Gi").pinned);
        assert!(with("512Mi}, uncappedTarget: {memory: 513Mi").pinned);
        assert!(!facts(&running(), true).vpa && facts(&running(), true).regular);
    }

    #[test]
    fn a_vpa_of_another_namespace_is_not_the_pods() {
        let [own, pinned] = ["512Mi", "1Gi"].map(|target| VPA.replace("TARGET", target));
        let other = pinned.replace("namespace: shop", "namespace: bank");
        let both = facts(&[running(), other.clone(), own].concat(), true);
        assert!(both.vpa && !both.pinned);
        assert!(!facts(&(running() + &other), true).vpa);
    }

    #[tokio::test]
    async fn pods_are_known_with_the_first_view() {
        let (views, view) = watch::channel(Arc::new(NodeView::default()));
        let mut known = known(&running(), true);
        known.view = view;
        let mut waits = known.wait_until_known();
        assert!(futures::poll!(&mut waits).is_pending());
        views.send_replace(Arc::new(NodeView::default()));
        waits.await;
    }

    #[test]
    fn a_manifest_without_a_uid_has_its_pod() {
        let known = known(&running().replace("uid: uid-of-web, ", ""), true);
        assert_eq!(known.view.borrow().pods().next().unwrap().cgroup_uid(), "");
        assert!(known.has_pod(&"uid-of-web".into()) && !known.has_pod(&"another".into()));
    }

    #[test]
    fn a_container_is_known_by_its_id() {
        let known = known(&running(), true);
        let names = |uid: &str, id: &str| {
            let mut facts = kill_of("web", 1).facts;
            let (pod, container) = (facts.pod.as_mut().unwrap(), facts.container.as_mut().unwrap());
            (pod.uid, pod.namespace, pod.name) = (uid.to_owned(), String::new(), String::new());
            (container.id, container.name) = (id.to_owned(), String::new());
            known.complete_names(&mut facts);
            let (pod, container) = (facts.pod.unwrap(), facts.container.unwrap());
            [pod.namespace, pod.name, container.name].join("/")
        };
        assert_eq!(names("uid-of-web", "id-of-web"), "shop/web/app");
        assert_eq!(names("uid-of-web", "another"), "shop/web/");
        assert_eq!(names("another", "id-of-web"), "//");
    }

    #[test]
    fn an_init_container_has_its_own_place() {
        let known = known(&running(), true);
        let web = PodId {
            uid: "uid-of-web".into(),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        };
        let is_init = |pod: &PodId, name: &str| {
            known.is_init(&PodReference {
                pod: pod.clone(),
                container: Some(name.to_owned()),
                init: false,
            })
        };
        assert!(is_init(&web, "first") && !is_init(&web, "app"));
        for other in [
            PodId {
                uid: "another".into(),
                ..web.clone()
            },
            PodId {
                namespace: "bank".to_owned(),
                ..web.clone()
            },
        ] {
            assert!(!is_init(&other, "first"));
        }
    }

    #[tokio::test]
    async fn kubectl_finds_a_kill_on_a_static_pod() {
        let (bodies, mut posted) = mpsc::channel(1);
        let router = Router::new().fallback(async move |body: String| {
            bodies.send(body).await.unwrap();
            (StatusCode::CREATED, "{}")
        });
        let mirrored = "uid: of-mirror, annotations: {kubernetes.io/config.mirror: uid-of-web}";
        let mirror = running().replace("{kind: ReplicaSet, name: web", "{kind: Node, name: n");
        let known = known(&mirror.replace("uid: uid-of-web", mirrored), true);
        assert_eq!(known.view.borrow().pods().next().unwrap().cgroup_uid(), "uid-of-web");
        let directory = tempfile::tempdir().unwrap();
        let (log, _) = KillLog::open(directory.path(), Bounds::default(), Destination::PodEvents.into());
        let metrics = ReportMetrics::register(&mut Registry::default(), log.totals());
        let reporter = Reporter::start(log, &metrics, &CancellationToken::new());
        reporter.commit(vec![kill_of("web", 1).into()], None).await;
        let plan = Box::new(PodEvents::new(usize::MAX));
        let outbox = Outbox {
            client: ApiClient::to(&router),
            node: "n".to_owned(),
            metadata: Arc::new(known),
            changes: ChangeEvents::new(EventMetrics::register(&mut Registry::default())),
            kills: vec![KillEvents::new(reporter.queue(Destination::PodEvents), plan)],
        };
        tokio::select! {
            never = outbox.run(Feed::default().listen()) => match never {},
            body = posted.recv() => {
                let event: serde_json::Value = serde_json::from_str(&body.unwrap()).unwrap();
                assert_eq!(event["involvedObject"]["uid"], "uid-of-web", "{event:#}");
            }
        }
    }
}
