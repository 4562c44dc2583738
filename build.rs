//! Compiles the protocol buffers below `proto/` with protox (pure Rust), so that our own protocols need no `protoc`.

use std::path::Path;

/// One protocol of ours.
struct Protocol {
    /// The file, relative to `proto/`.
    file: &'static str,
    /// Whether a server may leave calls out, answering "unimplemented": useful where servers are only fakes in tests.
    partial_servers: bool,
}

const PROTOCOLS: [Protocol; 2] = [
    Protocol {
        file: "vscaled/control/v1/control.proto",
        partial_servers: false,
    },
    Protocol {
        file: "cri/runtime/v1/api.proto",
        partial_servers: true,
    },
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let root = Path::new("proto");
    for protocol in &PROTOCOLS {
        let descriptors = protox::compile([root.join(protocol.file)], [root])?;
        tonic_prost_build::configure()
            .generate_default_stubs(protocol.partial_servers)
            .compile_fds(descriptors)?;
    }
    Ok(())
}
