//! Every key of the configuration. A field is the one definition of its key: its name gives the flag, the variable and the name in
//! the file, its doc comment is the text of help and docs/configuration.md, and its attributes give default, allowed values and
//! whether a reload applies the key.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;

use super::layers::{LIVE, Layer};
use super::parse::{
    ADDRESS, BOOLEAN, SHARE, absolute_path, auto_none_or, bytes, cgroup_path, duration, endpoint_path, group,
    hook_namespaces, host_name, kernel_log, log_filter, named, number, or, read, socket_path, update_modes,
};
use super::report::ReportConfig;
use super::values::{List, Optional, PathSetting, Share, Source, Switch};
use crate::model::objects::UpdateMode;
use crate::model::{AskWhenFull, Bytes, CgroupPath, CpuBurst, Driver, KubeletVersion, WeightFormula};
use crate::observe::log::LogFormat;

/// The agent's configuration: checked values only.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct Config {
    /// The name of this node in the cluster; may be empty if the directory is the only source.
    #[arg(long, default_value = "", value_parser = host_name())]
    pub node_name: String,
    /// Where pods and VPAs come from: `directory`, `kubernetes` (the API server), `kubelet` (the API server, and the node's kubelet for
    /// pods) or `both` (directory and API server, which takes precedence).
    #[arg(long, default_value = "directory", value_parser = named::<Source>("directory, kubernetes, kubelet or both"))]
    pub source: Source,
    /// The socket at which the kubelet lists its pods (feature gate PodsAPI), for the source `kubelet`.
    #[arg(long, default_value = "/var/lib/kubelet/pods-api/pods-api.sock", value_parser = socket_path())]
    pub kubelet_socket: PathBuf,
    /// The file with the address and the credentials of the API server; empty uses the service account of the agent's pod.
    #[arg(long, default_value = "", value_parser = or("", absolute_path()))]
    pub kubeconfig: Optional<PathBuf>,
    /// The directory of manifests (*.yaml, *.yml, *.json) that the directory source follows.
    #[arg(long, default_value = "/etc/vscaled/manifests", value_parser = absolute_path())]
    pub manifests: PathBuf,
    /// The directory of the files that outlive the agent: overrides and records.
    #[arg(long, default_value = "/var/lib/vscaled", value_parser = absolute_path())]
    pub state_dir: PathBuf,
    /// The unix socket that vscalectl talks to.
    #[arg(long, default_value = "/run/vscaled/vscaled.sock", value_parser = socket_path())]
    pub socket: PathBuf,
    /// The group, by name or number, whose members may make every call at the socket; empty is none.
    #[arg(long, default_value = "", value_parser = or("", group()))]
    pub operator_group: Optional<String>,
    /// The group whose members may make calls at the socket that change nothing; empty is none.
    #[arg(long, default_value = "", value_parser = or("", group()))]
    pub reader_group: Optional<String>,
    /// The file of the audit log: `auto` is audit.jsonl in stateDir, `none` writes none, else a path.
    #[arg(long, default_value = "auto", value_parser = auto_none_or(absolute_path()))]
    pub audit_log: PathSetting,
    /// The size at which the audit log is rotated (4Ki to 1Gi).
    #[arg(long, default_value = "10Mi", value_parser = bytes("4Ki", "1Gi"))]
    pub audit_log_size: Bytes,
    /// How many files of the audit log are kept, the current one included (1 to 100).
    #[arg(long, default_value = "5", value_parser = number::<usize>("1", "100"))]
    pub audit_log_files: usize,
    /// Address and port of /metrics, /healthz and /readyz; empty serves no HTTP.
    #[arg(long, default_value = "127.0.0.1:9464", value_parser = or("", read::<SocketAddr>(ADDRESS)))]
    pub http_address: Optional<SocketAddr>,
    /// The container runtime's CRI socket: `auto` tries the usual paths, `none` works without a runtime, else a path.
    #[arg(long, default_value = "auto", value_parser = auto_none_or(endpoint_path()))]
    pub runtime_socket: PathSetting,
    /// Where the cgroup hierarchies are mounted.
    #[arg(long, default_value = "/sys/fs/cgroup", value_parser = absolute_path())]
    pub cgroup_root: PathBuf,
    /// The kubelet's top cgroup below cgroupRoot, such as /kubelet/kubepods; `auto` looks for it.
    #[arg(long, default_value = "auto", value_parser = or("auto", cgroup_path()))]
    pub kubepods: Optional<CgroupPath>,
    /// Where the kubelet keeps the checkpoints of its CPU and memory managers, whose static assignments are never resized.
    #[arg(long, default_value = "/var/lib/kubelet", value_parser = absolute_path())]
    pub kubelet_dir: PathBuf,
    /// Who creates cgroups: `cgroupfs` or `systemd`; `auto` asks the runtime, then examines the existing cgroups.
    #[arg(long, default_value = "auto", value_parser = or("auto", named::<Driver>("cgroupfs or systemd")))]
    pub cgroup_driver: Optional<Driver>,
    /// How the runtime converts cpu shares to cpu.weight: `linear` or `quadratic`; `auto` learns it from running containers.
    #[arg(long, default_value = "auto", value_parser = or("auto", named::<WeightFormula>("linear or quadratic")))]
    pub weight_formula: Optional<WeightFormula>,
    /// The kubelet version whose rules apply to pods' cgroups, such as 1.36; `auto` takes the one in the Node object, else the newest
    /// known.
    #[arg(long, default_value = "auto", value_parser = or("auto", read::<KubeletVersion>("a version such as 1.36")))]
    pub kubelet_version: Optional<KubeletVersion>,
    /// The kernel's log, with the processes of OOM kills: a device, or `syslog` for the system call, which the agent also uses where it
    /// cannot open /dev/kmsg.
    #[arg(long, default_value = "/dev/kmsg", value_parser = kernel_log())]
    pub kmsg: PathBuf,
    /// The update modes of VPAs that vscaled acts on; if empty, only VPAs with the annotation vscaled.io/act.
    #[arg(long, default_value = "Recreate,Auto,InPlaceOrRecreate,InPlace")]
    #[arg(value_parser = update_modes(), help_heading = LIVE)]
    pub update_modes: List<UpdateMode>,
    /// The recommender whose VPAs vscaled acts on, `default` for those that name none; empty is all.
    #[arg(long, default_value = "", value_parser = or("", read::<String>("any text")), help_heading = LIVE)]
    pub recommender: Optional<String>,
    /// The burst of pods that a VPA changes, in percent of their cpu quotas (0% to 100%), without the annotation vscaled.io/cpu-burst;
    /// `keep` leaves bursts alone.
    #[arg(long, default_value = "keep", value_parser = or("keep", read::<CpuBurst>("a whole percentage from 0% to 100%")), help_heading = LIVE)]
    pub cpu_burst: Optional<CpuBurst>,
    /// The age from which a pod is also changed when its requests are within the recommended bounds (0s to 87600h).
    #[arg(long, default_value = "12h", value_parser = duration::<SignedDuration>("0s", "87600h"), help_heading = LIVE)]
    pub in_place_lifetime_threshold: SignedDuration,
    /// The relative difference from the target from which such a pod is changed (0 to 1).
    #[arg(long, default_value = "0.1", value_parser = number::<f64>("0", "1"), help_heading = LIVE)]
    pub update_threshold: f64,
    /// An OOM kill within this time after a container's start, and at most this long ago, makes the pod due at once (0s to 24h).
    #[arg(long, default_value = "10m", value_parser = duration::<SignedDuration>("0s", "24h"), help_heading = LIVE)]
    pub quick_oom_threshold: SignedDuration,
    /// The time between two checks of the node and of every value that inotify does not cover (1s to 1h).
    #[arg(long, default_value = "30s", value_parser = duration::<Duration>("1s", "1h"), help_heading = LIVE)]
    pub sweep_interval: Duration,
    /// How long the container runtime may take for one update (100ms to 5m); calls that only read get 2s at most.
    #[arg(long, default_value = "10s", value_parser = duration::<Duration>("100ms", "5m"))]
    pub runtime_timeout: Duration,
    /// The most pods of one namespace that have a pass at the same time (1 to 64).
    #[arg(long, default_value = "4", value_parser = number::<usize>("1", "64"))]
    pub workers: usize,
    /// Where reports of OOM kills go.
    #[command(flatten)]
    pub report: ReportConfig,
    /// With `true`, raise memory limits that are about to be reached and cpu limits that throttle all the time, within the bounds of the
    /// VPA and the node.
    #[arg(long, default_value = "true", value_parser = read::<bool>(BOOLEAN), help_heading = LIVE)]
    pub guard: Switch,
    /// Available memory that the guard never grants: an amount such as 512Mi, or a part of the node's memory such as 5%.
    #[arg(long, default_value = "5%", value_parser = read::<Share>(SHARE), help_heading = LIVE)]
    pub guard_reserve: Share,
    /// By how much the guard may raise the limits of one pod within an hour: an amount, or a part of the node's memory.
    #[arg(long, default_value = "25%", value_parser = read::<Share>(SHARE), help_heading = LIVE)]
    pub guard_pod_budget: Share,
    /// By how much the guard may raise the limits of all pods together within an hour: an amount, or a part of the node's memory.
    #[arg(long, default_value = "50%", value_parser = read::<Share>(SHARE), help_heading = LIVE)]
    pub guard_node_budget: Share,
    /// The quiet time of a container after which its temporary limit ends or comes down (1s to 24h).
    #[arg(long, default_value = "10m", value_parser = duration::<Duration>("1s", "24h"), help_heading = LIVE)]
    pub guard_quiet_period: Duration,
    /// The namespaces, separated by commas, in which hooks run (VSCALED_BEFORE_SHRINK, VSCALED_AFTER_GROW, VSCALED_ON_MEMORY_PRESSURE); `*`
    /// is every namespace but kube-system, which must be named.
    #[arg(long, default_value = "", value_parser = hook_namespaces(), help_heading = LIVE)]
    pub hooks: List<String>,
    /// With `true`, the annotation vscaled.io/applied shows the applied amounts of pods whose kubelet does not resize in place; needs an
    /// API server.
    #[arg(long, default_value = "true", value_parser = read::<bool>(BOOLEAN), help_heading = LIVE)]
    pub applied_annotation: Switch,
    /// With `true`, raise the memory limit of a pod's cgroup that a kubelet left below the pod's containers
    /// (kubernetes/kubernetes#138760), also where no VPA manages the pod.
    #[arg(long, default_value = "false", value_parser = read::<bool>(BOOLEAN), help_heading = LIVE)]
    pub repair_pod_level: Switch,
    /// Whether to request a resize that the node has no room for now from a kubelet that resizes in place, which then defers it: `never`,
    /// `always` (if the pod would fit alone), or `priority` (if it would fit without the pods of lower priority).
    #[arg(long, default_value = "never")]
    #[arg(value_parser = named::<AskWhenFull>("never, always or priority"), help_heading = LIVE)]
    pub ask_when_full: AskWhenFull,
    /// The format of log lines: `text` or `json`; `auto` is text on a terminal and JSON elsewhere.
    #[arg(long, default_value = "auto", value_parser = named::<LogFormat>("auto, text or json"))]
    pub log_format: LogFormat,
    /// The logged lines: a level, or directives such as `info,vscaled::plan=debug`. `debug` and `trace` apply to the agent's own lines.
    #[arg(long, default_value = "info", value_parser = log_filter, help_heading = LIVE)]
    pub log_level: String,
    /// With `true`, decide, plan and report, but never write.
    #[arg(long, default_value = "false", value_parser = read::<bool>(BOOLEAN), help_heading = LIVE)]
    pub observe_only: Switch,
    /// The texts of the values above, for printing and for a reload.
    #[arg(skip)]
    pub(super) given: Layer,
}
