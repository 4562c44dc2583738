//! Bounds how much the agent does at once, and remembers that the runtime does not answer.
//!
//! Kernel writes and runtime calls have separate bounds: a runtime that is slow or hangs never delays the files of another
//! pod. After a question without an answer, or updates of two namespaces, the agent calls the runtime again only some time later, so
//! that the passes which find it gone do not each wait for its deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::slots::Slots;
use parking_lot::Mutex;

/// How many updates of one namespace the agent sends to a runtime at once: the runtime starts a process of the OCI runtime for each.
const RUNTIME_CALLS: u64 = 4;
/// Slots beside those of a namespace alone: one for another namespace, and one for what cannot wait.
const OF_OTHERS: u64 = 2;
const OF_URGENT: u64 = 1;
/// How many hooks run at once, and how many of these slots are only for evidence.
const HOOKS: u64 = 6;
const HOOKS_FOR_EVIDENCE: u64 = 2;
/// How long the agent does not call a runtime that did not answer.
const LEAVE_ALONE: Duration = Duration::from_secs(2);

/// The bounds of one agent. Namespaces share each of them: one whose files or containers are slow delays no other.
#[derive(Debug)]
pub struct Concurrency {
    /// For passes that read and write cgroup files.
    pub(super) kernel: Slots<String>,
    /// For passes that call the runtime.
    pub(super) runtime: Slots<String>,
    pub(super) hooks: Slots<String>,
    /// Every watch after a shrink holds one more reference.
    pub(super) watches: Arc<()>,
    away: Mutex<Away>,
}

/// What the agent knows of a runtime that does not answer.
#[derive(Debug, Default)]
struct Away {
    /// Until when the agent does not call it, and why.
    until: Option<(Instant, String)>,
    /// The namespace of the latest update that took too long.
    late: Option<String>,
}

impl Away {
    fn begin(&mut self, why: String) {
        self.until = Some((Instant::now() + LEAVE_ALONE, why));
    }
}

impl Concurrency {
    /// At most `workers` passes of one namespace write files at once.
    pub fn new(workers: usize) -> Self {
        Self {
            kernel: Slots::new(workers as u64 + OF_OTHERS, OF_URGENT),
            runtime: Slots::new(RUNTIME_CALLS + OF_OTHERS, OF_URGENT),
            hooks: Slots::new(HOOKS, HOOKS_FOR_EVIDENCE),
            watches: Arc::default(),
            away: Mutex::default(),
        }
    }

    /// Notes that the runtime did not answer.
    pub(super) fn runtime_is_away(&self, why: String) {
        self.away.lock().begin(why);
    }

    /// Notes that an update of a container has ended, `late` if it took too long. That may be the container's fault; where updates of
    /// two namespaces take too long one after the other, it is the runtime's.
    pub(super) fn update_ended(&self, namespace: &str, late: Option<String>) {
        let mut away = self.away.lock();
        let before = away.late.take();
        let Some(why) = late else { return };
        if before.is_some_and(|before| before != namespace) {
            away.begin(why);
        }
        away.late = Some(namespace.to_owned());
    }

    /// Why the agent does not call the runtime now.
    pub(super) fn runtime_away(&self) -> Option<String> {
        let away = self.away.lock();
        let (until, why) = away.until.as_ref()?;
        (Instant::now() < *until).then(|| why.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Class;

    #[test]
    fn slow_files_hold_up_only_their_namespace() {
        for workers in [1, 4, 64] {
            let kernel = Concurrency::new(workers).kernel;
            let take = |namespace: &str, class| kernel.take(&namespace.to_owned(), class).ok();
            let slow: Vec<_> = (0..99).map_while(|_| take("a", Class::Ordinary)).collect();
            assert!(
                (workers * 4 / 5..=workers).contains(&slow.len()),
                "{} of {workers}",
                slow.len()
            );
            let other = take("b", Class::Ordinary);
            assert!(other.is_some() && take("a", Class::Privileged).is_some(), "{workers}");
        }
    }

    #[test]
    fn an_absent_runtime_is_left_alone() {
        let concurrency = Concurrency::new(4);
        assert_eq!(concurrency.runtime_away(), None);
        concurrency.runtime_is_away("gone".to_owned());
        assert_eq!(concurrency.runtime_away().as_deref(), Some("gone"));
        concurrency.away.lock().until = Some((Instant::now(), "gone".to_owned()));
        assert_eq!(concurrency.runtime_away(), None, "the pause is over");
    }

    #[test]
    fn a_slow_update_suspends_none_of_other_namespaces() {
        let concurrency = Concurrency::new(4);
        let late = || Some("late".to_owned());
        concurrency.update_ended("a", late());
        concurrency.update_ended("a", late());
        assert_eq!(concurrency.runtime_away(), None);
        concurrency.update_ended("b", None);
        concurrency.update_ended("b", late());
        assert_eq!(concurrency.runtime_away(), None, "another one was in time");
        concurrency.update_ended("a", late());
        assert_eq!(concurrency.runtime_away(), late(), "the runtime is late for everybody");
    }

    #[test]
    fn hanging_hooks_hold_up_only_their_namespace() {
        let concurrency = Concurrency::new(4);
        let slot = |namespace: &str, class| concurrency.hooks.take(&namespace.to_owned(), class).ok();
        let hanging: Vec<_> = (0..4).filter_map(|_| slot("a", Class::Ordinary)).collect();
        let evidence: Vec<_> = (0..4).filter_map(|_| slot("a", Class::Privileged)).collect();
        assert!(
            (1..=3).contains(&hanging.len()) && evidence.len() < 2,
            "{} {}",
            hanging.len(),
            evidence.len()
        );
        assert!(
            slot("b", Class::Privileged).is_some(),
            "evidence of another namespace starts at once"
        );
        assert!(slot("b", Class::Ordinary).is_some(), "and so does another hook of it");
    }
}
