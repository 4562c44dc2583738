//! An agent that is killed while it stores kills: no stored kill is lost or duplicated, and the checkpoint matches
//! the kills.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use vscaled::report::log::{Bounds, KillLog};
use vscaled::report::{Destination, Destinations};

use super::station::kill;

/// The directory for this program when it runs as the agent.
const DIRECTORY: &str = "VSCALED_TEST_SPOOL";
/// The first number to store.
const FROM: &str = "VSCALED_TEST_SPOOL_FROM";

fn small() -> Bounds {
    Bounds {
        max_bytes: 512 << 10,
        max_reports: 400,
    }
}

fn open(directory: &Path) -> (KillLog, vscaled::report::log::Recovered) {
    KillLog::open(directory, small(), Destinations::from_iter([Destination::Grpc]))
}

/// The agent of the test below, in its own process. Without the variable, this test does nothing.
#[test]
fn helper_that_stores_until_it_is_killed() {
    let (Some(directory), Ok(from)) = (std::env::var_os(DIRECTORY), std::env::var(FROM)) else {
        return;
    };
    let (mut log, _) = open(Path::new(&directory));
    let mut number: u64 = from.parse().unwrap();
    loop {
        let reports = (0..=number % 3)
            .map(|more| kill(number + more).into())
            .collect::<Vec<_>>();
        number += reports.len() as u64;
        log.commit(reports, Some((number - 1).to_string().into_bytes()));
        assert!(!log.is_in_memory_only());
        if number.is_multiple_of(5) {
            log.sync();
        }
        println!("stored {}", number - 1);
    }
}

/// A process that is killed at the latest when the value is dropped.
struct Agent {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Agent {
    fn start(directory: &Path, from: u64) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "reports::crash::helper_that_stores_until_it_is_killed"])
            .args(["--nocapture", "--test-threads=1"])
            .env(DIRECTORY, directory)
            .env(FROM, from.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The next number that the process reports as stored.
    fn stored(&mut self) -> Option<u64> {
        for line in self.lines.by_ref() {
            // The end of the process may cut a line off.
            let line = line.ok()?;
            if let Some((_, number)) = line.split_once("stored ") {
                return number.parse().ok();
            }
        }
        None
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // The process may have ended by itself, which the test checks.
        self.child.kill().ok();
        self.child.wait().unwrap();
    }
}

#[test]
fn an_agent_killed_anytime_loses_nothing_stored() {
    let directory = tempfile::tempdir().unwrap();
    let mut from = 1;
    for round in 0..12 {
        let mut agent = Agent::start(directory.path(), from);
        let mut said = 0;
        // Enough kills to rewrite the log again and again, so that some kills of the agent happen during a rewrite.
        for _ in 0..300 + 37 * round {
            said = agent.stored().expect("it stores until it is killed");
        }
        drop(agent);

        let (mut log, recovered) = open(directory.path());
        assert_eq!(recovered.problem, None);
        let checkpoint: u64 = String::from_utf8(recovered.checkpoint.unwrap())
            .unwrap()
            .parse()
            .unwrap();
        assert!(checkpoint >= said, "{checkpoint} {said}");
        let pending = log.next_for(Destination::Grpc, 0, usize::MAX, |_, _| true);
        assert!(pending.len() <= 400);
        let count: u64 = pending.iter().map(|pending| pending.report.count()).sum();
        assert_eq!(count, checkpoint, "kills and checkpoint go together");
        // The newest reports are complete and in order, each once.
        let detailed: Vec<u64> = pending
            .iter()
            .filter(|pending| pending.report.count() == 1)
            .map(|pending| pending.report.id().strip_prefix("kill-").unwrap().parse().unwrap())
            .collect();
        assert!(detailed.windows(2).all(|pair| pair[0] < pair[1]), "{detailed:?}");
        assert_eq!(detailed.last(), Some(&checkpoint));
        from = checkpoint + 1;
    }
}
