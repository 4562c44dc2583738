//! Reports at once when a process writes a cgroup file of a pod.
//!
//! One inotify descriptor watches all files ([`crate::cgroup::Watch`]). The kernel also reports the agent's own writes, which
//! cost one pass that finds everything in order. Where the kernel gives no descriptor or no more watches, only the periodic
//! sweep finds changes, and the agent logs that. Writes come in bursts: the pods are collected until a burst is over.

use std::collections::{BTreeSet, HashMap};

use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use crate::actuate::PodHandles;
use crate::cgroup::{Identity, Watch};
use crate::model::objects::PodKey;

/// The watched files, and the pods whose files were written.
#[derive(Debug, Default)]
pub(crate) struct Watching {
    watch: Option<AsyncFd<Watch<PodKey>>>,
    /// The cgroups of each pod, and whether all of them are watched.
    cgroups: HashMap<PodKey, (Vec<Identity>, bool)>,
    /// Pods whose files were written, and when to compare them.
    pub(crate) written: BTreeSet<PodKey>,
    pub(crate) due: Option<Instant>,
}

impl Watching {
    /// Opens the descriptor; without one, nothing is reported.
    pub(crate) fn new() -> Self {
        let opened = Watch::new().map_err(std::io::Error::from).and_then(Watch::into_async);
        let opened = opened.inspect_err(|error| {
            tracing::warn!(%error, "no inotify descriptor: changes by others are found by the periodic check only");
        });
        Self {
            watch: opened.ok(),
            ..Self::default()
        }
    }

    /// Watches a pod's files. Returns whether a new watch began: the same cgroups are watched once.
    pub(crate) fn watch(&mut self, key: &PodKey, handles: &PodHandles) -> bool {
        let cgroups = handles.identities();
        if self.cgroups(key) == Some(&cgroups) {
            return false;
        }
        self.forget(key);
        let (_, are_watched) = self.cgroups.entry(key.clone()).or_insert((cgroups, false));
        let Some(watch) = &mut self.watch else { return false };
        *are_watched = true;
        for (target, cgroup) in handles.iter() {
            if let Err(error) = watch.get_mut().add(cgroup, key)
                && !error.is_gone()
            {
                *are_watched = false;
                tracing::warn!(pod = %key, cgroup = %target, %error, "not watched: found by the periodic check only");
            }
        }
        true
    }

    /// The pod's cgroups at its latest watch.
    pub(crate) fn cgroups(&self, key: &PodKey) -> Option<&Vec<Identity>> {
        self.cgroups.get(key).map(|(cgroups, _)| cgroups)
    }

    /// Whether the kernel reports every write to the pod's files.
    pub(crate) fn reports_writes_to(&self, key: &PodKey) -> bool {
        self.watch.is_some() && self.cgroups.get(key).is_some_and(|(_, are_watched)| *are_watched)
    }

    /// Stops watching a pod's files.
    pub(crate) fn forget(&mut self, key: &PodKey) {
        self.cgroups.remove(key);
        if let Some(watch) = &mut self.watch {
            watch.get_mut().remove(key);
        }
    }

    /// The pods whose files are to be compared now.
    pub(crate) fn take_due(&mut self, now: Instant) -> BTreeSet<PodKey> {
        let due = self.due.take_if(|at| *at <= now);
        due.map(|_| std::mem::take(&mut self.written)).unwrap_or_default()
    }

    /// Waits for the next write, and returns the pods. None if the kernel lost events: the files of any pod may have been
    /// written. Cancel-safe: events stay in the kernel until they are drained, and draining does not wait.
    pub(crate) async fn next_written(&mut self) -> Option<BTreeSet<PodKey>> {
        let Some(watch) = &mut self.watch else {
            return std::future::pending().await;
        };
        let drained = match watch.readable_mut().await {
            Ok(mut ready) => {
                let drained = ready.get_inner_mut().drain();
                ready.clear_ready();
                drained.map_err(std::io::Error::from)
            }
            Err(error) => Err(error),
        };
        match drained {
            Ok(written) => written,
            Err(error) => {
                tracing::error!(%error, "watching ended: changes by others are found by the periodic check only");
                self.watch = None;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn written_pods_are_compared_once_when_due() {
        let now = Instant::now();
        let written = BTreeSet::from([PodKey::new("shop", "web")]);
        let mut watching = Watching {
            written: written.clone(),
            due: Some(now),
            ..Watching::default()
        };
        let early = now.checked_sub(Duration::from_millis(1)).unwrap();
        assert_eq!(watching.take_due(early), BTreeSet::new());
        assert_eq!(watching.take_due(now), written);
        assert_eq!(watching.take_due(now), BTreeSet::new());
    }
}
