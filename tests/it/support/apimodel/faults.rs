//! What goes wrong, and what was asked for.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// One thing that goes wrong.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    /// Such as `patch`; dry runs count as their verb.
    pub(crate) verb: &'static str,
    /// Such as `pods/resize`.
    pub(crate) resource: &'static str,
    /// How often; none for as long as it is not mended.
    pub(crate) times: Option<u32>,
    /// How.
    pub(crate) effect: Effect,
}

/// How it goes wrong.
#[derive(Debug, Clone)]
pub(crate) enum Effect {
    /// RBAC says no.
    Forbidden,
    /// A status: code, reason, message, and the seconds of Retry-After.
    Says(u16, &'static str, &'static str, Option<u32>),
    /// The answer takes its time, and so does what was asked for.
    Slow(Duration),
    /// The answer waits until this is cancelled.
    Held(CancellationToken),
    /// What was asked for is done, and no answer comes.
    Mute,
    /// What was asked for is done, and the answer breaks off in the middle.
    Torn,
    /// Admission makes this of what is asked for.
    Alters(Value),
    /// The path is not served.
    Unknown,
    /// Watches stand, and tell nothing.
    Stalls,
}

/// Calls that are not answered yet, watches apart.
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

    /// Counts a call; returns what is wrong with it.
    pub(super) fn meet(&mut self, verb: &'static str, resource: &str, dry: bool) -> Option<Effect> {
        let shown = if dry { "dry-run" } else { verb };
        *self.calls.entry(format!("{shown} {resource}")).or_default() += 1;
        let meant = |fault: &&mut Fault| fault.verb == verb && fault.resource == resource && fault.times != Some(0);
        let fault = self.faults.iter_mut().find(meant)?;
        fault.times = fault.times.map(|times| times - 1);
        Some(fault.effect.clone())
    }

    /// Whether watches of this tell nothing now.
    pub(super) fn stalls(&self, resource: &str) -> bool {
        let mut faults = self.faults.iter();
        faults.any(|fault| fault.resource == resource && matches!(fault.effect, Effect::Stalls))
    }
}
