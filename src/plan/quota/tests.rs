use super::*;
use crate::model::{Bytes, MilliCpu};

const MI: u64 = 1 << 20;

fn list(cpu: u64, memory: u64) -> ResourceList {
    ResourceList {
        cpu: Some(MilliCpu::new(cpu)),
        memory: Some(Bytes::new(memory)),
    }
}

fn amounts(memory_limit: u64) -> QuotaAmounts {
    QuotaAmounts {
        requests: ResourceList::default(),
        limits: list(0, memory_limit),
    }
}

fn quota(text: &str) -> ResourceQuota {
    serde_saphyr::from_str(text).unwrap()
}

fn pod(text: &str) -> Pod {
    serde_saphyr::from_str(text).unwrap()
}

const LIMITED: &str = "{metadata: {name: team}, spec: {hard: {limits.memory: 1Gi, pods: '10'}}, \
     status: {hard: {limits.memory: 1Gi}, used: {limits.memory: 512Mi}}}";

#[test]
fn growth_of_all_pods_of_the_node_is_summed() {
    let quota = quota(LIMITED);
    let nothing = QuotaAmounts::default();
    assert_eq!(check_quota(&quota, nothing, amounts(512 * MI), nothing), Ok(()));
    let refused = check_quota(&quota, nothing, amounts(300 * MI), amounts(300 * MI)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "quota team of the namespace allows limits.memory 1Gi: 512Mi are used, and this node gives 300Mi beyond the specs of \
         other pods; this pod would get 300Mi beyond its spec"
    );
    assert_eq!(
        check_quota(&quota, amounts(900 * MI), amounts(800 * MI), nothing),
        Ok(()),
        "less is always fine"
    );
    assert_eq!(limits_left(&quota, amounts(500 * MI)).memory, Some(Bytes::new(12 * MI)));
    assert_eq!(limits_left(&quota, amounts(600 * MI)).memory, Some(Bytes::new(0)));
}

#[test]
fn a_quota_that_the_api_server_has_not_counted_allows_no_growth() {
    let uncounted = quota("{metadata: {name: new}, spec: {hard: {requests.cpu: 4}}}");
    let more = QuotaAmounts {
        requests: list(100, 0),
        limits: list(0, 0),
    };
    let refused = check_quota(&uncounted, QuotaAmounts::default(), more, QuotaAmounts::default()).unwrap_err();
    assert!(refused.to_string().contains("an unknown amount are used"), "{refused}");
    assert_eq!(
        limits_left(&uncounted, more),
        ResourceList::default(),
        "it names no limits"
    );
}

#[test]
fn both_names_of_requests_count_and_the_lower_amount() {
    let quota =
        quota("{spec: {hard: {cpu: 3, requests.cpu: 2}}, status: {hard: {cpu: 1}, used: {cpu: 1, requests.cpu: 1}}}");
    let more = QuotaAmounts {
        requests: list(1, 0),
        limits: list(0, 0),
    };
    let refused = check_quota(&quota, QuotaAmounts::default(), more, QuotaAmounts::default()).unwrap_err();
    assert_eq!((refused.key.as_str(), refused.hard), ("requests.cpu", 1000));
}

#[test]
fn only_what_exceeds_the_sums_of_the_spec_counts() {
    let pod = pod("{spec: {containers: [{name: a, resources: {limits: {memory: 100Mi}}}, \
         {name: b, resources: {limits: {memory: 100Mi}}}]}}");
    let mut targets = pod.requirements();
    targets[0].resources.limits.memory = Some(Bytes::new(150 * MI));
    assert_eq!(beyond_spec(&pod, &targets).limits.amount(Resource::Memory), 50 * MI);
    targets[1].resources.limits.memory = Some(Bytes::new(60 * MI));
    assert_eq!(beyond_spec(&pod, &targets).limits.amount(Resource::Memory), 10 * MI);
    targets[1].resources.limits.memory = Some(Bytes::new(10 * MI));
    assert_eq!(beyond_spec(&pod, &targets).limits.amount(Resource::Memory), 0);
}

#[test]
fn a_quota_counts_the_pods_of_its_scopes_and_unknown_scopes_count_every_pod() {
    let burstable = pod(
        "{spec: {priorityClassName: high, activeDeadlineSeconds: 60, containers: [{name: a, resources: \
         {requests: {cpu: 1}}}]}}",
    );
    let idle = pod("{spec: {containers: [{name: a}]}}");
    let counts = |spec: &str| {
        let quota = quota(&format!("{{spec: {spec}}}"));
        (quota.counts(&burstable), quota.counts(&idle))
    };
    assert_eq!(counts("{}"), (true, true));
    assert_eq!(counts("{scopes: [BestEffort]}"), (false, true));
    assert_eq!(counts("{scopes: [NotBestEffort, Terminating]}"), (true, false));
    assert_eq!(counts("{scopes: [NotTerminating]}"), (false, true));
    assert_eq!(counts("{scopes: [PriorityClass]}"), (true, false));
    assert_eq!(counts("{scopes: [CrossNamespacePodAffinity]}"), (true, true));
    let selected = |operator: &str| {
        counts(&format!(
            "{{scopeSelector: {{matchExpressions: [{{scopeName: PriorityClass, operator: {operator}, values: [high]}}]}}}}"
        ))
    };
    assert_eq!(selected("In"), (true, false));
    assert_eq!(selected("NotIn"), (false, true));
}
