//! What cgroups must hold, rule by rule.

use serde_json::{Value, json};

use super::traits;
use crate::model::objects::Pod;
use crate::model::{
    Bytes, CgroupVersion, ControlFile, CriResources, Driver, KubeletVersion, MemoryLimit, MilliCpu, NamedRequirements,
    NodeTraits, PodAmounts, QosClass, Setting, Settings, Target,
};
use crate::plan::lift_kept;
use crate::plan::shrink::Holds;
use crate::plan::{Hierarchy, hierarchy, in_force};

fn pod(spec: &Value) -> Pod {
    serde_json::from_value(json!({ "metadata": { "name": "web", "uid": "u" }, "spec": spec })).unwrap()
}

fn on_v2(pod: &Pod) -> Hierarchy {
    hierarchy(pod, PodAmounts::NONE, &traits(CgroupVersion::V2, Driver::Cgroupfs))
}

fn on_kubelet(minor: u32, pod: &Pod) -> Hierarchy {
    let traits = NodeTraits {
        kubelet: KubeletVersion(minor),
        ..traits(CgroupVersion::V2, Driver::Cgroupfs)
    };
    hierarchy(pod, PodAmounts::NONE, &traits)
}

fn limited(cpu: &str, memory: &str) -> Value {
    json!({ "limits": { "cpu": cpu, "memory": memory } })
}

fn cpu(milli: u64) -> Option<MilliCpu> {
    Some(MilliCpu::new(milli))
}

fn mebibytes(amount: u64) -> Option<Bytes> {
    Some(Bytes::new(amount << 20))
}

fn shown(settings: &Settings, file: ControlFile) -> String {
    settings
        .get(file)
        .map(|setting| setting.to_string())
        .unwrap_or_default()
}

#[test]
fn a_limit_alone_is_also_the_request() {
    let given = on_v2(&pod(
        &json!({ "containers": [{ "name": "a", "resources": limited("500m", "64Mi") }] }),
    ));
    assert_eq!(given.qos, QosClass::Guaranteed);
    assert_eq!(given.pod.shares.unwrap().get(), 512);
    assert_eq!(given.pod, given.containers[0].1);
}

#[test]
fn one_missing_limit_leaves_the_pods_undeclared() {
    let given = on_v2(&pod(&json!({ "containers": [
        { "name": "a", "resources": limited("1", "64Mi") },
        { "name": "b", "resources": { "requests": { "cpu": "1" }, "limits": { "memory": "32Mi" } } },
    ] })));
    assert_eq!((given.pod.cpu_limit, given.pod.memory_limit), (None, mebibytes(96)));
    assert_eq!(given.pod.shares.unwrap().get(), 2048);
}

#[test]
fn an_undeclared_limit_is_kept_once_there() {
    let pod = pod(&json!({ "containers": [{ "name": "a", "resources": { "requests": { "cpu": "1" } } }] }));
    let given = on_v2(&pod);
    assert_eq!(shown(&given.created().tree.pod, ControlFile::CpuMax), "max 100000");
    assert_eq!(shown(&given.created().tree.pod, ControlFile::MemoryMax), "max");
    let unbounded = CriResources {
        cpu_shares: Some(1024),
        cpu_quota: Some(-1),
        cpu_period: Some(100_000),
        memory_limit_in_bytes: Some(-1),
    };
    assert_eq!(given.created().specs["a"], unbounded);
    let wanted = given.wanted();
    for cgroup in [&wanted.tree.pod, &wanted.tree.containers["a"]] {
        let files: Vec<_> = cgroup.iter().map(|setting| setting.file()).collect();
        assert_eq!(files, [ControlFile::CpuWeight]);
    }
    assert_eq!(wanted.specs["a"].cpu_quota, None);
    assert_eq!(wanted.specs["a"].memory_limit_in_bytes, None);
}

#[test]
fn the_largest_init_step_counts_with_sidecars() {
    let given = on_v2(&pod(&json!({
        "containers": [{ "name": "a", "resources": limited("100m", "100Mi") }],
        "initContainers": [
            { "name": "first", "resources": limited("350m", "10Mi") },
            { "name": "proxy", "restartPolicy": "Always", "resources": limited("200m", "50Mi") },
            { "name": "second", "resources": limited("50m", "200Mi") },
        ],
    })));
    assert_eq!(
        (given.pod.cpu_limit, given.pod.memory_limit),
        (cpu(350), mebibytes(250))
    );
    let names: Vec<_> = given.containers.iter().map(|container| container.0.as_str()).collect();
    assert_eq!(names, ["a", "proxy"]);
}

#[test]
fn init_containers_declare_limits_for_newer_kubelets_only() {
    let pod = pod(&json!({
        "containers": [{ "name": "a", "resources": limited("100m", "100Mi") }],
        "initContainers": [{ "name": "setup", "resources": { "requests": { "cpu": "1m" } } }],
    }));
    assert_eq!(on_kubelet(20, &pod).pod.memory_limit, mebibytes(100));
    assert_eq!(on_kubelet(36, &pod).pod.memory_limit, None);
}

#[test]
fn each_container_declares_limits_from_1_37() {
    let limitless = json!({ "name": "setup", "resources": {} });
    let sidecar = json!({ "name": "proxy", "restartPolicy": "Always", "resources": limited("10m", "10Mi") });
    let with_init = |minor: u32, init: [&Value; 2]| {
        let containers = json!([{ "name": "a", "resources": limited("100m", "100Mi") }]);
        let pod = pod(&json!({ "containers": containers, "initContainers": init }));
        let given = on_kubelet(minor, &pod).pod;
        (given.memory_limit, given.cpu_limit)
    };
    assert_eq!(with_init(36, [&sidecar, &limitless]), (mebibytes(110), cpu(110)));
    assert_eq!(with_init(36, [&limitless, &sidecar]), (None, None));
    assert_eq!(with_init(37, [&sidecar, &limitless]), (None, None));
}

#[test]
fn overhead_adds_to_what_is_there() {
    let given = on_v2(&pod(&json!({
        "overhead": { "cpu": "250m", "memory": "64Mi" },
        "containers": [{ "name": "a", "resources": { "requests": { "cpu": "100m" }, "limits": { "memory": "100Mi" } } }],
    })));
    assert_eq!(given.pod.shares.unwrap().get(), 358);
    assert_eq!((given.pod.cpu_limit, given.pod.memory_limit), (None, mebibytes(164)));
}

#[test]
fn besteffort_pods_have_the_least_shares() {
    let given = on_v2(&pod(
        &json!({ "overhead": { "cpu": "1" }, "containers": [{ "name": "a" }] }),
    ));
    assert_eq!(
        (given.qos, given.pod.shares.unwrap().get(), given.pod.cpu_limit),
        (QosClass::BestEffort, 2, None)
    );
}

#[test]
fn a_zero_request_has_the_least_shares() {
    let pod = pod(&json!({ "containers": [
        { "name": "a", "resources": { "requests": { "cpu": "0" }, "limits": { "cpu": "1", "memory": "1Mi" } } },
    ] }));
    assert_eq!(on_kubelet(36, &pod).qos, QosClass::Burstable);
    assert_eq!(on_kubelet(36, &pod).containers[0].1.shares.unwrap().get(), 2);
    assert_eq!(on_kubelet(24, &pod).containers[0].1.shares.unwrap().get(), 1024);
}

#[test]
fn pod_limits_bind_limitless_containers() {
    let pod = pod(&json!({
        "resources": { "requests": { "cpu": "100m" }, "limits": { "cpu": "200m", "memory": "128Mi" } },
        "containers": [
            { "name": "a" },
            { "name": "b", "resources": { "requests": { "cpu": "20m", "memory": "16Mi" }, "limits": { "memory": "48Mi" } } },
        ],
    }));
    let given = on_v2(&pod);
    assert_eq!(
        (given.pod.cpu_limit, given.pod.memory_limit),
        (cpu(200), mebibytes(128))
    );
    let [a, b] = [given.containers[0].1, given.containers[1].1];
    assert_eq!(
        (a.shares.unwrap().get(), a.cpu_limit, a.memory_limit),
        (204, cpu(200), mebibytes(128))
    );
    assert_eq!(
        (b.shares.unwrap().get(), b.cpu_limit, b.memory_limit),
        (20, cpu(200), mebibytes(48))
    );
    let ignored = on_kubelet(33, &pod);
    assert_eq!((ignored.pod.shares.unwrap().get(), ignored.pod.cpu_limit), (20, None));
    assert_eq!(ignored.containers[0].1.cpu_limit, None);
}

#[test]
fn pod_level_requests_have_defaults() {
    let with = |containers: Value| {
        let resources = json!({ "limits": { "cpu": "1", "memory": "128Mi" } });
        on_v2(&pod(&json!({ "resources": resources, "containers": containers })))
    };
    let unspecified = with(json!([{ "name": "a" }]));
    assert_eq!(
        (unspecified.qos, unspecified.pod.shares.unwrap().get()),
        (QosClass::Guaranteed, 1024)
    );
    let requesting = with(json!([{ "name": "a", "resources": { "requests": { "cpu": "250m" } } }]));
    assert_eq!(
        (requesting.qos, requesting.pod.shares.unwrap().get()),
        (QosClass::Burstable, 256)
    );
}

#[test]
fn a_decision_keeps_class_and_pod_requests() {
    let pod = pod(&json!({
        "resources": { "limits": { "cpu": "1", "memory": "128Mi" } },
        "containers": [{ "name": "a", "resources": { "requests": { "cpu": "250m" } } }],
    }));
    let target: NamedRequirements =
        serde_json::from_value(json!({ "name": "a", "requests": { "cpu": "1", "memory": "128Mi" }, "limits": {} }))
            .unwrap();
    let given = hierarchy(
        &pod,
        &PodAmounts::from_iter([target]),
        &traits(CgroupVersion::V2, Driver::Cgroupfs),
    );
    assert_eq!((given.qos, given.pod.shares.unwrap().get()), (QosClass::Burstable, 256));
    assert_eq!(given.containers[0].1.shares.unwrap().get(), 1024);
}

#[test]
fn a_v1_pod_admits_restarting_containers() {
    let pod = pod(&json!({ "containers": [
        { "name": "a", "resources": limited("500m", "64Mi") },
        { "name": "b", "resources": limited("300m", "64Mi") },
    ] }));
    let quota = |cpu: [&str; 2], version| {
        let targets = [("a", cpu[0]), ("b", cpu[1])]
            .map(|(name, cpu)| json!({ "name": name, "requests": { "cpu": cpu }, "limits": { "cpu": cpu, "memory": "64Mi" } }))
            .map(|target| serde_json::from_value::<NamedRequirements>(target).unwrap());
        let targets = PodAmounts::from_iter(targets);
        let given = hierarchy(&pod, &targets, &traits(version, Driver::Cgroupfs)).admitting(&pod);
        given.pod.cpu_limit.map(MilliCpu::get)
    };
    assert_eq!(quota(["100m", "50m"], CgroupVersion::V1), Some(500));
    assert_eq!(quota(["400m", "200m"], CgroupVersion::V1), Some(600), "enough for each");
    assert_eq!(
        quota(["100m", "50m"], CgroupVersion::V2),
        Some(150),
        "there nothing is refused"
    );
}

#[test]
fn a_v1_pod_admits_limits_in_force() {
    let mut pod = pod(&json!({ "containers": [{ "name": "a", "resources": limited("500m", "64Mi") }] }));
    let reported = json!([{ "name": "a", "resources": limited("700m", "64Mi") }]);
    pod.status.container_statuses = serde_json::from_value(reported).unwrap();
    let given = hierarchy(&pod, PodAmounts::NONE, &traits(CgroupVersion::V1, Driver::Cgroupfs));
    assert_eq!(given.pod.cpu_limit, cpu(500));
    assert_eq!(given.admitting(&pod).pod.cpu_limit, cpu(700));
}

#[test]
fn a_zero_limit_bounds_nothing() {
    let limits = |resources: Value| {
        let given = on_v2(&pod(
            &json!({ "containers": [{ "name": "a", "resources": resources }] }),
        ));
        [given.containers[0].1, given.pod].map(|one| (one.cpu_limit, one.memory_limit))
    };
    assert_eq!(limits(limited("0", "64Mi")), [(None, mebibytes(64)); 2]);
    assert_eq!(limits(limited("200m", "0")), [(cpu(200), None); 2]);
}

#[test]
fn the_class_in_the_status_counts() {
    let mut pod = pod(&json!({ "containers": [{ "name": "a", "resources": limited("1", "64Mi") }] }));
    assert_eq!(on_v2(&pod).qos, QosClass::Guaranteed);
    pod.status.qos_class = Some(QosClass::Burstable);
    assert_eq!(on_v2(&pod).qos, QosClass::Burstable);
}

#[test]
fn systemd_rounds_quotas_to_percents() {
    let pod = pod(&json!({ "containers": [{ "name": "a", "resources": limited("175m", "20000001") }] }));
    let exact = CriResources {
        cpu_shares: Some(179),
        cpu_quota: Some(17_500),
        cpu_period: Some(100_000),
        memory_limit_in_bytes: Some(20_000_001),
    };
    for (driver, quota) in [(Driver::Systemd, "18000"), (Driver::Cgroupfs, "17500")] {
        let created = hierarchy(&pod, PodAmounts::NONE, &traits(CgroupVersion::V1, driver)).created();
        for cgroup in [&created.tree.pod, &created.tree.containers["a"]] {
            assert_eq!(shown(cgroup, ControlFile::CfsQuota), quota);
            assert_eq!(shown(cgroup, ControlFile::CfsPeriod), "100000");
            assert_eq!(shown(cgroup, ControlFile::CpuShares), "179");
            assert_eq!(shown(cgroup, ControlFile::MemoryLimit), "19996672");
        }
        assert_eq!(created.specs["a"], exact);
    }
}

#[test]
fn only_containers_use_the_runtimes_formula() {
    let pod = pod(&json!({ "containers": [{ "name": "a", "resources": limited("1", "64Mi") }] }));
    let created = on_v2(&pod).created();
    assert_eq!(shown(&created.tree.pod, ControlFile::CpuWeight), "39");
    assert_eq!(shown(&created.tree.containers["a"], ControlFile::CpuWeight), "100");
}

#[test]
fn requirements_in_force_are_those_the_kubelet_reports() {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "web" },
        "spec": { "containers": [{ "name": "a", "resources": limited("1", "64Mi") }, { "name": "b" }] },
        "status": { "containerStatuses": [
            { "name": "a", "resources": { "requests": { "cpu": "500m" }, "limits": { "cpu": "500m" } } },
            { "name": "b" },
        ] },
    }))
    .unwrap();
    let reported = in_force(&pod);
    assert_eq!(reported.containers.len(), 1);
    assert_eq!(
        (
            reported.containers[0].name.as_str(),
            reported.containers[0].resources.limits.cpu
        ),
        ("a", cpu(500))
    );
}

/// What `memory.max` is of the pod, of `app` and of `side`, with limits of 100 and 50 MiB, while these are kept.
fn kept(pod_level: &Value, holds: &[(Target, MemoryLimit)]) -> [String; 3] {
    let mut spec = json!({ "containers": [
        { "name": "app", "resources": limited("1", "100Mi") },
        { "name": "side", "resources": limited("1", "50Mi") },
    ] });
    if !pod_level.is_null() {
        spec["resources"] = pod_level.clone();
    }
    let (pod, holds) = (pod(&spec), Holds::from_iter(holds.iter().cloned()));
    let mut targets = pod.requirements();
    lift_kept(&holds, &mut targets);
    let wanted = hierarchy(&pod, &targets, &traits(CgroupVersion::V2, Driver::Cgroupfs))
        .keeping(&holds)
        .wanted();
    let stored = wanted.specs["app"].memory_limit_in_bytes.unwrap();
    let app = shown(&wanted.tree.containers["app"], ControlFile::MemoryMax);
    assert_eq!(stored.to_string(), app.replace("max", "-1"));
    let side = shown(&wanted.tree.containers["side"], ControlFile::MemoryMax);
    [shown(&wanted.tree.pod, ControlFile::MemoryMax), app, side].map(|text| {
        let bytes = text.parse::<u64>().map(|bytes| format!("{}Mi", bytes >> 20));
        bytes.unwrap_or(text)
    })
}

fn app() -> Target {
    Target::Container("app".into())
}

#[test]
fn a_kept_limit_is_kept_everywhere() {
    let mebibytes = |amount: u64| MemoryLimit::Bytes(amount << 20);
    let holds = [(app(), mebibytes(180)), (Target::Pod, mebibytes(200))];
    assert_eq!(kept(&Value::Null, &holds), ["230Mi", "180Mi", "50Mi"]);
    let lower = [(app(), mebibytes(80)), (Target::Pod, mebibytes(100))];
    assert_eq!(kept(&Value::Null, &lower), ["150Mi", "100Mi", "50Mi"]);
    assert_eq!(
        kept(&Value::Null, &[(Target::Pod, mebibytes(300))]),
        ["300Mi", "100Mi", "50Mi"]
    );
}

#[test]
fn no_limit_stays_within_the_pods_own() {
    let unlimited = [(app(), MemoryLimit::Max)];
    assert_eq!(kept(&Value::Null, &unlimited), ["max", "max", "50Mi"]);
    let own = limited("4", "256Mi");
    assert_eq!(kept(&own, &unlimited), ["256Mi", "256Mi", "50Mi"]);
    assert_eq!(
        kept(&own, &[(Target::Pod, MemoryLimit::Max)]),
        ["256Mi", "100Mi", "50Mi"]
    );
}

#[test]
fn a_quota_is_rounded_as_its_runtime_rounds() {
    let before = pod(&json!({ "containers": [{ "name": "a", "resources": limited("141m", "64Mi") }] }));
    let after = pod(&json!({ "containers": [{ "name": "a", "resources": limited("146m", "64Mi") }] }));
    let traits = traits(CgroupVersion::V2, Driver::Systemd);
    let before = hierarchy(&before, PodAmounts::NONE, &traits);
    for (held, quota) in [
        ("15000 100000", "15000"),
        ("14100 100000", "14600"),
        ("14600 100000", "14600"),
        ("max 100000", "15000"),
    ] {
        let mut tree = before.created().tree;
        let held = Setting::parse(ControlFile::CpuMax, held).unwrap();
        tree.set(&Target::Container("a".into()), held);
        let wanted = hierarchy(&after, PodAmounts::NONE, &traits)
            .rounding_like(&tree, &before)
            .wanted()
            .tree;
        assert_eq!(
            shown(&wanted.containers["a"], ControlFile::CpuMax),
            format!("{quota} 100000"),
            "{held}"
        );
        assert_eq!(shown(&wanted.pod, ControlFile::CpuMax), "15000 100000", "{held}");
    }
}

#[test]
fn inherited_shares_are_the_kubelets() {
    let manifest = |status: Value| {
        let spec = json!({
            "resources": { "requests": { "cpu": "100m" }, "limits": { "cpu": "200m", "memory": "256Mi" } },
            "containers": [{ "name": "bare" }, { "name": "own", "resources": { "requests": { "cpu": "50m" } } }],
        });
        let pod = json!({ "metadata": { "name": "web", "uid": "u" }, "spec": spec, "status": status });
        serde_json::from_value::<Pod>(pod).unwrap()
    };
    let on_v1 = |pod: &Pod| hierarchy(pod, PodAmounts::NONE, &traits(CgroupVersion::V1, Driver::Cgroupfs));
    let shares = |given: &Hierarchy| {
        let tree = given.wanted().tree;
        ["bare", "own"].map(|name| shown(&tree.containers[name], ControlFile::CpuShares))
    };
    let resizes = manifest(json!({ "resources": { "requests": { "cpu": "100m" } } }));
    assert!(resizes.resizable_pod_level().is_some());
    assert_eq!(shares(&on_v1(&resizes)), ["", "51"]);
    assert_eq!(on_v1(&resizes).wanted().specs["bare"].cpu_shares, None);
    let created = on_v1(&resizes).created().tree;
    assert_eq!(
        shown(&created.containers["bare"], ControlFile::CpuShares),
        "",
        "2 after a resize"
    );
    let fixed = manifest(json!({}));
    assert_eq!(shares(&on_v1(&fixed)), ["204", "51"], "no resize changes them");
}
