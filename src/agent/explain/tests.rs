//! What `explain` says of amounts, values and differences.

use std::fs;
use std::path::PathBuf;

use jiff::SignedDuration;

use super::*;
use crate::actuate::RuntimeLink;
use crate::decide::{Fact, Note, PodDecision};
use crate::model::{Bytes, CpuMax, MemoryLimit, MilliCpu, NamedRequirements, ResourceList};
use crate::reconcile::capacity::NodeCapacity;
use crate::reconcile::desired::{InForce, Recommended};
use crate::reconcile::overrides::Override;
use crate::runtime::RuntimeError;
use crate::runtime::testing::FakeRuntime;
use crate::sources::{NodeView, parse_manifests};

const POD: &str = "{kind: Pod, metadata: {name: web, namespace: shop, uid: u}, spec: {containers: [{name: app, resources: \
    {requests: {cpu: 200m, memory: 64Mi}, limits: {cpu: 300m, memory: 128Mi}}}]}, status: {containerStatuses: [{name: app, \
    allocatedResources: {cpu: 250m, memory: 65Mi}, \
    resources: {requests: {cpu: 260m, memory: 66Mi}, limits: {cpu: 310m, memory: 129Mi}}}]}}";
const VPA: &str = "{kind: VerticalPodAutoscaler, metadata: {name: web, namespace: shop}, spec: {targetRef: {kind: Deployment, name: web}}, \
    status: {recommendation: {containerRecommendations: [{containerName: app, lowerBound: {cpu: 100m, memory: 50Mi}, \
    target: {cpu: 400m, memory: 70Mi}, upperBound: {cpu: 700m, memory: 90Mi}}]}}}";

fn snapshot() -> PodSnapshot {
    let pod = Arc::clone(&parse_manifests("pod", POD).unwrap().view.pods[0]);
    let (view, machine) = (NodeView::default(), ResourceList::default());
    PodSnapshot {
        state: PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod)),
        node: None,
        resize: None,
        changes: Vec::new(),
        vpa: None,
        problems: Vec::new(),
        capacity: NodeCapacity::of(std::iter::empty(), &view, machine, KubeletVersion::NEWEST, false),
        quiet: SignedDuration::from_mins(10),
        observes: false,
        hooks_forbidden_by: None,
    }
}

fn list(cpu: u64, mebibytes: u64) -> ResourceList {
    ResourceList {
        cpu: (cpu > 0).then(|| MilliCpu::new(cpu)),
        memory: (mebibytes > 0).then(|| Bytes::new(mebibytes << 20)),
    }
}

fn of_app(requests: ResourceList, limits: ResourceList) -> PodAmounts {
    let resources = Requirements { requests, limits };
    std::iter::once(NamedRequirements::new("app", resources)).collect()
}

#[test]
fn each_amount_comes_from_its_source() {
    let mut snapshot = snapshot();
    snapshot.vpa = parse_manifests("vpa", VPA).unwrap().view.vpas.pop();
    snapshot.state.desired.recommended = Some(Recommended {
        vpa: Some("web".to_owned()),
        at: Timestamp::UNIX_EPOCH,
        targets: of_app(list(400, 70), list(500, 140)),
        in_force: InForce::Nothing,
    });
    snapshot.state.desired.overridden = Some(Override::by_root(of_app(list(0, 0), list(900, 0))));
    for (container, resource, text) in [
        (Some("app"), Some(Resource::Cpu), "about the cpu"),
        (None, Some(Resource::Memory), "about all memory"),
        (Some("side"), Some(Resource::Cpu), "about another container"),
        (Some("app"), None, "about the container"),
    ] {
        snapshot.state.decision.notes.push(Note {
            container: container.map(str::to_owned),
            resource,
            fact: Fact::Text(text.to_owned()),
        });
    }
    let pair = |request: &str, limit: &str| {
        Some(proto::RequestAndLimit {
            request: Some(request.to_owned()),
            limit: Some(limit.to_owned()),
        })
    };
    let text = |text: &str| Some(text.to_owned());
    let cpu = proto::Amount {
        container: "app".to_owned(),
        resource: "cpu".to_owned(),
        lower_bound: text("100m"),
        target: text("400m"),
        upper_bound: text("700m"),
        spec: pair("200m", "300m"),
        decided: pair("400m", "500m"),
        wanted: pair("400m", "900m"),
        allocated: text("250m"),
        in_force: pair("260m", "310m"),
        rules: vec!["about the cpu".to_owned()],
    };
    let memory = proto::Amount {
        container: "app".to_owned(),
        resource: "memory".to_owned(),
        lower_bound: text("50Mi"),
        target: text("70Mi"),
        upper_bound: text("90Mi"),
        spec: pair("64Mi", "128Mi"),
        decided: pair("70Mi", "140Mi"),
        wanted: pair("70Mi", "140Mi"),
        allocated: text("65Mi"),
        in_force: pair("66Mi", "129Mi"),
        rules: vec!["about all memory".to_owned()],
    };
    assert_eq!(amounts(&snapshot), [cpu, memory]);
}

#[test]
fn a_decision_about_amounts_that_the_spec_lacks_says_so() {
    let mut snapshot = snapshot();
    let decided = |targets| Recommended {
        vpa: Some("web".to_owned()),
        at: Timestamp::UNIX_EPOCH,
        targets,
        in_force: InForce::Nothing,
    };
    let larger = || decided(of_app(list(400, 70), list(500, 140)));
    let as_in_spec = decided(of_app(list(200, 64), list(300, 128)));
    for (reason, recommended, is_noted) in [
        (Reason::InRange, Some(larger()), true),
        (Reason::AtTarget, Some(larger()), true),
        (Reason::OutOfBounds, Some(larger()), false),
        (Reason::InRange, Some(as_in_spec), false),
        (Reason::InRange, None, false),
    ] {
        snapshot.state.decision.reason = reason;
        snapshot.state.desired.recommended = recommended;
        assert_eq!(decided_otherwise(&snapshot.state).is_some(), is_noted, "{reason}");
    }
}

#[test]
fn a_vpa_that_cannot_be_used_is_named() {
    let mut snapshot = snapshot();
    let names = ["shop/web", "shop/web-2", "bank/web"];
    let problem = |name: &&str| format!("{}: too large", VerticalPodAutoscaler::kind_and_name(name));
    snapshot.problems = names.iter().map(problem).collect();
    snapshot.problems.push("pods shop/web: too large".to_owned());
    for (vpa, named) in [(Some("web"), 1), (Some("db"), 0), (None, 2)] {
        snapshot.state.decision.vpa = vpa.map(str::to_owned);
        let named: Vec<String> = names[..named].iter().map(problem).collect();
        assert_eq!(vpa_problems(&snapshot), named, "{vpa:?}");
    }
}

#[test]
fn a_pod_that_has_just_ended_has_no_values() {
    let root = tempfile::tempdir().unwrap();
    let (node, mut snapshot) = (Node::on_files(root.path()), snapshot());
    snapshot.state.live = Some(Arc::new(LivePod::on_files(["app"])));
    assert_eq!(values(&node, &snapshot, &BTreeMap::new()), Ok(Vec::new()));
}

#[test]
fn each_value_comes_from_its_source() {
    let root = tempfile::tempdir().unwrap();
    let (node, mut snapshot) = (Node::on_files(root.path()), snapshot());
    snapshot.state.live = Some(Arc::new(LivePod::on_files(["app"])));
    let cgroup = root.path().join("pod/app");
    fs::create_dir_all(&cgroup).unwrap();
    for (file, text) in [
        ("cpu.max", "40000 100000\n"),
        ("memory.high", "max\n"),
        ("memory.max", "134217728\n"),
    ] {
        fs::write(cgroup.join(file), text).unwrap();
    }
    let stored = CriResources {
        cpu_quota: Some(20_000),
        cpu_period: Some(100_000),
        memory_limit_in_bytes: Some(4096),
        ..CriResources::default()
    };
    let mut found = values(&node, &snapshot, &BTreeMap::from([("app".into(), stored)])).unwrap();
    found.sort_by(|one, other| one.file.cmp(&other.file));
    let value = |file: &str, [spec, allocated, kernel, runtime]: [&str; 4], difference: &str| proto::Value {
        level: "container".to_owned(),
        name: "app".to_owned(),
        path: "/pod/app".to_owned(),
        file: file.to_owned(),
        spec: spec.to_owned(),
        allocated: allocated.to_owned(),
        wanted: String::new(),
        kernel: kernel.to_owned(),
        runtime: runtime.to_owned(),
        systemd: String::new(),
        owner: "kubelet".to_owned(),
        difference: difference.to_owned(),
    };
    let quotas = [
        "30000 100000",
        "31000 100000",
        "40000 100000",
        "quota 20000 period 100000",
    ];
    let differs = "differs from the spec; no decision concerns it, so it is left alone";
    let expected = [
        value("cpu.max", quotas, differs),
        value("memory.max", ["134217728", "135266304", "134217728", "4096"], ""),
    ];
    assert_eq!(found, expected);
}

/// Writes a container's limit when it gets a signal, as a pass may that runs at that time.
#[derive(Debug)]
struct WritesOnSignal(PathBuf);

impl FakeRuntime for WritesOnSignal {
    fn stored(&self) -> Result<Option<CriResources>, RuntimeError> {
        Ok(None)
    }

    fn signal(&self, _: &str, _: u32) -> Result<(), RuntimeError> {
        fs::write(&self.0, "8192\n").unwrap();
        Ok(())
    }
}

#[tokio::test]
async fn values_are_those_beside_the_state() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("pod/app/memory.max");
    fs::create_dir_all(root.path().join("pod/app")).unwrap();
    fs::write(&file, "4096\n").unwrap();
    let (mut node, mut snapshot) = (Node::on_files(root.path()), snapshot());
    node.runtime = RuntimeLink::Found(Arc::new(WritesOnSignal(file.clone())));
    let hook = "name: app, env: [{name: VSCALED_AFTER_GROW, value: 'signal: SIGHUP'}], resources:";
    let pod = POD.replace("name: app, resources:", hook);
    snapshot.state.pod = Arc::clone(&parse_manifests("pod", &pod).unwrap().view.pods[0]);
    snapshot.state.live = Some(Arc::new(LivePod::on_files(["app"])));
    snapshot.node = Some(Arc::new(node));
    let reply = explain(snapshot, Vec::new()).await.unwrap();
    let limits = reply.values.iter().filter(|value| value.file == "memory.max");
    assert_eq!(limits.map(|value| value.kernel.as_str()).collect::<Vec<_>>(), ["4096"]);
    let written = fs::read_to_string(file).unwrap();
    assert_eq!(written, "8192\n", "explain has tried the hook");
}

fn memory(bytes: u64) -> Setting {
    Setting::MemoryMax(MemoryLimit::Bytes(bytes))
}

#[test]
fn a_difference_is_explained() {
    let snapshot = snapshot();
    let told = |held, values| kernel_difference(held, &Target::Pod, values, &snapshot);
    let (one, two) = (memory(4096), memory(8192));
    assert_eq!(told(one, [Some(one), None, Some(two)]), None);
    assert_eq!(told(one, [None, None, Some(one)]), None);
    assert_eq!(told(one, [None; 3]), None);
    assert_eq!(
        told(one, [None, None, Some(two)]).as_deref(),
        Some("differs from the spec; no decision concerns it, so it is left alone")
    );
    assert_eq!(
        told(two, [Some(one), Some(two), None]).as_deref(),
        Some(
            "kept for now, until the container's before-shrink hook has ended; the next step says when it is tried again"
        )
    );
    let differs = told(two, [Some(one), Some(one), None]).unwrap();
    assert!(
        differs.starts_with("the file differs from the wanted value")
            && differs.ends_with("; the next pass repairs it"),
        "{differs}"
    );
    let observing = PodSnapshot {
        observes: true,
        ..self::snapshot()
    };
    assert_eq!(
        kernel_difference(two, &Target::Pod, [Some(one), Some(two), None], &observing).as_deref(),
        Some("not written: the agent only observes (observeOnly)")
    );
    assert_eq!(runtime_difference("1", "1", false, &snapshot), None);
    let stored = runtime_difference("1", "2", false, &snapshot).unwrap();
    assert!(
        stored.starts_with("the runtime has 1 stored instead of 2: it would write that back"),
        "{stored}"
    );
    let stored = runtime_difference("1", "2", true, &snapshot).unwrap();
    assert!(stored.ends_with(" is idle (cpu.idle)"), "{stored}");
    let stored = runtime_difference("1", "2", false, &observing).unwrap();
    assert!(stored.ends_with("only observes (observeOnly)"), "{stored}");
}

#[test]
fn a_failed_pass_promises_no_repair() {
    let mut snapshot = snapshot();
    snapshot.state.work.fail();
    let values = [Some(memory(4096)), None, None];
    let told = kernel_difference(memory(8192), &Target::Pod, values, &snapshot);
    assert_eq!(told.as_deref(), Some(FAILED));
    let copies = [
        runtime_difference("1", "2", false, &snapshot),
        systemd_difference(memory(8192), memory(4096), &snapshot),
    ];
    assert!(
        copies.iter().flatten().filter(|told| told.ends_with(FAILED)).count() == 2,
        "{copies:?}"
    );
}

#[test]
fn systemds_whole_percents_are_no_difference() {
    let max = |quota| {
        Setting::CpuMax(CpuMax {
            quota: CpuQuota::Micros(quota),
            period_us: 100_000,
        })
    };
    for (property, wanted, differs) in [
        (max(17_500), max(17_500), false),
        (max(18_000), max(17_500), false),
        (max(19_000), max(17_500), true),
        (memory(4096), memory(4096), false),
        (memory(4096), memory(8192), true),
        (Setting::CfsPeriod(1), Setting::CfsPeriod(2), false),
    ] {
        let told = systemd_difference(property, wanted, &snapshot());
        assert_eq!(told.is_some(), differs, "{property} {wanted}");
        let begins = format!("systemd's property says {property}: ");
        assert!(told.is_none_or(|told| told.starts_with(&begins)), "{property}");
    }
}

#[test]
fn each_file_has_its_stored_field() {
    let stored = CriResources {
        cpu_shares: Some(102),
        cpu_quota: Some(20_000),
        cpu_period: Some(100_000),
        memory_limit_in_bytes: Some(4096),
    };
    for (file, text) in [
        (ControlFile::CpuMax, Some("quota 20000 period 100000")),
        (ControlFile::CfsQuota, Some("20000")),
        (ControlFile::CfsPeriod, Some("100000")),
        (ControlFile::CpuWeight, Some("shares 102")),
        (ControlFile::CpuShares, Some("shares 102")),
        (ControlFile::MemoryMax, Some("4096")),
        (ControlFile::MemoryLimit, Some("4096")),
        (ControlFile::MemswLimit, None),
        (ControlFile::CpuMaxBurst, None),
    ] {
        assert_eq!(stored_text(&stored, file).as_deref(), text, "{file}");
        assert_eq!(stored_text(&CriResources::default(), file), None, "{file}");
    }
}

#[test]
fn an_assumed_kubelet_is_told_where_it_matters() {
    let root = tempfile::tempdir().unwrap();
    let mut node = Node::on_files(root.path());
    let told = |node: &Node, text: &str| {
        let view = parse_manifests("pod", text).unwrap().view;
        assumed_kubelet(node, &view.pods[0])
    };
    // Old kubelets give its pod the container's limits, new ones none.
    let with_init = "{kind: Pod, metadata: {name: web}, spec: {initContainers: [{name: first}], containers: \
        [{name: app, resources: {limits: {cpu: 1, memory: 1Gi}}}]}}";
    assert_eq!(told(&node, with_init), None, "it is configured");
    node.kubelet_from = KnownFrom::Inferred;
    let assumed = told(&node, with_init).unwrap();
    assert!(
        assumed.contains("follow the rules of kubelet 1.37, which is assumed"),
        "{assumed}"
    );
    assert_eq!(told(&node, POD), None);
}
