//! Many files → one view, in which an object that is described more than once counts once.

use std::collections::HashMap;
use std::ffi::OsStr;

use super::Problem;
use super::read::Reader;
use crate::model::objects::ObjectMeta;
use crate::sources::NodeView;

/// Puts the files together. Of an object that is described twice, the first by file name counts; the other is a problem.
pub(super) fn combine(reader: &Reader) -> (NodeView, Vec<Problem>) {
    let mut all = NodeView::default();
    let mut known = Known::default();
    let mut problems: Vec<_> = reader.problems().collect();
    for (file, view) in reader.files() {
        let mut counts = |kind: &str, metadata: &ObjectMeta, uid: &str| {
            let object = format!("{kind} {}/{}", metadata.namespace, metadata.name);
            let earlier = known.earlier(file, &object, uid);
            problems.extend(earlier.map(|earlier| Problem {
                path: reader.path_of(file),
                message: format!("{object} is described by {} already, which counts", earlier.display()),
            }));
            earlier.is_none()
        };
        // Taken apart, so that a new kind of object is not forgotten here.
        let NodeView {
            pods,
            owners,
            vpas,
            limit_ranges,
            hpas,
            node,
        } = view;
        add(pods, &mut all.pods, |pod| {
            counts("Pod", &pod.metadata, &pod.metadata.uid)
        });
        add(owners, &mut all.owners, |owner| {
            counts(&format!("{:?}", owner.kind), &owner.metadata, "")
        });
        add(vpas, &mut all.vpas, |vpa| {
            counts("VerticalPodAutoscaler", &vpa.metadata, "")
        });
        add(limit_ranges, &mut all.limit_ranges, |range| {
            counts("LimitRange", &range.metadata, "")
        });
        add(hpas, &mut all.hpas, |hpa| {
            counts("HorizontalPodAutoscaler", &hpa.metadata, "")
        });
        match (node, &all.node) {
            (Some(node), None) => all.node = Some(node.clone()),
            (Some(node), Some(first)) => problems.push(Problem {
                path: reader.path_of(file),
                message: format!(
                    "Node {}: another file describes the node, {}, already, which counts",
                    node.metadata.name, first.metadata.name
                ),
            }),
            (None, _) => {}
        }
    }
    (all, problems)
}

fn add<T: Clone>(from: &[T], to: &mut Vec<T>, mut counts: impl FnMut(&T) -> bool) {
    to.extend(from.iter().filter(|object| counts(object)).cloned());
}

/// The objects so far: by kind, namespace and name, each with its UID and its file.
#[derive(Default)]
struct Known<'a>(HashMap<String, Vec<(String, &'a OsStr)>>);

impl<'a> Known<'a> {
    /// The file that describes this object already; else the object is remembered. Pods that follow each other share a
    /// name but no UID; without a UID, a name is all there is to go by.
    fn earlier(&mut self, file: &'a OsStr, object: &str, uid: &str) -> Option<&'a OsStr> {
        let same_name = self.0.entry(object.to_owned()).or_default();
        let same = same_name
            .iter()
            .find(|(known, _)| known == uid || known.is_empty() || uid.is_empty());
        if let Some((_, earlier)) = same {
            return Some(earlier);
        }
        same_name.push((uid.to_owned(), file));
        None
    }
}
