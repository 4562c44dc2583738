//! `examples/receiver.rs`, as authors of receivers use it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use vscaled::report::grpc::{GrpcOptions, TlsFiles};

use super::receiver::socket_in;
use super::station::{Station, options};
use super::tls::Authority;

/// The longest wait for anything; only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// The example, which cargo builds with `--example receiver`.
fn program() -> Command {
    Command::new(Path::new(env!("CARGO_BIN_EXE_vscalectl")).with_file_name("examples/receiver"))
}

pub(crate) struct Sink {
    child: Child,
    pub(crate) address: String,
    lines: Receiver<String>,
    printed: Vec<String>,
    _errors: BufReader<ChildStderr>,
}

impl Sink {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = program()
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        let (printed, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        // Ends with the sink, or when the receiver of the lines is dropped.
        std::thread::spawn(move || {
            output
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| printed.send(line))
        });
        let address = line.trim().strip_prefix("receiver: listening at ");
        Self {
            address: address.unwrap_or_else(|| panic!("it says {line:?}")).to_owned(),
            child,
            lines,
            printed: Vec::new(),
            _errors: errors,
        }
    }

    /// Waits until the printed lines are enough, and returns them.
    pub(crate) fn until(&mut self, enough: impl Fn(&[String]) -> bool) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        while !enough(&self.printed) {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            self.printed
                .push(line.unwrap_or_else(|error| panic!("{error}; it printed {:#?}", self.printed)));
        }
        self.printed.clone()
    }

    /// Interrupts the sink, and returns all printed lines.
    pub(super) fn interrupt(mut self) -> (Vec<String>, bool) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        self.printed.extend(self.lines.iter());
        (std::mem::take(&mut self.printed), self.child.wait().unwrap().success())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        // The sink has ended by itself if the test succeeded.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

async fn told(sink: &Sink, tls: TlsFiles) {
    let directory = tempfile::tempdir().unwrap();
    let options = GrpcOptions {
        tls,
        ..options(&sink.address)
    };
    let station = Station::start(&directory, options);
    station.kill(1..=3).await;
    station.settled().await;
    station.finish().await;
}

#[tokio::test]
async fn the_sink_prints_and_acknowledges() {
    let authority = Authority::new();
    let (certificate, key) = authority.files(&authority.sign("127.0.0.1", false));
    let ca = authority.file("ca.crt", &authority.pem());
    let sink = Sink::start(&[
        "--listen=127.0.0.1:0",
        "--tls-cert",
        certificate.to_str().unwrap(),
        "--tls-key",
        key.to_str().unwrap(),
        "--client-ca",
        ca.to_str().unwrap(),
    ]);
    assert!(sink.address.starts_with("https://127.0.0.1:"));
    told(&sink, authority.believed(Some((certificate, key)))).await;
    let (lines, success) = sink.interrupt();
    assert!(success);
    assert_eq!(lines.len(), 3);
    let first: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!((&first["id"], &first["again"]), (&"kill-1".into(), &false.into()));
    assert_eq!(first["kill"]["pod"]["name"], "web");
    assert_eq!(first["kill"]["limit"]["limitBytes"], 64 << 20);
}

#[tokio::test]
async fn the_sink_listens_and_cleans_up() {
    let directory = tempfile::tempdir().unwrap();
    let socket = socket_in(&directory);
    let sink = Sink::start(&["--listen", &format!("unix://{}", socket.display())]);
    told(&sink, TlsFiles::default()).await;
    // Another agent, or one that lost its state, sends the same ids again.
    told(&sink, TlsFiles::default()).await;
    let (lines, success) = sink.interrupt();
    assert!(success && !socket.exists());
    assert_eq!(lines.len(), 6);
    let again = |line: &String| line.contains("\"again\":true");
    assert_eq!(
        lines.iter().map(again).collect::<Vec<_>>(),
        [false, false, false, true, true, true]
    );
}

#[test]
fn unusable_arguments_exit_with_2() {
    for arguments in [
        &["--listen", "nowhere"][..],
        &[
            "--listen",
            "127.0.0.1:0",
            "--tls-cert",
            "/nonexistent",
            "--tls-key",
            "/nonexistent",
        ],
        &["--listen", "127.0.0.1:0", "--client-ca", "/nonexistent"],
    ] {
        let output = program().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?} {output:?}");
        assert!(!output.stderr.is_empty());
    }
}
