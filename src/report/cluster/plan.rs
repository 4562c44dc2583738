//! What becomes of the reports of a destination: Events for people, or Events for a VPA recommender.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io};

use jiff::Timestamp;

use super::PodMetadata;
use crate::files::replace_atomically;
use crate::report::destination::Destination;
use crate::report::events::{LastTold, PlannedEvent, PodEvents, Rates, VpaEvents, VpaWindows, Withheld};
use crate::report::log::Pending;

/// How long the kubelet has to say in the pod's status what became of a container: the recommender reads that, too, and
/// must not count a kill twice. The kubelet looks at its containers every second (`genericPlegRelistPeriod`) and writes the
/// status at once, unless the API server makes it wait.
const SETTLE: Duration = Duration::from_secs(10);

/// The next thing to do.
pub(super) enum Next {
    Send(Box<PlannedEvent>),
    /// No Event tells of the report with this number.
    Withhold(u64),
}

/// Reports of one destination, on their way into Events.
#[derive(Debug)]
pub(super) enum Plan {
    People(PodEvents),
    Recommender(VpaPlan),
}

/// Reports for a VPA recommender, each until it can be known what became of its container.
#[derive(Debug)]
pub(super) struct VpaPlan {
    events: VpaEvents,
    /// Reports with the moment at which each is decided, which ascends.
    waiting: VecDeque<(Instant, Pending)>,
    /// Where it is kept when the recommender was told of which container, so that windows outlive the agent: a list in
    /// JSON, replaced whole. To lose it costs one Event too many for each container.
    memory: PathBuf,
}

fn log_withheld(pending: &Pending, why: Withheld) {
    tracing::debug!(id = %pending.report.id(), ?why, "the VPA recommender is not told");
}

impl Plan {
    pub(super) fn for_people() -> Self {
        let most = Destination::PodEvents.window();
        Self::People(PodEvents::new(Rates::default(), most, Instant::now()))
    }

    /// Goes on with what the file `memory` has. Blocks.
    pub(super) fn for_recommender(windows: VpaWindows, memory: PathBuf) -> Self {
        let read = match fs::read(&memory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            read => read.and_then(|text| Ok(serde_json::from_slice::<Vec<LastTold>>(&text)?)),
        };
        let told = read.unwrap_or_else(|error| {
            tracing::warn!(path = %memory.display(), %error, "what the VPA recommender was told before is not known");
            Vec::new()
        });
        Self::Recommender(VpaPlan {
            events: VpaEvents::new(windows, told),
            waiting: VecDeque::new(),
            memory,
        })
    }

    pub(super) const fn destination(&self) -> Destination {
        match self {
            Self::People(_) => Destination::PodEvents,
            Self::Recommender(_) => Destination::VpaEvents,
        }
    }

    /// Takes a report in.
    ///
    /// Errors: Why no Event will tell of it, which is logged.
    pub(super) fn offer(&mut self, pending: Pending) -> Result<(), Withheld> {
        match self {
            Self::People(events) => events.offer(pending),
            Self::Recommender(plan) => {
                let screened = plan.events.screen(&pending.report, Timestamp::now());
                screened.inspect_err(|why| log_withheld(&pending, *why))?;
                plan.waiting.push_back((Instant::now() + SETTLE, pending));
            }
        }
        Ok(())
    }

    /// The reports that were taken in and are in no Event yet.
    pub(super) fn waiting(&self) -> usize {
        match self {
            Self::People(events) => events.waiting(),
            Self::Recommender(plan) => plan.waiting.len(),
        }
    }

    /// When [`Self::next`] has something, if nothing more is offered.
    pub(super) fn ready_at(&self) -> Option<Instant> {
        match self {
            Self::People(events) => events.ready_at(),
            Self::Recommender(plan) => plan.waiting.front().map(|(due, _)| *due),
        }
    }

    pub(super) fn next(&mut self, metadata: &dyn PodMetadata) -> Option<Next> {
        let now = Instant::now();
        if self.ready_at()? > now {
            return None;
        }
        match self {
            Self::People(events) => events.next(now).map(Box::new).map(Next::Send),
            Self::Recommender(plan) => {
                let (_, pending) = plan.waiting.pop_front()?;
                let facts = metadata.container_facts(&pending.report);
                Some(match plan.events.decide(&pending, facts, Timestamp::now()) {
                    Ok(event) => Next::Send(Box::new(event)),
                    Err(why) => {
                        log_withheld(&pending, why);
                        Next::Withhold(pending.number)
                    }
                })
            }
        }
    }

    /// Forgets what waits, which is offered again.
    pub(super) fn start_over(&mut self) {
        match self {
            Self::People(events) => events.start_over(),
            Self::Recommender(plan) => plan.waiting.clear(),
        }
    }

    /// Keeps what was sent, where that outlives the agent.
    pub(super) async fn keep(&self) {
        let Self::Recommender(VpaPlan { events, memory, .. }) = self else {
            return;
        };
        let (told, path) = (events.told().to_vec(), memory.clone());
        let replace = move || replace_atomically(&path, |new| Ok(serde_json::to_writer(new, &told)?)).map(drop);
        let replaced = tokio::task::spawn_blocking(replace).await;
        if let Err(error) = replaced.map_err(io::Error::from).flatten() {
            tracing::warn!(path = %memory.display(), %error, "what the VPA recommender was told is not kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::events::ContainerFacts;
    use crate::report::testing::kill_of;

    #[tokio::test]
    async fn what_was_told_is_known_again_and_what_is_not_understood_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vpa-events.json");
        let open = || match Plan::for_recommender(VpaWindows::default(), path.clone()) {
            Plan::Recommender(plan) => plan,
            Plan::People(_) => unreachable!(),
        };
        let pending = Pending {
            number: 1,
            report: kill_of("web", 1).into(),
        };
        let facts = ContainerFacts {
            regular: true,
            vpa: true,
            pinned: false,
            survived: Some(true),
        };
        let mut plan = open();
        plan.events.decide(&pending, facts, Timestamp::now()).unwrap();
        let told = plan.events.told().to_vec();
        Plan::Recommender(plan).keep().await;
        assert_eq!(open().events.told(), told);
        assert_eq!(Plan::Recommender(open()).offer(pending), Err(Withheld::WithinWindow));
        fs::write(&path, "[{").unwrap();
        assert_eq!(open().events.told(), []);
    }
}
