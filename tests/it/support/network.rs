//! The network of pods: a CNI plugin that gives each pod the node's own network.
//!
//! A guest's kernel has nothing to connect a pod's network with, so a pod that asks for a network of its own gets the
//! node's, and its address. What a manifest says about the network stays as it is.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::cluster::guests_address;

/// The plugin, as the specification of CNI 1.0 has it. It gets the configuration at standard input.
const PLUGIN: &str = r#"#!/bin/sh
set -eu
version=$(sed -n 's/.*"cniVersion" *: *"\([^"]*\)".*/\1/p')
case $CNI_COMMAND,${CNI_IFNAME:-} in
  ADD,lo) echo "{\"cniVersion\":\"$version\"}" ;;
  ADD,*)
    umount "$CNI_NETNS"
    mount --bind /proc/self/ns/net "$CNI_NETNS"
    echo "{\"cniVersion\":\"$version\",\"interfaces\":[{\"name\":\"$CNI_IFNAME\",\"sandbox\":\"$CNI_NETNS\"}],
      \"ips\":[{\"version\":\"4\",\"interface\":0,\"address\":\"ADDRESS/32\"}]}"
    ;;
esac
"#;

/// Writes the plugin and the configuration that names it into a directory. Loopback, which runtimes set up beside each
/// network, is up in the node's.
pub(super) fn install(directory: &Path) {
    fs::create_dir(directory).unwrap();
    let plugin = directory.join("node");
    let address = guests_address().unwrap_or("127.0.0.1");
    fs::write(&plugin, PLUGIN.replace("ADDRESS", address)).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    symlink("node", directory.join("loopback")).unwrap();
    let configuration = r#"{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "node"}]}"#;
    fs::write(directory.join("node.conflist"), configuration).unwrap();
}
