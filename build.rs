//! Compiles the protocol buffers below `proto/` with protox (pure Rust), so that our own protocols need no `protoc`.

use std::path::Path;

/// One protocol of ours.
struct Protocol {
    /// The file, relative to `proto/`.
    file: &'static str,
    /// Whether a server may leave calls out, answering "unimplemented": useful where servers are only fakes in tests.
    partial_servers: bool,
}

const PROTOCOLS: [Protocol; 3] = [
    Protocol {
        file: "vscaled/control/v1/control.proto",
        partial_servers: false,
    },
    Protocol {
        file: "cri/runtime/v1/api.proto",
        partial_servers: true,
    },
    Protocol {
        file: "vscaled/report/v1/report.proto",
        partial_servers: false,
    },
];

/// The protobuf package of the control protocol.
const CONTROL: &str = ".vscaled.control.v1";
/// The messages whose fields are left out where they are unset.
const AMOUNTS: [&str; 2] = [".vscaled.control.v1.Amounts", ".vscaled.control.v1.RequestAndLimit"];
/// The field that most changes do not have.
const KILL: &str = ".vscaled.control.v1.Change.kill";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let root = Path::new("proto");
    for protocol in &PROTOCOLS {
        let descriptors = protox::compile([root.join(protocol.file)], [root])?;
        let builder = AMOUNTS.iter().fold(tonic_prost_build::configure(), |builder, message| {
            builder.field_attribute(message, "#[serde(skip_serializing_if = \"Option::is_none\")]")
        });
        builder
            // Labels are printed in the same order every time.
            .btree_map(CONTROL)
            .generate_default_stubs(protocol.partial_servers)
            // The command line prints replies as JSON and YAML: field names in camelCase, unset amounts left out.
            .type_attribute(
                CONTROL,
                "#[derive(serde::Serialize)] #[serde(rename_all = \"camelCase\")]",
            )
            .field_attribute(KILL, "#[serde(skip_serializing_if = \"Option::is_none\")]")
            .compile_fds(descriptors)?;
    }
    Ok(())
}
