//! The table of keys. One row gives a key's names, its default, its meaning and when it takes effect; everything else
//! that knows the set of keys (flags, variables, the file, merging, reloading, the documentation's test) is made from it.

use std::path::Path;

use clap::ArgMatches;
use clap::parser::ValueSource;
use serde::Deserialize;

use super::given::{Given, Origin};
use super::key::{Key, Value};
use super::table::keys;

impl Layer {
    /// Says of each value whether it came from the environment: clap reads both, and only its matches know.
    pub(super) fn tell_apart(&mut self, matches: &ArgMatches) {
        for (field, given) in self.each_mut() {
            if matches.value_source(field) == Some(ValueSource::EnvVariable) {
                given.origin = Origin::Environment;
            }
        }
    }

    /// Says of each value which file it came from.
    pub(super) fn came_from(&mut self, file: &Path) {
        for (_, given) in self.each_mut() {
            given.origin = Origin::File(file.to_owned());
        }
    }
}

keys! {
    node_name {
        name: "nodeName",
        env: "NODE_NAME",
        default: "",
        live: false,
        meaning: "The name of this node in the cluster; may be empty with the directory source alone.",
    }
    source {
        name: "source",
        env: "VSCALED_SOURCE",
        default: "directory",
        live: false,
        meaning: "Where pods and VPAs come from: `directory`, `kubernetes` (the API server) or `both`; what both describe is as the API server says.",
    }
    kubeconfig {
        name: "kubeconfig",
        env: "VSCALED_KUBECONFIG",
        default: "",
        live: false,
        meaning: "The file that says how to reach the API server; empty uses the service account of the pod that vscaled runs in.",
    }
    manifests {
        name: "manifests",
        env: "VSCALED_MANIFESTS",
        default: "/etc/vscaled/manifests",
        live: false,
        meaning: "The directory of manifests (*.yaml, *.yml, *.json) that the directory source follows.",
    }
    state_dir {
        name: "stateDir",
        env: "VSCALED_STATE_DIR",
        default: "/var/lib/vscaled",
        live: false,
        meaning: "The directory for what must outlive the agent: overrides and records.",
    }
    socket {
        name: "socket",
        env: "VSCALED_SOCKET",
        default: "/run/vscaled/vscaled.sock",
        live: false,
        meaning: "The unix socket that vscalectl talks to.",
    }
    operator_group {
        name: "operatorGroup",
        env: "VSCALED_OPERATOR_GROUP",
        default: "",
        live: false,
        meaning: "The group, by name or number, whose members may make every call at the socket, as root may; empty is none.",
    }
    reader_group {
        name: "readerGroup",
        env: "VSCALED_READER_GROUP",
        default: "",
        live: false,
        meaning: "The group whose members may make the calls at the socket that change nothing; empty is none.",
    }
    audit_log {
        name: "auditLog",
        env: "VSCALED_AUDIT_LOG",
        default: "auto",
        live: false,
        meaning: "The file that keeps who changed what, one line of JSON for each value: `auto` is audit.jsonl in stateDir, `none` keeps nothing, else a path.",
    }
    audit_log_size {
        name: "auditLogSize",
        env: "VSCALED_AUDIT_LOG_SIZE",
        default: "10Mi",
        live: false,
        meaning: "How large the file of the audit log becomes before it is rotated (4Ki to 1Gi).",
    }
    audit_log_files {
        name: "auditLogFiles",
        env: "VSCALED_AUDIT_LOG_FILES",
        default: "5",
        live: false,
        meaning: "How many files of the audit log are kept, the current one included (1 to 100).",
    }
    http_address {
        name: "httpAddress",
        env: "VSCALED_HTTP_ADDRESS",
        default: "127.0.0.1:9464",
        live: false,
        meaning: "Address and port of /metrics, /healthz and /readyz; empty serves no HTTP.",
    }
    runtime_socket {
        name: "runtimeSocket",
        env: "VSCALED_RUNTIME_SOCKET",
        default: "auto",
        live: false,
        meaning: "The container runtime's CRI socket: `auto` looks in the usual places, `none` works without a runtime, else a path.",
    }
    cgroup_root {
        name: "cgroupRoot",
        env: "VSCALED_CGROUP_ROOT",
        default: "/sys/fs/cgroup",
        live: false,
        meaning: "Where the cgroup hierarchies are mounted.",
    }
    kubepods {
        name: "kubepods",
        env: "VSCALED_KUBEPODS",
        default: "auto",
        live: false,
        meaning: "The kubelet's top cgroup below cgroupRoot, such as /kubelet/kubepods; `auto` looks for it.",
    }
    cgroup_driver {
        name: "cgroupDriver",
        env: "VSCALED_CGROUP_DRIVER",
        default: "auto",
        live: false,
        meaning: "Who creates cgroups: `cgroupfs` or `systemd`; `auto` asks the runtime, then looks at what exists.",
    }
    weight_formula {
        name: "weightFormula",
        env: "VSCALED_WEIGHT_FORMULA",
        default: "auto",
        live: false,
        meaning: "How the runtime turns cpu shares into cpu.weight: `linear` or `quadratic`; `auto` finds out from its version.",
    }
    kubelet_version {
        name: "kubeletVersion",
        env: "VSCALED_KUBELET_VERSION",
        default: "auto",
        live: false,
        meaning: "The kubelet whose rules the pod level follows, such as 1.36; `auto` takes what the Node object states, else the newest known.",
    }
    kmsg {
        name: "kmsg",
        env: "VSCALED_KMSG",
        default: "/dev/kmsg",
        live: false,
        meaning: "The kernel's log, which tells whom it killed for want of memory; counters tell how many where it cannot be read.",
    }
    update_modes {
        name: "updateModes",
        env: "VSCALED_UPDATE_MODES",
        default: "Recreate,Auto,InPlaceOrRecreate,InPlace",
        live: true,
        meaning: "The update modes of VPAs that are acted on; with none, only VPAs that the annotation vscaled.io/act names.",
    }
    recommender {
        name: "recommender",
        env: "VSCALED_RECOMMENDER",
        default: "",
        live: true,
        meaning: "The recommender whose VPAs are acted on, `default` for those that name none; empty acts on all.",
    }
    in_place_lifetime_threshold {
        name: "inPlaceLifetimeThreshold",
        env: "VSCALED_IN_PLACE_LIFETIME_THRESHOLD",
        default: "12h",
        live: true,
        meaning: "The age from which a pod is also changed when its requests lie within the recommended bounds (0s to 87600h).",
    }
    update_threshold {
        name: "updateThreshold",
        env: "VSCALED_UPDATE_THRESHOLD",
        default: "0.1",
        live: true,
        meaning: "The relative difference from the target from which such a pod is changed (0 to 1).",
    }
    quick_oom_threshold {
        name: "quickOomThreshold",
        env: "VSCALED_QUICK_OOM_THRESHOLD",
        default: "10m",
        live: true,
        meaning: "How soon after its start a container's kill for memory makes its pod due at once (0s to 24h).",
    }
    sweep_interval {
        name: "sweepInterval",
        env: "VSCALED_SWEEP_INTERVAL",
        default: "30s",
        live: true,
        meaning: "The time between two checks of every value, the safety net below notifications (1s to 1h).",
    }
    runtime_timeout {
        name: "runtimeTimeout",
        env: "VSCALED_RUNTIME_TIMEOUT",
        default: "10s",
        live: false,
        meaning: "How long the container runtime may take for one update (100ms to 5m); calls that only read get 2s at most.",
    }
    workers {
        name: "workers",
        env: "VSCALED_WORKERS",
        default: "4",
        live: false,
        meaning: "How many pods are worked on at the same time (1 to 64).",
    }
    report_grpc_endpoint {
        name: "reportGrpcEndpoint",
        env: "VSCALED_REPORT_GRPC_ENDPOINT",
        default: "",
        live: false,
        meaning: "The receiver of OOM reports: https://host:port, http://host:port or unix:///path; empty reports to none.",
    }
    report_grpc_ca_file {
        name: "reportGrpcCaFile",
        env: "VSCALED_REPORT_GRPC_CA_FILE",
        default: "",
        live: false,
        meaning: "The authorities (PEM) that may sign the receiver's certificate; empty believes the system's.",
    }
    report_grpc_cert_file {
        name: "reportGrpcCertFile",
        env: "VSCALED_REPORT_GRPC_CERT_FILE",
        default: "",
        live: false,
        meaning: "The agent's certificate (PEM) for receivers that ask for one; empty shows none.",
    }
    report_grpc_key_file {
        name: "reportGrpcKeyFile",
        env: "VSCALED_REPORT_GRPC_KEY_FILE",
        default: "",
        live: false,
        meaning: "The key (PEM) of that certificate.",
    }
    report_grpc_server_name {
        name: "reportGrpcServerName",
        env: "VSCALED_REPORT_GRPC_SERVER_NAME",
        default: "",
        live: false,
        meaning: "The name in the receiver's certificate; empty is the host of its endpoint.",
    }
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    report_grpc_plaintext {
        name: "reportGrpcPlaintext",
        env: "VSCALED_REPORT_GRPC_PLAINTEXT",
        default: "false",
        live: false,
        meaning: "With `true`, http:// is allowed to other machines: anybody on the way can read reports and acknowledge them.",
    }
    report_grpc_max_backoff {
        name: "reportGrpcMaxBackoff",
        env: "VSCALED_REPORT_GRPC_MAX_BACKOFF",
        default: "1m",
        live: false,
        meaning: "The longest wait between attempts to reach the receiver (10ms to 1h).",
    }
    report_grpc_ack_timeout {
        name: "reportGrpcAckTimeout",
        env: "VSCALED_REPORT_GRPC_ACK_TIMEOUT",
        default: "30s",
        live: false,
        meaning: "How long the receiver may acknowledge nothing before it is taken for stuck (100ms to 1h).",
    }
    report_pod_events {
        name: "reportPodEvents",
        env: "VSCALED_REPORT_POD_EVENTS",
        default: "auto",
        live: false,
        meaning: "Whether OOM kills become Events on their pods: `true` needs an API server, `auto` is true where there is one, or `false`.",
    }
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    report_vpa_events {
        name: "reportVpaEvents",
        env: "VSCALED_REPORT_VPA_EVENTS",
        default: "false",
        live: false,
        meaning: "With `true`, an unmodified VPA recommender is told of OOM kills by Events that look like evictions; needs an API server.",
    }
    report_vpa_events_window {
        name: "reportVpaEventsWindow",
        env: "VSCALED_REPORT_VPA_EVENTS_WINDOW",
        default: "10m",
        live: false,
        meaning: "The least time between two such Events about one container (1m to 24h).",
    }
    spool_max_bytes {
        name: "spoolMaxBytes",
        env: "VSCALED_SPOOL_MAX_BYTES",
        default: "16Mi",
        live: false,
        meaning: "The room on disk for OOM reports that are not acknowledged (4Mi to 256Mi); beyond half of it the oldest are only counted.",
    }
    spool_max_reports {
        name: "spoolMaxReports",
        env: "VSCALED_SPOOL_MAX_REPORTS",
        default: "10000",
        live: false,
        meaning: "How many such reports there may be (2000 to 100000); beyond it the oldest are only counted.",
    }
    guard {
        name: "guard",
        env: "VSCALED_GUARD",
        default: "true",
        live: true,
        meaning: "With `true`, grow memory limits that are about to be reached and cpu limits that throttle all the time, within what a VPA allows and the node can hold.",
    }
    guard_reserve {
        name: "guardReserve",
        env: "VSCALED_GUARD_RESERVE",
        default: "5%",
        live: true,
        meaning: "Available memory that is never given out in an emergency: an amount such as 512Mi, or a part of the node's memory such as 5%.",
    }
    guard_pod_budget {
        name: "guardPodBudget",
        env: "VSCALED_GUARD_POD_BUDGET",
        default: "25%",
        live: true,
        meaning: "By how much the limits of one pod may grow in an emergency within an hour: an amount, or a part of the node's memory.",
    }
    guard_node_budget {
        name: "guardNodeBudget",
        env: "VSCALED_GUARD_NODE_BUDGET",
        default: "50%",
        live: true,
        meaning: "By how much the limits of all pods together may grow in an emergency within an hour: an amount, or a part of the node's memory.",
    }
    guard_quiet_period {
        name: "guardQuietPeriod",
        env: "VSCALED_GUARD_QUIET_PERIOD",
        default: "10m",
        live: true,
        meaning: "How long a container that was lent memory or cpu has to be quiet before what it does not need is taken back (1s to 24h).",
    }
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    applied_annotation {
        name: "appliedAnnotation",
        env: "VSCALED_APPLIED_ANNOTATION",
        default: "true",
        live: true,
        meaning: "With `true`, pods whose kubelet does not resize in place say what is applied to them in the annotation vscaled.io/applied; needs an API server.",
    }
    log_format {
        name: "logFormat",
        env: "VSCALED_LOG_FORMAT",
        default: "auto",
        live: false,
        meaning: "How log lines look: `text` or `json`; `auto` is text on a terminal and JSON elsewhere.",
    }
    log_level {
        name: "logLevel",
        env: "VSCALED_LOG_LEVEL",
        default: "info",
        live: true,
        meaning: "What is logged: a level, or directives such as `info,vscaled::plan=debug`.",
    }
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    observe_only {
        name: "observeOnly",
        env: "VSCALED_OBSERVE_ONLY",
        default: "false",
        live: true,
        meaning: "With `true`, decide and plan and report, but never write.",
    }
}
