//! The machine of the measurement.

use std::fs;

use vscaled::cgroup::Hierarchy;
use vscaled::model::CgroupVersion;

pub(crate) fn print() -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism()?;
    println!(
        "machine: {cores} × {}, Linux {}, cgroup {}",
        processor()?,
        kernel()?,
        version()?
    );
    print_load()
}

/// The model name of the processor.
pub(crate) fn processor() -> anyhow::Result<String> {
    let information = fs::read_to_string("/proc/cpuinfo")?;
    let model = information
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    Ok(model.map_or("unknown processor", |(_, model)| model).to_owned())
}

/// The kernel's release.
pub(crate) fn kernel() -> anyhow::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned())
}

/// Prints the machine's load: measurements beside other work are worse.
pub(crate) fn print_load() -> anyhow::Result<()> {
    println!("load average: {}", fs::read_to_string("/proc/loadavg")?.trim());
    Ok(())
}

/// The cgroup version of the memory and cpu controllers.
pub(crate) fn version() -> anyhow::Result<&'static str> {
    Ok(match Hierarchy::discover(None)?.version() {
        CgroupVersion::V1 => "v1",
        CgroupVersion::V2 => "v2",
    })
}
