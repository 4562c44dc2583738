//! Many files → one view, in which an object that is described more than once counts once.

use std::collections::HashMap;
use std::ffi::OsStr;

use super::Problem;
use super::read::Reader;
use crate::sources::NodeView;

/// Puts the files together. Of an object that is described twice, the first by file name counts; the other is a problem.
pub(super) fn combine(reader: &Reader) -> (NodeView, Vec<Problem>) {
    let mut all = NodeView::default();
    let mut problems: Vec<_> = reader.problems().collect();
    // The objects so far, each with its UID and its file.
    let mut described: HashMap<String, Vec<(String, &OsStr)>> = HashMap::new();
    for (file, view) in reader.files() {
        all.merge(view.clone(), |kind, metadata| {
            let (object, uid) = match kind {
                // There is one, whatever it is called.
                "Node" => ("the Node".to_owned(), ""),
                "Pod" => (format!("Pod {}", metadata.full_name()), metadata.uid.as_str()),
                kind => (format!("{kind} {}", metadata.full_name()), ""),
            };
            let same_name = described.entry(object.clone()).or_default();
            // Pods that follow each other share a name but no UID; without a UID, a name is all there is to go by.
            let same = |known: &&(String, _)| known.0 == uid || known.0.is_empty() || uid.is_empty();
            let earlier = same_name.iter().find(same).map(|(_, earlier)| *earlier);
            match earlier {
                Some(earlier) => problems.push(Problem {
                    path: reader.path_of(file),
                    message: format!("{object} is described by {} already, which counts", earlier.display()),
                }),
                None => same_name.push((uid.to_owned(), file)),
            }
            earlier.is_none()
        });
    }
    (all, problems)
}
