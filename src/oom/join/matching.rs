//! Who can have what → who gets it. Pure.
//!
//! In come kills, the rises that each of them may be in, and how many fit into each; out comes a group of as many as
//! possible. Nothing here knows what a kill or a rise is.

use std::collections::VecDeque;

/// Which kill may be in which rise, looked up once: the answer is asked for again and again.
#[derive(Debug)]
pub(super) struct Compatibility {
    kills: usize,
    rises: usize,
    /// Kill after kill, each with all rises.
    may: Vec<bool>,
}

impl Compatibility {
    pub(super) fn new<K, R>(kills: &[K], rises: &[R], may: impl Fn(&K, &R) -> bool) -> Self {
        Self {
            kills: kills.len(),
            rises: rises.len(),
            may: kills
                .iter()
                .flat_map(|kill| rises.iter().map(|rise| may(kill, rise)))
                .collect(),
        }
    }

    fn may(&self, kill: usize, rise: usize) -> bool {
        self.row(kill)[rise]
    }

    /// For each rise, whether this kill may be in it.
    pub(super) fn row(&self, kill: usize) -> &[bool] {
        &self.may[kill * self.rises..][..self.rises]
    }

    /// The kills that may be in any of these rises.
    pub(super) fn rivals<'a>(&'a self, wanted: &'a [bool]) -> impl Iterator<Item = usize> + 'a {
        let is_rival = move |kill: &usize| self.row(*kill).iter().zip(wanted).any(|(may, wanted)| *may && *wanted);
        (0..self.kills).filter(is_rival)
    }
}

/// Pairs as many kills as possible with rises, and of all such ways, one in which the first kills and the first rises have
/// partners. `free` is how many each rise takes. Gives each kill the index of its rise.
pub(super) fn matched(possible: &Compatibility, mut free: Vec<u64>) -> Vec<Option<usize>> {
    let mut assigned = vec![None; possible.kills];
    for kill in 0..possible.kills {
        if let Some(taken) = augment(possible, kill, &mut assigned, &free) {
            free[taken] -= 1;
        }
    }
    prefer_first(possible, &mut assigned, &mut free);
    assigned
}

/// Moves kills to the first rises that they can fill together: later ones may be needed by what is still to come. A way
/// that gives the same kills and the first rises partners exists (Mendelsohn and Dulmage, 1958).
fn prefer_first(possible: &Compatibility, assigned: &mut [Option<usize>], free: &mut [u64]) {
    for first in 0..possible.rises {
        while free[first] > 0
            && let Some(freed) = refill(possible, first, assigned)
        {
            (free[first], free[freed]) = (free[first] - 1, free[freed] + 1);
        }
    }
}

/// Fills one more of this rise from later ones, others changing places if they must. Returns the one that has one more
/// free: the last there is.
fn refill(possible: &Compatibility, first: usize, assigned: &mut [Option<usize>]) -> Option<usize> {
    // Who would move where, so that the rise it has becomes free.
    let mut moves: Vec<Option<(usize, usize)>> = vec![None; possible.rises];
    let mut queue = VecDeque::from([first]);
    while let Some(wanted) = queue.pop_front() {
        for (kill, held) in assigned.iter().enumerate() {
            let Some(held) = *held else { continue };
            if held != first && moves[held].is_none() && possible.may(kill, wanted) {
                moves[held] = Some((kill, wanted));
                queue.push_back(held);
            }
        }
    }
    let last = moves.iter().rposition(Option::is_some).filter(|last| *last > first)?;
    let mut freed = last;
    while freed != first {
        let (kill, to) = moves[freed]?;
        assigned[kill] = Some(to);
        freed = to;
    }
    Some(last)
}

/// Finds a rise for one more kill, others changing places if they must. Returns the rise that has one free less.
fn augment(possible: &Compatibility, kill: usize, assigned: &mut [Option<usize>], free: &[u64]) -> Option<usize> {
    let mut wanted_by: Vec<Option<usize>> = vec![None; possible.rises];
    let mut queue = VecDeque::from([kill]);
    while let Some(seeking) = queue.pop_front() {
        for rise in 0..possible.rises {
            if wanted_by[rise].is_some() || !possible.may(seeking, rise) {
                continue;
            }
            wanted_by[rise] = Some(seeking);
            if free[rise] > 0 {
                let mut next = Some(rise);
                while let Some(rise) = next {
                    let mover = wanted_by[rise]?;
                    next = assigned[mover].replace(rise);
                }
                return Some(rise);
            }
            let holders = assigned.iter().enumerate().filter(|(_, held)| **held == Some(rise));
            queue.extend(holders.map(|(holder, _)| holder));
        }
    }
    None
}
