//! Fair shares of what all users of a node have in common: memory, slots, lines of a log. Pure.
//!
//! A user is a namespace, or the caller at a socket. [`max_min_share`] is the one calculation: while nobody else asks, a user may
//! have everything; once others ask, each user has what it asks for or an equal part, whichever is less, and nobody has more
//! than an equal part while another has less than it asks for.
//!
//! | shape | for |
//! |---|---|
//! | [`max_min_share`] | what is divided anew at each question, such as promised memory or the entries of a list |
//! | [`places_of_most`] | the entry that a full list loses |
//! | [`FairShare`] | amounts that are granted and returned |
//! | [`Slots`](crate::slots::Slots) | work at the same time, with slots that only one class of work may use |
//! | [`FairRateLimiter`](crate::rate_limiter::FairRateLimiter) | rates |
//!
//! # Invariants of [`FairShare`]
//! 1. The sum of all grants is never more than the total.
//! 2. No grant takes a user above its max-min share among all users who hold or ask for something.
//! 3. A grant cannot be taken back. So a part of the total, `reserved`, is divided in advance among the expected users, or
//!    among the users so far and one more where the caller expects none. An expected user can have its part of `reserved`
//!    at any moment, whatever the others did before. The others' returns then lead to invariant 2: a user above its share
//!    gets nothing more while another waits.
//! 4. Whatever nobody waits for and `reserved` does not keep for others can be granted to one user.
//! 5. Nothing is left out silently: a refusal is a [`LeftOut`] for the caller to count.
//!
//! Users who only ask are forgotten after two periods, so that the amounts of users who come only once do not stay reserved.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The share of a user who wants `wanted`, where the other users want these amounts: the max-min fair share.
///
/// Rounded down, so that no user takes the last unit of another's part. Of fewer units than users, everyone may have one.
pub fn max_min_share(total: u64, wanted: u64, others: impl IntoIterator<Item = u64>) -> u64 {
    let mut others: Vec<u64> = others.into_iter().collect();
    others.sort_unstable();
    let (mut left, mut users) = (total, others.len() as u64 + 1);
    for other in others {
        let part = (left / users).max(1);
        if other >= part {
            return wanted.min(part).min(left);
        }
        left = left.saturating_sub(other);
        users -= 1;
    }
    wanted.min(left)
}

/// The first and the last place of the user with most entries in a list; of several, of the one whose first is earliest. A full list
/// loses one of these, so that nobody's entries drive out those of others.
pub fn places_of_most<K: Ord>(users: impl IntoIterator<Item = K>) -> Option<(usize, usize)> {
    places_of_largest(users.into_iter().map(|user| (user, 1)))
}

/// The same, of the user whose entries are largest together.
pub fn places_of_largest<K: Ord>(entries: impl IntoIterator<Item = (K, u64)>) -> Option<(usize, usize)> {
    let mut users: BTreeMap<K, (u64, usize, usize)> = BTreeMap::new();
    for (place, (user, size)) in entries.into_iter().enumerate() {
        let (sum, _, last) = users.entry(user).or_insert((0, place, place));
        (*sum, *last) = (sum.saturating_add(size), place);
    }
    let largest = users
        .into_values()
        .max_by_key(|(sum, first, _)| (*sum, Reverse(*first)));
    largest.map(|(_, first, last)| (first, last))
}

/// Why a user does not get what it wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
#[display("{users} users share {total}: each may have {share} for now, or less")]
pub struct LeftOut {
    pub total: u64,
    /// The most that this user may have now.
    pub share: u64,
    /// The users who hold or want something.
    pub users: usize,
}

/// An amount that users share, such as bytes: see the [module](self).
#[derive(Debug, Clone)]
pub struct FairShare<K> {
    total: u64,
    reserved: u64,
    users: BTreeMap<K, User>,
}

#[derive(Debug, Clone, Copy, Default)]
struct User {
    held: u64,
    /// The most that the user wanted to hold at once, in this period and in the period before.
    wanted: [u64; 2],
    /// Whether the user counts before it asks.
    expected: bool,
}

impl User {
    fn demand(&self) -> u64 {
        self.held.max(self.wanted[0]).max(self.wanted[1])
    }

    const fn is_known(&self) -> bool {
        self.expected || self.held > 0 || self.wanted[0] > 0 || self.wanted[1] > 0
    }
}

impl<K: Ord + Clone> FairShare<K> {
    /// A total of which `reserved` is divided in advance. With 0, a single user can have everything.
    pub const fn new(total: u64, reserved: u64) -> Self {
        Self {
            total,
            reserved,
            users: BTreeMap::new(),
        }
    }

    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Changes the total. Grants stay.
    pub const fn resize(&mut self, total: u64, reserved: u64) {
        (self.total, self.reserved) = (total, reserved);
    }

    /// Replaces the users who count for `reserved` before they ask.
    pub fn expect(&mut self, users: impl IntoIterator<Item = K>) {
        self.users.values_mut().for_each(|user| user.expected = false);
        users.into_iter().for_each(|user| self.user(&user).expected = true);
        self.users.retain(|_, user| user.is_known());
    }

    /// Grants a user from `least` to `most` more. A user who gets less than `most` counts as one who waits for the rest.
    ///
    /// Errors: fewer than `least` are left for this user; nothing is granted then.
    pub fn take(&mut self, user: &K, least: u64, most: u64) -> Result<u64, LeftOut> {
        let held = self.held(user);
        let share = self.share(user, most);
        let granted = share.saturating_sub(held).min(most);
        let granted = if granted < least { 0 } else { granted };
        let one = self.user(user);
        one.held += granted;
        one.wanted = if granted == most {
            [0; 2]
        } else {
            [one.wanted[0].max(held.saturating_add(most)), one.wanted[1]]
        };
        if granted >= least {
            return Ok(granted);
        }
        Err(LeftOut {
            total: self.total,
            share,
            users: self.users.values().filter(|user| user.demand() > 0).count(),
        })
    }

    /// The most that a user who wants so much more may hold now.
    fn share(&self, user: &K, more: u64) -> u64 {
        let held = self.held(user);
        let others = self.users.iter().filter(|(other, _)| *other != user);
        let mut others: Vec<User> = others.map(|(_, user)| *user).collect();
        // Callers who expect no users may get one more at any moment.
        if !self.users.values().any(|user| user.expected) {
            others.push(User::default());
        }
        let all_held: u64 = self.users.values().map(|user| user.held).sum();
        let free = self.total.saturating_sub(all_held);
        let part = self.reserved.div_ceil(others.len() as u64 + 1);
        let missing = others.iter().map(|other| part.saturating_sub(other.held));
        let kept = missing.fold(0, u64::saturating_add).min(self.reserved);
        let for_others = others.iter().map(|other| other.demand().max(part));
        let fair = max_min_share(self.total, held.saturating_add(more), for_others);
        let available = held + free.saturating_sub(kept);
        fair.min(available.max(part.min(held + free)))
    }

    /// Takes back what a user held.
    pub fn give_back(&mut self, user: &K, amount: u64) {
        if let Some(one) = self.users.get_mut(user) {
            one.held = one.held.saturating_sub(amount);
            one.wanted = one.wanted.map(|wanted| wanted.saturating_sub(amount));
        }
        self.users.retain(|_, user| user.is_known());
    }

    /// Ends a period: what users wanted before the last period and did not get is forgotten.
    pub fn end_period(&mut self) {
        for user in self.users.values_mut() {
            user.wanted = [0, user.wanted[0]];
        }
        self.users.retain(|_, user| user.is_known());
    }

    /// What a user holds.
    pub fn held(&self, user: &K) -> u64 {
        self.users.get(user).map_or(0, |user| user.held)
    }

    /// The user who holds most.
    pub fn largest(&self) -> Option<K> {
        let holders = self.users.iter().filter(|(_, user)| user.held > 0);
        holders.max_by_key(|(_, user)| user.held).map(|(user, _)| user.clone())
    }

    fn user(&mut self, user: &K) -> &mut User {
        self.users.entry(user.clone()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const HONEST: u8 = u8::MAX;

    #[test]
    fn alone_everything_among_the_greedy_a_part() {
        assert_eq!(max_min_share(100, 900, []), 100);
        assert_eq!(max_min_share(100, 900, [900, 900]), 33);
        assert_eq!(
            max_min_share(100, 900, [10, 900]),
            45,
            "what one does not want is for the others"
        );
        assert_eq!(max_min_share(100, 20, [900, 900]), 20);
    }

    #[test]
    fn a_full_list_loses_an_entry_of_the_largest_user() {
        assert_eq!(places_of_most("abcbb".chars()), Some((1, 4)));
        assert_eq!(places_of_most("abba".chars()), Some((0, 3)));
        assert_eq!(places_of_most("".chars()), None);
        let sizes = [('a', 1), ('b', 5), ('a', 1), ('a', 1)];
        assert_eq!(places_of_largest(sizes), Some((1, 1)));
    }

    #[test]
    fn a_user_who_waits_gets_its_part_when_a_greedy_one_returns_some() {
        let mut pool = FairShare::new(100, 0);
        assert_eq!(pool.take(&'g', 1, 900), Ok(100));
        let refused = pool.take(&'h', 1, 60).unwrap_err();
        assert_eq!(refused.users, 2);
        assert_eq!(
            refused.to_string(),
            "2 users share 100: each may have 0 for now, or less"
        );
        pool.give_back(&'g', 30);
        assert!(pool.take(&'g', 1, 30).is_err(), "the other one waits");
        assert_eq!(pool.take(&'h', 1, 60), Ok(30));
        pool.give_back(&'g', 70);
        assert_eq!(
            pool.take(&'h', 1, 900),
            Ok(20),
            "the other one still waits for more than a half"
        );
        pool.end_period();
        pool.end_period();
        assert_eq!(
            pool.take(&'h', 1, 900),
            Ok(50),
            "a user who stopped asking is forgotten"
        );
    }

    #[derive(Debug, Clone)]
    enum Act {
        Take { who: u8, least: u64, most: u64 },
        GiveBack { who: u8, amount: u64 },
        EndPeriod,
    }

    fn act() -> impl Strategy<Value = Act> {
        let amount = || prop_oneof![0_u64..50, any::<u64>()];
        prop_oneof![
            4 => (0_u8..4, amount(), amount()).prop_map(|(who, least, most)| {
                let least = least.min(most);
                Act::Take { who, least, most }
            }),
            2 => (0_u8..4, amount()).prop_map(|(who, amount)| Act::GiveBack { who, amount }),
            1 => Just(Act::EndPeriod),
        ]
    }

    fn carry_out(pool: &mut FairShare<u8>, act: &Act) {
        match *act {
            Act::Take { who, least, most } => {
                let before = pool.held(&who);
                let granted = pool.take(&who, least, most);
                assert_eq!(pool.held(&who), before + granted.unwrap_or(0));
                assert!(granted.is_err() || granted.is_ok_and(|granted| (least..=most).contains(&granted)));
            }
            Act::GiveBack { who, amount } => pool.give_back(&who, amount),
            Act::EndPeriod => pool.end_period(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// All max-min shares fit into the total, none is below an equal part of it, and only rounding leaves anything idle.
        #[test]
        fn shares_are_never_below_an_equal_part_and_fit_into_the_total(
            total in 0_u64..1000, wants in vec(0_u64..1500, 1..8),
        ) {
            let of = |index: usize| {
                let others = wants.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, want)| *want);
                max_min_share(total, wants[index], others)
            };
            let shares: Vec<u64> = (0..wants.len()).map(of).collect();
            let users = u64::try_from(wants.len()).unwrap();
            let sum = shares.iter().sum::<u64>();
            prop_assert!(sum <= total.max(users) && sum + users > total.min(wants.iter().sum()), "{shares:?} {wants:?}");
            for (share, want) in shares.iter().zip(&wants) {
                prop_assert!(share <= want && *share >= (*want).min(total / users), "{shares:?} {wants:?}");
            }
        }

        /// Whatever four greedy users do, the total holds, and an expected user gets its part of the reserve at once.
        #[test]
        fn a_greedy_user_never_takes_what_is_reserved_for_another(
            total in prop_oneof![1_u64..1000, any::<u64>()], reserve in 0_u64..=100, acts in vec(act(), 0..40), most in 0_u64..500,
        ) {
            let reserved = total / 100 * reserve;
            let mut pool = FairShare::new(total, reserved);
            pool.expect([0, 1, 2, 3, HONEST]);
            let before = max_min_share(total, most, []);
            for act in &acts {
                carry_out(&mut pool, act);
                let held = (0..4).map(|user| u128::from(pool.held(&user))).sum::<u128>();
                prop_assert!(held <= u128::from(total));
            }
            let share = (reserved / 5).min(before).min(total / 5);
            let granted = pool.take(&HONEST, 0, most).unwrap();
            prop_assert!(granted >= share, "{granted} of {share}");
        }

        /// Once an honest user waits, each return leads towards equal parts: the greedy users together cannot keep it below.
        #[test]
        fn a_waiting_user_gets_its_part_of_returns(
            total in 5_u64..200, acts in vec(act(), 0..40), returns in vec(1_u64..30, 1..20),
        ) {
            let mut pool = FairShare::new(total, 0);
            acts.iter().for_each(|act| carry_out(&mut pool, act));
            let part = total / 5;
            let ask = |pool: &mut FairShare<u8>| {
                let missing = part.saturating_sub(pool.held(&HONEST));
                pool.take(&HONEST, 0, missing).unwrap()
            };
            ask(&mut pool);
            for amount in returns.into_iter().cycle().take(1000) {
                let Some(greedy) = pool.largest().filter(|_| pool.held(&HONEST) < part) else { break };
                pool.give_back(&greedy, amount);
                for other in 0..4 {
                    pool.take(&other, 0, total).unwrap();
                }
                ask(&mut pool);
            }
            prop_assert!(pool.held(&HONEST) >= part, "{pool:?}");
        }

        /// Without others, nothing stays idle but what is kept for a user who has not come yet.
        #[test]
        fn idle_capacity_is_usable(total in any::<u64>(), reserved in any::<u64>()) {
            let mut pool = FairShare::new(total, reserved.min(total));
            let kept = reserved.min(total).div_ceil(2);
            prop_assert!(pool.take(&0, 0, u64::MAX).unwrap() >= total - kept);
            let mut open = FairShare::new(total, 0);
            prop_assert_eq!(open.take(&0, 0, u64::MAX).unwrap(), total);
        }
    }
}
