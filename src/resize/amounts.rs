//! The amounts of a spec one by one: which of them a request changes, and what becomes of the request beside edits of other
//! clients. Pure.

use crate::model::{NamedRequirements, Requirements, Resource};

/// The amounts to which a request that changes the spec `from` into `to` is taken back: those of `held` where the request changes an
/// amount, and those of `from` elsewhere.
pub fn undone(
    from: &[NamedRequirements],
    to: &[NamedRequirements],
    held: &[NamedRequirements],
) -> Vec<NamedRequirements> {
    each(from, [to, held], |from, [to, held]| {
        let undo = |[from, to, held]: [Option<u64>; 3]| if from == to { from } else { held.or(from) };
        Requirements::choose([from, to, held], undo)
    })
}

/// The `spec` without what it still has of a request for the amounts `asked`: it gets the amounts `before` there. The amounts
/// that another client has set since stay, and so does a resource whose request would be above its limit.
pub fn taken_back(
    spec: &[NamedRequirements],
    asked: &[NamedRequirements],
    before: &[NamedRequirements],
) -> Vec<NamedRequirements> {
    each(spec, [asked, before], |spec, [asked, before]| {
        let restore = |[has, asked, before]: [Option<u64>; 3]| if has == asked { before.or(has) } else { has };
        Requirements::choose([spec, asked, before], restore).valid_or(spec)
    })
}

/// The amounts of `spec` that are neither in `known` nor in one of the `parts`. All others are unset.
pub(super) fn edits<'a>(
    known: &[NamedRequirements],
    spec: &[NamedRequirements],
    parts: impl Iterator<Item = &'a Vec<NamedRequirements>>,
) -> Vec<NamedRequirements> {
    let new = |[has, known]: [Option<u64>; 2]| has.filter(|_| has != known);
    let known_too = spec
        .iter()
        .filter(|named| NamedRequirements::find(known, &named.name).is_some());
    let spec: Vec<_> = known_too.cloned().collect();
    let edited = each(&spec, [known], |spec, [known]| Requirements::choose([spec, known], new));
    let edited = parts.fold(edited, |edited, part| {
        each(&edited, [part], |edited, [part]| {
            Requirements::choose([edited, part], new)
        })
    });
    let is_set = |named: &NamedRequirements| named.resources != Requirements::default();
    edited.into_iter().filter(is_set).collect()
}

/// Whether another client's `edits` are of amounts that the cgroups have ahead of the spec: those that differ between the spec
/// `before` and the `targets`, and those that an operator has `set`.
pub(super) fn overtake(
    edits: &[NamedRequirements],
    before: &[NamedRequirements],
    targets: &[NamedRequirements],
    set: &[NamedRequirements],
) -> bool {
    let ahead = |[edit, before, target, set]: [Option<u64>; 4]| edit.filter(|_| before != target || set.is_some());
    edits.iter().any(|NamedRequirements { name, resources: edit }| {
        let of = |all| NamedRequirements::find(all, name).copied().unwrap_or_default();
        let [before, target] = [before, targets].map(|all| of(all).with_requests());
        Requirements::choose([edit, &before, &target, &of(set)], ahead) != Requirements::default()
    })
}

/// The least of both amounts, where both are set.
pub(super) fn least(one: &[NamedRequirements], other: &[NamedRequirements]) -> Vec<NamedRequirements> {
    each(one, [other], |one, [other]| {
        Requirements::choose([one, other], |[one, other]| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            _ => one,
        })
    })
}

/// Combines the amounts of each container of `all` with those of the same container of the `others`. A container that one of the
/// others does not have stays as it is.
fn each<const N: usize>(
    all: &[NamedRequirements],
    others: [&[NamedRequirements]; N],
    combine: impl Fn(&Requirements, [&Requirements; N]) -> Requirements,
) -> Vec<NamedRequirements> {
    let combined = all.iter().map(|NamedRequirements { name, resources }| {
        let found = others.map(|other| NamedRequirements::find(other, name).map(|found| found.with_requests()));
        let resources = match found.iter().all(Option::is_some) {
            true => combine(
                resources,
                found.each_ref().map(|found| found.as_ref().unwrap_or(resources)),
            ),
            false => *resources,
        };
        NamedRequirements::new(name, resources)
    });
    combined.collect()
}

/// Whether every amount of `whole` is in one of the `parts`. A container that no part names is ignored.
pub fn is_made_of(parts: &[&Vec<NamedRequirements>], whole: &[NamedRequirements]) -> bool {
    whole.iter().all(|named| {
        let of = |part: &&Vec<NamedRequirements>| NamedRequirements::find(part, &named.name).map(Requirements::amounts);
        let of: Vec<[u64; 4]> = parts.iter().filter_map(of).collect();
        let mut all = named.resources.amounts().into_iter().enumerate();
        of.is_empty() || all.all(|(number, amount)| of.iter().any(|part| part[number] == amount))
    })
}

/// The resources of which these give a container different amounts.
pub fn differing(one: &[NamedRequirements], other: &[NamedRequirements]) -> Vec<Resource> {
    let amounts = |all: &[NamedRequirements], name: &str, resource| {
        NamedRequirements::find(all, name)
            .map(|named| named.with_requests().of(resource).map(Option::unwrap_or_default))
    };
    let differs = |resource: &Resource| {
        let mut names = one.iter().map(|named| &named.name);
        names.any(|name| amounts(one, name, *resource) != amounts(other, name, *resource))
    };
    Resource::ALL.into_iter().filter(differs).collect()
}
