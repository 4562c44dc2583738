//! Puts lines together that the kernel printed in parts.
//!
//! The kernel prints the lines that name cgroups piece by piece (`pr_cont`). The kernel merges pieces into one record
//! of up to about 1 KiB, as long as no other CPU prints in between; longer lines become several records, with those of
//! other CPUs among them. Only these lines ever wait here for their rest; the kernel prints another one at once, and no line
//! of a kill waits. The assembler takes a piece only where the grammar of the line allows it, because pieces of an unrelated
//! line look the same when the kernel does not name the caller.
//!
//! A line that looks complete waits, too, until the next line about kills, or one that is too late for a part: a container may
//! have put the look of an end into the name of a cgroup, and made that name so long that the kernel breaks the line behind it.
//! Where parts have no mark, what follows such a summary may also be a line that begins with a name of a tenant's: then the
//! summary says nothing. An incomplete line leaves as it is, when it is certain that its rest does not come.

use super::parse::{KILLED_FOR, SUMMARY, is_of_kill, summary};
use super::record::{Line, Part};

/// Bytes; far more than the longest line with two paths of PATH_MAX bytes.
pub(super) const LONGEST_LINE: usize = 16 * 1024;
/// Microseconds between the parts of a line: the kernel prints them in one go, but a serial console slows it down.
const REST_WITHIN_US: u64 = 2_000_000;
/// The kernel serialises OOM kills (`oom_lock`), so one open line per caller is more than enough.
const MOST_OPEN: usize = 16;
/// Lines that the kernel prints in parts begin with one of these (`dump_oom_summary`, `mem_cgroup_print_oom_group`, and
/// before Linux 5.0 `mem_cgroup_print_oom_info`), a path perhaps in the next part.
const STARTS: [&str; 3] = [SUMMARY, "Task in /", "Tasks in /"];
/// Pieces begin with one of these, with a path, or with the name of a cpuset.
const KEYS: [&str; 9] = [
    KILLED_FOR,
    " as a result of limit of ",
    ",cpuset=",
    ",mems_allowed=",
    ",oom_memcg=",
    ",global_oom",
    ",task_memcg=",
    ",task=",
    " are going to be killed ",
];

/// Holds the lines whose rest may still come.
#[derive(Debug, Default)]
pub struct Assembler {
    open: Vec<Line>,
}

fn is_start(text: &str) -> bool {
    STARTS.iter().any(|start| text.starts_with(start)) || ["Task in ", "Tasks in "].contains(&text)
}

/// Whether `next` can follow `text`. A piece is the output of one or several `pr_cont`.
fn can_continue(text: &str, next: &str) -> bool {
    let is_path = next.starts_with('/') && text.ends_with(['=', ' ']);
    // The cpuset is named before the first path.
    let is_cpuset = text.ends_with(",cpuset=") && !text.contains('/');
    is_path || is_cpuset || KEYS.iter().any(|key| next.starts_with(key))
}

/// Whether the times allow that a part belongs to a line.
fn is_near(line: &Line, part: &Line) -> bool {
    let passed = line.timestamp_us.zip(part.timestamp_us);
    passed.is_none_or(|(one, other)| one.abs_diff(other) <= REST_WITHIN_US)
}

/// Whether a text can be the next part of a line that the kernel prints in parts.
pub(super) fn continues_line(text: &str, next: &str) -> bool {
    is_start(text) && can_continue(text, next)
}

impl Assembler {
    /// Takes the next line or part. Returns the lines before it to which no part can follow any more, and the line itself, unless
    /// the kernel prints it in parts.
    pub fn push(&mut self, line: Line) -> Vec<Line> {
        let is_start = is_start(&line.text);
        if !is_start
            && line.part != Part::Start
            && let Some(at) = self.open_for(&line)
        {
            let text = &mut self.open[at].text;
            // A file may be merged from several copies of the log.
            let is_copy = text.ends_with(&line.text);
            if !is_copy && line.part == Part::Unmarked && summary(text).is_some() {
                self.open.remove(at);
            } else if !is_copy {
                text.push_str(&line.text);
            }
            return Vec::new();
        }
        // The lines about a kill stand before and after those with parts, and the kernel serialises kills: no part of a line that
        // is still open follows. A command may be named `Task in /`, which ends no summary.
        let is_of_kill = !is_start && !self.open.is_empty() && is_of_kill(&line.text);
        let is_over = |open: &mut Line| {
            let is_next = || line.text.starts_with(SUMMARY) || !open.text.starts_with(SUMMARY);
            is_of_kill || !is_near(open, &line) || is_start && open.caller == line.caller && is_next()
        };
        let mut ready: Vec<Line> = self.open.extract_if(.., is_over).collect();
        if is_start {
            if self.open.len() == MOST_OPEN {
                ready.push(self.open.remove(0));
            }
            self.open.push(line);
        } else if line.part != Part::Continued {
            ready.push(line);
        }
        ready
    }

    pub const fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Records were lost, perhaps with parts of the open lines, or the log ends. Returns these lines as they are.
    pub fn lost(&mut self) -> Vec<Line> {
        std::mem::take(&mut self.open)
    }

    /// The open line that this part continues.
    fn open_for(&self, part: &Line) -> Option<usize> {
        self.open.iter().position(|line| {
            line.caller == part.caller
                && is_near(line, part)
                && line.text.len() + part.text.len() <= LONGEST_LINE
                && can_continue(&line.text, &part.text)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PIECES: [&str; 9] = [
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)",
        ",cpuset=",
        "crio-1.scope",
        ",mems_allowed=0",
        ",oom_memcg=",
        "/kubepods/a",
        ",task_memcg=",
        "/kubepods/a/b",
        ",task=hog,pid=7,uid=0",
    ];

    fn line(part: Part, caller: Option<&str>, text: &str) -> Line {
        Line {
            from_kernel: true,
            seq: Some(1),
            timestamp_us: Some(1),
            caller: caller.map(str::to_owned),
            part,
            text: text.to_owned(),
        }
    }

    /// All lines of a log.
    fn texts(lines: impl IntoIterator<Item = Line>) -> Vec<String> {
        let mut assembler = Assembler::default();
        let mut whole: Vec<Line> = lines.into_iter().flat_map(|line| assembler.push(line)).collect();
        whole.extend(assembler.lost());
        whole.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn a_whole_line_waits_for_the_next_about_kills() {
        let other = line(Part::Start, None, "anything");
        for whole in [
            &*PIECES.concat(),
            "Tasks in /a are going to be killed due to memory.oom.group set",
            "Task in /a/b killed as a result of limit of /a",
        ] {
            let mut assembler = Assembler::default();
            assert_eq!(assembler.push(other.clone()), std::slice::from_ref(&other));
            let whole = line(Part::Start, None, whole);
            assert_eq!(assembler.push(whole.clone()), []);
            assert_eq!(assembler.push(other.clone()), std::slice::from_ref(&other));
            for next in [
                "Memory cgroup out of memory: Killed process 7 (hog)",
                "memory: usage 4kB, limit 4kB, failcnt 1",
                "x invoked oom-killer: gfp_mask=0xd0",
            ] {
                let next = line(Part::Start, None, next);
                assert_eq!(assembler.push(next.clone()), [whole.clone(), next]);
                assert_eq!(assembler.push(whole.clone()), []);
            }
        }
    }

    #[test]
    fn a_name_like_an_end_ends_no_line() {
        let (own, other) = ("/own/x,task_memcg=/b,task=y,pid=1,uid=0", "/own/x,task=y,pid=1,uid=0");
        let start = PIECES[..5].concat();
        for parts in [
            &[&*start, own, ",task_memcg=", own, ",task=hog,pid=7,uid=0"][..],
            &[&*start, "/own", ",task_memcg=", other, ",task=hog,pid=7,uid=0"],
            &[
                "Tasks in ",
                "/own/x set",
                " are going to be killed due to memory.oom.group set",
            ],
            &[
                "Task in ",
                "/own/x killed as a result of limit of /b",
                KILLED_FOR,
                "/own",
            ],
        ] {
            let mut lines = vec![line(Part::Start, None, parts[0])];
            lines.extend(parts[1..].iter().map(|text| line(Part::Continued, None, text)));
            lines.insert(2, line(Part::Start, None, "other"));
            lines.push(line(Part::Start, None, "Killed process 7 (hog)"));
            assert_eq!(texts(lines), ["other", &*parts.concat(), "Killed process 7 (hog)"]);
        }
    }

    #[test]
    fn no_name_of_a_command_ends_a_line() {
        let mut lines = vec![line(Part::Start, None, &PIECES[..6].concat())];
        let crashes = ["Killed process ", "Task in /x", "Out of memory: ", "memory: usage 4"];
        lines.extend(crashes.map(|comm| line(Part::Start, None, &format!("{comm}[7]: segfault at 0"))));
        lines.push(line(Part::Continued, None, &PIECES[6..].concat()));
        assert!(texts(lines).contains(&PIECES.concat()));
    }

    #[test]
    fn no_name_of_a_command_continues_a_summary() {
        let killed = "Killed process 7 (hog)";
        let log = |part| {
            let renamed = line(part, None, ",task=: renamed from ,pid=9,uid=0");
            let summary = line(Part::Unmarked, None, &PIECES.concat());
            texts([summary, renamed, line(Part::Unmarked, None, killed)])
        };
        assert_eq!(log(Part::Unmarked), [killed]);
        assert_eq!(log(Part::Start)[1..], [PIECES.concat(), killed.to_owned()]);
    }

    #[test]
    fn a_cgroup_named_like_a_key_takes_no_line() {
        let start = line(
            Part::Start,
            None,
            "Task in /a killed as a result of limit of /a/x,cpuset=",
        );
        let next = line(Part::Unmarked, None, "memory: usage 4kB, limit 4kB, failcnt 1");
        assert_eq!(texts([start.clone(), next.clone()]), [start.text, next.text]);
    }

    #[test]
    fn a_line_waits_two_seconds_for_its_rest() {
        let whole = line(Part::Start, None, &PIECES.concat());
        let later = |timestamp_us| Line {
            timestamp_us: Some(timestamp_us),
            ..line(Part::Start, Some("T2"), "anything")
        };
        let mut assembler = Assembler::default();
        assert_eq!(assembler.push(whole.clone()), []);
        assert_eq!(assembler.push(later(2_000_001)), [later(2_000_001)]);
        assert_eq!(assembler.push(later(2_000_002)), [whole, later(2_000_002)]);
        assert!(assembler.is_empty());
    }

    #[test]
    fn a_kill_of_any_caller_ends_a_line() {
        let group = line(
            Part::Start,
            Some("T1"),
            "Tasks in /a are going to be killed due to memory.oom.group set",
        );
        let killed = line(Part::Start, Some("T2"), "Killed process 7 (hog)");
        let mut assembler = Assembler::default();
        assert_eq!(assembler.push(group.clone()), []);
        assert_eq!(assembler.push(killed.clone()), [group, killed]);
    }

    #[test]
    fn parts_of_older_kernels_become_a_line() {
        for parts in [
            &["Task in ", "/a/b", " killed as a result of limit of ", "/a"][..],
            &["Task in /a/b killed as a result of limit of ", "/a"],
            &["Task in /a/b", " killed as a result of limit of /a"],
            &["Task in /a/b killed", " as a result of limit of /a"],
        ] {
            let mut lines = Vec::new();
            for (at, text) in parts.iter().enumerate() {
                let part = if at == 0 { Part::Start } else { Part::Continued };
                lines.extend([line(part, None, text), line(Part::Start, None, "stranger")]);
            }
            let whole: Vec<String> = texts(lines).into_iter().filter(|text| text != "stranger").collect();
            assert_eq!(whole, ["Task in /a/b killed as a result of limit of /a"], "{parts:?}");
        }
    }

    #[test]
    fn parts_of_a_copy_change_no_line() {
        let parts = [PIECES[..5].concat(), PIECES[5].to_owned(), PIECES[6..].concat()];
        let twice = parts.iter().flat_map(|text| [text, text]);
        let lines = twice.map(|text| line(Part::Unmarked, None, text));
        assert_eq!(texts(lines).last(), Some(&PIECES.concat()));
    }

    #[test]
    fn callers_keep_the_parts_of_two_lines_apart() {
        let of = |caller, pid| {
            [
                line(Part::Start, caller, &PIECES[..5].concat()),
                line(
                    Part::Continued,
                    caller,
                    &format!("/{pid},task_memcg=/{pid},task=x,pid={pid},uid=0"),
                ),
            ]
        };
        let ([a1, a2], [b1, b2]) = (of(Some("T1"), 1), of(Some("T2"), 2));
        let whole = texts([a1, b1, b2, a2]);
        assert!(whole[0].contains("oom_memcg=/1,task_memcg=/1,") && whole[1].contains("oom_memcg=/2,task_memcg=/2,"));
    }

    #[test]
    fn an_unfinished_line_swallows_no_other() {
        let start = line(Part::Start, None, &PIECES[..6].concat());
        let end = line(Part::Continued, None, ",task_memcg=/other,task=x,pid=9,uid=0");
        assert_eq!(
            texts([
                start.clone(),
                line(Part::Start, None, "Killed process 3 (y)"),
                end.clone()
            ]),
            [start.text.as_str(), "Killed process 3 (y)"]
        );
        let mut late = end.clone();
        late.timestamp_us = Some(60_000_000);
        assert_eq!(texts([start.clone(), late]), [&*start.text]);
        let mut assembler = Assembler::default();
        assert_eq!(assembler.push(start.clone()), []);
        assert_eq!(assembler.lost(), [start]);
        assert_eq!(assembler.push(end), []);
    }

    #[test]
    fn parts_of_strangers_lines_are_left_out() {
        let mut lines = vec![line(Part::Start, None, &PIECES[..5].concat())];
        lines.extend(["CPU 1 hangs", " (again)", ", and again"].map(|text| line(Part::Continued, None, text)));
        lines.extend(PIECES[5..].iter().map(|text| line(Part::Continued, None, text)));
        assert_eq!(texts(lines), [PIECES.concat()]);
    }

    proptest! {
        #[test]
        fn cut_lines_come_out_whole(
            cuts in proptest::collection::vec(any::<bool>(), PIECES.len() - 1),
            strangers in proptest::collection::vec(0..3_usize, PIECES.len()),
            marked: bool,
        ) {
            let mut parts = vec![PIECES[0].to_owned()];
            for (piece, cut) in PIECES[1..].iter().zip(&cuts) {
                match parts.last_mut() {
                    Some(last) if !cut => last.push_str(piece),
                    _ => parts.push((*piece).to_owned()),
                }
            }
            let mut lines = Vec::new();
            for (at, text) in parts.iter().enumerate() {
                let part = match (marked, at) {
                    (false, _) => Part::Unmarked,
                    (true, 0) => Part::Start,
                    (true, _) => Part::Continued,
                };
                lines.push(line(part, None, text));
                // Unrelated lines have the mark of a start.
                if at + 1 < parts.len() {
                    lines.extend((0..strangers[at]).map(|_| line(Part::Start, None, "stranger")));
                }
            }
            let whole: Vec<String> = texts(lines).into_iter().filter(|text| text != "stranger").collect();
            prop_assert_eq!(whole, [PIECES.concat()]);
        }
    }
}
