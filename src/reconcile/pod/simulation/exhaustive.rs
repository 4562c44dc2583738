//! Every order of what can happen to the resize of a pod, up to a depth: a breadth-first search over the real [`PodState`].
//!
//! The acts are those of the API server (accepts, denies, fails with and without an answer, before and after it has carried out a
//! request), the kubelet (settles, defers, fails), an operator, the VPA (recommends, goes for good), the guard, an outage, time, and a
//! kill of the agent between any two of them. States with the same future count once: absolute times do not matter, and generations only by
//! their order. From each state the search then lets the world become quiet, one act after another, and the pod has to come to rest as it
//! should.
//!
//! Five acts from each of the four [`starts`] lead to more than 45,000 states, and six to more than 255,000; with those on the way to rest
//! there are more than twice as many. `VSCALED_SEARCH_DEPTH=6 cargo test --lib exhaustive` searches deeper.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashSet};
use std::fmt::Write;
use std::hash::Hasher;

use super::*;
use crate::model::Requirements;

/// How many acts follow each start, unless the environment says otherwise.
const DEPTH: usize = 5;
/// A quiet pod is at rest after fewer acts.
const LONGEST_REST: usize = 80;

const OPERATOR: u64 = 200;
const GUARD: u64 = 300;
/// Requests of memory for both containers: more for the first than it has, and less.
const RECOMMENDED: [[u64; 2]; 2] = [[90, 64], [50, 60]];

#[derive(Debug, Clone)]
enum Move {
    Answers(Answer),
    Ends(Option<Undo>),
    /// The kernel has what the pass writes, and the agent is killed before it knows.
    IsKilledAfterWrite,
    KubeletSettles,
    KubeletDefers,
    KubeletFails,
    GoesAway,
    Returns,
    TimePasses,
    /// The VPA goes, and does not come back.
    VpaGoes,
    Happens(Happening),
}

use Move::Happens;

/// The acts that may follow.
fn acts(world: &World) -> Vec<Move> {
    let mut acts = Vec::new();
    let (state, desired) = (&world.state, &world.state.desired);
    if world.asks().is_some() {
        let lost = |carries_out, silent| Move::Answers(Answer::Fails { carries_out, silent });
        acts.extend([Move::Answers(Answer::NotSent), lost(false, true)]);
        acts.push(Move::Answers(Answer::NotRead));
        if !world.away {
            acts.extend([Answer::Accepts, Answer::Denies].map(Move::Answers));
            acts.extend([lost(true, true), lost(true, false), lost(false, false)]);
        }
    } else if let Some(pass) = &world.running {
        let is_current = world.least_limits() == pass.least;
        let undo = |carries_out, silent| Move::Ends(Some(Undo { carries_out, silent }));
        if is_current || !pass.has_patched() {
            acts.push(Move::Ends(None));
        }
        if is_current && pass.writes.is_some() {
            acts.push(Move::IsKilledAfterWrite);
        }
        if pass.has_patched() {
            acts.push(undo(false, true));
            if !world.away {
                acts.extend([undo(true, true), undo(true, false)]);
            }
        }
    }
    acts.push(Happens(Happening::AgentIsKilled));
    if !world.away && *state.pod != world.server {
        acts.push(Happens(Happening::WatchBrings));
    }
    if world.kubelet_is_due() {
        acts.push(Move::KubeletSettles);
        if world.server.status.conditions.is_empty() {
            acts.extend([Move::KubeletDefers, Move::KubeletFails]);
        }
    }
    if world.recommended.is_some() {
        acts.push(Move::VpaGoes);
    }
    for mib in RECOMMENDED.into_iter().filter(|_| !world.gone) {
        if world.undecided || world.recommended != Some(mib) {
            acts.push(Happens(Happening::Recommends { mib }));
        }
    }
    if desired.overridden.is_none() && state.work.request().is_none() {
        acts.push(Happens(Happening::Sets { mib: OPERATOR }));
    } else if desired.overridden.is_some() {
        acts.push(Happens(Happening::Releases));
    }
    let (container, mib) = (0, GUARD);
    acts.push(match desired.temporary.is_empty() {
        true => Happens(Happening::Grows { container, mib }),
        false => Happens(Happening::IsQuiet { container }),
    });
    acts.push(if world.away { Move::Returns } else { Move::GoesAway });
    if state.shrink.saved().waits() {
        acts.push(Happens(Happening::MayLower));
    }
    if state.work.retry_at.is_some() {
        acts.push(Move::TimePasses);
    }
    acts
}

/// The states from which the search begins: a pod at rest, with nothing in force, and with each thing that can be.
fn starts() -> Vec<World> {
    let recommends = |mib| Happens(Happening::Recommends { mib });
    let grows = Happens(Happening::Grows {
        container: 0,
        mib: GUARD,
    });
    let starts = [
        None,
        Some(Happens(Happening::Sets { mib: OPERATOR })),
        Some(recommends(RECOMMENDED[0])),
        Some(grows),
    ];
    let start = |act: &Option<Move>| {
        let mut world = World::new();
        if let Some(act) = act {
            world.take(act);
        }
        while let Some(act) = world.quiet_act(false) {
            world.take(&act);
        }
        world
    };
    starts.iter().map(start).collect()
}

impl World {
    fn kubelet_is_due(&self) -> bool {
        self.server.status.observed_generation != self.server.metadata.generation
            || !self.server.status.conditions.is_empty()
    }

    /// Carries out an act, and begins the pass that is due then.
    fn take(&mut self, act: &Move) {
        match act {
            Move::Answers(answer) => self.answer(*answer),
            Move::Ends(undo) => self.end_running(*undo, None),
            Move::IsKilledAfterWrite => {
                self.show_spec();
                if let Some(writes) = self.running.as_mut().and_then(|pass| pass.writes.take()) {
                    self.write(writes);
                }
                self.take_kill();
            }
            Move::KubeletSettles => self.kubelet_settles(),
            Move::KubeletDefers => self.kubelet_says("PodResizePending", "Deferred"),
            Move::KubeletFails => self.kubelet_says("PodResizeInProgress", "Error"),
            Move::GoesAway => self.away = true,
            Move::Returns => {
                self.away = false;
                self.apply(PodInput::Check(Check::ApiServerReturned));
            }
            Move::TimePasses => {
                self.growing = false;
                self.wait([0, 600]);
            }
            Move::VpaGoes => self.lose_vpa(),
            Happens(Happening::AgentIsKilled) => self.take_kill(),
            Happens(happening) => {
                if let Happening::Grows { container, mib } = happening {
                    self.growing = true;
                    self.kernel[*container] = self.kernel[*container].max(*mib);
                }
                self.happen(happening);
                let seen = self.state.pod.metadata.generation;
                self.unanswered
                    .take_if(|of| of.is_some_and(|generation| generation <= seen));
            }
        }
        if self.running.is_none() {
            self.start_pass(true);
        }
        let is_set = self.state.desired.overridden.is_some() && self.state.work.request().is_none();
        self.promised |= is_set && limit(&self.server.requirements()) == OPERATOR;
        self.promised &= !matches!(act, Happens(Happening::Releases));
    }

    fn take_kill(&mut self) {
        // Its request may have been carried out.
        if let Some(pass) = &self.running
            && let (None, Some(accepted)) = (self.unanswered, pass.api.accepted())
        {
            self.unanswered = Some(Some(accepted.generation));
        }
        self.happen(&Happening::AgentIsKilled);
        let seen = self.state.pod.metadata.generation;
        self.unanswered
            .take_if(|of| of.is_some_and(|generation| generation <= seen));
    }

    /// What happens next once the API server is back, the kubelet does its work and there is nothing new; none at rest. Containers
    /// become `quiet`, too, or keep what the guard gave.
    fn quiet_act(&self, quiet: bool) -> Option<Move> {
        let state = &self.state;
        if self.away {
            return Some(Move::Returns);
        }
        if self.asks().is_some() {
            return Some(Move::Answers(Answer::Accepts));
        }
        if let Some(pass) = &self.running {
            let undone = Undo {
                carries_out: true,
                silent: false,
            };
            let is_overtaken = pass.has_patched() && self.least_limits() != pass.least;
            return Some(Move::Ends(is_overtaken.then_some(undone)));
        }
        if self.kubelet_is_due() {
            return Some(Move::KubeletSettles);
        }
        if *state.pod != self.server {
            return Some(Happens(Happening::WatchBrings));
        }
        if let Some(mib) = self.recommended.filter(|_| self.undecided) {
            return Some(Happens(Happening::Recommends { mib }));
        }
        if quiet && !state.desired.temporary.is_empty() {
            return Some(Happens(Happening::IsQuiet { container: 0 }));
        }
        if state.shrink.saved().waits() {
            return Some(Happens(Happening::MayLower));
        }
        state.work.retry_at.map(|_| Move::TimePasses)
    }

    /// What holds in every state. A sentence says what does not.
    fn check(&self) -> Result<(), String> {
        if self.above_spec {
            return Err(format!("the kernel has {:?} after a denial", self.kernel));
        }
        if self.yielded > 0 || (self.lost > 0 && !self.denied) {
            return Err("the agent takes its own change for another client's".to_owned());
        }
        if self.promised && self.state.desired.overridden.is_none() {
            return Err("the override ended that the operator was promised".to_owned());
        }
        let own = self.without_own_changes();
        let is_own = |number| ![OPERATOR, GUARD].contains(&limit_of(&own, number));
        if ![0, 1].into_iter().all(is_own) {
            return Err(format!(
                "the agent takes its own change for the pod's own amounts: {own:?}"
            ));
        }
        self.check_copies()
    }

    /// What holds at rest. A sentence says what does not.
    fn check_rest(&self) -> Result<(), String> {
        let spec = self.server.requirements();
        let status = self.server.status.container_statuses.iter();
        let status: Vec<Option<Requirements>> = status.map(|status| status.resources).collect();
        let limits = [0, 1].map(|number| limit_of(&spec, number));
        if status != [0, 1].map(|number| Some(spec.containers[number].resources)) || self.kernel != limits {
            return Err(format!("spec {spec:?}, status {status:?}, kernel {:?}", self.kernel));
        }
        let is_overridden = self.state.desired.overridden.is_some();
        let wanted = |[app, side]: [u64; 2]| [if is_overridden { OPERATOR } else { app }, side];
        let recommends = |mib: [u64; 2]| mib.map(|mib| 2 * mib);
        let mut wanted_ones = vec![wanted(self.recommended.map_or([AT_FIRST; 2], recommends))];
        if self.gone {
            // Each recommendation may have been in force.
            wanted_ones.extend(RECOMMENDED.map(recommends).map(wanted));
        }
        if !wanted_ones.contains(&limits) {
            return Err(format!("limits of {limits:?} instead of {wanted_ones:?}"));
        }
        Ok(())
    }

    /// All that later acts depend on, without absolute times and with generations by their order.
    fn key(&self) -> u64 {
        let state = &self.state;
        let of_pods = [&*state.pod, &self.server];
        let pods = of_pods
            .into_iter()
            .chain(self.running.as_ref().map(|pass| &*pass.viewed));
        let pods: Vec<&Pod> = pods.collect();
        let accepted = self.running.iter().filter_map(|pass| pass.api.accepted());
        let accepted: Vec<&Request> = accepted.chain(state.resize.accepted()).collect();
        let generations = pods
            .iter()
            .flat_map(|pod| [pod.metadata.generation, pod.status.observed_generation]);
        let generations = generations.chain(accepted.iter().map(|accepted| accepted.generation));
        let generations = generations.chain(self.unanswered.flatten());
        let generations: BTreeSet<i64> = generations.collect();
        let order = |generation: i64| generations.iter().position(|known| *known == generation);

        let mut key = Key(DefaultHasher::new());
        for pod in pods {
            let status = pod.status.container_statuses.iter().map(|status| status.resources);
            let condition = pod.status.conditions.first().map(|condition| &condition.reason);
            let (status, seen) = (status.collect::<Vec<_>>(), order(pod.status.observed_generation));
            key.add(&(
                order(pod.metadata.generation),
                pod.requirements(),
                status,
                seen,
                condition,
            ));
        }
        for accepted in accepted {
            key.add(&(
                &accepted.targets,
                order(accepted.generation),
                &accepted.held,
                &accepted.before,
            ));
        }
        let resize = &state.resize;
        let has_just_sent = resize.too_early(Duration::MAX, true, self.now.instant).is_some();
        key.add(&(resize.prepared(), resize.written_ahead(), resize.accepted().is_some()));
        key.add(&(resize.withheld(), resize.has_no_room(), has_just_sent));
        key.add(&(&state.desired, state.drift.is_in_sync(), &state.shrink));
        let work = &state.work;
        let pending = work.pending().map(|pending| &pending.cause);
        let request = work.request().map(|request| &request.before);
        key.add(&(
            pending,
            request,
            work.requests().count(),
            work.retry_at.is_some(),
            work.has_failed(),
        ));
        if let Some(pass) = &self.running {
            // The generation of an accepted request counts by its order.
            let answer = pass.api.answer.as_ref().map(|answer| answer.as_ref().map(|_| ()));
            let is_new = work.runs_current();
            key.add(&(
                is_new,
                &pass.cause,
                &pass.resize,
                &pass.least,
                &pass.outcome,
                &pass.writes,
                pass.reads(),
            ));
            key.add(&answer);
        }
        let unanswered = self.unanswered.map(|of| of.map(order));
        key.add(&(self.kernel, self.away, self.denied, self.growing, unanswered));
        let undecided = self.undecided && !self.gone;
        key.add(&(self.recommended, undecided, self.gone, self.promised));
        key.0.finish()
    }
}

/// Hashes what values print.
struct Key(DefaultHasher);

impl Write for Key {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl Key {
    fn add(&mut self, value: &impl std::fmt::Debug) {
        write!(self, "{value:?}").unwrap();
    }
}

/// A state that was reached, and how: the number of the state before, and the act.
struct Reached {
    from: usize,
    act: Option<Move>,
}

#[derive(Default)]
struct Search {
    keys: HashSet<u64>,
    reached: Vec<Reached>,
    /// The states from which a quiet world comes to rest as it should.
    rests: HashSet<u64>,
    failures: Vec<String>,
}

impl Search {
    /// The acts that led to a state.
    fn path(&self, number: usize) -> Vec<&Move> {
        let mut path = Vec::new();
        let mut number = number;
        while let Some(act) = &self.reached[number].act {
            path.push(act);
            number = self.reached[number].from;
        }
        path.reverse();
        path
    }

    /// Checks a state, and that the world comes to rest from it. Returns whether both is so.
    fn check(&mut self, world: &World, key: u64, number: usize) -> bool {
        let mut quiet = Vec::new();
        let checked = self.try_check(world, key, &mut quiet);
        if let Err(why) = &checked {
            let failure = format!("{why}\nafter {:?}\nthen {quiet:?}", self.path(number));
            self.failures.push(failure);
        }
        checked.is_ok()
    }

    fn try_check(&mut self, world: &World, key: u64, quiet: &mut Vec<Move>) -> Result<(), String> {
        world.check()?;
        let mut passed = vec![key];
        let mut world = world.clone();
        while !self.rests.contains(&passed[passed.len() - 1]) {
            let Some(act) = world.quiet_act(true) else {
                world.check_rest()?;
                break;
            };
            world.take(&act);
            quiet.push(act);
            world.check()?;
            passed.push(world.key());
            if passed.len() > LONGEST_REST {
                return Err("the pod does not come to rest".to_owned());
            }
        }
        self.rests.extend(passed);
        Ok(())
    }

    fn run(&mut self, depth: usize) {
        let mut level = Vec::new();
        for start in starts() {
            self.visit(start, 0, None, &mut level);
        }
        for _ in 0..depth {
            let mut next = Vec::new();
            for (world, number) in level {
                for act in acts(&world) {
                    let mut after = world.clone();
                    after.take(&act);
                    self.visit(after, number, Some(act), &mut next);
                }
            }
            level = next;
        }
    }

    fn visit(&mut self, world: World, from: usize, act: Option<Move>, level: &mut Vec<(World, usize)>) {
        let key = world.key();
        if !self.keys.insert(key) {
            return;
        }
        let number = self.reached.len();
        self.reached.push(Reached { from, act });
        if self.check(&world, key, number) {
            level.push((world, number));
        }
    }
}

#[test]
fn every_order_of_acts_ends_as_it_should() {
    let depth = std::env::var("VSCALED_SEARCH_DEPTH").map_or(DEPTH, |depth| depth.parse().unwrap());
    let mut search = Search::default();
    search.run(depth);
    let (failures, states, rests) = (&search.failures, search.reached.len(), search.rests.len());
    let some = &failures[..failures.len().min(10)];
    assert!(some.is_empty(), "{} failures, among them {some:#?}", failures.len());
    assert!(
        depth < DEPTH || states > 40_000,
        "{states} states, {rests} with those on the way to rest"
    );
}

/// A pod at rest to which these things have happened, one after another.
fn after(start: usize, moves: &[Move]) -> World {
    let mut world = starts().swap_remove(start);
    for act in moves {
        world.take(act);
        world.check().unwrap();
    }
    world
}

const RECOMMENDS: Move = Happens(Happening::Recommends { mib: RECOMMENDED[0] });
const SETS: Move = Happens(Happening::Sets { mib: OPERATOR });
const KILL: Move = Happens(Happening::AgentIsKilled);

/// Found by the search at a depth of six.
#[test]
fn an_override_is_no_recommendation_in_force() {
    let moves = [
        SETS,
        Move::Answers(Answer::Accepts),
        RECOMMENDS,
        Move::GoesAway,
        Move::Ends(None),
    ];
    after(0, &[&moves[..], &[Move::IsKilledAfterWrite]].concat());
}

/// Found by the search at a depth of six.
#[test]
fn a_denied_read_ends_no_override() {
    let lost = Answer::Fails {
        carries_out: true,
        silent: true,
    };
    let moves = [SETS, Move::Answers(lost), Move::Ends(None), RECOMMENDS, KILL];
    after(
        0,
        &[&moves[..], &[Move::Answers(Answer::Denies), Move::Ends(None)]].concat(),
    );
}

/// Found by the search at a depth of six.
#[test]
fn an_unseen_release_is_not_undone_by_a_denial() {
    let release = [
        Happens(Happening::Releases),
        Move::Answers(Answer::Accepts),
        Move::Ends(None),
        Move::KubeletSettles,
    ];
    let denied = [RECOMMENDS, Move::Answers(Answer::Denies), Move::Ends(None)];
    let world = after(1, &[&release[..], &denied].concat());
    assert_eq!(world.kernel[0], AT_FIRST);
}

/// Found by the search at a depth of six.
#[test]
fn a_refused_override_waits_for_no_turn() {
    let moves = [
        Happens(Happening::Recommends { mib: RECOMMENDED[1] }),
        Move::Answers(Answer::Denies),
        SETS,
        Move::VpaGoes,
        Move::Ends(None),
        Move::Answers(Answer::Denies),
        Move::Ends(None),
    ];
    let world = after(0, &moves);
    assert!(!world.state.shrink.saved().waits(), "{:?}", world.state);
}
