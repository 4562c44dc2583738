//! `vscalectl decide` beside the unmodified code of VPA's updater (`tests/parts/addons/vpa-oracle`), on thousands of made-up pods.
//! Every difference is one that `src/decide/mod.rs` names.

mod dry_run;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::support::cluster::Programs;
use crate::support::vscalectl;

const NOW: &str = "2026-03-01T12:00:00Z";
const CASES: usize = 3000;
/// Cases in one call of `vscalectl`.
const TOGETHER: usize = 500;
const RESOURCES: [&str; 2] = ["cpu", "memory"];
/// The reasons for which vscaled leaves alone what upstream sends to the API server, which refuses it, or restarts a container.
const SKIPPED: [&str; 3] = ["QoSClassChange", "LimitRangeExceeded", "BelowLeast"];

/// Requests and limits by `container/requests/cpu`, in milli-cpu and bytes.
type Amounts = BTreeMap<String, u64>;

/// `VSCALED_SEED` repeats a run.
fn seed() -> u64 {
    std::env::var("VSCALED_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap())
}

fn before(seconds: i64) -> String {
    let now: Timestamp = NOW.parse().unwrap();
    format!("{:.0}", now - SignedDuration::from_secs(seconds))
}

/// A likely amount of a resource.
fn amount(random: &mut Rng, resource: &str) -> u64 {
    let usual = [10, 16, 25, 64, 100, 128, 250, 300, 500, 1000, 1024, 1500, 2000];
    let round = match random.u8(..3) {
        0 => random.u64(10..4000),
        _ => usual[random.usize(..usual.len())],
    };
    match resource {
        "cpu" => round,
        _ => (round << 20) + [0, random.u64(..4096)][usize::from(random.u8(..4) == 0)],
    }
}

fn quantity(resource: &str, amount: u64) -> Value {
    match resource {
        "cpu" => format!("{amount}m").into(),
        _ => amount.to_string().into(),
    }
}

/// Amounts of some resources, of each with this chance.
fn list(random: &mut Rng, chance: f64) -> BTreeMap<&'static str, u64> {
    let drawn = RESOURCES.map(|resource| (random.f64() < chance).then(|| (resource, amount(random, resource))));
    drawn.into_iter().flatten().collect()
}

fn quantities(list: &BTreeMap<&'static str, u64>) -> Value {
    let all = list
        .iter()
        .map(|(resource, amount)| ((*resource).to_owned(), quantity(resource, *amount)));
    Value::Object(all.collect::<Map<_, _>>())
}

/// A minimum and a maximum, none above the other.
fn range(random: &mut Rng, low: &str, high: &str) -> Map<String, Value> {
    let (mut min, mut max) = (list(random, 0.4), list(random, 0.4));
    for (resource, low) in &mut min {
        if let Some(high) = max.get_mut(resource).filter(|high| **high < *low) {
            std::mem::swap(low, high);
        }
    }
    let named = [(low, min), (high, max)]
        .into_iter()
        .filter(|(_, list)| !list.is_empty());
    named.map(|(name, list)| (name.to_owned(), quantities(&list))).collect()
}

/// A pod as the API server has it, its VPA, and the LimitRanges and quotas of its namespace.
struct Case {
    pod: Value,
    vpa: Value,
    limit_ranges: Vec<Value>,
    quotas: Vec<Value>,
}

impl Case {
    fn draw(random: &mut Rng, number: usize) -> Self {
        let metadata =
            |name: &str| json!({"name": name, "namespace": format!("ns-{number}"), "uid": format!("{name}-{number}")});
        let names = &["a", "b", "c"][..=random.usize(..3)];
        let containers: Vec<Value> = names.iter().map(|name| container(random, name)).collect();
        // Without a recommendation or a bound of every container, upstream crashes or changes what no VPA controls.
        let of_pods = random.f64() < 0.15;
        let recommended: Vec<Value> = names
            .iter()
            .filter_map(|name| recommendation(random, name, of_pods))
            .collect();
        let statuses: Vec<Value> = containers.iter().map(|container| status(random, container)).collect();
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata("p"),
            "spec": {"nodeName": "n", "containers": containers},
            "status": {"phase": "Running", "startTime": before([60, 3600, 50_000, 86_400][random.usize(..4)]), "containerStatuses": statuses},
        });
        pod["status"]["qosClass"] = class(&amounts_of(&pod), names).into();
        let owner =
            json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "w", "uid": "w", "controller": true}]);
        pod["metadata"]["ownerReferences"] = owner;
        pod["metadata"]["labels"] = json!({"app": "w"});
        if random.f64() < 0.1 {
            let observed = names[..=random.usize(..names.len())].join(", ");
            pod["metadata"]["annotations"] = json!({"vpaObservedContainers": observed});
        }
        let mut vpa = json!({
            "apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler", "metadata": metadata("v"),
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "w"},
                "updatePolicy": {"updateMode": "InPlaceOrRecreate", "minReplicas": 1},
                "resourcePolicy": {"containerPolicies": policies(random, names)},
            },
            "status": {"recommendation": {"containerRecommendations": recommended}},
        });
        vpa["metadata"]["creationTimestamp"] = before(90_000).into();
        if random.f64() < 0.1 {
            vpa["spec"]["updatePolicy"]["evictAfterOOMSeconds"] = [60, 1200][random.usize(..2)].into();
        }
        let mut kinds = vec!["Container"; [0, 0, 0, 1, 2][random.usize(..5)]];
        kinds.extend(of_pods.then_some("Pod"));
        // Of several lists of defaults, upstream takes any.
        let with_default = random.usize(..6);
        let limit_ranges = kinds.iter().enumerate().map(|(index, kind)| {
            let mut item = range(random, "min", "max");
            item.insert("type".to_owned(), (*kind).into());
            let default = Some(list(random, 0.5)).filter(|list| index == with_default && !list.is_empty());
            item.extend(default.map(|default| ("default".to_owned(), quantities(&default))));
            let name = format!("l{index}");
            json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata(&name), "spec": {"limits": [item]}})
        });
        let limit_ranges = limit_ranges.collect();
        Self {
            pod,
            vpa,
            limit_ranges,
            quotas: Vec::new(),
        }
    }

    fn objects(&self) -> impl Iterator<Item = Value> {
        let workload = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": "w", "namespace": self.pod["metadata"]["namespace"], "uid": "w"},
            "spec": {"selector": {"matchLabels": {"app": "w"}}, "template": {"metadata": {"labels": {"app": "w"}}}},
        });
        let own = [workload, self.vpa.clone(), self.pod.clone()];
        let bounds = self.limit_ranges.iter().chain(&self.quotas);
        own.into_iter().chain(bounds.cloned())
    }
}

fn container(random: &mut Rng, name: &str) -> Value {
    let (mut requests, mut limits) = (list(random, 0.85), BTreeMap::new());
    for resource in RESOURCES {
        if random.bool() {
            let base = requests
                .get(resource)
                .copied()
                .unwrap_or_else(|| amount(random, resource));
            let limit = base * [1, 1, 2, 3][random.usize(..4)] + [0, 0, 1, 7][random.usize(..4)];
            limits.insert(resource, limit);
            // As the API server does.
            requests.entry(resource).or_insert(limit);
        }
    }
    let lists = [("requests", requests), ("limits", limits)]
        .into_iter()
        .filter(|(_, list)| !list.is_empty());
    let resources: Map<_, _> = lists.map(|(name, list)| (name.to_owned(), quantities(&list))).collect();
    json!({"name": name, "image": "x", "resources": resources})
}

fn status(random: &mut Rng, container: &Value) -> Value {
    let mut status = json!({"name": container["name"], "ready": true, "restartCount": 0, "image": "x", "imageID": ""});
    if random.bool() {
        status["resources"] = container["resources"].clone();
    }
    if random.f64() < 0.1 {
        let (ended, ran) = (
            [30, 300, 900, 5000][random.usize(..4)],
            [5, 300, 900][random.usize(..3)],
        );
        let reason = ["OOMKilled", "OOMKilled", "Error"][random.usize(..3)];
        let end =
            json!({"reason": reason, "exitCode": 137, "startedAt": before(ended + ran), "finishedAt": before(ended)});
        status["lastState"] = json!({"terminated": end});
    }
    status
}

fn policies(random: &mut Rng, names: &[&str]) -> Vec<Value> {
    let mut named: Vec<&str> = names.iter().copied().chain(["*"]).collect();
    random.shuffle(&mut named);
    named.truncate(random.usize(..3));
    let policies = named.into_iter().map(|name| {
        let mut policy = range(random, "minAllowed", "maxAllowed");
        policy.insert("containerName".to_owned(), name.into());
        if random.f64() < 0.3 {
            let values = ["RequestsOnly", "RequestsAndLimits"][random.usize(..2)];
            policy.insert("controlledValues".to_owned(), values.into());
        }
        Value::Object(policy)
    });
    policies.collect()
}

/// A recommendation within its range. Whole: of both resources, and without a range.
fn recommendation(random: &mut Rng, name: &str, whole: bool) -> Option<Value> {
    if !whole && random.f64() < 0.15 {
        return None;
    }
    let only = (!whole && random.f64() < 0.2).then(|| RESOURCES[random.usize(..2)]);
    let controlled = RESOURCES
        .into_iter()
        .filter(|resource| only.is_none_or(|only| only == *resource));
    let target: BTreeMap<_, _> = controlled
        .map(|resource| (resource, amount(random, resource)))
        .collect();
    let mut all = json!({"containerName": name, "target": quantities(&target)});
    if !whole && random.f64() < 0.9 {
        let mut part = |percents: [u64; 3]| {
            let scaled = target
                .iter()
                .map(|(resource, amount)| (*resource, (amount * percents[random.usize(..3)] / 100).max(1)));
            quantities(&scaled.collect())
        };
        (all["lowerBound"], all["upperBound"]) = (part([30, 80, 95]), part([105, 150, 400]));
    }
    Some(all)
}

/// The amounts of a pod's spec.
fn amounts_of(pod: &Value) -> Amounts {
    flat(
        pod["spec"]["containers"].as_array().unwrap(),
        |container| &container["resources"],
    )
}

fn flat(containers: &[Value], of: impl Fn(&Value) -> &Value) -> Amounts {
    let mut amounts = Amounts::new();
    for container in containers {
        for kind in ["requests", "limits"] {
            for resource in RESOURCES {
                let key = format!("{}/{kind}/{resource}", container["name"].as_str().unwrap());
                if let Some(text) = of(container)[kind][resource].as_str() {
                    let exact = vscaled::model::quantity::Quantity::parse(text).unwrap();
                    let amount = if resource == "cpu" {
                        exact.milli_value()
                    } else {
                        exact.value()
                    };
                    amounts.insert(key, amount);
                }
            }
        }
    }
    amounts
}

/// The class of a pod whose containers have these amounts, which are not zero.
fn class(amounts: &Amounts, names: &[&str]) -> &'static str {
    let is_equal = |name: &&str| {
        RESOURCES.iter().all(|resource| {
            let [request, limit] = ["requests", "limits"].map(|kind| amounts.get(&format!("{name}/{kind}/{resource}")));
            limit.is_some() && request == limit
        })
    };
    if amounts.is_empty() {
        "BestEffort"
    } else if names.iter().all(is_equal) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// What upstream makes of each case: the pod's amounts after its patches, if it acts; the words of a crash.
fn upstream(program: &std::path::Path, cases: &[Case]) -> Vec<Result<Option<Amounts>, String>> {
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let lines: Vec<String> = cases
        .iter()
        .map(|case| json!({"now": NOW, "vpa": case.vpa, "pod": case.pod, "limitRanges": case.limit_ranges}).to_string())
        .collect();
    let writer = std::thread::spawn(move || input.write_all((lines.join("\n") + "\n").as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    let answers = output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let answers = answers.map(|line| {
        let answer: Value = serde_json::from_slice(line).unwrap();
        if let Some(why) = answer["failed"].as_str() {
            return Err(why.to_owned());
        }
        let Some(containers) = answer["containers"].as_object() else {
            return Ok(None);
        };
        let mut amounts = Amounts::new();
        for (name, lists) in containers {
            for kind in ["requests", "limits"] {
                let list = lists[kind].as_object().into_iter().flatten();
                amounts.extend(
                    list.map(|(resource, amount)| (format!("{name}/{kind}/{resource}"), amount.as_u64().unwrap())),
                );
            }
        }
        Ok(Some(amounts))
    });
    answers.collect()
}

/// The answers of `vscalectl` about each case, in their order.
fn ours(cases: &[Case]) -> Vec<Value> {
    let mut answers = Vec::new();
    for some in cases.chunks(TOGETHER) {
        let items: Vec<Value> = some.iter().flat_map(Case::objects).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        let output = vscalectl(&["decide", "-o", "json", "--now", NOW, "-f", "-"], &list.to_string());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        answers.append(answer["pods"].as_array_mut().unwrap());
    }
    let number = |pod: &Value| -> usize { pod["namespace"].as_str().unwrap()[3..].parse().unwrap() };
    answers.sort_by_key(number);
    answers
}

/// Why the decisions differ, unless for a reason that vscaled names.
fn difference(case: &Case, upstream: Option<&Amounts>, decision: &Value) -> Option<String> {
    let standing = amounts_of(&case.pod);
    let mut wanted = upstream.cloned().unwrap_or_else(|| standing.clone());
    let acts = wanted != standing;
    let reason = decision["reason"].as_str().unwrap();
    if decision["action"] == "skip" {
        let is_named = SKIPPED.contains(&reason) && acts;
        return (!is_named).then(|| format!("skipped, {reason}"));
    }
    // A limit never ends below its request.
    if acts {
        for (key, request) in wanted.clone().into_iter().filter(|(key, _)| key.contains("/requests/")) {
            let limit = wanted.get_mut(&key.replace("/requests/", "/limits/"));
            limit.into_iter().for_each(|limit| *limit = (*limit).max(request));
        }
    }
    let decided = flat(decision["containers"].as_array().unwrap(), |container| container);
    let notes = decision["notes"].as_array().into_iter().flatten();
    let is_noted = |words: &str| notes.clone().any(|note| note.as_str().unwrap().contains(words));
    let is_lower = |(key, amount): (&String, &u64)| wanted.get(key).is_some_and(|wanted| amount <= wanted);
    // A request of zero is never written. Where a minimum has raised a container, the others give way to a pod's maximum.
    if is_noted("would become zero") || is_noted("maximum for pods") && decided.iter().all(is_lower) {
        return None;
    }
    (decided != wanted || (decision["action"] == "resize") != acts)
        .then(|| format!("{reason}: {decided:?} instead of {wanted:?}"))
}

#[test]
fn every_difference_from_the_updater_is_named() {
    let Some(programs) = Programs::find("cluster_upstream::every_difference_from_the_updater_is_named") else {
        return;
    };
    let seed = seed();
    let mut random = Rng::with_seed(seed);
    let cases: Vec<Case> = (0..CASES).map(|number| Case::draw(&mut random, number)).collect();
    let (theirs, ours) = (upstream(&programs.addon("vpa-oracle"), &cases), ours(&cases));
    assert_eq!((theirs.len(), ours.len()), (CASES, CASES));
    let (mut reasons, mut differences) = (BTreeMap::<String, usize>::new(), Vec::new());
    for ((case, theirs), ours) in cases.iter().zip(&theirs).zip(&ours) {
        *reasons.entry(ours["reason"].as_str().unwrap().to_owned()).or_default() += 1;
        let why = match theirs {
            Ok(theirs) => difference(case, theirs.as_ref(), ours),
            Err(crash) => Some(format!("upstream crashed: {crash}")),
        };
        differences.extend(why.map(|why| format!("{why}\n{}\n{}\n{:?}", case.pod, case.vpa, case.limit_ranges)));
    }
    for reason in [
        "InRange",
        "LongLived",
        "NoRecommendation",
        "OutOfBounds",
        "QuickOOM",
        "RequestMissing",
        "TooYoung",
    ] {
        assert!(reasons.get(reason).is_some_and(|count| *count > 10), "{reasons:?}");
    }
    let first = differences.first();
    assert!(
        differences.is_empty(),
        "VSCALED_SEED={seed}: {} of {CASES}, such as {}",
        differences.len(),
        first.unwrap()
    );
}
