//! vscaled computes every value that real kubelets wrote at pod and container level, before and after resizes. The
//! recordings are below `tests/data/kubelet-cgroups`; their README says how to make them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::{Value, json};

use vscaled::model::objects::Pod;
use vscaled::model::{
    CgroupVersion, Change, ContainerName, ControlFile, Driver, KubeletVersion, NamedRequirements, NodeTraits, PageSize,
    PodAmounts, PodTree, QosClass, RuntimeKind, Target, WeightFormula,
};
use vscaled::plan::{Hierarchy, Plan, hierarchy};

#[derive(Deserialize)]
struct Recording {
    kubelet: String,
    cgroup: CgroupVersion,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Case {
    name: String,
    qos_class: QosClass,
    manifest: Value,
    before: Levels,
    resize: Option<Resize>,
    after: Option<Levels>,
}

#[derive(Deserialize)]
struct Resize {
    patch: Value,
}

/// File contents by file name.
type Files = BTreeMap<String, String>;

#[derive(Deserialize)]
struct Levels {
    pod: Files,
    containers: BTreeMap<ContainerName, Files>,
}

fn recordings() -> Vec<Recording> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kubelet-cgroups/public");
    let files = fs::read_dir(directory).unwrap();
    let recordings: Vec<Recording> = files
        .map(|file| serde_json::from_slice(&fs::read(file.unwrap().path()).unwrap()).unwrap())
        .collect();
    assert_eq!(recordings.len(), 2);
    recordings
}

impl Recording {
    /// The traits of the recorded node: containerd, cgroupfs, a runtime from before the new weight formula.
    fn traits(&self) -> NodeTraits {
        NodeTraits {
            version: self.cgroup,
            driver: Driver::Cgroupfs,
            runtime: RuntimeKind::Containerd,
            container_weight: WeightFormula::Linear,
            kubelet: self.kubelet.parse::<KubeletVersion>().unwrap(),
            page: PageSize::KIB_4,
        }
    }

    /// The recorded files that vscaled writes.
    fn ours(&self, recorded: &Files) -> Files {
        // These kubelets write neither `memory.high` nor reservations.
        let others = [ControlFile::MemoryHigh, ControlFile::MemoryMin, ControlFile::MemoryLow];
        let known = |name: &&String| ControlFile::named(name).is_some_and(|file| !others.contains(&file));
        let ours: Files = recorded.iter().filter(|(name, _)| known(name)).map(own).collect();
        let all = match self.cgroup {
            CgroupVersion::V1 => ControlFile::V1.len() - 2, // no writer set swap or a burst
            CgroupVersion::V2 => ControlFile::V2.len() - 4, // no writer set a burst, `memory.high` or a reservation
        };
        assert_eq!(ours.len(), all, "{ours:?}");
        ours
    }

    fn assert_holds(&self, case: &Case, moment: &str, tree: &PodTree, recorded: &Levels) {
        let context = format!("{} on {}, {moment}", case.name, self.kubelet);
        assert_eq!(contents(tree, &Target::Pod), self.ours(&recorded.pod), "{context}: pod");
        let names: Vec<_> = tree.containers.keys().collect();
        assert_eq!(names, recorded.containers.keys().collect::<Vec<_>>(), "{context}");
        for (name, files) in &recorded.containers {
            let computed = contents(tree, &Target::Container(name.clone()));
            assert_eq!(computed, self.ours(files), "{context}: {name}");
        }
    }
}

fn own((name, text): (&String, &String)) -> (String, String) {
    (name.clone(), text.clone())
}

fn contents(tree: &PodTree, target: &Target) -> Files {
    let settings = tree.get(target).unwrap().iter();
    settings
        .map(|setting| (setting.file().to_string(), setting.to_string()))
        .collect()
}

impl Case {
    fn pod(&self) -> Pod {
        serde_json::from_value(self.manifest.clone()).unwrap()
    }

    /// The manifest with the patch of each container's resources merged into it.
    fn patched(&self) -> Value {
        let mut manifest = self.manifest.clone();
        let patches = self.resize.as_ref().map(|resize| &resize.patch["spec"]["containers"]);
        for patch in patches.and_then(Value::as_array).into_iter().flatten() {
            let containers = manifest["spec"]["containers"].as_array_mut().unwrap();
            let container = containers
                .iter_mut()
                .find(|container| container["name"] == patch["name"])
                .unwrap();
            merge(&mut container["resources"], &patch["resources"]);
        }
        manifest
    }

    /// The targets of the patched containers.
    fn targets(&self) -> PodAmounts {
        serde_json::from_value::<Pod>(self.patched())
            .unwrap()
            .spec
            .containers
            .into_iter()
            .map(|container| NamedRequirements {
                name: container.name,
                resources: container.resources,
            })
            .collect()
    }
}

fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, value) => *into = value.clone(),
    }
}

fn before(recording: &Recording, case: &Case) -> Hierarchy {
    hierarchy(&case.pod(), PodAmounts::NONE, &recording.traits())
}

#[test]
fn new_pods_hold_what_real_kubelets_wrote() {
    for recording in recordings() {
        for case in &recording.cases {
            let given = before(&recording, case);
            assert_eq!(given.qos, case.qos_class, "{}", case.name);
            recording.assert_holds(case, "before", &given.created().tree, &case.before);
        }
    }
}

#[test]
fn resized_pods_hold_what_real_kubelets_wrote() {
    let mut resized = 0;
    for recording in recordings() {
        for case in &recording.cases {
            let Some(after) = &case.after else { continue };
            let observed = before(&recording, case).created();
            let wanted = hierarchy(&case.pod(), &case.targets(), &recording.traits()).wanted();
            recording.assert_holds(case, "after", &observed.tree.clone().overlaid(&wanted.tree), after);
            resized += 1;
        }
    }
    assert_eq!(resized, 13);
}

#[test]
fn the_steps_of_a_resize_lead_to_what_real_kubelets_wrote() {
    for recording in recordings() {
        for case in &recording.cases {
            let Some(after) = &case.after else { continue };
            let observed = before(&recording, case).created();
            let wanted = hierarchy(&case.pod(), &case.targets(), &recording.traits()).wanted();
            let plan = Plan::between(&observed, &wanted, &recording.traits()).unwrap();
            let mut tree = observed.tree;
            for step in &plan.steps {
                if let Change::File { from, to } = step.change {
                    assert_eq!(
                        tree.get(&step.target).and_then(|cgroup| cgroup.get(to.file())),
                        Some(from)
                    );
                    tree.set(&step.target, to);
                }
            }
            recording.assert_holds(case, "after all steps", &tree, after);
        }
    }
}

/// Runs `vscalectl plan` on these manifests and returns its pods.
fn planned(recording: &Recording, manifests: &[Value]) -> Vec<Value> {
    let version = match recording.cgroup {
        CgroupVersion::V1 => "v1",
        CgroupVersion::V2 => "v2",
    };
    let flags = [
        "plan",
        "-f",
        "-",
        "-o",
        "json",
        "--weight",
        "linear",
        "--cgroup",
        version,
        "--kubelet",
    ];
    let mut child = Command::new(env!("CARGO_BIN_EXE_vscalectl"))
        .args(flags)
        .arg(&recording.kubelet)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": manifests });
    child
        .stdin
        .take()
        .unwrap()
        .write_all(list.to_string().as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    printed["pods"].as_array().unwrap().clone()
}

fn assert_printed(recording: &Recording, case: &Case, pod: &Value, recorded: &Levels) {
    assert_eq!(pod["name"], case.name);
    assert_eq!(pod["qosClass"], case.qos_class.to_string());
    let cgroups = pod["cgroups"].as_array().unwrap();
    assert_eq!(cgroups.len(), 1 + recorded.containers.len());
    for cgroup in cgroups {
        let recorded = match cgroup["name"].as_str() {
            None => &recorded.pod,
            Some(name) => &recorded.containers[name],
        };
        let level = if cgroup["name"].is_null() { "pod" } else { "container" };
        assert_eq!(cgroup["level"], level);
        assert_eq!(
            cgroup["files"],
            json!(recording.ours(recorded)),
            "{}: {cgroup}",
            case.name
        );
    }
}

#[test]
fn vscalectl_plan_prints_what_real_kubelets_wrote() {
    for recording in recordings() {
        let manifests: Vec<_> = recording.cases.iter().map(|case| case.manifest.clone()).collect();
        for (case, pod) in recording.cases.iter().zip(planned(&recording, &manifests)) {
            assert_printed(&recording, case, &pod, &case.before);
            assert_eq!(pod["steps"], json!([]));
        }
        let patched: Vec<_> = recording.cases.iter().map(Case::patched).collect();
        for (case, pod) in recording.cases.iter().zip(planned(&recording, &patched)) {
            assert_printed(&recording, case, &pod, case.after.as_ref().unwrap_or(&case.before));
        }
    }
}
