//! What of a pod's files there is a reason to write. Pure.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::quotas::Quotas;
use crate::model::{ControlFile, NamedRequirements, PodTree, PodValues, Resource};

/// The values of a pod that are vscaled's to write; all others are its kubelet's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WriteScope {
    /// The resources of which anything but the spec was ever wanted.
    pub resources: BTreeSet<Resource>,
    pub quotas: Quotas,
}

impl WriteScope {
    /// Every resource, and nothing known of quotas.
    pub fn all() -> Self {
        Self {
            resources: Resource::ALL.into(),
            quotas: Quotas::default(),
        }
    }

    /// Takes in the resources of which something else is wanted than the spec has; whether there are new ones.
    pub fn widen(&mut self, spec: &[NamedRequirements], wanted: &[NamedRequirements]) -> bool {
        let before = self.resources.len();
        for wanted in wanted {
            let spec = spec.iter().find(|spec| spec.name == wanted.name);
            let lists = |of: &NamedRequirements, resource| {
                let resources = of.resources;
                [resources.requests.get(resource), resources.limits.get(resource)]
            };
            let differs =
                |resource: &Resource| spec.map(|spec| lists(spec, *resource)) != Some(lists(wanted, *resource));
            self.resources.extend(Resource::ALL.into_iter().filter(differs));
        }
        self.resources.len() > before
    }

    /// Leaves out of `wanted` what is not vscaled's.
    pub fn restrict(&self, wanted: &mut PodValues) {
        let files = ControlFile::V2.iter().chain(ControlFile::V1).copied();
        for file in files.filter(|file| !self.resources.contains(&file.resource())) {
            let PodTree { pod, containers } = &mut wanted.tree;
            for settings in containers.values_mut().chain([pod]) {
                settings.remove(file);
            }
            for spec in wanted.specs.values_mut() {
                spec.forget(file);
            }
        }
    }
}
