//! Every family of metrics the agent has. A new one is a line here and a row in docs/metrics.md; whoever counts registers
//! it when the agent starts, whatever is configured. Tests compare all three.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::declare::{Declaration, Described};

/// Lines of `NAME: Kind = constructor "name" [labels] "meaning";`, as statics and in one list.
macro_rules! families {
    ($($name:ident = $metric:ident::$kind:ident $text:literal [$($label:literal),*] $help:literal;)+) => {
        $(
            #[doc = concat!($help, ".")]
            pub static $name: Declaration<$metric, { <[&str]>::len(&[$($label),*]) }> =
                Declaration::$kind($text, [$($label),*], $help);
        )+

        /// All of them.
        pub static ALL: &[&dyn Described] = &[$(&$name),+];
    };
}

families! {
    BUILD_INFO = Gauge::gauge "build_info" ["version"]
        "Always 1; the label says what runs here";
    PROCESS_CPU = Counter::counter "process_cpu_seconds" []
        "Processor time the agent has used";
    PROCESS_MEMORY = Gauge::gauge "process_resident_memory_bytes" []
        "Memory the agent occupies";
    PROCESS_FDS = Gauge::gauge "process_open_fds" []
        "File descriptors the agent holds open";
    PROCESS_START = Gauge::gauge "process_start_time_seconds" []
        "When the agent was started, since 1970";
    PROBLEMS = Gauge::gauge "problems" ["with"]
        "What is degraded, as vscalectl get lists it";
    DECISIONS = Counter::counter "decisions" ["action", "reason"]
        "Decisions about pods that differ from the one before";
    PODS = Gauge::gauge "pods" ["state"]
        "Pods on this node, by how they stand";
    PODS_DECIDED = Gauge::gauge "pods_decided" ["action", "reason"]
        "Pods on this node, by what the latest decision says";
    PODS_OVERRIDDEN = Gauge::gauge "pods_overridden" []
        "Pods on this node that are held by hand";
    RESIZES = Counter::counter "resizes" ["outcome"]
        "Passes over pods";
    RESIZE_DURATION = Histogram::histogram "resize_duration_seconds" ["stage", "outcome"]
        "Time taken by passes over pods, by stage; the stage `total` is from the decision seen to all files verified";
    SHRINKS = Counter::counter "shrinks" ["outcome"]
        "Passes that were to lower memory limits, and what became of the limits";
    FREEZE_DURATION = Histogram::histogram "freeze_duration_seconds" []
        "Time for which a cgroup stood still while its memory limit was lowered";
    GUARD_GROWTHS = Counter::counter "guard_growths" ["outcome"]
        "Memory limits that were about to be reached, by what became of them";
    GUARD_LEASES = Gauge::gauge "guard_leases" []
        "Limits that are held higher than decided because they were about to be reached or throttled all the time";
    STEPS = Counter::counter "steps" ["via", "outcome"]
        "Single writes";
    DRIFT_REPAIRS = Counter::counter "drift_repairs" ["file"]
        "Values that something else had changed, and that were put right";
    FOREIGN_WRITERS = Gauge::gauge "foreign_writers" []
        "Values that something else keeps changing, and that are left alone for a while";
    OOM_KILLS = Counter::counter "oom_kills" ["namespace", "pod", "container", "level"]
        "Kills by the kernel for want of memory, by whose process it was and whose limit; a group killed as a whole is one";
    RUNTIME_CALLS = Counter::counter "runtime_calls" ["call", "outcome"]
        "Calls to the container runtime";
    RUNTIME_CALL_DURATION = Histogram::histogram "runtime_call_duration_seconds" ["call"]
        "Time until the container runtime answered, or was given up";
    REPORTS = Counter::counter "reports" ["destination", "outcome"]
        "Reports of OOM kills, by what became of them";
    REPORT_CONNECTIONS = Counter::counter "report_connections" ["destination", "outcome"]
        "Attempts to reach a destination of reports";
    REPORT_CONNECTED = Gauge::gauge "report_connected" ["destination"]
        "Whether a destination of reports can be reached now (1) or not (0)";
    SPOOL_REPORTS = Gauge::gauge "spool_reports" []
        "Reports that some destination has not acknowledged";
    SPOOL_BYTES = Gauge::gauge "spool_report_bytes" []
        "The room those reports take";
    SPOOL_FOLDED = Counter::counter "spool_folded" []
        "OOM kills that lost their detail because the spool was full, and were only counted";
    SPOOL_LOST = Counter::counter "spool_lost" []
        "Reports that the disk did not give back as they were written";
    SPOOL_SYNCS = Counter::counter "spool_syncs" []
        "Times the disk was waited for";
    API_CALLS = Counter::counter "api_calls" ["verb", "resource", "code"]
        "Calls to the API server";
    API_WATCHES = Counter::counter "api_watches" ["resource", "end"]
        "Watches of the API server that ended, by how";
    EVENTS = Counter::counter "events" ["outcome"]
        "Kubernetes Events, by what became of them";
}
