use super::*;
use crate::model::Bytes;
use crate::model::objects::LimitRange;

const MI: u64 = 1 << 20;

fn parse<T: serde::de::DeserializeOwned>(text: &str) -> T {
    serde_saphyr::from_str(text).unwrap()
}

/// The account of one quota with this spec and status.
fn account(quota: &str) -> QuotaAccount {
    let quota: ResourceQuota = parse(&format!("{{metadata: {{name: team}}, {quota}}}"));
    let known = KnownObjects {
        quotas: vec![quota.into()],
        ..KnownObjects::default()
    };
    QuotaAccount::new([&known], KubeletVersion::NEWEST)
}

/// A quota of 1Gi of limits, of which 512Mi are used.
fn half() -> QuotaAccount {
    let hard = "hard: {limits.memory: 1Gi, pods: '10'}";
    account(&format!(
        "spec: {{{hard}}}, status: {{{hard}, used: {{limits.memory: 512Mi}}}}"
    ))
}

/// A pod whose only container has a limit of 100Mi.
fn pod(name: &str) -> Arc<Pod> {
    Arc::new(parse(&format!(
        "{{metadata: {{name: {name}}}, spec: {{containers: [{{name: app, resources: {{limits: {{memory: 100Mi}}}}}}]}}}}"
    )))
}

/// The pod's targets with this memory limit of the first container.
fn to(pod: &Pod, mebibytes: u64) -> PodAmounts {
    let mut targets = pod.requirements();
    targets.containers[0].resources.limits.memory = Some(Bytes::new(mebibytes * MI));
    targets
}

fn patched(account: &QuotaAccount, pod: &Pod, wanted: &PodAmounts) -> Result<(), String> {
    account.check(pod, PodAmounts::NONE, wanted, true)
}

#[test]
fn a_refusal_uses_the_api_servers_words() {
    let (mut account, one, other) = (half(), pod("a"), pod("b"));
    assert_eq!(patched(&account, &one, &to(&one, 612)), Ok(()));
    let refused = patched(&account, &one, &to(&one, 613)).unwrap_err();
    assert_eq!(
        refused,
        "exceeded quota: team, requested: limits.memory=513Mi, used: limits.memory=512Mi, limited: limits.memory=1Gi"
    );
    account.count(&other, &to(&other, 400));
    let refused = patched(&account, &one, &to(&one, 400)).unwrap_err();
    let others = "requested: limits.memory=300Mi, used: limits.memory=512Mi, limited: limits.memory=1Gi; other pods of this node \
                  get 300Mi that is not counted yet";
    assert!(refused.ends_with(others), "{refused}");
    assert_eq!(
        patched(&account, &other, &to(&other, 612)),
        Ok(()),
        "a pod's own part is known"
    );
    assert!(account.count(&other, PodAmounts::NONE), "it gives its part back");
    assert_eq!(patched(&account, &one, &to(&one, 400)), Ok(()));
}

#[test]
fn less_than_a_pod_holds_is_always_allowed() {
    let (account, pod) = (half(), pod("a"));
    let held = to(&pod, 2000);
    for is_patched in [true, false] {
        assert_eq!(account.check(&pod, &held, &to(&pod, 1900), is_patched), Ok(()));
        assert_eq!(account.check(&pod, PodAmounts::NONE, &to(&pod, 50), is_patched), Ok(()));
    }
    assert_eq!(
        account.limits_left(&pod, &to(&pod, 600), true).memory,
        Some(Bytes::new(12 * MI))
    );
    assert_eq!(account.limits_left(&pod, &held, true).memory, Some(Bytes::ZERO));
    assert_eq!(account.limits_left(&pod, &held, true).cpu, None);
}

#[test]
fn uncounted_quotas_bind_direct_writes_alone() {
    let (account, pod) = (account("spec: {hard: {limits.memory: 1Gi}}"), pod("a"));
    assert_eq!(
        patched(&account, &pod, &to(&pod, 4096)),
        Ok(()),
        "as the API server has it"
    );
    let refused = account
        .check(&pod, PodAmounts::NONE, &to(&pod, 101), false)
        .unwrap_err();
    assert_eq!(refused, "status unknown for quota: team, resources: limits.memory");
    assert_eq!(
        account.limits_left(&pod, PodAmounts::NONE, false).memory,
        Some(Bytes::ZERO)
    );
}

#[test]
fn an_uncounted_container_blocks_patches() {
    let hard = "hard: {limits.memory: 1Gi, requests.cpu: 1}";
    let account = account(&format!(
        "spec: {{{hard}}}, status: {{{hard}, used: {{limits.memory: 0, requests.cpu: 0}}}}"
    ));
    let pod = pod("a");
    let refused = patched(&account, &pod, &to(&pod, 50)).unwrap_err();
    assert_eq!(refused, "failed quota: team: must specify requests.cpu for: app");
    assert_eq!(
        patched(&account, &pod, &pod.requirements()),
        Ok(()),
        "nothing is patched"
    );
    assert_eq!(account.check(&pod, PodAmounts::NONE, &to(&pod, 50), false), Ok(()));
    let own: Pod = parse(
        "{metadata: {name: p}, spec: {resources: {limits: {memory: 1Gi}}, containers: [{name: app, resources: {limits: {memory: 100Mi}}}]}}",
    );
    assert_eq!(patched(&account, &own, &to(&own, 50)), Ok(()));
    let with_defaults = |kind: &str, cpus: &[&str]| {
        let range = |cpu: &&str| -> Shared<LimitRange> {
            let item = format!("{{type: {kind}, defaultRequest: {{cpu: {cpu}}}}}");
            let range: LimitRange = parse(&format!("{{metadata: {{name: l}}, spec: {{limits: [{item}]}}}}"));
            range.into()
        };
        let known = KnownObjects {
            quotas: account.quotas.clone(),
            limit_ranges: cpus.iter().map(range).collect(),
            ..KnownObjects::default()
        };
        let account = QuotaAccount::new([&known], KubeletVersion::NEWEST);
        patched(&account, &pod, &to(&pod, 50))
    };
    let of_containers = |cpus: &[&str]| with_defaults("Container", cpus);
    assert_eq!(of_containers(&["100m"]), Ok(()), "admission fills it in first");
    assert_eq!(
        of_containers(&["100m", "2"]),
        Ok(()),
        "nothing is left to the second range"
    );
    assert_eq!(
        with_defaults("Pod", &["100m"]).unwrap_err(),
        refused,
        "only containers have defaults"
    );
    assert_eq!(
        of_containers(&["2", "100m"]).unwrap_err(),
        "exceeded quota: team, requested: requests.cpu=2, used: requests.cpu=0, limited: requests.cpu=1"
    );
}

#[test]
fn the_lower_of_two_quota_names_counts() {
    let quota = "spec: {hard: {cpu: 3, requests.cpu: 2}}, status: {hard: {cpu: 1, requests.cpu: 2}, used: {cpu: 1, requests.cpu: 1}}";
    let pod: Pod =
        parse("{metadata: {name: p}, spec: {containers: [{name: app, resources: {requests: {cpu: 100m}}}]}}");
    let mut targets = pod.requirements();
    targets.containers[0].resources.requests.set(Resource::Cpu, Some(101));
    let refused = patched(&account(quota), &pod, &targets).unwrap_err();
    assert!(
        refused.ends_with("requested: requests.cpu=1m, used: requests.cpu=1, limited: requests.cpu=1"),
        "{refused}"
    );
}

#[test]
fn spec_and_status_count_with_the_kubelets_sum() {
    let counted = |status: &str, mebibytes| {
        let init = "initContainers: [{name: init, resources: {limits: {memory: 150Mi}}}]";
        let pod: Pod = parse(&format!(
            "{{metadata: {{name: p}}, spec: {{overhead: {{memory: 8Mi}}, {init}, containers: [{{name: app, resources: {{limits: \
             {{memory: 100Mi}}}}}}]}}, status: {status}}}"
        ));
        let account = half();
        account
            .beyond(&pod, &to(&pod, mebibytes))
            .limits
            .amount(Resource::Memory)
            / MI
    };
    assert_eq!(counted("{}", 140), 0, "the init container needs more");
    assert_eq!(counted("{}", 170), 20);
    let running = "containerStatuses: [{name: app, resources: {limits: {memory: 300Mi}}}]";
    assert_eq!(counted(&format!("{{{running}}}"), 320), 20, "a shrink is under way");
    let infeasible = "conditions: [{type: PodResizePending, status: 'True', reason: Infeasible}]";
    let small = "containerStatuses: [{name: app, resources: {limits: {memory: 50Mi}}}]";
    assert_eq!(counted(&format!("{{{infeasible}, {small}}}"), 200), 50);
}

#[test]
fn the_version_decides_what_mixed_changes_count() {
    let resources = "resources: {limits: {memory: 100Mi}}";
    let pod: Pod = parse(&format!(
        "{{metadata: {{name: p}}, spec: {{containers: [{{name: a, {resources}}}, {{name: b, {resources}}}]}}, status: \
         {{containerStatuses: [{{name: a, {resources}}}, {{name: b, {resources}}}]}}}}"
    ));
    let mut targets = to(&pod, 150);
    targets.containers[1].resources.limits.memory = Some(Bytes::new(70 * MI));
    let counted = |kubelet| {
        let account = QuotaAccount {
            kubelet: KubeletVersion(kubelet),
            ..QuotaAccount::default()
        };
        account.beyond(&pod, &targets).limits.amount(Resource::Memory) / MI
    };
    assert_eq!((counted(36), counted(37)), (50, 20));
}

#[test]
fn a_quota_counts_the_pods_of_its_scopes() {
    let affine = |term: &str| {
        let rule = "requiredDuringSchedulingIgnoredDuringExecution";
        parse::<Pod>(&format!(
            "{{spec: {{priorityClassName: high, activeDeadlineSeconds: 60, affinity: {{podAntiAffinity: {{{rule}: [{term}]}}}}, \
             containers: [{{name: a, resources: {{requests: {{cpu: 1}}}}}}]}}}}"
        ))
    };
    let burstable = affine("{topologyKey: z, namespaces: [other]}");
    let idle: Pod = parse("{spec: {containers: [{name: a}]}}");
    let counts = |spec: &str| {
        let quota: ResourceQuota = parse(&format!("{{spec: {spec}}}"));
        (quota.counts(&burstable), quota.counts(&idle))
    };
    assert_eq!(counts("{}"), (true, true));
    assert_eq!(counts("{scopes: [BestEffort]}"), (false, true));
    assert_eq!(counts("{scopes: [NotBestEffort, Terminating]}"), (true, false));
    assert_eq!(counts("{scopes: [NotTerminating]}"), (false, true));
    assert_eq!(counts("{scopes: [PriorityClass]}"), (true, false));
    assert_eq!(counts("{scopes: [CrossNamespacePodAffinity]}"), (true, false));
    assert_eq!(counts("{scopes: [SomethingNew]}"), (false, false));
    let selected = |operator: &str| {
        counts(&format!(
            "{{scopeSelector: {{matchExpressions: [{{scopeName: PriorityClass, operator: {operator}, values: [high]}}]}}}}"
        ))
    };
    assert_eq!(selected("In"), (true, false));
    assert_eq!(selected("NotIn"), (false, true));
    let near = |term: &str| affine(term).spec.crosses_namespaces;
    assert!(near("{topologyKey: z, namespaceSelector: {}}") && !near("{topologyKey: z}"));
    let preferred =
        "preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {namespaceSelector: {}}}]";
    let pod: Pod = parse(&format!("{{spec: {{affinity: {{podAffinity: {{{preferred}}}}}}}}}"));
    assert!(pod.spec.crosses_namespaces);
}
