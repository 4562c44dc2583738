//! Who else resizes the pods that VPAs are followed for.

use std::collections::BTreeMap;

use super::Coordinator;
use super::deciding::lets_go;
use crate::agent::entry::Entry;
use crate::model::objects::{UpdateMode, annotation};

/// What VPA's own updater puts on a pod that it has resized (`pods_inplace_restriction.go`).
const UPDATED: &str = annotation::UPDATED;

impl Coordinator {
    /// The VPAs whose pods VPA's own updater resizes as well, one sentence each.
    pub(super) fn updater_problems(&self) -> Vec<String> {
        let pods = self.entries.values().filter(|entry| self.is_updated_too(entry));
        let name = |entry: &Entry| {
            let vpa = entry.decision.vpa.clone().unwrap_or_default();
            (format!("{}/{vpa}", entry.pod.metadata.namespace), entry.pod.full_name())
        };
        let vpas: BTreeMap<_, _> = pods.map(|entry| name(entry)).collect();
        vpas.into_iter()
            .map(|(vpa, pod)| {
                format!(
                    "VPA's updater resizes the pods of VPA {vpa} as well (annotation {UPDATED} on {pod}): let one do it; either stop \
                     the updater, or set the VPA's mode to Off or Initial and annotate it with vscaled.io/act: \"true\""
                )
            })
            .collect()
    }

    /// Whether the updater has resized a pod, and still would by its VPA's mode, as this agent would.
    fn is_updated_too(&self, entry: &Entry) -> bool {
        let updated = entry.pod.metadata.annotations.get(UPDATED).map(String::as_str) == Some("true");
        updated
            && !lets_go(entry.decision.reason)
            && self.vpa_of(entry).is_some_and(|vpa| match vpa.update_mode() {
                UpdateMode::Recreate | UpdateMode::Auto | UpdateMode::InPlaceOrRecreate | UpdateMode::InPlace => true,
                UpdateMode::Off | UpdateMode::Initial | UpdateMode::Unknown => false,
            })
    }
}
