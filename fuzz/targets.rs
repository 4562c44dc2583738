//! The parsers of outside input, one function each: for the fuzzer (`scripts/fuzz`) and for the replay of its
//! corpora.
//!
//! A target panics when the parser panics, or when a property does not hold. This file is built for tests and for the
//! fuzzer only.

use prost::Message;
use serde_json::json;

use crate::control::selector;
use crate::kubernetes::{fuzz as kubernetes, strip_nulls};
use crate::model::objects::Pod;
use crate::model::quantity::Quantity;
use crate::model::{CgroupPath, ControlFile, Setting};
use crate::plan::hook::{Hook, HookMoment};
use crate::{cgroup, lint, oom, reconcile, report, runtime, sources};

/// A target accepts any bytes.
pub type Target = fn(&[u8]);

/// Every target by its name, which is also the name of its corpus below `tests/data/fuzz`.
pub const TARGETS: [(&str, Target); 11] = [
    ("kernel_log", kernel_log),
    ("cgroup_files", cgroup_files),
    ("mountinfo", cgroup::hierarchy::fuzz::mounts),
    ("quantity", quantity),
    ("manifests", manifests),
    ("hooks", hooks),
    ("watch", kubernetes::watch),
    ("kubelet_pods", kubernetes::kubelet_pods),
    ("cri", runtime::answer::fuzz::answers),
    ("control", control),
    ("files", files),
];

fn kernel_log(bytes: &[u8]) {
    for kill in oom::parse_log(bytes) {
        // A byte that is no UTF-8 becomes a character of three.
        assert!(kill.comm.chars().count() <= bytes.len());
    }
}

/// A parsed value prints a text that parses to the same value.
fn cgroup_files(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for file in ControlFile::V1.iter().chain(ControlFile::V2) {
        if let Ok(setting) = Setting::parse(*file, &text) {
            assert_eq!(Setting::parse(*file, &setting.to_string()), Ok(setting));
        }
    }
    if let Ok(path) = CgroupPath::new(&text) {
        assert_eq!(CgroupPath::new(&path.to_string()), Ok(path));
    }
}

fn quantity(bytes: &[u8]) {
    if let Ok(quantity) = Quantity::parse(&String::from_utf8_lossy(bytes)) {
        assert!(quantity.value() >= quantity.milli_value() / 1000);
    }
}

fn manifests(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(manifests) = sources::parse_manifests("fuzz", &text) {
        for pod in &manifests.view.pods {
            let containers = pod.all_containers();
            containers.for_each(|container| drop(lint::findings(container, pod.spec.resources)));
        }
    }
    drop(sources::parse_pod_templates("fuzz", &text));
}

/// The first line is the variable's name, the rest its value.
fn hooks(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (name, value) = text.split_once('\n').unwrap_or((&text, ""));
    let container = json!({"name": "app", "env": [{"name": name, "value": value}]});
    let pod = Pod {
        spec: serde_json::from_value(json!({"containers": [container]})).unwrap_or_default(),
        ..Pod::default()
    };
    for moment in HookMoment::ALL {
        if let Some(Err(error)) = Hook::of(&pod, "app", moment) {
            assert!(error.to_string().len() < 1024, "{error}");
        }
    }
}

/// A request at the control socket, and label selectors.
fn control(bytes: &[u8]) {
    if let Ok(request) = crate::control::proto::ResizeRequest::decode(bytes) {
        assert_eq!(
            crate::control::proto::ResizeRequest::decode(&*request.encode_to_vec()),
            Ok(request)
        );
    }
    drop(selector(&String::from_utf8_lossy(bytes)));
}

/// The state file and the kill log, with any damage.
fn files(bytes: &[u8]) {
    reconcile::store::fuzz::state(bytes);
    report::log::state::fuzz::log(bytes);
    if let Ok(mut value) = serde_json::from_slice(bytes) {
        strip_nulls(&mut value);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The number of variations of each input.
    const CHANGES: usize = 64;

    #[test]
    fn every_corpus_and_what_is_near_to_it_is_survived() {
        let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fuzz");
        let mut random = fastrand::Rng::with_seed(12);
        for (name, target) in TARGETS {
            let inputs: Vec<_> = fs::read_dir(corpora.join(name)).unwrap().collect();
            assert!(!inputs.is_empty(), "{name} has no corpus");
            for input in inputs {
                let input = fs::read(input.unwrap().path()).unwrap();
                target(&input);
                for _ in 0..CHANGES {
                    target(&changed(&input, &mut random));
                }
            }
        }
    }

    fn changed(input: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
        let mut changed = input.to_vec();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..=changed.len());
            match random.u8(..4) {
                0 => changed.truncate(at),
                1 => changed.insert(at, random.u8(..)),
                2 => changed.extend_from_within(at..),
                _ => changed
                    .iter_mut()
                    .skip(at)
                    .take(1)
                    .for_each(|byte| *byte ^= 1 << random.u8(..8)),
            }
        }
        changed
    }
}
