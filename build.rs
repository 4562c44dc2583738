//! Compiles the protocol buffers below `proto/` with protox (pure Rust), so the build needs no `protoc`.

use std::path::Path;

use tonic_prost_build::Builder;

/// The files, relative to `proto/`, and whether a server may omit calls and answer "unimplemented", as the fake servers of tests do.
const PROTOCOLS: [(&str, bool); 8] = [
    ("vscaled/control/v1/control.proto", false),
    ("cri/runtime/v1/api.proto", true),
    ("vscaled/report/v1/report.proto", false),
    ("kubelet/pods/v1alpha1/api.proto", false),
    ("k8s/core/v1/pod.proto", false),
    ("containerd/services/events/v1/events.proto", true),
    ("containerd/services/tasks/v1/tasks.proto", true),
    ("containerd/events/events.proto", true),
];

/// The protobuf package of the control protocol.
const CONTROL: &str = ".vscaled.control.v1";
/// The package of reports. The whole crate uses its messages for pods, containers, limits and memory.
const REPORT: &str = ".vscaled.report.v1";
/// The package of the kubelet's pods. The agent converts them to the API server's JSON, which it reads from both.
const CORE: &str = ".k8s.core.v1";
/// Attributes for that JSON, by message or field.
const CORE_ATTRIBUTES: [(&str, &str); 7] = [
    ("Time", "into = \"Option<jiff::Timestamp>\""),
    ("Quantity", "transparent"),
    ("KeySelector.local_object_reference", "flatten"),
    ("EphemeralContainer.ephemeral_container_common", "flatten"),
    ("ContainerStatus.container_id", "rename = \"containerID\""),
    (
        "ContainerStatus.allocated_resources",
        "skip_serializing_if = \"HashMap::is_empty\"",
    ),
    ("PodStatus.qos_class", "skip_serializing_if = \"String::is_empty\""),
];
/// JSON that is printed and read again: field names in camelCase, and defaults for missing ones.
const JSON: &str = "#[derive(serde::Serialize, serde::Deserialize)] #[serde(rename_all = \"camelCase\", default)]";
/// Fields that JSON omits where they are unset.
const OPTIONAL: [&str; 24] = [
    ".vscaled.control.v1.Amounts",
    ".vscaled.control.v1.RequestAndLimit",
    ".vscaled.control.v1.Change.kill",
    ".vscaled.control.v1.Container.recommendation",
    ".vscaled.control.v1.Container.usage",
    ".vscaled.control.v1.Override.pid",
    ".vscaled.control.v1.Pod.usage",
    ".vscaled.control.v1.OomKill.evidence",
    ".vscaled.control.v1.WorkloadWorth.workload",
    ".vscaled.report.v1.HitLimit",
    ".vscaled.report.v1.Report.first_time",
    ".vscaled.report.v1.Report.pod",
    ".vscaled.report.v1.Report.container",
    ".vscaled.report.v1.Report.limit",
    ".vscaled.report.v1.Report.victim",
    ".vscaled.report.v1.Report.own_write",
    ".vscaled.report.v1.Report.container_limit",
    ".vscaled.report.v1.Report.evidence",
    ".vscaled.report.v1.Evidence.path",
    ".vscaled.report.v1.Evidence.exit_code",
    ".vscaled.report.v1.Evidence.unfinished",
    ".vscaled.report.v1.Victim.memory",
    ".vscaled.report.v1.Victim.oom_score_adj",
    ".vscaled.report.v1.Victim.uid",
];
/// The messages that are printed as JSON. The first six are also stored on disk.
const PRINTED: [&str; 8] = [
    "Pod",
    "Container",
    "HitLimit",
    "Memory",
    "Evidence",
    "Victim",
    "OwnWrite",
    "Report",
];
/// Enumerations that JSON shows as one word; an unspecified value is "unknown".
const ENUMERATIONS: [&str; 3] = ["Level", "Role", "Confidence"];
/// Fields with a conversion in JSON: enumerations as words, times as in RFC 3339.
const CONVERTED: [(&str, &str); 8] = [
    ("Report.time", "serialize_with = \"time\""),
    ("Report.first_time", "serialize_with = \"time\""),
    ("OwnWrite.time", "serialize_with = \"time\""),
    ("Report.level", "serialize_with = \"word::<Level, _>\""),
    ("Report.limit_of", "serialize_with = \"word::<Level, _>\""),
    ("Report.confidence", "serialize_with = \"word::<Confidence, _>\""),
    ("Victim.role", "serialize_with = \"word::<Role, _>\""),
    ("Victim.role", "deserialize_with = \"number::<Role, _>\""),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let root = Path::new("proto");
    for (file, partial_servers) in PROTOCOLS {
        let descriptors = protox::compile([root.join(file)], [root])?;
        let builder = OPTIONAL.iter().fold(tonic_prost_build::configure(), |builder, path| {
            builder.field_attribute(path, "#[serde(skip_serializing_if = \"Option::is_none\")]")
        });
        // The command line prints and reads replies.
        let builder = builder.type_attribute(CORE, JSON).type_attribute(CONTROL, JSON);
        let builder = CORE_ATTRIBUTES.iter().fold(builder, |builder, (place, attribute)| {
            let (path, attribute) = (format!("{CORE}.{place}"), format!("#[serde({attribute})]"));
            match place.contains('.') {
                true => builder.field_attribute(path, attribute),
                false => builder.type_attribute(path, attribute),
            }
        });
        printed_reports(builder)
            // A sorted map prints labels in the same order every time.
            .btree_map(CONTROL)
            .generate_default_stubs(partial_servers)
            // The protocol of reports, which is compiled later, generates these types itself.
            .extern_path(
                if file.contains("report") { ".none" } else { REPORT },
                "crate::proto::report",
            )
            .compile_fds(descriptors)?;
    }
    Ok(())
}

/// Adds attributes that convert reports to JSON.
fn printed_reports(mut builder: Builder) -> Builder {
    for (number, message) in PRINTED.into_iter().enumerate() {
        let printed = "#[derive(serde::Serialize)] #[serde(rename_all = \"camelCase\")]";
        let attribute = if number < 6 { JSON } else { printed };
        builder = builder.type_attribute(format!("{REPORT}.{message}"), attribute);
    }
    for enumeration in ENUMERATIONS {
        let path = format!("{REPORT}.{enumeration}");
        let unspecified = format!("{}_UNSPECIFIED", enumeration.to_uppercase());
        builder = builder
            .field_attribute(
                format!("{path}.{unspecified}"),
                "#[serde(rename = \"unknown\")] #[display(\"unknown\")]",
            )
            .type_attribute(
                path,
                "#[derive(serde::Serialize, serde::Deserialize, derive_more::Display)] \
                 #[serde(rename_all = \"kebab-case\")] #[display(rename_all = \"kebab-case\")]",
            );
    }
    CONVERTED.into_iter().fold(builder, |builder, (field, with)| {
        builder.field_attribute(format!("{REPORT}.{field}"), format!("#[serde({with})]"))
    })
}
