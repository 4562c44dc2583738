//! `examples/demo`, with every kind of ending: nothing stays behind.
//!
//! The tests run the real demo on cgroups of this machine or of the lab, and need root.

mod host_ends;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vscaled::model::Resource;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vscaled::cgroup::Hierarchy;

/// A started demo. Dropping the value in a failed test lets the demo clean up.
struct Demo {
    child: Child,
    /// Closed when `None`.
    output: Option<BufReader<ChildStdout>>,
    _alone: MutexGuard<'static, ()>,
}

/// The exit status and the output of a demo.
struct Ended {
    pid: u32,
    status: ExitStatus,
    output: String,
    errors: String,
}

impl Demo {
    /// Runs one demo at a time, because each removes the remains of an earlier one.
    fn start(arguments: &[&str]) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        assert!(nix::unistd::geteuid().is_root(), "the demo needs root");
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let program = Path::new(env!("CARGO_BIN_EXE_vscalectl")).with_file_name("examples/demo");
        assert!(program.exists(), "run `cargo build --locked --example demo` first");
        let mut child = Command::new(program)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            output: Some(output),
            _alone: alone,
        }
    }

    /// Reads up to the line that contains a text.
    fn read_to(&mut self, text: &str) -> String {
        let mut read = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(
                self.output.as_mut().unwrap().read_line(&mut line).unwrap(),
                0,
                "{text:?} did not come:\n{read}"
            );
            read.push_str(&line);
            if line.contains(text) {
                return read;
            }
        }
    }

    fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    fn end(mut self) -> Ended {
        let (mut output, mut errors) = (String::new(), String::new());
        if let Some(reader) = &mut self.output {
            reader.read_to_string(&mut output).unwrap();
        }
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        let status = self.child.wait().unwrap();
        Ended {
            pid: self.child.id(),
            status,
            output,
            errors,
        }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.send(Signal::SIGTERM);
            self.child.wait().unwrap();
        }
    }
}

impl Ended {
    fn nothing_is_left(&self) {
        assert_eq!(
            remains(self.pid),
            Vec::<String>::new(),
            "{}\n{}",
            self.output,
            self.errors
        );
    }
}

/// The daemon and the workers of a demo, found by the demo's directory in their arguments.
fn processes(demo: u32) -> Vec<(u32, String)> {
    let directory = format!("/vscaled-demo-{demo}/");
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes
        .filter_map(|process| process.file_name().to_str()?.parse().ok())
        .map(|pid: u32| (pid, fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()))
        .map(|(pid, arguments)| (pid, String::from_utf8_lossy(&arguments).replace('\0', " ")))
        .filter(|(_, arguments)| arguments.contains(&directory))
        .collect()
}

/// Everything that exists of a demo.
fn remains(demo: u32) -> Vec<String> {
    let hierarchy = Hierarchy::discover(None).unwrap();
    let mounts = Resource::ALL.map(|controller| hierarchy.mount(controller).to_owned());
    let parents = mounts.into_iter().chain([PathBuf::from("/run"), std::env::temp_dir()]);
    let paths = parents
        .map(|parent| parent.join(format!("vscaled-demo-{demo}")))
        .filter(|path| path.exists());
    let processes = processes(demo)
        .into_iter()
        .map(|(pid, arguments)| format!("process {pid}: {arguments}"));
    paths.map(|path| path.display().to_string()).chain(processes).collect()
}

#[test]
fn the_demo_shows_everything_and_removes_everything() {
    let ended = Demo::start(&[]).end();
    assert!(ended.status.success(), "{}\n{}", ended.output, ended.errors);
    assert_eq!(ended.errors, "");
    // The positions of line breaks depend on the values.
    let text: String = ended.output.split_whitespace().collect::<Vec<_>>().join(" ");
    for shown in [
        "app: cpu request 400m becomes 250m: the VPA's maxAllowed",
        "app: cpu request 40m becomes 80m: the VPA's minAllowed",
        "256Mi → 480Mi",
        "9 steps, all read back",
        "are the ones that were started, and no work was lost",
        "bytes are in use, more than the wanted limit of",
        "nothing was written",
        "checked, and gone: vscaled, 3 processes",
    ] {
        assert!(text.contains(shown), "{shown}: {}", ended.output);
    }
    assert!(!ended.output.contains('\u{1b}'), "colours in a pipe: {}", ended.output);
    for line in ended.output.lines() {
        assert!(line.chars().count() <= 100, "longer than 100 columns: {line}");
    }
    ended.nothing_is_left();
}
