//! Learns at once when anybody writes a file of a pod that is ours.
//!
//! One inotify descriptor watches all of them ([`crate::cgroup::Watch`]). Its notices include our own writes: they cost
//! one pass that finds everything in order. Where the kernel gives no descriptor, or no more watches, the periodic sweep
//! is all there is, and that is reported.

use std::collections::{BTreeSet, HashMap};

use tokio::io::unix::AsyncFd;

use crate::actuate::PodHandles;
use crate::cgroup::{Notice, Token, Watch};

/// Which files are watched, for which pod.
#[derive(Debug, Default)]
pub(super) struct Watching {
    watch: Option<AsyncFd<Watch>>,
    pods: HashMap<Token, String>,
    tokens: HashMap<String, Vec<Token>>,
}

/// Whose files were written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// Those of these pods.
    Pods(BTreeSet<String>),
    /// The kernel lost count: perhaps those of all.
    PerhapsAll,
}

impl Watching {
    /// Opens the descriptor; without one, nothing is ever noticed here.
    pub(super) fn new() -> Self {
        let opened = Watch::new().map_err(std::io::Error::from).and_then(Watch::into_async);
        match opened {
            Ok(watch) => Self {
                watch: Some(watch),
                ..Self::default()
            },
            Err(error) => {
                tracing::warn!(%error, "no inotify descriptor: changes by others are found by the periodic check only");
                Self::default()
            }
        }
    }

    /// Whether a pod's files are watched.
    pub(super) fn watches(&self, key: &str) -> bool {
        self.tokens.contains_key(key)
    }

    /// Watches a pod's files.
    pub(super) fn watch(&mut self, key: &str, handles: &PodHandles) {
        let Some(watch) = &mut self.watch else { return };
        for (target, cgroup) in handles.iter() {
            match watch.get_mut().add(cgroup) {
                Ok(token) => {
                    self.pods.insert(token, key.to_owned());
                    self.tokens.entry(key.to_owned()).or_default().push(token);
                }
                Err(error) if error.is_gone() => {}
                Err(error) => {
                    tracing::warn!(pod = key, %target, %error, "not watched: found by the periodic check only");
                }
            }
        }
    }

    /// Stops watching a pod's files.
    pub(super) fn forget(&mut self, key: &str) {
        let Some(watch) = &mut self.watch else { return };
        for token in self.tokens.remove(key).into_iter().flatten() {
            self.pods.remove(&token);
            watch.get_mut().remove(token);
        }
    }

    /// Waits until somebody writes. Cancel-safe: notices stay in the kernel until they are drained, and draining does not
    /// wait.
    pub(super) async fn written(&mut self) -> Written {
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
            Ok(notices) => self.whose(&notices),
            Err(error) => {
                tracing::error!(%error, "watching ended: changes by others are found by the periodic check only");
                self.watch = None;
                Written::PerhapsAll
            }
        }
    }

    fn whose(&self, notices: &[Notice]) -> Written {
        let mut pods = BTreeSet::new();
        for notice in notices {
            match notice {
                Notice::Overflow => return Written::PerhapsAll,
                Notice::Modified { token, .. } | Notice::Removed { token } => {
                    pods.extend(self.pods.get(token).cloned());
                }
            }
        }
        Written::Pods(pods)
    }
}
