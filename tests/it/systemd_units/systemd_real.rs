//! The real systemd as this machine's first process: `scripts/systemd-lab` boots one.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use vscaled::cgroup::systemd::{Systemd, Unit};
use vscaled::cgroup::{CgroupDir, Hierarchy};
use vscaled::model::{CgroupPath, ControlFile, CpuMax, CpuQuota, CpuWeight, MemoryLimit, Setting, Settings};

use crate::cgroup_files::tree::wait_for;
use crate::support::skipped;

/// A pod's slice with a service in it, stopped at the end.
struct Pod {
    slice: CgroupPath,
    service: String,
    hierarchy: Hierarchy,
}

impl Pod {
    fn start(label: &str) -> Option<Self> {
        if !Path::new("/run/systemd/system").exists() {
            skipped(
                label,
                "systemd is not this machine's first process; see scripts/systemd-lab",
            );
            return None;
        }
        let uid = format!("{label:0<8}_0000_4000_8000_{:012}", std::process::id());
        let (slice, service) = (
            format!("vscaledtest-pod{uid}.slice"),
            format!("vscaledtest-{label}.service"),
        );
        let run = [
            "--slice",
            &slice,
            "--unit",
            &service,
            "--property",
            "CPUAccounting=yes",
            "sleep",
            "1000",
        ];
        assert!(Command::new("systemd-run").args(run).status().unwrap().success());
        Some(Self {
            slice: CgroupPath::new(&format!("/vscaledtest.slice/{slice}")).unwrap(),
            service,
            hierarchy: Hierarchy::discover(None).unwrap(),
        })
    }

    fn unit(&self) -> Unit {
        Unit::of(&self.slice).unwrap()
    }

    fn cgroup(&self) -> CgroupDir {
        CgroupDir::open(&self.hierarchy, &self.slice).unwrap()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        for unit in [self.service.as_str(), self.unit().name()] {
            let stopped = Command::new("systemctl").args(["stop", unit]).status();
            assert!(
                stopped.is_ok_and(|status| status.success()) || std::thread::panicking(),
                "cannot stop {unit}"
            );
        }
    }
}

fn systemd() -> Systemd {
    Systemd::connect(None, Duration::from_secs(60)).unwrap()
}

fn daemon_reload() {
    assert!(
        Command::new("systemctl")
            .arg("daemon-reload")
            .status()
            .unwrap()
            .success()
    );
}

/// The values of a cgroup, without a cpu burst, for which systemd has no property, and without `memory.high`, which
/// these tests do not set.
pub(super) fn held(cgroup: &CgroupDir) -> Settings {
    let all = cgroup.read_all().unwrap();
    all.iter().filter(|setting| !setting.is_unset()).collect()
}

fn wanted(quota: u64, weight: u64, memory: u64) -> Settings {
    let max = CpuMax {
        quota: CpuQuota::Micros(quota),
        period_us: 100_000,
    };
    let memory = Setting::MemoryMax(MemoryLimit::Bytes(memory));
    [Setting::CpuMax(max), Setting::CpuWeight(CpuWeight::new(weight)), memory]
        .into_iter()
        .collect()
}

#[test]
fn values_set_in_both_places_survive_a_reload() {
    let Some(pod) = Pod::start("reload") else { return };
    let (systemd, cgroup) = (systemd(), pod.cgroup());
    let wanted = wanted(20_000, 39, 128 << 20);
    systemd.set(&pod.unit(), &wanted).unwrap();
    for setting in wanted.iter() {
        assert_eq!(cgroup.write(setting).unwrap(), setting);
    }
    assert_eq!(systemd.get(&pod.unit(), cgroup.version()).unwrap(), wanted);
    daemon_reload();
    assert_eq!(held(&cgroup), wanted);
    assert_eq!(systemd.get(&pod.unit(), cgroup.version()).unwrap(), wanted);
}

#[test]
fn systemd_itself_writes_what_it_is_told() {
    let Some(pod) = Pod::start("applied") else { return };
    let (systemd, cgroup) = (systemd(), pod.cgroup());
    for wanted in [wanted(50_000, 100, 256 << 20), wanted(18_000, 5, 64 << 20)] {
        systemd.set(&pod.unit(), &wanted).unwrap();
        wait_for("systemd to write the files", || held(&cgroup) == wanted);
    }
}

#[test]
fn a_files_value_is_undone_by_another_property() {
    let Some(pod) = Pod::start("fileonly") else { return };
    let (systemd, cgroup) = (systemd(), pod.cgroup());
    let before = wanted(20_000, 39, 128 << 20);
    systemd.set(&pod.unit(), &before).unwrap();
    wait_for("systemd to write the files", || held(&cgroup) == before);
    let bigger = Setting::CpuMax(CpuMax {
        quota: CpuQuota::Micros(40_000),
        period_us: 100_000,
    });
    assert!(cgroup.write(bigger).is_ok());
    let weight: Settings = [Setting::CpuWeight(CpuWeight::new(50))].into_iter().collect();
    systemd.set(&pod.unit(), &weight).unwrap();
    wait_for("systemd to put its own quota back", || {
        cgroup.read(ControlFile::CpuMax).unwrap() == before.get(ControlFile::CpuMax)
    });
}

#[test]
fn a_value_in_the_file_alone_is_undone_by_a_reload_of_systemd_252() {
    let Some(pod) = Pod::start("rawreload") else { return };
    let (systemd, cgroup) = (systemd(), pod.cgroup());
    if systemd.version() != 252 {
        skipped(
            "rawreload",
            &format!("known for systemd 252, this is {}", systemd.version()),
        );
        return;
    }
    let before = wanted(20_000, 39, 128 << 20);
    systemd.set(&pod.unit(), &before).unwrap();
    wait_for("systemd to write the files", || held(&cgroup) == before);
    for setting in wanted(40_000, 77, 256 << 20).iter() {
        assert!(cgroup.write(setting).is_ok());
    }
    daemon_reload();
    wait_for("systemd to put its own values back", || held(&cgroup) == before);
}

#[test]
fn a_fraction_of_a_percent_is_rounded_up_and_stays() {
    let Some(pod) = Pod::start("percent") else { return };
    let (systemd, cgroup) = (systemd(), pod.cgroup());
    systemd.set(&pod.unit(), &wanted(17_500, 39, 128 << 20)).unwrap();
    let rounded = wanted(18_000, 39, 128 << 20);
    daemon_reload();
    wait_for("systemd to write the files", || held(&cgroup) == rounded);
    assert_eq!(systemd.get(&pod.unit(), cgroup.version()).unwrap(), rounded);
}

#[test]
fn a_unit_that_is_not_loaded_is_not_made_up() {
    let Some(pod) = Pod::start("unknown") else { return };
    let unknown = Unit::of(&CgroupPath::new("/vscaledtest.slice/vscaledtest-podffff.slice").unwrap()).unwrap();
    let error = systemd().set(&unknown, &wanted(20_000, 39, 64 << 20)).unwrap_err();
    assert!(error.to_string().starts_with("systemd has no unit "), "{error}");
    assert!(systemd().get(&pod.unit(), pod.cgroup().version()).is_ok());
}
