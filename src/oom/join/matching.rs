//! Who can have what → who gets it. Pure.
//!
//! In come kills, the rises that each of them may be in, and how many fit into each; out comes a group of as many as
//! possible. Nothing here knows what a kill or a rise is.

use std::collections::VecDeque;

/// For each kill, whether it may be in each of the rises: looked up once, because the answer is asked for again and again.
pub(super) type Compatibility = Vec<Vec<bool>>;

/// The kills that may be in any of these rises.
pub(super) fn rivals<'a>(possible: &'a [Vec<bool>], wanted: &'a [bool]) -> impl Iterator<Item = usize> + 'a {
    let kills = possible.iter().enumerate();
    let rivals = kills.filter(move |(_, row)| row.iter().zip(wanted).any(|(may, wanted)| *may && *wanted));
    rivals.map(|(kill, _)| kill)
}

/// Pairs as many kills as possible with rises, and of all such ways, one in which the first kills and the first rises have
/// partners: later rises may be needed by what is still to come. `free` is how many each rise takes. Gives each kill the
/// index of its rise.
pub(super) fn matched(possible: &[Vec<bool>], mut free: Vec<u64>) -> Vec<Option<usize>> {
    let mut held = vec![None; possible.len()];
    for kill in 0..possible.len() {
        place(possible, kill, free.len(), &mut held, &mut free);
    }
    // A kill that can move to an earlier rise does. No such move is left only where the first rises are full
    // (Mendelsohn and Dulmage, 1958).
    let mut move_one = |kill: usize| match held[kill] {
        Some(rise) if free[..rise].iter().any(|free| *free > 0) => {
            let moved = place(possible, kill, rise, &mut held, &mut free);
            free[rise] += u64::from(moved);
            moved
        }
        Some(_) | None => false,
    };
    while (0..possible.len()).rev().any(&mut move_one) {}
    held
}

/// Finds a rise before `end` for this kill, others changing places if they must. Whether there is one.
fn place(possible: &[Vec<bool>], kill: usize, end: usize, held: &mut [Option<usize>], free: &mut [u64]) -> bool {
    let mut wanted_by: Vec<Option<usize>> = vec![None; free.len()];
    let mut queue = VecDeque::from([kill]);
    while let Some(seeking) = queue.pop_front() {
        for rise in (0..free.len()).filter(|rise| possible[seeking][*rise]) {
            if wanted_by[rise].is_some() {
                continue;
            }
            wanted_by[rise] = Some(seeking);
            if rise < end && free[rise] > 0 {
                free[rise] -= 1;
                let mut next = Some(rise);
                while let Some(rise) = next {
                    let mover = wanted_by[rise].unwrap_or(kill);
                    next = held[mover].replace(rise).filter(|_| mover != kill);
                }
                return true;
            }
            let holders = held.iter().enumerate().filter(|(_, held)| **held == Some(rise));
            queue.extend(holders.map(|(holder, _)| holder));
        }
    }
    false
}
