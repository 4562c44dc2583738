//! Operators, their requests, and the overrides that may be in force as a result.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use vscaled::control::{Client, proto};

use super::pods::Sizes;
use crate::support::amounts::Amounts;

/// The longest time for which an operator tries to reach an agent.
const PATIENCE: Duration = Duration::from_secs(3);
/// Outcomes after which the override is in force.
const KEPT: [&str; 3] = ["Applied", "Unchanged", "RuntimeOwed"];

/// Limits of the container `app` in an override.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) cpu: Option<u64>,
    pub(super) memory: Option<u64>,
}

/// The overrides that may be in force, the latest last. A single one is certain.
#[derive(Debug)]
pub(super) struct Overrides {
    may_be: Vec<MayBe>,
    /// The end of the last override with a time limit.
    end: Option<Instant>,
    call: Option<Call>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MayBe {
    limits: Option<Limits>,
    ends: bool,
}

const NOTHING: MayBe = MayBe {
    limits: None,
    ends: false,
};

#[derive(Debug)]
struct Call {
    wanted: Option<Limits>,
    /// The overrides that may be in force after the call.
    then: Vec<MayBe>,
    ttl: Option<Duration>,
    answer: JoinHandle<Answer>,
}

/// The result of a call.
#[derive(Debug)]
enum Answer {
    /// No agent answered.
    NotAsked(String),
    /// The call was refused or broke off, so its effect is unknown.
    Failed(String),
    Ended(Box<proto::Change>),
}

impl Overrides {
    pub(super) fn none() -> Self {
        Self {
            may_be: vec![NOTHING],
            end: None,
            call: None,
        }
    }

    pub(super) const fn is_certain(&self) -> bool {
        self.may_be.len() == 1
    }

    pub(super) const fn is_waiting(&self) -> bool {
        self.call.is_some()
    }

    /// Requests limits until a time, or their end.
    pub(super) fn ask(&mut self, socket: PathBuf, pod: String, limits: Option<Limits>, ttl: Option<Duration>) {
        let then = self.after(limits, ttl.is_some());
        self.may_be.retain(|one| !then.contains(one));
        self.may_be.extend(&then);
        let answer = tokio::spawn(call(socket, pod, limits, ttl));
        self.call = Some(Call {
            wanted: limits,
            then,
            ttl,
            answer,
        });
    }

    /// The overrides that may follow. A new override keeps the earlier one's limits where it sets none, unless the
    /// earlier one has ended.
    fn after(&self, limits: Option<Limits>, ends: bool) -> Vec<MayBe> {
        let Some(Limits { cpu, memory }) = limits else {
            return vec![NOTHING];
        };
        let may_have_ended = self.may_be.iter().any(|one| one.ends).then_some(NOTHING);
        let mut then = Vec::new();
        for before in self.may_be.iter().chain(&may_have_ended) {
            let limits = Limits {
                cpu: cpu.or(before.limits.and_then(|before| before.cpu)),
                memory: memory.or(before.limits.and_then(|before| before.memory)),
            };
            let one = MayBe {
                limits: Some(limits),
                ends,
            };
            if !then.contains(&one) {
                then.push(one);
            }
        }
        then
    }

    /// Handles an answer if there is one, or waits for it. Returns a line for the log.
    pub(super) async fn answered(&mut self, wait: bool) -> Option<String> {
        let call = self.call.take_if(|call| wait || call.answer.is_finished())?;
        let answer = call.answer.await.unwrap();
        if let Some(ttl) = call.ttl {
            let end = Instant::now() + ttl;
            self.end = Some(self.end.map_or(end, |other| other.max(end)));
        }
        let wanted = call.wanted;
        Some(match answer {
            Answer::NotAsked(why) => format!("{wanted:?} not asked for: {why}"),
            Answer::Failed(why) => format!("{wanted:?} failed: {why}"),
            Answer::Ended(change) => {
                if KEPT.contains(&change.outcome.as_str()) {
                    self.may_be = call.then;
                }
                format!("{wanted:?} is {} {}", change.outcome, change.reason)
            }
        })
    }

    /// Waits until all overrides with a time limit have ended.
    pub(super) async fn end_by_themselves(&mut self) {
        if let Some(end) = self.end.take() {
            tokio::time::sleep_until(end.into()).await;
            for one in self.may_be.iter_mut().filter(|one| one.ends) {
                *one = NOTHING;
            }
        }
    }

    /// The specs that are possible under the possible overrides.
    pub(super) fn over(&self, recommended: &Sizes) -> Vec<(bool, Sizes)> {
        let with = |limits: &Option<Limits>| {
            let mut sizes = recommended.clone();
            let app = sizes.get_mut("app").unwrap();
            let limits = limits.unwrap_or(Limits {
                cpu: None,
                memory: None,
            });
            *app = Amounts {
                cpu_limit: limits.cpu.or(app.cpu_limit),
                memory_limit: limits.memory.or(app.memory_limit),
                ..*app
            };
            sizes
        };
        let all = self.may_be.iter().map(|one| &one.limits);
        all.map(|limits| (limits.is_some(), with(limits))).collect()
    }

    /// Keeps only the override of this number.
    pub(super) fn settle(&mut self, number: usize) {
        self.may_be = vec![self.may_be[number]];
    }
}

async fn call(socket: PathBuf, pod: String, wanted: Option<Limits>, ttl: Option<Duration>) -> Answer {
    let started = Instant::now();
    let mut client = loop {
        match Client::connect(&socket).await {
            Ok(client) => break client,
            Err(error) if started.elapsed() > PATIENCE => return Answer::NotAsked(error.to_string()),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let changed = match wanted {
        Some(limits) => {
            let limits = proto::Amounts {
                cpu: limits.cpu.map(|cpu| format!("{cpu}m")),
                memory: limits.memory.map(|memory| format!("{memory}Mi")),
            };
            let values = proto::Requirements {
                requests: None,
                limits: Some(limits),
            };
            let request = proto::ResizeRequest {
                pod,
                containers: vec![proto::ContainerValues {
                    name: "app".to_owned(),
                    values: Some(values),
                }],
                ttl_us: ttl.map(|ttl| u64::try_from(ttl.as_micros()).unwrap()),
                ..proto::ResizeRequest::default()
            };
            client.resize(request).await.map(|reply| reply.change)
        }
        None => {
            let request = proto::ReleaseRequest {
                pod,
                ..proto::ReleaseRequest::default()
            };
            client.release(request).await.map(|reply| reply.change)
        }
    };
    match changed {
        Ok(change) => Answer::Ended(Box::new(change.unwrap())),
        Err(error) => Answer::Failed(error.to_string()),
    }
}
