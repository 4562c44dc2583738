//! `vscaled-notify`: runs a program as the first process of a container, and notifies it of changes of the
//! container's limits.
//!
//! The helper needs no agent: the kernel reports every write of a cgroup's files (inotify), by any process. The
//! helper is small, because users copy it into their images.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

const USAGE: &str = "usage: vscaled-notify --signal SIGNAL -- PROGRAM [ARGUMENT…]
       vscaled-notify --run COMMAND [ARGUMENT…] -- PROGRAM [ARGUMENT…]

Runs PROGRAM, hands it every signal and ends as it does. When the memory or cpu limit of the container changes, PROGRAM gets
SIGNAL (such as SIGHUP), or COMMAND is run. {memory} and {cpu} in its arguments, and VSCALED_MEMORY_MAX and VSCALED_CPU_MAX in
its environment, are what memory.max and cpu.max hold (cgroup v1: memory.limit_in_bytes and cpu.cfs_quota_us).";

/// The first argument of a child that has not executed its program yet, and restores the signal mask before.
const BECOME: &str = "--become";

/// The files of memory and cpu limits: of cgroup v2, and of v1.
const FILES: [[&str; 2]; 2] = [
    ["memory.max", "memory/memory.limit_in_bytes"],
    ["cpu.max", "cpu/cpu.cfs_quota_us"],
];

/// The reaction to a change of limits.
enum Telling {
    Signal(Signal),
    Command(Vec<OsString>),
}

/// The program, its watched files, and the running command.
struct Watched {
    program: Pid,
    telling: Telling,
    limits: [String; 2],
    command: Option<Pid>,
    /// Whether limits have changed since the command started.
    is_outdated: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    if let [first, program, arguments @ ..] = arguments.as_slice()
        && first == BECOME
    {
        return become_program(program, arguments);
    }
    let Some((telling, program)) = read_arguments(&arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(64);
    };
    match run(telling, program) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("vscaled-notify: {error}");
            ExitCode::from(125)
        }
    }
}

/// The reaction to a change, and the program with its arguments.
fn read_arguments(arguments: &[OsString]) -> Option<(Telling, &[OsString])> {
    let end = arguments.iter().position(|argument| argument == "--")?;
    let (ours, program) = (&arguments[..end], &arguments[end + 1..]);
    let telling = match ours {
        [option, name] if option == "--signal" => Telling::Signal(name.to_str()?.parse().ok()?),
        [option, command @ ..] if option == "--run" && !command.is_empty() => Telling::Command(command.to_vec()),
        _ => return None,
    };
    (!program.is_empty()).then_some((telling, program))
}

/// Runs until the program ends; returns its exit status as a shell does.
fn run(telling: Telling, program: &[OsString]) -> nix::Result<u8> {
    // Blocks signals before the program starts, so that none of its signals is lost.
    let all = SigSet::all();
    all.thread_block()?;
    let signals = SignalFd::with_flags(&all, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let changes = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    let files = FILES.map(|files| files.map(|file| Path::new("/sys/fs/cgroup").join(file)));
    let files = files.map(|files| files.into_iter().find(|file| file.exists()));
    for file in files.iter().flatten() {
        changes.add_watch(file, AddWatchFlags::IN_MODIFY)?;
    }
    if files.iter().all(Option::is_none) {
        eprintln!("vscaled-notify: no limits are seen below /sys/fs/cgroup, so that none is told of");
    }
    let read = || files.clone().map(|file| read_limit(file.as_deref()));
    let mut watched = Watched {
        limits: read(),
        program: spawn(program, &[])?,
        telling,
        command: None,
        is_outdated: false,
    };
    loop {
        let mut ready = [&signals.as_fd(), &changes.as_fd()].map(|fd| PollFd::new(*fd, PollFlags::POLLIN));
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
        while let Some(signal) = signals.read_signal()? {
            match Signal::try_from(i32::try_from(signal.ssi_signo).unwrap_or_default()) {
                Ok(Signal::SIGCHLD) | Err(_) => {}
                // The kernel sends the signals of a terminal to the whole foreground process group, the program included.
                // Only the code of a signal that a process sent is not positive (sigaction(2)).
                Ok(_) if signal.ssi_code > 0 => {}
                // The program may have ended a moment ago.
                Ok(signal) => kill(watched.program, signal).unwrap_or_default(),
            }
        }
        if let Some(status) = watched.reap()? {
            return Ok(status);
        }
        if changes.read_events().is_ok() {
            watched.compare(read());
        }
        watched.tell();
    }
}

impl Watched {
    /// Reaps ended processes, including orphans. Returns the program's exit status if it is among them.
    fn reap(&mut self) -> nix::Result<Option<u8>> {
        loop {
            let (pid, status) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, status)) => (pid, status),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, 128 + signal as i32),
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(None),
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(error) => return Err(error),
            };
            if pid == self.program {
                return Ok(Some(u8::try_from(status).unwrap_or(u8::MAX)));
            }
            self.command.take_if(|command| *command == pid);
        }
    }

    fn compare(&mut self, limits: [String; 2]) {
        if self.limits != limits {
            self.limits = limits;
            self.is_outdated = true;
        }
    }

    /// Notifies of changed limits. Commands run one after the other, each with the latest limits.
    fn tell(&mut self) {
        if !self.is_outdated || self.command.is_some() {
            return;
        }
        self.is_outdated = false;
        let told = match &self.telling {
            Telling::Signal(signal) => kill(self.program, *signal),
            Telling::Command(command) => {
                let [memory, cpu] = &self.limits;
                let fill = |argument: &OsString| match argument.to_str() {
                    Some(text) => text.replace("{memory}", memory).replace("{cpu}", cpu).into(),
                    None => argument.clone(),
                };
                let command: Vec<OsString> = command.iter().map(fill).collect();
                let limits = [
                    ("VSCALED_MEMORY_MAX", memory.as_str()),
                    ("VSCALED_CPU_MAX", cpu.as_str()),
                ];
                spawn(&command, &limits).map(|pid| self.command = Some(pid))
            }
        };
        if let Err(error) = told {
            eprintln!("vscaled-notify: a changed limit could not be told: {error}");
        }
    }
}

/// The first line of a file; empty if it cannot be read.
fn read_limit(file: Option<&Path>) -> String {
    let text = file.and_then(|file| fs::read_to_string(file).ok());
    text.unwrap_or_default().trim().to_owned()
}

/// Starts a program with additional environment variables. Signals are blocked in this process, and children inherit
/// that: therefore the child is this program, which unblocks them and then executes the other one.
fn spawn(program: &[OsString], variables: &[(&str, &str)]) -> nix::Result<Pid> {
    let child = Command::new("/proc/self/exe")
        .arg(BECOME)
        .args(program)
        .envs(variables.iter().copied())
        .spawn();
    let child = child.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_default()))?;
    Ok(Pid::from_raw(child.id().cast_signed()))
}

/// Returns only if the program cannot be started, with the status that shells use for that.
fn become_program(program: &OsStr, arguments: &[OsString]) -> ExitCode {
    if let Err(error) = SigSet::empty().thread_set_mask() {
        eprintln!("vscaled-notify: {error}");
        return ExitCode::from(125);
    }
    let error = Command::new(program).args(arguments).exec();
    eprintln!("vscaled-notify: {}: {error}", program.display());
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound {
        127
    } else {
        126
    })
}
