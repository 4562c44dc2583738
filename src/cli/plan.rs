//! `vscalectl plan`: the values of every cgroup of the pods in a file after the decision, and the steps to them, without a
//! node and without an agent.
//!
//! The steps start from the resources that the kubelet reports as in force, or else from the pod's spec.

use std::str::FromStr;

use anyhow::Context;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde::de::value::{Error as ValueError, StrDeserializer};

use super::decide::ManifestArguments;
use super::page::Page;
use super::{Failure, table};
use crate::decide::Index;
use crate::model::objects::{ContainerStatus, Pod};
use crate::model::{
    CgroupVersion, Change, ControlFile, CpuBurst, Driver, KubeletVersion, NodeTraits, PageSize, PodAmounts, PodTree,
    QosClass, RuntimeKind, Setting, Settings, Step, Target, Via, WeightFormula,
};
use crate::plan::{Hierarchy, Plan, bursts, container_cgroup_name, hierarchy, in_force, pod_cgroup_path};

/// Says what the cgroups of the pods in a file of manifests hold after the decision, and how they get there.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    manifests: ManifestArguments,
    /// The kernel interface
    #[arg(long, value_name = "VERSION", default_value = "v2", value_parser = named::<CgroupVersion>(&["v1", "v2"]))]
    cgroup: CgroupVersion,
    /// Who creates cgroups; systemd keeps quotas in whole percents
    #[arg(long, default_value = "cgroupfs", value_parser = named::<Driver>(&["cgroupfs", "systemd"]))]
    driver: Driver,
    /// The runtime that names containers' cgroups
    #[arg(long, default_value = "containerd", value_parser = named::<RuntimeKind>(&["containerd", "crio", "docker"]))]
    runtime: RuntimeKind,
    /// How the runtime makes weights from shares: quadratic since runc 1.3.2 and crun 1.23. Pods have
    /// the kubelet's linear weights always
    #[arg(long, value_name = "FORMULA", default_value = "quadratic",
          value_parser = named::<WeightFormula>(&["linear", "quadratic"]))]
    weight: WeightFormula,
    /// Whose rules the pod level follows, such as 1.20 or v1.36.2
    #[arg(long, value_name = "VERSION", default_value_t = KubeletVersion::NEWEST, value_parser = KubeletVersion::from_str)]
    kubelet: KubeletVersion,
}

/// Parses one of the names of a value in configuration files.
fn named<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    names: &'static [&'static str],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names).try_map(|name| T::deserialize(StrDeserializer::<ValueError>::new(&name)))
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let traits = NodeTraits {
        version: arguments.cgroup,
        driver: arguments.driver,
        runtime: arguments.runtime,
        container_weight: arguments.weight,
        kubelet: arguments.kubelet,
        page: PageSize::KIB_4,
    };
    let view = arguments.manifests.read()?;
    let index = Index::new([&view]);
    let decisions = arguments.manifests.decide(&view, &index);
    let plans = view.pods.iter().zip(&decisions).map(|(pod, decision)| {
        let targets = decision.change().map_or(PodAmounts::NONE, |(_, amounts)| amounts);
        ShownPod::new(pod, (targets, decision.burst), &traits)
    });
    let pods = plans.collect::<Result<Vec<_>, _>>()?;
    let tables = || Page::joined(pods.iter().map(ShownPod::render));
    arguments.manifests.output.print_list("pods", &pods, tables)?;
    arguments.manifests.check_pods(&view)
}

/// The printed form, which is a promise to users and therefore a type of its own.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownPod<'a> {
    namespace: &'a str,
    name: &'a str,
    qos_class: QosClass,
    cgroups: Vec<ShownCgroup>,
    steps: Vec<ShownStep>,
}

#[derive(Serialize)]
struct ShownCgroup {
    #[serde(flatten)]
    target: Target,
    path: String,
    files: Settings,
}

#[derive(Serialize)]
struct ShownStep {
    via: Via,
    #[serde(flatten)]
    target: Target,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<ControlFile>,
    #[serde(flatten)]
    change: Change,
}

impl<'a> ShownPod<'a> {
    fn new(
        pod: &'a Pod,
        (targets, burst): (&PodAmounts, Option<CpuBurst>),
        traits: &NodeTraits,
    ) -> Result<Self, Failure> {
        let mut observed = hierarchy(pod, &in_force(pod), traits).created();
        let given = hierarchy(pod, targets, traits);
        let mut wanted = given.wanted();
        if let Some(burst) = burst {
            // A new cgroup has none.
            let none = match traits.version {
                CgroupVersion::V1 => Setting::CfsBurst(0),
                CgroupVersion::V2 => Setting::CpuMaxBurst(0),
            };
            for cgroup in observed.tree.containers.values_mut().chain([&mut observed.tree.pod]) {
                cgroup.insert(none);
            }
            for (target, burst) in bursts(burst, pod, &observed.tree, &wanted.tree, &wanted.tree) {
                wanted.tree.set(&target, burst);
            }
        }
        let plan = Plan::between(&observed, &wanted, traits).with_context(|| pod.full_name())?;
        let steps = plan.steps.iter().cloned().map(|Step { target, change }| ShownStep {
            via: change.via(),
            target,
            file: change.file(),
            change,
        });
        Ok(Self {
            namespace: &pod.metadata.namespace,
            name: &pod.metadata.name,
            qos_class: given.qos,
            cgroups: cgroups(pod, &given, &observed.tree.overlaid(&wanted.tree), traits),
            steps: steps.collect(),
        })
    }

    fn render(&self) -> Page {
        let files = self.cgroups.iter().flat_map(|cgroup| {
            let mut path = cgroup.path.as_str();
            cgroup.files.iter().map(move |setting| {
                let path = std::mem::take(&mut path).to_owned();
                let file = setting.file().name().to_owned();
                [cgroup.target.to_string(), file, setting.to_string(), path]
            })
        });
        let files = table::list("LEVEL  FILE  VALUE  PATH", files);
        let steps = self.steps.iter().zip(1..).map(|(step, number)| {
            let [via, target] = [step.via.to_string(), step.target.to_string()];
            [number.to_string(), via, target, step.change.to_string()]
        });
        let steps = table::list("STEP  VIA  LEVEL  CHANGE", steps).or("nothing to do");
        let title = format!("{}/{} ({})", self.namespace, self.name, self.qos_class);
        Page::from(title).then(files.page()).then(steps)
    }
}

/// Every cgroup with its values at the end, the pod's first.
fn cgroups(pod: &Pod, given: &Hierarchy, end: &PodTree, traits: &NodeTraits) -> Vec<ShownCgroup> {
    let uid = Some(pod.cgroup_uid()).filter(|uid| !uid.is_empty()).unwrap_or("<uid>");
    let pod_path = pod_cgroup_path(traits.driver, "/", given.qos, uid);
    let containers = given.containers.iter().map(|(name, _)| {
        let id = pod.container_status(name).and_then(ContainerStatus::bare_id);
        let id = id.map_or_else(|| format!("<{name}>"), str::to_owned);
        let directory = container_cgroup_name(traits.driver, traits.runtime, &id);
        (Target::Container(name.clone()), format!("{pod_path}/{directory}"))
    });
    let all = std::iter::once((Target::Pod, pod_path.clone())).chain(containers);
    let shown = |(target, path)| ShownCgroup {
        files: end.get(&target).cloned().unwrap_or_default(),
        target,
        path,
    };
    all.map(shown).collect()
}
