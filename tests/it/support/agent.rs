//! A `vscaled` of the test's own: its directories, its socket, its log, and its end.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use vscaled::control::{Client, ClientError, proto};
use vscaled::model::CgroupPath;

/// How long anything may take that is waited for. Only what never happens takes so long.
const PATIENCE: Duration = Duration::from_secs(120);

/// An agent, running or not. Dropping it kills the process and removes its files; if a test fails, its log is printed.
#[derive(Debug)]
pub(crate) struct Agent {
    process: Option<Child>,
    /// What runs the agent, if anything does: a program and its arguments that end in running what follows them.
    wrapper: Vec<OsString>,
    arguments: Vec<OsString>,
    /// Where it ends by itself.
    failpoint: Option<String>,
    /// Variables of its environment.
    variables: Vec<(&'static str, OsString)>,
    directory: TempDir,
}

impl Agent {
    /// An agent for the pods below a cgroup, not started yet. It talks to no runtime and never looks again by itself
    /// unless told otherwise: what it does then, it does because it was notified.
    pub(crate) fn new(kubepods: &CgroupPath) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("vscaled-")
            .tempdir_in(super::scratch())
            .unwrap();
        let agent = Self {
            process: None,
            wrapper: Vec::new(),
            arguments: Vec::new(),
            failpoint: None,
            variables: Vec::new(),
            directory,
        };
        fs::create_dir(agent.manifests()).unwrap();
        let files = [
            ("--manifests", agent.manifests()),
            ("--state-dir", agent.state_directory()),
            ("--socket", agent.socket()),
        ];
        files
            .into_iter()
            .fold(agent, |agent, (flag, path)| agent.with(flag, path))
            .with("--http-address", "")
            .with("--kubepods", kubepods.to_string())
            .with("--runtime-socket", "none")
            .with("--weight-formula", "linear")
            .with("--sweep-interval", "1h")
    }

    /// Sets an option, in place of an earlier value.
    pub(crate) fn with(mut self, flag: &str, value: impl AsRef<OsStr>) -> Self {
        self.set(flag, value);
        self
    }

    /// The same.
    pub(crate) fn set(&mut self, flag: &str, value: impl AsRef<OsStr>) {
        let mut argument = OsString::from(format!("{flag}="));
        let before = argument.clone();
        argument.push(value);
        self.arguments
            .retain(|other| !other.as_encoded_bytes().starts_with(before.as_encoded_bytes()));
        self.arguments.push(argument);
    }

    /// Leaves an option to the configuration file.
    pub(crate) fn unset(&mut self, flag: &str) {
        let before = format!("{flag}=");
        self.arguments
            .retain(|other| !other.as_encoded_bytes().starts_with(before.as_bytes()));
    }

    /// Runs the agent by a shell script that ends in `exec "$@"`.
    pub(crate) fn wrapped(mut self, program: &[&str], script: &str) -> Self {
        self.wrapper = program
            .iter()
            .chain(&["sh", "-ec", script, "sh"])
            .map(OsString::from)
            .collect();
        self
    }

    /// Starts it and waits until it answers.
    pub(crate) async fn start(&mut self) {
        self.launch();
        self.answers().await;
    }

    /// Waits until it answers.
    pub(crate) async fn answers(&self) {
        self.until("the agent to answer", async || {
            Client::connect(&self.socket()).await.ok()?.get().await.ok()
        })
        .await;
    }

    /// Starts it and waits for nothing.
    pub(crate) fn launch(&mut self) {
        assert!(self.process.is_none(), "the agent runs already");
        let log = File::options().create(true).append(true).open(self.log_file()).unwrap();
        let program = OsString::from(env!("CARGO_BIN_EXE_vscaled"));
        let mut line = self
            .wrapper
            .iter()
            .cloned()
            .chain([program, "run".into()])
            .chain(self.arguments.iter().cloned());
        let process = Command::new(line.next().unwrap())
            .args(line)
            .envs([("VSCALED_LOG_FORMAT", "text"), ("NO_COLOR", "1")])
            .envs(self.variables.iter().cloned())
            .envs(self.failpoint.iter().map(|point| ("VSCALED_FAILPOINT", point)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.process = Some(process);
    }

    /// Sets variables of its environment.
    pub(crate) fn with_variables(mut self, variables: Vec<(&'static str, OsString)>) -> Self {
        self.variables.extend(variables);
        self
    }

    /// Has the next one kill itself at a named point, or not.
    pub(crate) fn arm(&mut self, failpoint: Option<String>) {
        self.failpoint = failpoint;
    }

    /// How it ended by itself, if it did.
    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.process.as_mut()?.try_wait().unwrap()
    }

    /// Whether it was started and not ended.
    pub(crate) const fn is_launched(&self) -> bool {
        self.process.is_some()
    }

    /// Its process.
    pub(crate) fn pid(&self) -> i32 {
        self.process.as_ref().expect("the agent runs").id().cast_signed()
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) fn stop(&mut self) {
        let status = self.end(Signal::SIGTERM);
        assert!(status.success(), "{status}\n{}", self.log());
    }

    /// The same, also when it ends otherwise than well.
    pub(crate) fn end_somehow(&mut self) -> ExitStatus {
        self.end(Signal::SIGTERM)
    }

    /// Kills it, as a crash would, if it has not ended by itself.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().expect("the agent runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Has it read its configuration again.
    pub(crate) fn reload(&self) {
        kill(Pid::from_raw(self.pid()), Signal::SIGHUP).unwrap();
    }

    fn end(&mut self, signal: Signal) -> ExitStatus {
        let mut process = self.process.take().expect("the agent runs");
        kill(Pid::from_raw(process.id().cast_signed()), signal).unwrap();
        process.wait().unwrap()
    }

    /// Puts a file in the directory it follows, whole or not at all.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let beside = self.directory.path().join("manifest.new");
        fs::write(&beside, text).unwrap();
        fs::rename(beside, self.manifests().join(name)).unwrap();
    }

    /// Takes a file out of that directory.
    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.manifests().join(name)).unwrap();
    }

    pub(crate) async fn client(&self) -> Client {
        match Client::connect(&self.socket()).await {
            Ok(client) => client,
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) async fn get(&self) -> proto::GetReply {
        self.client().await.get().await.unwrap()
    }

    /// One pod as the agent sees it, by its name.
    pub(crate) async fn pod(&self, name: &str) -> Option<proto::Pod> {
        self.get().await.pods.into_iter().find(|pod| pod.name == name)
    }

    /// Waits until the agent says that a pod is in a state.
    pub(crate) async fn reaches(&self, name: &str, state: &str) -> proto::Pod {
        let wanted = format!("pod {name} to be {state}");
        self.until(&wanted, async || self.pod(name).await.filter(|pod| pod.state == state))
            .await
    }

    /// Waits until the agent reports a problem that says all of this.
    pub(crate) async fn reports(&self, words: &[&str]) -> String {
        let says = |problem: &String| words.iter().all(|word| problem.contains(word));
        let problem = async || self.get().await.agent?.problems.into_iter().find(says);
        self.until(&format!("a problem with {words:?}"), problem).await
    }

    /// Everything that was done, oldest first.
    pub(crate) async fn history(&self) -> Vec<proto::Change> {
        self.client().await.history(String::new()).await.unwrap().changes
    }

    /// Sets values of one container by hand.
    pub(crate) async fn resize(&self, request: proto::ResizeRequest) -> Result<proto::Change, ClientError> {
        let reply = self.client().await.resize(request).await?;
        Ok(reply.change.expect("an answer has a change"))
    }

    pub(crate) async fn release(&self, pod: &str) -> Result<proto::Change, ClientError> {
        let request = proto::ReleaseRequest {
            pod: pod.to_owned(),
            ..proto::ReleaseRequest::default()
        };
        let reply = self.client().await.release(request).await?;
        Ok(reply.change.expect("an answer has a change"))
    }

    /// Where it says that it serves metrics.
    pub(crate) async fn http_address(&self) -> SocketAddr {
        let said = |log: &str| {
            let (_, rest) = log.split_once(" http=")?;
            rest.split_whitespace().next()?.parse().ok()
        };
        self.until("the address of the metrics", async || said(&self.log()))
            .await
    }

    /// Waits until something is there. What it costs to look is spent a third of the time at most: a look may be a program.
    pub(crate) async fn until<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            let looked = Instant::now();
            if let Some(found) = look().await {
                return found;
            }
            assert!(started.elapsed() < PATIENCE, "waited in vain for {what}");
            let pause = Duration::from_millis(10).max(2 * looked.elapsed());
            tokio::time::sleep(pause).await;
        }
    }

    /// Waits until something holds.
    pub(crate) async fn wait_for(&self, what: &str, holds: impl Fn() -> bool) {
        self.until(what, async || holds().then_some(())).await;
    }

    pub(crate) fn state_file(&self) -> PathBuf {
        self.state_directory().join("state.json")
    }

    /// Runs `vscaled restore` with the agent's configuration; its exit code, what it prints and what it complains of.
    pub(crate) fn restore(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vscaled"));
        command.arg("restore").args(&self.arguments).args(arguments);
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code(), text(stdout), text(stderr))
    }

    /// What it is told on the command line.
    pub(crate) fn arguments(&self) -> &[OsString] {
        &self.arguments
    }

    /// Whether the log of kills has a checkpoint: the agent has looked at all counters.
    pub(crate) fn watches_kills(&self) -> bool {
        let log = fs::read(self.state_directory().join("kills.log")).unwrap_or_default();
        log.windows(11).any(|bytes| bytes == b"\"counters\":")
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn manifests(&self) -> PathBuf {
        self.directory.path().join("manifests")
    }

    pub(crate) fn state_directory(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("vscaled.sock")
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("log")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process
                .kill()
                .and_then(|()| process.wait())
                .map_or_else(|error| eprintln!("vscaled: {error}"), drop);
        }
        if std::thread::panicking() {
            eprintln!("the agent's log:\n{}", self.log());
        }
    }
}
