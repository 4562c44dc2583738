//! The guarded containers of one pod.

use std::sync::Arc;
use std::time::Duration;

use super::watched::Watched;
use super::watchlist::Terms;
use super::wires::Token;
use crate::actuate::{Growable, Node, PodHandles};
use crate::model::LivePod;

/// A pod of which any container is guarded.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) live: Arc<LivePod>,
    pub(super) growable: Growable,
    pub(super) handles: Arc<PodHandles>,
    pub(super) containers: Vec<Watched>,
}

impl Pod {
    /// Opens its cgroups; none if it has just ended.
    pub(super) fn open(node: &Node, live: Arc<LivePod>, growable: Growable) -> Option<Self> {
        match PodHandles::open(&node.hierarchy, &live) {
            Ok(handles) => Some(Self {
                live,
                growable,
                handles: Arc::new(handles),
                containers: Vec::new(),
            }),
            Err(error) => {
                if !error.is_gone() {
                    tracing::warn!(pod = %live.id, %error, "not guarded");
                }
                None
            }
        }
    }

    /// Guards these containers from now on. Returns those that are not guarded any more.
    pub(super) fn set(
        &mut self,
        node: &Node,
        terms: Vec<Terms>,
        next_token: &mut Token,
        (now, quiet): (Duration, Duration),
    ) -> Vec<Watched> {
        let mut known = std::mem::replace(&mut self.containers, Vec::with_capacity(terms.len()));
        for terms in terms {
            let Some(live) = self.live.containers.get(&terms.container) else {
                continue;
            };
            let name = terms.container.clone();
            let kept = known
                .iter()
                .position(|watched| watched.terms.container == name && watched.id == live.id);
            let watched = match kept {
                Some(at) => Some(known.swap_remove(at)),
                None => {
                    *next_token += 1;
                    self.open_container(*next_token, live.id.clone(), terms.clone())
                }
            };
            let lent = node.least_limits.get(&self.live.id.uid, &name);
            let watched = watched.map(|mut watched| {
                watched.set_terms(terms, lent, now, quiet);
                watched
            });
            self.containers.extend(watched);
        }
        known
    }

    fn open_container(&self, token: Token, id: String, terms: Terms) -> Option<Watched> {
        let name = terms.container.clone();
        match Watched::open(token, id, terms, &self.handles) {
            Ok(opened) => opened,
            Err(error) => {
                if !error.is_gone() {
                    tracing::warn!(pod = %self.live.id, container = name, %error, "not guarded");
                }
                None
            }
        }
    }
}
