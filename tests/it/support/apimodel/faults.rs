//! Injected faults, and counts of calls.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Clone)]
pub(crate) struct Fault {
    /// Such as `patch`, or `dry-run`.
    pub(crate) verb: &'static str,
    /// Such as `pods/resize`.
    pub(crate) resource: &'static str,
    /// How often the fault occurs; `None` means until [`super::ApiModel::mend`].
    pub(crate) times: Option<u32>,
    pub(crate) effect: Effect,
}

#[derive(Debug, Clone)]
pub(crate) enum Effect {
    /// RBAC refuses the call.
    Forbidden,
    /// The answer is a status: code, reason, message, and the seconds of Retry-After.
    Says(u16, &'static str, &'static str, Option<u32>),
    /// Both the call and the answer are delayed.
    Slow(Duration),
    /// The answer waits until this token is cancelled.
    Held(CancellationToken),
    /// The call takes effect, and no answer comes.
    Mute,
    /// The call takes effect, and the answer breaks off in the middle.
    Torn,
    /// Admission changes the object to this one.
    Alters(Value),
    /// The path is not served.
    Unknown,
    /// Watches stay open and send nothing.
    Stalls,
}

/// Calls without an answer so far, except watches.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UnderWay {
    pub(super) now: usize,
    pub(super) most: usize,
}

impl UnderWay {
    pub(super) fn begin(&mut self) {
        self.now += 1;
        self.most = self.most.max(self.now);
    }
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    faults: Vec<Fault>,
    calls: BTreeMap<String, usize>,
}

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    pub(super) fn mend(&mut self) {
        self.faults.clear();
    }

    pub(super) fn calls(&self, call: &str) -> usize {
        self.calls.get(call).copied().unwrap_or_default()
    }

    pub(super) const fn all_calls(&self) -> &BTreeMap<String, usize> {
        &self.calls
    }

    /// Counts a call and returns the fault that applies to it.
    pub(super) fn count_call(&mut self, verb: &'static str, resource: &str, dry: bool) -> Option<Effect> {
        let shown = if dry { "dry-run" } else { verb };
        *self.calls.entry(format!("{shown} {resource}")).or_default() += 1;
        let meant = |fault: &&mut Fault| fault.verb == shown && fault.resource == resource && fault.times != Some(0);
        let fault = self.faults.iter_mut().find(meant)?;
        fault.times = fault.times.map(|times| times - 1);
        Some(fault.effect.clone())
    }

    /// Takes back the count of a patch that met another write, and of a dry run before it: how many there are depends on the
    /// moment at which the kubelet writes a status.
    pub(super) fn uncount_conflict(&mut self, resource: &str) {
        for verb in ["patch", "dry-run"] {
            if let Some(calls) = self.calls.get_mut(&format!("{verb} {resource}")) {
                *calls = calls.saturating_sub(1);
            }
        }
    }

    /// Whether watches of this resource send nothing now.
    pub(super) fn stalls(&self, resource: &str) -> bool {
        let mut faults = self.faults.iter();
        faults.any(|fault| fault.resource == resource && matches!(fault.effect, Effect::Stalls))
    }
}
