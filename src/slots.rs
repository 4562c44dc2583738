//! Work at the same time, shared fairly among users: see [`share`](crate::share).

use std::collections::VecDeque;
use std::mem::take;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::share::{FairShare, LeftOut};

/// Whether work may use the slots that are kept for one class of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Ordinary,
    /// Such as operators' calls.
    Privileged,
}

/// Work at the same time, shared fairly among users. Cheap to clone.
///
/// A user who gets no slot counts as waiting until as many slots were returned as there are. Those who wait get the slots that are
/// returned in the order of their coming, as far as their users may have more.
#[derive(Debug, Clone)]
pub struct Slots<K: Ord + Clone>(Arc<Mutex<Shares<K>>>);

#[derive(Debug)]
struct Shares<K: Ord + Clone> {
    ordinary: FairShare<K>,
    privileged: FairShare<K>,
    /// Slots returned in this period.
    returned: u64,
    waiting: VecDeque<Waiting<K>>,
}

#[derive(Debug)]
struct Waiting<K: Ord + Clone> {
    user: K,
    class: Class,
    slot: oneshot::Sender<Slot<K>>,
}

/// One slot, until it is dropped.
#[derive(Debug)]
pub struct Slot<K: Ord + Clone> {
    slots: Slots<K>,
    user: K,
    class: Class,
}

impl<K: Ord + Clone> Slots<K> {
    /// `total` slots, of which `kept` are only for [`Class::Privileged`]. In both classes, a quarter is divided in advance.
    pub fn new(total: u64, kept: u64) -> Self {
        let share = |total: u64| FairShare::new(total, total.div_ceil(4));
        Self(Arc::new(Mutex::new(Shares {
            ordinary: share(total.saturating_sub(kept)),
            privileged: share(kept.min(total)),
            returned: 0,
            waiting: VecDeque::new(),
        })))
    }

    /// A slot for a user, at once.
    ///
    /// Errors: the user has its share of the slots, or all are in use.
    pub fn take(&self, user: &K, class: Class) -> Result<Slot<K>, LeftOut> {
        let class = self.0.lock().take(user, class)?;
        Ok(self.slot(user.clone(), class))
    }

    /// Waits for a slot for a user. Cancel-safe.
    pub async fn wait(&self, user: &K, class: Class) -> Slot<K> {
        let returned = {
            let mut shares = self.0.lock();
            if let Ok(class) = shares.take(user, class) {
                return self.slot(user.clone(), class);
            }
            let (slot, returned) = oneshot::channel();
            let user = user.clone();
            shares.waiting.push_back(Waiting { user, class, slot });
            returned
        };
        match returned.await {
            Ok(slot) => slot,
            // The sender is in these slots.
            Err(_) => std::future::pending().await,
        }
    }

    fn slot(&self, user: K, class: Class) -> Slot<K> {
        let slots = self.clone();
        Slot { slots, user, class }
    }
}

impl<K: Ord + Clone> Shares<K> {
    /// Takes a slot; returns of which class it is.
    fn take(&mut self, user: &K, class: Class) -> Result<Class, LeftOut> {
        if class == Class::Privileged && self.privileged.take(user, 1, 1).is_ok() {
            return Ok(Class::Privileged);
        }
        self.ordinary.take(user, 1, 1).map(|_| Class::Ordinary)
    }

    fn give_back(&mut self, user: &K, class: Class) {
        match class {
            Class::Ordinary => self.ordinary.give_back(user, 1),
            Class::Privileged => self.privileged.give_back(user, 1),
        }
        self.returned += 1;
        if self.returned >= self.ordinary.total() {
            self.returned = 0;
            self.ordinary.end_period();
            self.privileged.end_period();
        }
    }

    /// Takes slots for those who wait, as far as they may have some. Returns these, each with the class of its slot.
    fn hand_out(&mut self) -> Vec<(Waiting<K>, Class)> {
        let (mut handed, mut refused) = (Vec::new(), Vec::new());
        for waiting in take(&mut self.waiting) {
            if waiting.slot.is_closed() {
                continue;
            }
            let of = (waiting.user.clone(), waiting.class);
            if !refused.contains(&of) {
                if let Ok(class) = self.take(&waiting.user, waiting.class) {
                    handed.push((waiting, class));
                    continue;
                }
                refused.push(of);
            }
            self.waiting.push_back(waiting);
        }
        handed
    }
}

impl<K: Ord + Clone> Drop for Slot<K> {
    fn drop(&mut self) {
        let handed = {
            let mut shares = self.slots.0.lock();
            shares.give_back(&self.user, self.class);
            shares.hand_out()
        };
        for (Waiting { user, slot, .. }, class) in handed {
            // Who does not wait any more gives its slot back here.
            drop(slot.send(self.slots.slot(user, class)));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_slot_is_kept_for_each_class_and_for_a_user_who_has_not_come_yet() {
        let slots = Slots::new(4, 2);
        let hanging: Vec<_> = (0..9)
            .filter_map(|_| slots.take(&"greedy", Class::Privileged).ok())
            .collect();
        assert_eq!(hanging.len(), 2, "one of each class");
        let first = slots.take(&"honest", Class::Privileged).unwrap();
        let ordinary = slots.take(&"honest", Class::Ordinary).unwrap();
        assert!(slots.take(&"third", Class::Ordinary).is_err(), "all slots are in use");
        drop((first, ordinary));
        assert!(slots.take(&"third", Class::Ordinary).is_ok());
    }

    #[tokio::test]
    async fn a_user_who_waits_goes_before_one_who_has_a_slot() {
        let slots = Slots::new(4, 0);
        let mut hanging: Vec<_> = std::iter::from_fn(|| slots.take(&"a", Class::Ordinary).ok()).collect();
        let _b = slots.take(&"b", Class::Ordinary).unwrap();
        let mut waits = Box::pin(slots.wait(&"c", Class::Ordinary));
        assert!((&mut waits).now_or_never().is_none());
        let gone = slots.wait(&"c", Class::Ordinary).now_or_never();
        drop(hanging.pop());
        assert!(gone.is_none() && slots.take(&"a", Class::Ordinary).is_err());
        let c = waits.await;
        drop((hanging, c));
        assert!(
            slots.wait(&"c", Class::Ordinary).now_or_never().is_some(),
            "nobody holds what the other would have got"
        );
    }
}
