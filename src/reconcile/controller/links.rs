//! What the controller is connected to when it starts.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::guarding::GuardLink;
use super::node::NodeFacts;
use super::passes::Passes;
use super::publishing::Publisher;
use super::requests::Requests;
use super::resizing::ResizeEndpoint;
use super::saving::Store;
use super::{Controller, DECIDE_EVERY, Event, Options, Schedule};
use crate::actuate::PodResizer;
use crate::guard::LimitFiles;
use crate::model::{ResourceList, WeightFormula};
use crate::observe::health::Latch;
use crate::reconcile::history::History;
use crate::reconcile::pod::Pods;
use crate::reconcile::store::{Restored, StateWriter};

/// What the controller is connected to.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) events: mpsc::Sender<Event>,
    /// Where a look at the node is asked for.
    pub(crate) discover: mpsc::Sender<()>,
    pub(crate) formula: watch::Sender<Option<WeightFormula>>,
    pub(crate) starting: Vec<Latch>,
    pub(crate) machine: ResourceList,
    pub(crate) guard: GuardLink,
    pub(crate) resizer: Option<Arc<dyn PodResizer>>,
    pub(crate) history: History,
    pub(crate) publisher: Publisher,
    pub(crate) writer: StateWriter,
    pub(crate) restored: Restored,
    pub(crate) limit_files: Arc<LimitFiles>,
}

impl Controller {
    pub(crate) fn new(options: Options, links: Links) -> Self {
        let now = Instant::now();
        Self {
            schedule: Schedule {
                sweep: now + options.sweep_interval,
                decide: now + DECIDE_EVERY,
            },
            options,
            pods: Pods::default(),
            sources: super::deciding::Sources::default(),
            node: NodeFacts::new(links.machine, links.discover, links.formula, links.starting),
            passes: Passes::new(links.events),
            endpoint: ResizeEndpoint::new(links.resizer),
            requests: Requests::default(),
            store: Store::new(links.writer, links.restored, links.limit_files),
            guard: links.guard,
            files: super::files::Files::new(),
            history: links.history,
            publisher: links.publisher,
        }
    }
}
