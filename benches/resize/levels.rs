//! Cgroups of one pod, with an efficient wait for their values.

use std::io;

use anyhow::Context;
use tokio::io::unix::AsyncFd;
use vscaled::cgroup::{Cgroup, CgroupDir, Hierarchy, Watch};
use vscaled::model::{CgroupPath, Setting, Settings};

/// Cgroups of a pod.
#[derive(Debug)]
pub(crate) struct Levels {
    /// Reports writes of any process as they happen.
    writes: AsyncFd<Watch<()>>,
    cgroups: Vec<CgroupDir>,
}

impl Levels {
    pub(crate) fn open(paths: &[CgroupPath]) -> anyhow::Result<Self> {
        let hierarchy = Hierarchy::discover(None)?;
        let mut writes = Watch::new().context("inotify")?;
        let mut cgroups = Vec::new();
        for path in paths {
            writes.add(&Cgroup::open(&hierarchy, path)?, &())?;
            cgroups.push(CgroupDir::open(&hierarchy, path)?);
        }
        Ok(Self {
            writes: writes.into_async()?,
            cgroups,
        })
    }

    /// Waits until each level holds its values; `wanted` is in the order of opening.
    pub(crate) async fn hold(&mut self, wanted: &[Settings]) -> anyhow::Result<()> {
        let mut missing: Vec<_> = self.cgroups.iter().zip(wanted).collect();
        loop {
            // Reads once for each write: reading more often takes processor time from the writers.
            while let Some((cgroup, wanted)) = missing.last() {
                let held = cgroup.read_all()?;
                let holds = |wanted: Setting| held.get(wanted.file()) == Some(wanted);
                if !wanted.iter().all(holds) {
                    break;
                }
                missing.pop();
            }
            if missing.is_empty() {
                return Ok(());
            }
            let mut written = self.writes.readable_mut().await?;
            written.get_inner_mut().drain().map_err(io::Error::from)?;
            written.clear_ready();
        }
    }
}
