//! What the node's kubelet and the API server refuse to resize. Pure.
//!
//! In come the policies of the node, the kubelet's answers `Infeasible` and the API server's denials. Out comes, for a resource
//! of a container, why the kubelet would refuse to change it. A refusal of one resource takes the whole request along, so a
//! decision leaves that resource alone, and the agent requests the other one alone.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use jiff::{SignedDuration, Timestamp};

use crate::model::objects::{Container, Pod};
use crate::model::{KubeletVersion, MilliCpu, QosClass, Requirements, Resource};

/// The age at which a denial does not count any more: a control plane of several API servers may have been upgraded without an outage.
/// Where it was not, a pod of each namespace is denied again, with a Warning Event and perhaps a hook before it.
const DENIED_FOR: SignedDuration = SignedDuration::from_hours(24);

/// The policies of a node from which refusals of its kubelet follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodePolicies {
    /// The CPU manager's policy is `static`: it assigns processors to Guaranteed pods.
    pub static_cpu: bool,
    /// The memory manager's policy is `Static`: it assigns memory to Guaranteed pods.
    pub static_memory: bool,
    /// Containers of Burstable pods may swap (`swapBehavior: LimitedSwap`).
    pub limited_swap: bool,
}

/// An answer of the kubelet that holds for all pods of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refusal {
    /// Status conditions can be written by others than the kubelet: what a pod's says holds in that pod's namespace.
    namespace: String,
    class: QosClass,
    resource: Resource,
    /// The kubelet's words.
    words: String,
    /// The refused request changed both resources, and its words did not say which one the kubelet refuses.
    is_guess: bool,
}

/// A rule by which an API server denies resizes (`ValidatePodResize`, kubernetes `pkg/apis/core/validation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ApiRule {
    /// No memory limit is lowered in place, as before 1.34.
    LimitsStay,
    /// No pod with resources of its own is resized: the gate `InPlacePodLevelResourcesVerticalScaling` is off, as before 1.36.
    PodLevelStays,
}

/// What a node's kubelet and the API server refuse.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refusals {
    pub policies: NodePolicies,
    pub kubelet: KubeletVersion,
    answers: Vec<Refusal>,
    /// The rules that denials have named, with the namespace: a policy of a namespace can deny in the same words.
    /// The value is the time of the first denial: a later one says nothing new, and decides about no pod again.
    denials: BTreeMap<(ApiRule, String), Timestamp>,
}

impl Refusals {
    /// The same answers of a kubelet with these policies.
    #[must_use]
    pub fn beside(&self, policies: NodePolicies, kubelet: KubeletVersion) -> Self {
        Self {
            policies,
            kubelet,
            ..self.clone()
        }
    }

    /// Why no resize changes the request of a container, in a sentence; `None` if a resize may change it.
    pub fn of(&self, pod: &Pod, container: &str, resource: Resource) -> Option<String> {
        let by_swap = self.by_swap(pod, container, resource, |one| !has_equal_memory(one));
        by_swap.map(str::to_owned).or_else(|| self.of_limit(pod, resource))
    }

    /// Why no resize changes only the limit of a container, as [`Self::of`].
    pub fn of_limit(&self, pod: &Pod, resource: Resource) -> Option<String> {
        let of_pod = self.by_manager(pod, resource).or_else(|| self.by_huge_pages(pod));
        of_pod.map(str::to_owned).or_else(|| {
            let answer = self.answers.iter().find(|answer| answer.is_about(pod, resource))?;
            Some(format!(
                "the kubelet has refused it for {} pods of this namespace ({})",
                answer.class, answer.words
            ))
        })
    }

    /// Why no recommendation changes a resource of this container, as [`Self::of`]: the container could also swap only after the
    /// change. A limit that equals the request may be about to stay equal.
    pub(super) fn of_recommended(
        &self,
        pod: &Pod,
        container: &Container,
        stays_equal: bool,
        resource: Resource,
    ) -> Option<String> {
        let name = container.name.as_str();
        let would_swap = if stays_equal { has_no_memory } else { has_equal_memory };
        self.of(pod, name, resource)
            .or_else(|| self.by_swap(pod, name, resource, would_swap).map(str::to_owned))
    }

    /// Why a static manager lets no resize change a resource of this pod.
    ///
    /// Kubelets that resize in place refuse every change of cpu in a Guaranteed pod under the static CPU policy, also of pods
    /// that share processors, and of memory under the static memory policy; 1.33 refuses both under either
    /// (`canResizePod`, kubernetes `pkg/kubelet/allocation`). On older nodes only memory of Guaranteed pods and whole processors
    /// are assigned (`guaranteedCPUs`, `pkg/kubelet/cm/cpumanager/policy_static.go`).
    pub(super) fn by_manager(&self, pod: &Pod, resource: Resource) -> Option<&'static str> {
        if pod.qos_class() != QosClass::Guaranteed {
            return None;
        }
        let whole = |cpu: MilliCpu| !cpu.is_zero() && cpu.get().is_multiple_of(1000);
        let mut limits = pod
            .all_containers()
            .filter_map(|container| container.resources.limits.cpu);
        let [static_cpu, static_memory] = [self.policies.static_cpu, self.policies.static_memory];
        let is_static = match resource {
            Resource::Cpu if static_cpu && limits.any(whole) => {
                return Some("the kubelet's static cpu manager has assigned it to the pod");
            }
            Resource::Memory if static_memory => {
                return Some("the kubelet's static memory manager has assigned it to the pod");
            }
            Resource::Cpu => static_cpu,
            Resource::Memory => false,
        };
        let refuses = match self.kubelet {
            old if old < KubeletVersion::RESIZES_BY_DEFAULT => false,
            KubeletVersion::RESIZES_BY_DEFAULT => static_cpu || static_memory,
            _ => is_static,
        };
        refuses.then_some("under its static policies the kubelet resizes it in no Guaranteed pod")
    }

    /// Why no resize changes anything of this pod: the kubelet would take its huge pages along, and an access to the next page would be a
    /// bus error.
    pub(super) fn by_huge_pages(&self, pod: &Pod) -> Option<&'static str> {
        (self.kubelet < KubeletVersion::KEEPS_HUGE_PAGES && pod.resizes_in_place() && pod.spec.has_huge_pages)
            .then_some("kubelets before 1.38 set the pod's limits of huge pages to 0 with every resize")
    }

    /// Why the kubelet resizes no memory request of a container that may swap, before the resize or after it
    /// (`disallowResizeForSwappableContainers`, kubernetes `pkg/kubelet/allocation/handlers.go`, with `GetContainerSwapBehavior`).
    fn by_swap(
        &self,
        pod: &Pod,
        container: &str,
        resource: Resource,
        swaps: fn(&Container) -> bool,
    ) -> Option<&'static str> {
        let may_swap = self.policies.limited_swap
            && resource == Resource::Memory
            && self.kubelet >= KubeletVersion::RESIZES_BY_DEFAULT
            && pod.qos_class() == QosClass::Burstable
            && !pod.is_critical()
            && pod
                .container(container)
                .is_some_and(|one| swaps(one) && !one.restarts_for(Resource::Memory));
        may_swap.then_some("the kubelet resizes it in no container that may swap (LimitedSwap)")
    }

    /// Starts over with a kubelet that may refuse something else.
    pub fn forget(&mut self) {
        self.answers.clear();
        self.forget_denials();
    }

    /// Starts over with an API server that may deny less.
    pub fn forget_denials(&mut self) {
        self.denials.clear();
    }

    /// Forgets denials of some age, or from as far ahead of a clock that was set back: the API server is asked again.
    pub fn forget_old_denials(&mut self, now: Timestamp) {
        self.denials
            .retain(|_, since| now.duration_since(*since).abs() < DENIED_FOR);
    }

    /// Learns from the words with which the API server denied a resize in this namespace. Returns whether they say something new.
    pub fn learn_denial(&mut self, namespace: &str, words: &str, now: Timestamp) -> bool {
        let rules = [
            (ApiRule::LimitsStay, "memory limits cannot be decreased"),
            (ApiRule::PodLevelStays, "pods with pod-level resources"),
        ];
        let named = rules.into_iter().find(|(_, part)| words.contains(part));
        let Some((rule, _)) = named else { return false };
        let denied = self.denials.entry((rule, namespace.to_owned()));
        let is_new = matches!(denied, Entry::Vacant(_));
        denied.or_insert(now);
        is_new
    }

    /// The namespaces with this rule. A kubelet after 1.33 has an API server that lowers memory limits.
    fn namespaces_with(&self, rule: ApiRule) -> impl Iterator<Item = &String> {
        let is_over = rule == ApiRule::LimitsStay && self.kubelet > KubeletVersion::RESIZES_BY_DEFAULT;
        let known = self.denials.keys().filter(move |(known, _)| *known == rule && !is_over);
        known.map(|(_, namespace)| namespace)
    }

    fn has_rule(&self, pod: &Pod, rule: ApiRule) -> bool {
        let mut namespaces = self.namespaces_with(rule);
        pod.resizes_in_place() && namespaces.any(|namespace| *namespace == pod.metadata.namespace)
    }

    /// Whether no resize lowers a memory limit of this pod.
    pub(super) fn keep_memory_limits_of(&self, pod: &Pod) -> bool {
        self.has_rule(pod, ApiRule::LimitsStay)
    }

    /// Why the API server resizes nothing of this pod, because it has resources of its own.
    pub(super) fn by_pod_level(&self, pod: &Pod) -> Option<&'static str> {
        let has_own = pod.spec.resources.is_some_and(|own| own != Requirements::default());
        (has_own && self.has_rule(pod, ApiRule::PodLevelStays)).then_some(
            "the API server resizes no pod with spec.resources: the gate InPlacePodLevelResourcesVerticalScaling is \
             off, as before 1.36",
        )
    }

    /// Learns from the answer `words` of the kubelet that it never carries out a resize of `pod` that changes these
    /// resources. Words with numbers are about the amounts, and teach nothing about other requests.
    pub fn learn(&mut self, pod: &Pod, changed: &[Resource], words: &str) {
        let is_about_amounts = words.contains(|character: char| character.is_ascii_digit());
        let name = |parts: &[&str]| parts.iter().any(|part| words.contains(part));
        let (resource, is_guess) = match changed {
            [] => return,
            [resource] => (*resource, false),
            // The manager's policy, and from 1.38 on its mode.
            _ if name(&["CPU Manager", "CPU allocation mode"]) => (Resource::Cpu, false),
            _ if name(&["Memory Manager", "memory allocation mode", "swap"]) => (Resource::Memory, false),
            // Cpu is requested alone first. If the kubelet refuses that too, it is memory's turn.
            _ => (Resource::Memory, true),
        };
        if is_about_amounts || self.answers.iter().any(|known| known.is_about(pod, resource)) {
            return;
        }
        self.answers.retain(|known| {
            !known.is_guess || pod.metadata.namespace != known.namespace || pod.qos_class() != known.class
        });
        self.answers.push(Refusal {
            namespace: pod.metadata.namespace.clone(),
            class: pod.qos_class(),
            resource,
            words: words.chars().take(SHOWN).collect(),
            is_guess,
        });
    }

    /// Keeps only what is known of namespaces that have pods here.
    pub fn retain_namespaces(&mut self, has_pods: impl Fn(&str) -> bool) {
        self.answers.retain(|answer| has_pods(&answer.namespace));
        self.denials.retain(|(_, namespace), _| has_pods(namespace));
    }

    /// All refusals, one sentence each.
    pub fn sentences(&self) -> Vec<String> {
        let by = self.policies;
        let known = [
            (by.static_cpu, "cpu of Guaranteed pods (static CPU policy)"),
            (by.static_memory, "memory of Guaranteed pods (static memory policy)"),
            (by.limited_swap, "memory of containers that may swap (LimitedSwap)"),
        ];
        let known = known.into_iter().filter(|(holds, _)| *holds);
        let known = known.map(|(_, text)| text.to_owned());
        let limits = self
            .namespaces_with(ApiRule::LimitsStay)
            .map(|namespace| format!("lower memory limits in namespace {namespace} (an API server before 1.34)"));
        let pod_level = self
            .namespaces_with(ApiRule::PodLevelStays)
            .map(|namespace| format!("pods with spec.resources in namespace {namespace} (an API server before 1.36)"));
        let sentence = |answer: &Refusal| {
            let (resource, class, namespace) = (answer.resource, answer.class, &answer.namespace);
            format!("{resource} of {class} pods in namespace {namespace} ({})", answer.words)
        };
        let answers = self.answers.iter().map(sentence);
        known.chain(limits).chain(pod_level).chain(answers).collect()
    }
}

/// Characters of an answer that are kept.
const SHOWN: usize = 200;

impl Refusal {
    fn is_about(&self, pod: &Pod, resource: Resource) -> bool {
        self.resource == resource && self.namespace == pod.metadata.namespace && self.class == pod.qos_class()
    }
}

/// Whether a container of a Burstable pod gets no swap under `LimitedSwap`: its memory limit equals its request, or it has neither.
fn has_equal_memory(container: &Container) -> bool {
    let [request, limit] = memory_of(container);
    request == limit
}

/// Whether a container gets no swap for now, because it has no memory amounts.
fn has_no_memory(container: &Container) -> bool {
    memory_of(container) == [0, 0]
}

fn memory_of(container: &Container) -> [u64; 2] {
    let has = container.resources.with_requests();
    has.of(Resource::Memory).map(Option::unwrap_or_default)
}
