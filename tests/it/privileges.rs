//! Promise: docs/privileges.md lists all that an agent may do on its node. No manifest, and not the systemd unit, gives more.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::skipped;

const UNIT: &str = include_str!("../../deploy/systemd/vscaled.service");

/// The rows of a kind: what, the pod's share and the unit's.
fn rows(kind: &str) -> Vec<[&'static str; 3]> {
    let page = include_str!("../../docs/privileges.md");
    let cells = page.lines().filter(|line| line.starts_with("| ")).map(|line| {
        let cells: Vec<_> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        cells
    });
    let rows: Vec<_> = cells
        .filter(|cells| cells[1] == kind)
        .map(|cells| [cells[2], cells[3], cells[4]])
        .collect();
    assert!(!rows.is_empty(), "docs/privileges.md has no row of {kind}");
    rows
}

/// What the rows give to the pod (1) or the unit (2), with `how`.
fn given(kind: &str, to: usize, how: &str) -> BTreeSet<String> {
    let rows = rows(kind).into_iter();
    rows.filter(|row| row[to] == how).map(|row| row[0].to_owned()).collect()
}

/// The values of a setting of the unit, in all its lines.
fn of_unit(setting: &str) -> BTreeSet<String> {
    let lines = UNIT
        .lines()
        .filter_map(|line| line.strip_prefix(setting)?.strip_prefix('='));
    lines.flat_map(|line| line.split(' ')).map(str::to_owned).collect()
}

#[test]
fn the_unit_has_what_the_table_gives_it() {
    let capabilities = given("capability", 2, "yes");
    let capabilities: BTreeSet<_> = capabilities.iter().map(|name| format!("CAP_{name}")).collect();
    assert_eq!(of_unit("CapabilityBoundingSet"), capabilities);
    let mut calls = given("system calls", 2, "yes");
    // systemd denies a group with a tilde before the first one.
    let denied = given("system calls, not allowed", 2, "no");
    let lines: Vec<_> = UNIT
        .lines()
        .filter_map(|line| line.strip_prefix("SystemCallFilter="))
        .collect();
    let (refusals, grants): (Vec<&str>, Vec<&str>) = lines.iter().partition(|line| line.starts_with('~'));
    let refused: BTreeSet<String> = refusals
        .concat()
        .trim_start_matches('~')
        .split(' ')
        .map(str::to_owned)
        .collect();
    assert_eq!(refused, denied);
    for call in grants.join(" ").split(' ') {
        assert!(calls.remove(call), "{call} is not in the table");
    }
    assert_eq!(calls, BTreeSet::new(), "the unit does not have these");
    let mounts: BTreeSet<String> = given("mount", 2, "write");
    assert_eq!(of_unit("ReadWritePaths"), mounts);
    let devices = UNIT
        .lines()
        .filter_map(|line| line.strip_prefix("DeviceAllow=")?.strip_suffix(" r"));
    assert_eq!(
        devices.map(str::to_owned).collect::<BTreeSet<_>>(),
        given("device", 2, "read")
    );
    for setting in [
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "DevicePolicy=closed",
        "ProtectKernelTunables=yes",
    ] {
        assert!(UNIT.lines().any(|line| line == setting), "{setting}");
    }
}

#[test]
fn no_manifest_mounts_or_adds_more() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    let overlays = fs::read_dir(deploy.join("overlays")).unwrap();
    let overlays = overlays.map(|entry| entry.unwrap().path().join("daemonset.yaml"));
    let files: Vec<_> = overlays
        .chain([deploy.join("base/daemonset.yaml")])
        .filter(|file| file.exists())
        .collect();
    assert!(files.len() > 6, "{files:?}");
    let (writable, readable) = (given("mount", 1, "write"), given("mount", 1, "read"));
    let (mut used, mut capabilities) = (BTreeSet::new(), BTreeSet::new());
    for file in files {
        let object: Value = serde_saphyr::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let spec = &object["spec"]["template"]["spec"];
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        for volume in list(&spec["volumes"]) {
            let Some(path) = volume["hostPath"]["path"].as_str() else {
                continue;
            };
            assert!(
                writable.contains(path) || readable.contains(path),
                "{}: {path}",
                file.display()
            );
            used.insert(path.to_owned());
        }
        for container in list(&spec["containers"]).iter().chain(&list(&spec["initContainers"])) {
            let added = &container["securityContext"]["capabilities"]["add"];
            capabilities.extend(list(added).iter().map(|name| name.as_str().unwrap().to_owned()));
            for mount in list(&container["volumeMounts"]) {
                let name = &mount["name"];
                let volumes = list(&spec["volumes"]);
                let volume = volumes.iter().find(|volume| volume["name"] == *name);
                let Some(path) = volume.and_then(|volume| volume["hostPath"]["path"].as_str()) else {
                    continue;
                };
                assert_eq!(
                    mount["readOnly"] != true,
                    writable.contains(path),
                    "{}: {path}",
                    file.display()
                );
            }
        }
    }
    assert_eq!(
        used,
        writable.union(&readable).cloned().collect::<BTreeSet<_>>(),
        "not mounted by any manifest"
    );
    assert_eq!(capabilities, given("capability", 1, "yes"));
}

#[test]
fn systemd_finds_little_that_the_unit_could_give_up() {
    const NAME: &str = "privileges::systemd_finds_little";
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["security", "--offline=true", "--no-pager", "--threshold=30"]);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/systemd/vscaled.service");
    match analyze.arg(file).output() {
        // Ends with 1 above the threshold, in tenths.
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
        Err(error) => skipped(NAME, &format!("systemd-analyze: {error}")),
    }
}
