//! Recordings that are cut, damaged and interleaved at random: the parser invents no kill, and attributes none to a
//! cgroup that the kernel did not log for it.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::sample::{Index, select};
use vscaled::oom::parse_log;

use super::{expected, explanation, recording};

/// The pids of the kernel's own `Killed process` lines, found without the code under test.
fn pids_killed(log: &[u8]) -> BTreeSet<u32> {
    let text = String::from_utf8_lossy(log);
    let pid = |line: &str| {
        let (prefix, _) = line.split_once(',')?;
        let (_, rest) = line.split_once("Killed process ")?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        (prefix.parse::<u32>().ok()? < 8).then(|| digits.parse().ok()).flatten()
    };
    text.split('\n').filter_map(pid).collect()
}

/// The pids of the kernel's summaries of kills (`oom-kill:…,pid=…`), which stand for a kill whose other line is lost.
fn pids_summarized(log: &[u8]) -> BTreeSet<u32> {
    let text = String::from_utf8_lossy(log);
    let pids = text.match_indices("pid=").filter_map(|(at, word)| {
        let rest = text[at + word.len()..].chars();
        rest.take_while(char::is_ascii_digit).collect::<String>().parse().ok()
    });
    pids.collect()
}

fn files() -> Vec<&'static str> {
    expected::all().into_iter().map(|expected| expected.file).collect()
}

/// Recordings whose kills may be interleaved: the kernel never interleaves the kill of a group.
fn files_without_groups() -> Vec<&'static str> {
    files().into_iter().filter(|file| !file.contains("oom-group")).collect()
}

/// The cgroups in the recordings for each killed pid and command.
type Places = BTreeMap<(u32, String), BTreeSet<(Option<String>, Option<String>)>>;

fn places() -> Places {
    let mut places = Places::new();
    for expected in expected::all() {
        for kill in &expected.kills {
            let (pid, comm, limit, task) = kill.explanation();
            let place = (limit.map(str::to_owned), task.map(str::to_owned));
            places.entry((pid, comm.to_owned())).or_default().insert(place);
        }
    }
    places
}

/// Merges logs line by line, each in its own order.
fn interleave(logs: &[Vec<u8>], choices: &[Index]) -> Vec<u8> {
    let mut rest: Vec<Vec<&[u8]>> = logs
        .iter()
        .map(|log| log.split(|byte| *byte == b'\n').rev().collect())
        .collect();
    let mut merged = Vec::new();
    let mut choices = choices.iter().cycle();
    while !rest.is_empty() {
        let at = choices.next().map_or(0, |choice| choice.index(rest.len()));
        match rest[at].pop() {
            Some(line) => merged.extend([line, b"\n"].concat()),
            None => drop(rest.remove(at)),
        }
    }
    merged
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_recordings_invent_no_kill(
        file in select(files()),
        cuts in proptest::collection::vec((any::<Index>(), 0..2000_usize), 0..6),
        flips in proptest::collection::vec((any::<Index>(), any::<u8>()), 0..20),
    ) {
        let mut log = recording(file);
        for (start, length) in cuts {
            let start = start.index(log.len().max(1)).min(log.len());
            let end = (start + length).min(log.len());
            log.drain(start..end);
        }
        for (at, byte) in flips {
            if !log.is_empty() {
                let at = at.index(log.len());
                log[at] = byte;
            }
        }
        let killed = &pids_killed(&log) | &pids_summarized(&log);
        for kill in parse_log(&log) {
            // A damaged log can look like a pasted one, which has no prefixes to check.
            prop_assert!(killed.contains(&kill.pid) || kill.seq.is_none(), "{kill:?}");
        }
    }

    #[test]
    fn interleaved_recordings_hold_the_same_kills(
        files in proptest::collection::vec(select(files_without_groups()), 1..4),
        choices in proptest::collection::vec(any::<Index>(), 1..200),
    ) {
        let logs: Vec<_> = files.iter().map(|file| recording(file)).collect();
        let merged = interleave(&logs, &choices);
        let kills = parse_log(&merged);
        let found: BTreeSet<u32> = kills.iter().map(|kill| kill.pid).collect();
        prop_assert_eq!(found, pids_killed(&merged));
        let places = places();
        for kill in &kills {
            let (pid, comm, limit, task) = explanation(kill);
            let told = (limit.map(str::to_owned), task.map(str::to_owned));
            let known = &places[&(pid, comm.to_owned())];
            prop_assert!(known.contains(&told) || told == (None, None), "{kill:?}");
        }
    }

    #[test]
    fn lost_lines_lose_no_logged_kill(
        file in select(files()),
        kept in proptest::collection::vec(any::<bool>(), 1..64),
    ) {
        let log = recording(file);
        let lines = log.split(|byte| *byte == b'\n').zip(kept.iter().cycle());
        let log: Vec<u8> = lines.filter(|(_, kept)| **kept).flat_map(|(line, _)| [line, b"\n"].concat()).collect();
        let found: BTreeSet<u32> = parse_log(&log).iter().map(|kill| kill.pid).collect();
        let killed = pids_killed(&log);
        prop_assert!(found.is_superset(&killed), "{found:?} {killed:?}");
        prop_assert!(found.is_subset(&(&killed | &pids_summarized(&log))), "{found:?} {killed:?}");
    }
}
