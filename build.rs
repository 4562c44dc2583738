//! Compiles the protocol buffers below `proto/` with protox (pure Rust), so that our own protocols need no `protoc`.

use std::path::Path;

/// The protocols, relative to `proto/`.
const PROTOCOLS: [&str; 0] = [];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let root = Path::new("proto");
    for protocol in PROTOCOLS as [&str; 0] {
        let descriptors = protox::compile([root.join(protocol)], [root])?;
        tonic_prost_build::configure().compile_fds(descriptors)?;
    }
    Ok(())
}
