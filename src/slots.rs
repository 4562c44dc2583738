//! Work at the same time, shared fairly among users: see [`share`](crate::share).

use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

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
/// A user who gets no slot counts as waiting until as many slots were returned as there are.
#[derive(Debug, Clone)]
pub struct Slots<K: Ord + Clone>(Arc<Pool<K>>);

#[derive(Debug)]
struct Pool<K> {
    shares: Mutex<Shares<K>>,
    returned: Notify,
}

#[derive(Debug)]
struct Shares<K> {
    ordinary: FairShare<K>,
    privileged: FairShare<K>,
    /// Slots returned in this period.
    returned: u64,
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
        Self(Arc::new(Pool {
            shares: Mutex::new(Shares {
                ordinary: share(total.saturating_sub(kept)),
                privileged: share(kept.min(total)),
                returned: 0,
            }),
            returned: Notify::new(),
        }))
    }

    /// A slot for a user, at once.
    ///
    /// Errors: the user has its share of the slots, or all are in use.
    pub fn take(&self, user: &K, class: Class) -> Result<Slot<K>, LeftOut> {
        let slot = |class| Slot {
            slots: self.clone(),
            user: user.clone(),
            class,
        };
        let mut shares = self.0.shares.lock();
        if class == Class::Privileged && shares.privileged.take(user, 1, 1).is_ok() {
            return Ok(slot(Class::Privileged));
        }
        shares.ordinary.take(user, 1, 1).map(|_| slot(Class::Ordinary))
    }

    /// Waits for a slot for a user. Cancel-safe.
    pub async fn wait(&self, user: &K, class: Class) -> Slot<K> {
        loop {
            // Registered before the slots are tried, so that no return is missed.
            let mut returned = pin!(self.0.returned.notified());
            returned.as_mut().enable();
            if let Ok(slot) = self.take(user, class) {
                return slot;
            }
            returned.await;
        }
    }
}

impl<K: Ord + Clone> Drop for Slot<K> {
    fn drop(&mut self) {
        let pool = &self.slots.0;
        let mut shares = pool.shares.lock();
        match self.class {
            Class::Ordinary => shares.ordinary.give_back(&self.user, 1),
            Class::Privileged => shares.privileged.give_back(&self.user, 1),
        }
        shares.returned += 1;
        if shares.returned >= shares.ordinary.total() {
            shares.returned = 0;
            shares.ordinary.end_period();
            shares.privileged.end_period();
        }
        drop(shares);
        pool.returned.notify_waiters();
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
        drop(hanging.pop());
        assert!(slots.take(&"a", Class::Ordinary).is_err());
        let _c = waits.await;
    }
}
