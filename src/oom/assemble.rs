//! Parts of lines → whole lines.
//!
//! The kernel prints the lines that name cgroups piece by piece (`pr_cont`). Pieces are merged into one record of up to
//! about 1 KiB, as long as nothing else is printed in between; beyond that they become records of their own, with those of
//! other CPUs among them. Only these lines ever wait here for their rest: every other line goes through at once, so that
//! nothing is held back until the kernel prints again. A piece is taken only where the grammar of the line allows it,
//! because the pieces of a stranger's line look the same when the kernel does not say who printed them.
//!
//! A command's name may hold line breaks, which `dmesg` and `journalctl` print as such: in what was pasted, a line that
//! ends within a name is taken together with what follows, up to as much as a name can be.
//!
//! An incomplete line is dropped, never guessed at.

use super::line::{Line, Part};
use super::summary::is_comm;
use super::within;

/// Far more than the longest line with two paths of PATH_MAX bytes.
const LONGEST_LINE: usize = 16 * 1024;
/// OOM kills are serialised (`oom_lock`), so even one open line per caller is generous.
const MOST_OPEN: usize = 16;

/// Puts the lines that were printed in parts together again.
#[derive(Debug, Default)]
pub struct Assembler {
    open: Vec<(Shape, Line)>,
}

/// A line that is printed in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// `dump_oom_summary` and `mem_cgroup_print_oom_context`, since Linux 5.0.
    Summary,
    /// `mem_cgroup_print_oom_info`, before Linux 5.0.
    LimitHit,
    /// `mem_cgroup_print_oom_group`, since Linux 4.19.
    Group,
    /// `__oom_kill_process`, in one piece but for line breaks in the command's name.
    Killed,
}

impl Shape {
    fn begun_by(line: &Line) -> Option<Self> {
        let in_pieces = [
            ("oom-kill:constraint=", Self::Summary),
            ("Task in ", Self::LimitHit),
            ("Tasks in ", Self::Group),
        ];
        in_pieces
            .into_iter()
            .find_map(|(start, shape)| line.text.starts_with(start).then_some(shape))
            .or_else(|| (line.part == Part::Unmarked && ends_in_comm_of_killed(&line.text)).then_some(Self::Killed))
    }

    fn is_complete(self, text: &str) -> bool {
        match self {
            Self::Summary => {
                let victim = || {
                    text.rsplit_once(",uid=")?
                        .0
                        .rsplit_once(",pid=")?
                        .0
                        .split_once(",task_memcg=/")
                };
                victim().is_some_and(|(_, task)| task.contains(",task="))
            }
            Self::LimitHit => text.contains(" killed as a result of limit of /"),
            Self::Group => text.ends_with(" set"),
            Self::Killed => end_of_killed(text).is_some(),
        }
    }

    /// The beginning of the command's name, if that is where `text` ends.
    fn open_comm(self, text: &str) -> Option<&str> {
        match self {
            Self::Summary => Some(text.split_once(",task_memcg=/")?.1.rsplit_once(",task=")?.1),
            Self::Killed => Some(text.split_once(" (")?.1),
            Self::LimitHit | Self::Group => None,
        }
    }

    /// Whether `next` can be what follows `text` after a line break in the command's name.
    fn goes_on_in_comm(self, text: &str, next: &str) -> bool {
        let end = match self {
            Self::Summary => next.rfind(",pid="),
            Self::Killed => end_of_killed(next),
            Self::LimitHit | Self::Group => None,
        };
        let rest = next[..end.unwrap_or(next.len())].trim_start();
        self.open_comm(text)
            .is_some_and(|comm| is_comm(&format!("{comm}\n{rest}")))
    }

    /// Whether `next` can be what follows `text`. A piece is one `pr_cont` or several, so it begins with a key, with a
    /// path, or with the name of a cpuset.
    fn goes_on(self, text: &str, next: &str) -> bool {
        let path_due = || next.starts_with('/') && text.ends_with(['=', ' ']);
        match self {
            Self::Summary => {
                const KEYS: [&str; 6] = [
                    ",cpuset=",
                    ",mems_allowed=",
                    ",oom_memcg=",
                    ",global_oom",
                    ",task_memcg=",
                    ",task=",
                ];
                path_due() || text.ends_with(",cpuset=") || KEYS.iter().any(|key| next.starts_with(key))
            }
            Self::LimitHit => {
                path_due()
                    || next.starts_with(" killed as a result of limit of ")
                    // With Linux 3.10 the first piece ends here.
                    || (text.ends_with(" killed") && next.starts_with(" as a result of limit of "))
            }
            Self::Group => path_due() || next.starts_with(" are going to be killed "),
            Self::Killed => false,
        }
    }
}

impl Assembler {
    /// Takes the next line or part. Returns a whole line if this is one or completes one.
    pub fn push(&mut self, line: Line) -> Option<Line> {
        if let Some(shape) = Shape::begun_by(&line) {
            self.close(line.caller.as_deref());
            if shape.is_complete(&line.text) {
                return Some(line);
            }
            if self.open.len() == MOST_OPEN {
                self.open.remove(0);
            }
            self.open.push((shape, line));
            return None;
        }
        if line.part != Part::Start && self.wanted(&line).is_some() {
            return self.append(&line);
        }
        if ends_an_event(&line.text) {
            self.close(line.caller.as_deref());
        }
        if line.part == Part::Unmarked {
            // Nothing comes between the lines of one name.
            self.open.retain(|(shape, open)| shape.open_comm(&open.text).is_none());
        }
        (line.part != Part::Continued).then_some(line)
    }

    /// Forgets everything unfinished: records were lost, and with them perhaps a part in the middle.
    pub fn lost(&mut self) {
        self.open.clear();
    }

    fn wanted(&self, part: &Line) -> Option<usize> {
        self.open.iter().position(|(shape, line)| {
            line.caller == part.caller
                && within(line.timestamp_us, part.timestamp_us)
                && line.text.len() + part.text.len() <= LONGEST_LINE
                && (shape.goes_on(&line.text, &part.text)
                    || (part.part == Part::Unmarked && shape.goes_on_in_comm(&line.text, &part.text)))
        })
    }

    fn append(&mut self, part: &Line) -> Option<Line> {
        let at = self.wanted(part)?;
        let (shape, line) = self.open.get_mut(at)?;
        if shape.goes_on(&line.text, &part.text) {
            line.text.push_str(&part.text);
        } else {
            // What is printed is set in by blanks. The name's own are lost with them.
            line.text.push('\n');
            line.text.push_str(part.text.trim_start());
        }
        shape.is_complete(&line.text).then(|| self.open.remove(at).1)
    }

    fn close(&mut self, caller: Option<&str>) {
        self.open.retain(|(_, line)| line.caller.as_deref() != caller);
    }
}

/// Where the command's name ends in the line of a kill.
fn end_of_killed(text: &str) -> Option<usize> {
    text.rfind(") total-vm:").max(text.rfind("), UID "))
}

/// Whether a line is that of a kill up to somewhere in the command's name.
fn ends_in_comm_of_killed(text: &str) -> bool {
    let comm = || {
        let (cause, rest) = text.split_once("Killed process ")?;
        let starts =
            cause.is_empty() || cause.starts_with("Memory cgroup out of memory") || cause.starts_with("Out of memory");
        let (pid, comm) = rest.split_once(" (")?;
        (starts && pid.bytes().all(|byte| byte.is_ascii_digit())).then_some(comm)
    };
    end_of_killed(text).is_none() && comm().is_some_and(is_comm)
}

/// The lines before and after those with parts: what is still open when one comes lost its end.
fn ends_an_event(text: &str) -> bool {
    text.contains(" invoked oom-killer: ") || text.contains("Killed process ")
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
            seq: Some(1),
            timestamp_us: Some(1),
            caller: caller.map(str::to_owned),
            part,
            text: text.to_owned(),
        }
    }

    fn texts(lines: impl IntoIterator<Item = Line>) -> Vec<String> {
        let mut assembler = Assembler::default();
        lines
            .into_iter()
            .filter_map(|line| assembler.push(line))
            .map(|line| line.text)
            .collect()
    }

    #[test]
    fn a_whole_line_is_never_held_back() {
        for whole in [
            "anything",
            &PIECES.concat(),
            "Tasks in /a are going to be killed due to memory.oom.group set",
        ] {
            assert_eq!(texts([line(Part::Start, None, whole)]), [whole]);
        }
    }

    #[test]
    fn every_kernel_cuts_its_lines_in_its_own_places() {
        const WHOLE: &str = "Task in /a/b killed as a result of limit of /a";
        let cuts: [&[&str]; 3] = [
            &["Task in /a/b killed", " as a result of limit of /a"],
            &["Task in ", "/a/b", " killed as a result of limit of ", "/a"],
            &["Task in /a/b", " killed as a result of limit of /a"],
        ];
        for pieces in cuts {
            // Before Linux 4.10 the first piece of a line is marked, too.
            let parts = pieces.iter().map(|text| line(Part::Continued, None, text));
            assert_eq!(texts(parts), [WHOLE], "{pieces:?}");
        }
    }

    #[test]
    fn a_line_that_is_broken_within_a_name_is_put_together_where_it_was_pasted() {
        let killed = "Memory cgroup out of memory: Killed process 7 (a";
        let tail = "c) total-vm:1kB, anon-rss:1kB, file-rss:1kB";
        let summary = PIECES[..8].concat() + ",task=a";
        for (start, end, rest) in [
            (killed, tail, " (d) total-vm:4kB"),
            (&summary, "c,pid=7,uid=0", ",task=d,pid=8,uid=0"),
        ] {
            let lines = [start, "      b", end];
            let whole = lines.map(|text| line(Part::Unmarked, None, text));
            assert_eq!(texts(whole), [format!("{start}\nb\n{end}")]);
            let recorded = lines.map(|text| line(Part::Start, None, text));
            assert!(!texts(recorded).concat().contains('\n'), "records escape line breaks");
            let cut = [start, "sixteen bytes or more", rest].map(|text| line(Part::Unmarked, None, text));
            assert!(!texts(cut).concat().contains('\n'));
        }
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
        assert!(whole[0].contains("oom_memcg=/2,task_memcg=/2,") && whole[1].contains("oom_memcg=/1,task_memcg=/1,"));
    }

    #[test]
    fn an_unfinished_line_does_not_swallow_the_end_of_another() {
        let start = line(Part::Start, None, &PIECES[..6].concat());
        let end = line(Part::Continued, None, ",task_memcg=/other,task=x,pid=9,uid=0");
        assert_eq!(
            texts([
                start.clone(),
                line(Part::Start, None, "Killed process 3 (y)"),
                end.clone()
            ]),
            ["Killed process 3 (y)"]
        );
        let mut late = end.clone();
        late.timestamp_us = Some(60_000_000);
        assert_eq!(texts([start.clone(), late]), [""; 0]);
        let mut assembler = Assembler::default();
        assert_eq!(assembler.push(start), None);
        assembler.lost();
        assert_eq!(assembler.push(end), None);
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
        fn however_a_line_is_cut_and_interleaved_it_comes_out_whole(
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
                // Strangers are marked as starting a line, so they are told apart even where a name may follow.
                if at + 1 < parts.len() {
                    lines.extend((0..strangers[at]).map(|_| line(Part::Start, None, "stranger")));
                }
            }
            let whole: Vec<String> = texts(lines).into_iter().filter(|text| text != "stranger").collect();
            prop_assert_eq!(whole, [PIECES.concat()]);
        }
    }
}
