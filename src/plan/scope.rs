//! Which of a pod's values the agent has a reason to write. Pure.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::quotas::Quotas;
use crate::model::{ControlFile, NamedRequirements, PodTree, PodValues, Resource};

/// The values of a pod that vscaled may write. All others belong to the kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WriteScope {
    /// The resources for which the agent has ever wanted other amounts than the spec's.
    pub resources: BTreeSet<Resource>,
    pub quotas: Quotas,
}

impl WriteScope {
    /// Every resource, with unknown quotas.
    pub fn all() -> Self {
        Self {
            resources: Resource::ALL.into(),
            quotas: Quotas::default(),
        }
    }

    /// Adds the resources for which other amounts than the spec's are wanted. Returns whether there are new ones.
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

    /// Drops the values of `wanted` that vscaled may not write.
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
