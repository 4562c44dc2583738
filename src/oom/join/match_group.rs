//! Kills and rises that can be each other's → which are.
//!
//! What was counted and not logged in time is logged late after all ([`claim`]), or told alone ([`expire`]).
//! Between counting a kill and logging it, the kernel wakes the victim (`__oom_kill_process` sends its signal in between),
//! and may run it and others first; a busy hypervisor may run nothing at all. Meanwhile the rest of what belongs together
//! is decided without the late one: whatever is found here is never certain, but for what the kernel logged with its cgroup.
//!
//! [`matched`] pairs as many as possible, and knows nothing of kills and rises but which of them fit together.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::iter::once;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use petgraph::algo::kosaraju_scc;
use petgraph::graph::DiGraph;
use serde::{Deserialize, Serialize};

use super::{FLOOD, LATEST, LOG_DELAY, LogPlace, OomKill, PATIENCE, Progress, SLACK};
use crate::model::CgroupPath;
use crate::oom::kill::Kill;
use crate::oom::message::Limit;
use crate::oom::numbers::Numbers;
use crate::oom::report::Confidence;

/// A kill in the log, by the time it was logged.
#[derive(Debug)]
pub(super) struct Logged {
    pub(super) at: LogPlace,
    pub(super) numbers: Numbers,
    pub(super) who: LogState,
    /// Whether a rise that may have been this one's was given to another kill.
    pub(super) in_doubt: bool,
}

/// Whether a kill was told.
#[derive(Debug)]
pub(super) enum LogState {
    /// It was, for this cgroup, and counts for a rise there.
    Told(CgroupPath),
    /// It is the second logging of a kill in this group, and counts for a rise there that is no kill.
    Again(CgroupPath),
    /// It was not: where it happened is not known yet.
    Waiting(Arc<Kill>),
}

/// A counter rose between two reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CounterDelta {
    /// The cgroup that lost processes: this one, or one below it that no other rise is told of.
    pub cgroup: CgroupPath,
    /// A moment before the first of the two reads.
    #[serde(rename = "afterUs", with = "super::micros")]
    pub after: Duration,
    /// A moment after the second.
    #[serde(rename = "byUs", with = "super::micros")]
    pub by: Duration,
    /// Which kills of the machine they are among.
    #[serde(skip)]
    pub numbers: Numbers,
    /// How much it rose by.
    pub kills: NonZeroU64,
    /// How much of that the kernel says are groups, whose first victims it counts twice; 0 where it does not say.
    #[serde(skip)]
    pub again: u64,
}

impl CounterDelta {
    /// Whether all that can be in it was logged before that time.
    fn is_over(&self, end: Duration) -> bool {
        end == Duration::MAX || self.by.saturating_add(LOG_DELAY) < end
    }

    /// What is left of it without these.
    pub(super) fn without<'a>(self, logged: impl Iterator<Item = &'a Logged> + Clone) -> Option<Self> {
        let logged_again = logged.clone().filter(|logged| matches!(logged.who, LogState::Again(_)));
        let again = self.again.saturating_sub(count(logged_again));
        let kills = NonZeroU64::new(self.kills.get().saturating_sub(count(logged)))?;
        Some(Self { kills, again, ..self })
    }
}

impl Logged {
    pub(super) const fn new(at: LogPlace, who: LogState) -> Self {
        Self {
            at,
            numbers: Numbers::ANY,
            who,
            in_doubt: false,
        }
    }

    /// Whether this can be among the kills that were counted there then, if the kernel logged it within this time.
    pub(super) fn may_be_in(&self, rise: &CounterDelta, delay: Duration) -> bool {
        let at = self.at.time;
        let in_time = rise.after <= at.saturating_add(SLACK) && at <= rise.by.saturating_add(delay);
        in_time
            && self.numbers.meets(rise.numbers)
            && match &self.who {
                LogState::Told(cgroup) | LogState::Again(cgroup) => cgroup.below(&rise.cgroup).is_some(),
                LogState::Waiting(kill) => match &kill.limit {
                    Limit::Cgroup(limit) => rise.cgroup.below(limit).is_some(),
                    Limit::Node | Limit::Unknown => true,
                },
            }
    }

    /// Within what time the kernel logged this. Late may be what was told: where it was is certain, and time decides
    /// nothing but which rise of several. What waits is dealt with as unmatched.
    const fn delay(&self) -> Duration {
        match self.who {
            LogState::Told(_) | LogState::Again(_) => LATEST,
            LogState::Waiting(_) => LOG_DELAY,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Matched {
    pub(super) kills: Vec<OomKill>,
    /// What was counted without having been logged in time.
    pub(super) unmatched: Vec<CounterDelta>,
    /// What was logged without having been counted just before.
    pub(super) unmatched_logged: Vec<Logged>,
}

/// Kills and rises that have nothing to do with any others.
#[derive(Debug, Default)]
pub(super) struct MatchGroup {
    pub(super) logged: Vec<Logged>,
    pub(super) rises: Vec<CounterDelta>,
}

impl MatchGroup {
    /// Takes kills and rises apart into groups that cannot influence each other.
    pub(super) fn independent(logged: Vec<Logged>, rises: Vec<CounterDelta>) -> Vec<Self> {
        let alone = |rise| Self {
            rises: vec![rise],
            ..Self::default()
        };
        let mut groups: Vec<Self> = rises.into_iter().map(alone).collect();
        for logged in logged {
            let delay = logged.delay();
            let is_concerned = |group: &mut Self| group.rises.iter().any(|rise| logged.may_be_in(rise, delay));
            let mut whole = groups.extract_if(.., is_concerned).reduce(|mut whole, group| {
                whole.logged.extend(group.logged);
                whole.rises.extend(group.rises);
                whole
            });
            whole.get_or_insert_default().logged.push(logged);
            groups.extend(whole);
        }
        groups
    }

    /// Up to when kills and rises are to be decided now, if they are.
    pub(super) fn due(&self, progress: Progress) -> Option<Duration> {
        if self.is_final(progress) {
            return Some(Duration::MAX);
        }
        let began = self.began();
        let up_to = |known: Duration, within: Duration| {
            (began.saturating_add(within) < known).then(|| known.saturating_sub(within / 2))
        };
        let (many, within) = FLOOD;
        // What a rise may still take from others is not over, and nothing would be decided.
        let is_news = |end: &Duration| self.rises.iter().any(|rise| rise.is_over(*end));
        Some(progress.log.min(progress.counters))
            .filter(|_| self.logged.len() + self.rises.len() > many)
            .and_then(|known| up_to(known, within).filter(is_news))
            .or_else(|| up_to(progress.log.max(progress.counters), PATIENCE))
    }

    /// Whether nothing that is still to come can belong here: later rises begin after these kills, and later kills were
    /// logged after these rises, late ones included where less was logged than counted. What is logged so far may be late
    /// for a rise elsewhere, which waits unmatched: all that were before it are known by then, too.
    fn is_final(&self, progress: Progress) -> bool {
        let is_all_logged = counted(self.rises.iter()) <= count(self.logged.iter());
        let delay = if is_all_logged { LOG_DELAY } else { LATEST };
        let are_known =
            |logged: &Logged| logged.at.time.saturating_add(SLACK) < progress.counters && logged.at.time < progress.log;
        let are_over = |rise: &CounterDelta| rise.by.saturating_add(delay) < progress.log;
        self.logged.iter().all(are_known) && self.rises.iter().all(are_over)
    }

    /// The time of the oldest part.
    fn began(&self) -> Duration {
        let logged = self.logged.iter().map(|logged| logged.at.time);
        logged
            .chain(self.rises.iter().map(|rise| rise.by))
            .min()
            .unwrap_or(Duration::MAX)
    }

    /// Decides for each kill logged before `end` which rise it was in, but for those whose rise may still be that of later
    /// ones. Returns what is left undecided.
    pub(super) fn decide(mut self, end: Duration, decided: &mut Matched) -> Self {
        let is_old = |logged: &Logged| logged.at.time < end;
        let is_over = |rise: &CounterDelta| rise.is_over(end);
        // What is newer may take a rise in place of its own, which is still to come, so the newest comes last. Of the others,
        // those that were told come first: a rise of theirs is never left for others.
        self.logged.sort_by_key(|logged| {
            let waits = matches!(logged.who, LogState::Waiting(_));
            (!is_old(logged), is_old(logged) && waits, logged.at.time)
        });
        // So do the rises of inner cgroups: what they counted is not left for those around them.
        self.rises
            .sort_by_key(|rise| (Reverse(rise.cgroup.segments().count()), rise.by));
        let table = |delay: fn(&Logged) -> Duration| -> Compatibility {
            let row = |logged: &Logged| {
                let rises = self.rises.iter();
                rises.map(|rise| logged.may_be_in(rise, delay(logged))).collect()
            };
            self.logged.iter().map(row).collect()
        };
        let possible = table(Logged::delay);
        let held = matched(&possible, self.rises.iter().map(|rise| rise.kills.get()).collect());
        let is_decided = |logged: &Logged, held: Option<usize>| match held.and_then(|rise| self.rises.get(rise)) {
            Some(rise) => is_over(rise),
            None => is_old(logged),
        };
        for (at, rise) in self.rises.iter().enumerate().filter(|(_, rise)| is_over(rise)) {
            let holders = self.logged.iter().zip(&held).filter(|(_, held)| **held == Some(at));
            let left = rise.clone().without(holders.map(|(logged, _)| logged));
            decided.unmatched.extend(left);
        }
        let is_whole = end == Duration::MAX && !self.logged.iter().any(|logged| logged.in_doubt);
        let places = Places::of(&self, &possible, &held, is_whole);
        let mut lists = Lists::default();
        for (at, (logged, held)) in self.logged.iter().zip(&held).enumerate() {
            if let (LogState::Waiting(kill), Some(rise)) = (&logged.who, *held)
                && is_decided(logged, *held)
            {
                decided.kills.push(places.paired((at, kill), rise, &mut lists));
            }
        }
        let fates = self.logged.iter().zip(&held).enumerate().map(|(at, (logged, held))| {
            let may_move = |rise: usize| possible[at][rise] && places.are_one(places.nodes[at], rise);
            let in_doubt = (0..self.rises.len()).any(|rise| is_over(&self.rises[rise]) && may_move(rise));
            (is_decided(logged, *held), in_doubt)
        });
        let fates: Vec<(bool, bool)> = fates.collect();
        let mut left = Self {
            logged: Vec::new(),
            rises: self.rises.into_iter().filter(|rise| !is_over(rise)).collect(),
        };
        for ((mut logged, held), (is_decided, in_doubt)) in self.logged.into_iter().zip(held).zip(fates) {
            if !is_decided {
                logged.in_doubt |= in_doubt;
                left.logged.push(logged);
            } else if held.is_none() {
                decided.unmatched_logged.push(logged);
            }
        }
        left
    }
}

/// Which kills can change places in one way of pairing them and still be as many: what all such ways have in common
/// is certain.
///
/// A graph of the rises, one node for what no rise is known of, and one for what is still free. An edge leads from where a
/// kill is to where it may be as well; one that goes there is followed by whoever has to make room. So it can move
/// only if a way leads back: if both ends are in one strongly connected component.
struct Places<'g> {
    group: &'g MatchGroup,
    possible: &'g [Vec<bool>],
    /// Where each kill is: a rise, or the node after the last.
    nodes: Vec<usize>,
    /// Whether there are kills without a rise.
    are_some_elsewhere: bool,
    /// Which component each node is in.
    components: Vec<usize>,
}

/// Who may be meant, by cgroup and component: in a flood nearly every kill may be any of the same hundred.
type Lists<'g> = HashMap<(&'g CgroupPath, usize), Arc<[Arc<Kill>]>>;

impl<'g> Places<'g> {
    /// Where not all is known that may belong to the group, any kill may move.
    fn of(group: &'g MatchGroup, possible: &'g [Vec<bool>], held: &[Option<usize>], is_whole: bool) -> Self {
        let (elsewhere, free) = (group.rises.len(), group.rises.len() + 1);
        let nodes: Vec<usize> = held.iter().map(|held| held.unwrap_or(elsewhere)).collect();
        let are_some_elsewhere = nodes.contains(&elsewhere);
        let components = if is_whole {
            Self::components(group, possible, &nodes, are_some_elsewhere)
        } else {
            vec![0; free + 1]
        };
        Self {
            group,
            possible,
            nodes,
            are_some_elsewhere,
            components,
        }
    }

    /// The strongly connected components, by node.
    fn components(group: &MatchGroup, possible: &[Vec<bool>], nodes: &[usize], are_some_elsewhere: bool) -> Vec<usize> {
        let (elsewhere, free) = (group.rises.len(), group.rises.len() + 1);
        let mut edges = BTreeSet::new();
        for ((logged, from), row) in group.logged.iter().zip(nodes).zip(possible) {
            let others = row.iter().enumerate().filter(|(_, may)| **may);
            edges.extend(others.map(|(to, _)| (*from, to)));
            if are_some_elsewhere && matches!(logged.who, LogState::Waiting(_)) {
                edges.insert((*from, elsewhere));
            }
        }
        for (at, rise) in group.rises.iter().enumerate() {
            let taken = count(nodes.iter().filter(|node| **node == at));
            edges.insert((free, at));
            if taken < rise.kills.get() {
                edges.insert((at, free));
            }
        }
        let mut graph = DiGraph::<(), (), usize>::from_edges(edges);
        while graph.node_count() <= free {
            graph.add_node(());
        }
        let mut components = vec![0; graph.node_count()];
        for (number, component) in kosaraju_scc(&graph).into_iter().enumerate() {
            component.into_iter().for_each(|node| components[node.index()] = number);
        }
        components
    }

    fn are_one(&self, node: usize, other: usize) -> bool {
        self.components[node] == self.components[other]
    }

    /// The kill that this one is, in that rise.
    fn paired(&self, (at, kill): (usize, &Arc<Kill>), rise: usize, lists: &mut Lists<'g>) -> OomKill {
        let (logged, cgroup) = (&self.group.logged[at], &self.group.rises[rise].cgroup);
        let mut others = self.group.rises.iter().enumerate();
        let may_be_another = others
            .any(|(other, there)| there.cgroup != *cgroup && self.possible[at][other] && self.are_one(rise, other));
        let may_be_elsewhere = self.are_some_elsewhere && self.are_one(rise, self.group.rises.len());
        let time = logged.at.time;
        if !(may_be_another || may_be_elsewhere || logged.in_doubt) {
            return OomKill::of(
                Arc::clone(kill),
                Some(cgroup.clone()),
                Confidence::OnlyCounterThatRose,
                time,
            );
        }
        let list = lists
            .entry((cgroup, self.components[rise]))
            .or_insert_with(|| self.candidates(rise));
        OomKill {
            cgroup: Some(cgroup.clone()),
            confidence: Confidence::Ambiguous,
            processes: Arc::clone(list),
            record: kill.seq,
            at: time,
        }
    }

    /// The kills that may be in this rise, or in another one of its cgroup that can change places with it.
    fn candidates(&self, rise: usize) -> Arc<[Arc<Kill>]> {
        let rises = &self.group.rises;
        let here = |other: &usize| rises[*other].cgroup == rises[rise].cgroup && self.are_one(rise, *other);
        let here: Vec<usize> = (0..rises.len()).filter(here).collect();
        let logged = self.group.logged.iter().zip(&self.nodes).zip(self.possible);
        let candidates = logged.filter_map(|((logged, node), row)| match &logged.who {
            LogState::Waiting(kill) => {
                let may_be = here
                    .iter()
                    .any(|here| node == here || (row[*here] && self.are_one(*node, *here)));
                may_be.then(|| Arc::clone(kill))
            }
            LogState::Told(_) | LogState::Again(_) => None,
        });
        candidates.collect()
    }
}

/// How many kills these are.
fn counted<'a>(rises: impl Iterator<Item = &'a CounterDelta>) -> u64 {
    rises.map(|rise| rise.kills.get()).fold(0, u64::saturating_add)
}

fn count<T>(items: impl Iterator<Item = T>) -> u64 {
    items.fold(0, |count, _| count + 1)
}

/// Finds what this was counted in, the innermost first, and takes it off the rises. Returns where that was.
pub(super) fn claim(rises: &mut Vec<CounterDelta>, logged: &Logged) -> Option<CgroupPath> {
    let possible = rises.iter().enumerate();
    let possible = possible.filter(|(_, rise)| logged.may_be_in(rise, LATEST));
    let (at, _) = possible.min_by_key(|(_, rise)| (Reverse(rise.cgroup.segments().count()), rise.by))?;
    let rise = rises.swap_remove(at);
    let cgroup = rise.cgroup.clone();
    rises.extend(rise.without(once(logged)));
    Some(cgroup)
}

/// Hands out those that nothing can belong to any more, neither of what is still to come nor of what is undecided.
pub(super) fn expire(rises: &mut Vec<CounterDelta>, progress: Progress, undecided: &[Logged]) -> Vec<CounterDelta> {
    let is_over = |rise: &mut CounterDelta| {
        let is_known = rise.by.saturating_add(LATEST) < progress.log;
        let is_stuck = rise.by.saturating_add(PATIENCE) < progress.log.max(progress.counters);
        is_stuck || (is_known && !undecided.iter().any(|logged| logged.may_be_in(rise, LATEST)))
    };
    rises.extract_if(.., is_over).collect()
}

/// For each kill, whether it may be in each of the rises: looked up once, because the answer is asked for again and again.
type Compatibility = Vec<Vec<bool>>;

/// Pairs as many kills as possible with rises, and of all such ways, one in which the first kills and the first rises have
/// partners: later rises may be needed by what is still to come. `free` is how many each rise takes. Gives each kill
/// the index of its rise.
fn matched(possible: &[Vec<bool>], mut free: Vec<u64>) -> Vec<Option<usize>> {
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
