//! The Debian package on a machine with systemd: installation, upgrade and removal leave nothing behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::systemd_real_agent::{AT_FIRST, Pod, ROOT};
use crate::cgroup_files::tree::wait_for;
use crate::support::amounts::{Amounts, vpa_manifest};
use crate::support::skipped;

const CONFIGURATION: &str = "/etc/vscaled/agent.yaml";

/// The package that scripts/test builds from the programs under test.
fn package() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_BIN_EXE_vscaled")).parent()?.join("package");
    let files = fs::read_dir(built).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    files
        .into_iter()
        .find(|path| path.extension().is_some_and(|name| name == "deb"))
}

fn run(command: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    shell.env("DEBIAN_FRONTEND", "noninteractive").output().unwrap()
}

/// The output of a command that must succeed.
fn output_of(command: &str) -> String {
    let output = run(command);
    assert!(output.status.success(), "{command}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn main_pid() -> String {
    output_of("systemctl show --property MainPID --value vscaled")
}

/// Prints what the service and its agent say when the test fails: the guest is gone then.
struct ShownOnPanic;

impl Drop for ShownOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let shown = run("journalctl --no-pager --unit vscaled; vscalectl explain test/web; vscalectl history");
            println!("{}", String::from_utf8_lossy(&shown.stdout));
        }
    }
}

#[test]
fn a_removed_package_leaves_no_trace() {
    const NAME: &str = "systemd_units::systemd_real_package";
    let Some(package) = package() else {
        return skipped(NAME, "scripts/test systemd makes the package that is installed");
    };
    let install = format!("dpkg --install --force-confold {}", package.display());
    output_of("dpkg --purge vscaled 2>/dev/null || true");
    output_of(&install);
    assert_eq!(run("systemctl is-enabled vscaled").stdout, b"disabled\n");
    assert_eq!(run("systemctl is-active vscaled").stdout, b"inactive\n");
    for file in [
        "/usr/share/man/man1/vscalectl-resize.1.gz",
        "/usr/share/bash-completion/completions/vscalectl",
    ] {
        assert!(Path::new(file).exists(), "{file}");
    }

    // As docs/install.md says. There is no container runtime here.
    output_of(&format!(
        "sed -i 's/^runtimeSocket: auto/runtimeSocket: none/' {CONFIGURATION}"
    ));
    output_of("systemctl enable --now vscaled");
    wait_for("the agent to answer", || run("vscalectl get").status.success());
    assert_eq!(run("systemctl is-active vscaled").stdout, b"active\n");
    assert!(Path::new("/var/lib/vscaled").is_dir());

    // It reads the kernel's log and writes cgroups with no more than the unit gives it.
    let pod = Pod::start();
    let _shown = ShownOnPanic;
    let target = Amounts::doubled(250, 96);
    for (name, text) in [
        ("pod.yaml", pod.manifest()),
        ("vpa.yaml", vpa_manifest("web", "web", &[("app", target)])),
    ] {
        fs::write(format!("/etc/vscaled/manifests/{name}"), text).unwrap();
    }
    // The amounts' weights are linear, and no runtime shows that.
    output_of(&format!(
        "printf 'kubepods: {ROOT}\\nweightFormula: linear\\n' >>{CONFIGURATION}; sed -i 's/^observeOnly: true/observeOnly: false/' {CONFIGURATION}"
    ));
    output_of("systemctl restart vscaled");
    wait_for("the recommendation", || pod.holds(target));
    let eats =
        "systemd-run --quiet --scope --unit=vscaledtest-eats.scope --property=MemoryMax=16M --property=MemorySwapMax=0";
    let slice = pod.slice_name();
    assert!(!run(&format!("{eats} --slice={slice} tail /dev/zero")).status.success());
    wait_for("the kill to be reported", || {
        String::from_utf8_lossy(&run("vscalectl oom list -o json").stdout).contains("\"tail\"")
    });

    // The next version replaces the running one, and keeps the administrator's files.
    let before = main_pid();
    output_of(&install);
    assert_ne!(main_pid(), before, "the agent was replaced");
    wait_for("the next agent to answer", || run("vscalectl get").status.success());
    let configuration = fs::read_to_string(CONFIGURATION).unwrap();
    assert!(configuration.contains("runtimeSocket: none"), "{configuration}");

    output_of("dpkg --remove vscaled");
    assert_ne!(run("systemctl is-active vscaled").stdout, b"active\n");
    assert!(Path::new(CONFIGURATION).exists(), "removed is not purged");
    assert!(
        Path::new("/var/lib/vscaled").is_dir(),
        "the state stays until the purge"
    );
    wait_for("the pod to have the values of its spec", || pod.holds(AT_FIRST));
    output_of("rm -r /etc/vscaled/manifests/*");
    output_of("dpkg --purge vscaled");
    let left = output_of(
        "find / -xdev -name '*vscaled*' -not -path '/lab/*' -not -path '/proc/*' -not -path '/var/log/*' \
        -not -path '*/vscaled-lab.service*' -not -path '/tmp/*' -not -path '/run/systemd/*'",
    );
    assert!(
        !left.contains("/usr/") && !left.contains("/etc/") && !left.contains("/var/lib/vscaled"),
        "{left}"
    );
}
