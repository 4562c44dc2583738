//! What stands for one pod: the recommendation last acted on, an operator's override, or the way back to the spec.
//!
//! Pure. In come decisions, requests of operators and the time; out comes what the pod should have now. An override
//! wins over the VPA until it ends. When nothing stands any more the pod is not ours: its values are left as they are.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::overrides::{Override, OverrideError, check_names, check_result, overlay, overlay_sparse};
use crate::actuate::{Asked, Intention};
use crate::guard::lease::Lease;
use crate::model::NamedRequirements;
use crate::model::objects::Pod;
use crate::plan::WriteScope;
use crate::plan::resize::{self, Phase};

mod lend;
pub(super) use lend::Lent;

/// Everything that stands for one pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Standing {
    /// The recommendation last acted on.
    pub(super) recommended: Option<Recommended>,
    /// An operator's override.
    pub(super) overridden: Option<Override>,
    /// An override ended and what it left behind is not undone yet: limits it added where the pod declares none have to
    /// go, too.
    pub(super) returning: bool,
    /// Limits that were grown in an emergency.
    pub(super) leases: Vec<Lease>,
    /// What the spec had before an override or a loan: through the API server, they change the spec.
    pub(super) origin: Option<Vec<NamedRequirements>>,
    /// What the API server was asked for last.
    pub(super) asked: Option<Asked>,
    /// What it is about to be asked for, or was without an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) asking: Option<Intention>,
    /// What of the pod's files is written. What an earlier agent saved without it is all of them.
    #[serde(default = "WriteScope::all")]
    pub(super) scope: WriteScope,
}

/// A recommendation that was acted on: enforced until the next one is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Recommended {
    /// The VPA's name; none where what a VPA that is gone had given is taken back.
    pub(super) vpa: Option<String>,
    /// When it was decided.
    pub(super) at: Timestamp,
    /// What every regular container should have.
    pub(super) targets: Vec<NamedRequirements>,
}

impl Standing {
    /// Whether anything stands at all.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.recommended.is_none() && self.overridden.is_none() && !self.returning && self.leases.is_empty()
    }

    /// What every regular container should have now, if anything stands.
    #[must_use]
    pub(super) fn targets(&self, pod: &Pod) -> Option<Vec<NamedRequirements>> {
        if self.is_empty() {
            return None;
        }
        let mut targets = self.without_loans(pod);
        for lease in &self.leases {
            lend::lay_over(&mut targets, lease);
        }
        Some(targets)
    }

    /// What every regular container would have if nothing was lent.
    #[must_use]
    pub(super) fn without_loans(&self, pod: &Pod) -> Vec<NamedRequirements> {
        let base = self.base(pod);
        match &self.overridden {
            Some(overridden) => overlay(base, &overridden.values),
            None => base,
        }
    }

    /// What the pod would have without the override.
    pub(super) fn base(&self, pod: &Pod) -> Vec<NamedRequirements> {
        match &self.recommended {
            Some(recommended) => recommended.targets.clone(),
            None => self.origin.clone().unwrap_or_else(|| pod.requirements()),
        }
    }

    /// Sets an override; an earlier one's values stay where the new one says nothing.
    ///
    /// # Errors
    /// [`OverrideError`] when the result could not run; the standing is then unchanged.
    pub(super) fn set_override(&mut self, pod: &Pod, mut wanted: Override) -> Result<(), OverrideError> {
        check_names(pod, &wanted.values)?;
        if let Some(earlier) = &self.overridden {
            wanted.values = overlay_sparse(earlier.values.clone(), &wanted.values);
        }
        let result = overlay(self.base(pod), &wanted.values);
        check_result(pod, &wanted.values, &result)?;
        self.remember_origin(pod);
        self.overridden = Some(wanted);
        self.end_overridden_loans();
        self.returning = false;
        Ok(())
    }

    /// Ends the override, if there is one: the recommendation's values come back, or else the spec's.
    pub(super) fn end_override(&mut self) -> bool {
        let ended = self.overridden.take().is_some();
        self.returning |= ended;
        ended
    }

    /// Something is about to be changed in the spec that is to be undone later.
    pub(super) fn remember_origin(&mut self, pod: &Pod) {
        if resize::supports_in_place_resize(pod) && self.origin.is_none() {
            self.origin = Some(self.base(pod));
        }
    }

    /// Nobody asks for what was recommended any more.
    pub(super) fn let_go(&mut self) {
        if let (Some(recommended), Some(origin)) = (self.recommended.take(), &mut self.origin) {
            *origin = recommended.targets;
        }
    }

    /// Somebody else has changed the spec to this: it stands, and what was lent on top of it.
    pub(super) fn yield_to(&mut self, spec: Vec<NamedRequirements>) {
        self.recommended = None;
        self.asked = None;
        self.asking = None;
        self.origin = (!self.leases.is_empty()).then_some(spec);
        // A pass that did not know yet may have written the earlier values after the kubelet wrote these.
        self.returning = true;
    }

    /// A limit that was lowered goes up again for a while. On a way back to the spec that had ended, it begins anew.
    pub(super) fn return_later(&mut self, pod: &Pod) {
        if self.is_empty() {
            self.remember_origin(pod);
            self.returning = true;
        }
    }

    /// What the kubelet has settled on since it was asked last is what it has granted, whatever is asked for next, and by
    /// whomever. Only where it says which spec it means: what is in force may be what the fast path wrote.
    pub(super) fn settle(&mut self, pod: &Pod) {
        let seen = |asked: &&mut Asked| asked.generation <= pod.status.observed_generation;
        if let Some(asked) = self.asked.as_mut().filter(seen)
            && Phase::of(pod) == Phase::Settled
        {
            asked.held = pod.requirements();
        }
    }

    /// What an override or a loan left behind is undone, if there was any; returns whether there was.
    pub(super) fn has_returned(&mut self) -> bool {
        if self.overridden.is_none() && self.leases.is_empty() {
            self.origin = None;
        }
        std::mem::take(&mut self.returning)
    }

    /// When the override ends by itself.
    #[must_use]
    pub(super) fn ends_at(&self) -> Option<Timestamp> {
        self.overridden.as_ref().and_then(|overridden| overridden.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bytes, MilliCpu};
    use crate::sources::parse_manifests;

    const POD: &str = "
kind: Pod
metadata: {name: web}
spec:
  containers:
  - {name: app, resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}}
  - {name: side, resources: {requests: {cpu: 10m}}}
";

    fn pod() -> Pod {
        Pod::clone(&parse_manifests("test", POD).unwrap().view.pods[0])
    }

    fn values(name: &str, list: &str) -> Vec<NamedRequirements> {
        let resources = serde_json::from_str(list).unwrap();
        vec![NamedRequirements {
            name: name.to_owned(),
            resources,
        }]
    }

    fn by_hand(values: Vec<NamedRequirements>) -> Override {
        Override {
            uid: 0,
            pid: 1,
            reason: String::new(),
            since: Timestamp::UNIX_EPOCH,
            until: None,
            values,
        }
    }

    #[test]
    fn an_override_changes_only_what_it_names_and_goes_back_to_the_spec() {
        let pod = pod();
        let mut standing = Standing::default();
        assert_eq!(standing.targets(&pod), None);
        standing
            .set_override(&pod, by_hand(values("app", r#"{"limits":{"memory":"256Mi"}}"#)))
            .unwrap();
        standing
            .set_override(&pod, by_hand(values("app", r#"{"limits":{"cpu":"1"}}"#)))
            .unwrap();
        let targets = standing.targets(&pod).unwrap();
        assert_eq!(targets[0].resources.limits.memory, Some(Bytes::new(256 << 20)));
        assert_eq!(targets[0].resources.limits.cpu, Some(MilliCpu::new(1000)));
        assert_eq!(targets[1].resources, pod.spec.containers[1].resources);
        assert!(standing.end_override());
        assert!(standing.returning);
        assert_eq!(standing.targets(&pod), Some(pod.requirements()));
    }

    #[test]
    fn an_override_wins_over_the_recommendation_until_it_ends() {
        let pod = pod();
        let mut targets = pod.requirements();
        targets[0].resources.limits.cpu = Some(MilliCpu::new(300));
        let recommended = Recommended {
            vpa: Some("web".to_owned()),
            at: Timestamp::UNIX_EPOCH,
            targets: targets.clone(),
        };
        let mut standing = Standing {
            recommended: Some(recommended),
            ..Standing::default()
        };
        standing
            .set_override(&pod, by_hand(values("app", r#"{"limits":{"cpu":"900m"}}"#)))
            .unwrap();
        assert_eq!(
            standing.targets(&pod).unwrap()[0].resources.limits.cpu,
            Some(MilliCpu::new(900))
        );
        standing.end_override();
        assert_eq!(standing.targets(&pod), Some(targets));
    }

    #[test]
    fn what_could_not_run_is_refused_with_the_numbers() {
        let pod = pod();
        let mut standing = Standing::default();
        let mut refused = |name: &str, list: &str| {
            standing
                .set_override(&pod, by_hand(values(name, list)))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            refused("nginx", r#"{"limits":{"cpu":"1"}}"#),
            "the pod has no container \"nginx\"; it has: app, side"
        );
        assert!(refused("app", "{}").starts_with("nothing to change"));
        assert!(refused("app", r#"{"limits":{"cpu":"50m"}}"#).contains("cpu request 100m is above the limit 50m"));
        assert!(
            refused("side", r#"{"limits":{"memory":"100"}}"#)
                .contains("memory limit 100 is below the least the kernel holds, 4Ki")
        );
        assert!(
            refused("side", r#"{"limits":{"cpu":"5m"}}"#)
                .contains("cpu limit 5m is below the least the kernel holds, 10m")
        );
        assert!(standing.is_empty());
    }

    #[test]
    fn the_qos_class_cannot_change() {
        let mut pod = pod();
        pod.spec.containers.truncate(1);
        let mut standing = Standing::default();
        let equal = r#"{"requests":{"cpu":"1","memory":"1Gi"},"limits":{"cpu":"1","memory":"1Gi"}}"#;
        let error = standing.set_override(&pod, by_hand(values("app", equal))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the pod's QoS class would change from Burstable to Guaranteed, which a running pod cannot do: keep at least one request below its limit"
        );
    }

    #[test]
    fn what_is_not_a_regular_containers_own_is_refused_with_a_way_out() {
        let mut pod = pod();
        let refused = |pod: &Pod, name: &str, list: &str| {
            let wanted = by_hand(values(name, list));
            Standing::default().set_override(pod, wanted).unwrap_err().to_string()
        };
        let mut sidecar = pod.spec.containers[1].clone();
        sidecar.name = "mesh".to_owned();
        sidecar.restart_policy = Some("Always".to_owned());
        pod.spec.init_containers = vec![sidecar];
        assert_eq!(
            refused(&pod, "mesh", r#"{"limits":{"cpu":"1"}}"#),
            "container mesh is an init container (a sidecar): vscaled resizes regular containers only; change its resources in \
             the workload's pod template"
        );
        pod.spec.resources =
            serde_json::from_str(r#"{"requests":{"cpu":"300m"},"limits":{"memory":"200Mi"}}"#).unwrap();
        let limit = refused(&pod, "app", r#"{"limits":{"memory":"256Mi"}}"#);
        assert!(
            limit
                .starts_with("the containers would have 256Mi of memory, and the pod's own spec.resources allow 200Mi"),
            "{limit}"
        );
        let sum = refused(&pod, "side", r#"{"requests":{"cpu":"250m"}}"#);
        assert!(
            sum.contains("would have 350m of cpu") && sum.contains("allow 300m"),
            "{sum}"
        );
    }
}
