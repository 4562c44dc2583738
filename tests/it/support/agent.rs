//! A `vscaled` process of one test: its directories, its socket, its log and its end.

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

/// The longest wait for anything. Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(240);

/// An agent, running or not. Dropping the value kills the process and removes its files. If a test fails, the log is
/// printed.
#[derive(Debug)]
pub(crate) struct Agent {
    process: Option<Child>,
    /// The program that runs the agent, with its arguments. The agent's own command line is appended.
    wrapper: Vec<OsString>,
    arguments: Vec<OsString>,
    /// The failpoint at which the agent kills itself.
    failpoint: Option<String>,
    /// Additional environment variables.
    variables: Vec<(&'static str, OsString)>,
    directory: TempDir,
}

impl Agent {
    /// Makes an agent for the pods below a cgroup, and does not start it. Unless the test sets other options, the
    /// agent has no runtime and does no periodic passes: each pass follows a notification.
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
        // The checkpoints of a kubelet without static policies.
        let kubelet = agent.directory.path().join("kubelet");
        fs::create_dir(&kubelet).unwrap();
        for (file, policy) in [("cpu_manager_state", "none"), ("memory_manager_state", "None")] {
            fs::write(kubelet.join(file), format!(r#"{{"policyName":"{policy}"}}"#)).unwrap();
        }
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
            .with("--kubelet-dir", kubelet)
    }

    /// Sets an option and replaces an earlier value.
    pub(crate) fn with(mut self, flag: &str, value: impl AsRef<OsStr>) -> Self {
        self.set(flag, value);
        self
    }

    /// Like [`Self::with`], for an agent that is already in use.
    pub(crate) fn set(&mut self, flag: &str, value: impl AsRef<OsStr>) {
        let mut argument = OsString::from(format!("{flag}="));
        let before = argument.clone();
        argument.push(value);
        self.arguments
            .retain(|other| !other.as_encoded_bytes().starts_with(before.as_encoded_bytes()));
        self.arguments.push(argument);
    }

    /// Removes an option, so that the configuration file decides.
    pub(crate) fn unset(&mut self, flag: &str) {
        let before = format!("{flag}=");
        self.arguments
            .retain(|other| !other.as_encoded_bytes().starts_with(before.as_bytes()));
    }

    /// Runs the agent through a shell script that ends in `exec "$@"`.
    pub(crate) fn wrapped(mut self, program: &[&str], script: &str) -> Self {
        self.wrapper = program
            .iter()
            .chain(&["sh", "-ec", script, "sh"])
            .map(OsString::from)
            .collect();
        self
    }

    /// Starts the agent and waits until the socket answers.
    pub(crate) async fn start(&mut self) {
        self.launch();
        self.answers().await;
    }

    /// Waits until the socket answers.
    pub(crate) async fn answers(&self) {
        self.until("the agent to answer", async || {
            Client::connect(&self.socket()).await.ok()?.get().await.ok()
        })
        .await;
    }

    /// Starts the agent without waiting.
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

    /// Sets environment variables.
    pub(crate) fn with_variables(mut self, variables: Vec<(&'static str, OsString)>) -> Self {
        self.variables.extend(variables);
        self
    }

    /// Makes the next process kill itself at a failpoint, or not.
    pub(crate) fn arm(&mut self, failpoint: Option<String>) {
        self.failpoint = failpoint;
    }

    /// The exit status of an agent that ended by itself.
    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.process.as_mut()?.try_wait().unwrap()
    }

    /// Whether the agent was started and not stopped.
    pub(crate) const fn is_launched(&self) -> bool {
        self.process.is_some()
    }

    pub(crate) fn pid(&self) -> i32 {
        self.process.as_ref().expect("the agent runs").id().cast_signed()
    }

    /// Sends SIGTERM and waits for a clean exit.
    pub(crate) fn stop(&mut self) {
        let status = self.end(Signal::SIGTERM);
        assert!(status.success(), "{status}\n{}", self.log());
    }

    /// Sends SIGTERM and waits for the exit, with any status.
    pub(crate) fn end_somehow(&mut self) -> ExitStatus {
        self.end(Signal::SIGTERM)
    }

    /// Kills the agent as a crash would, if it still runs.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().expect("the agent runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Makes the agent read its configuration again (SIGHUP).
    pub(crate) fn reload(&self) {
        kill(Pid::from_raw(self.pid()), Signal::SIGHUP).unwrap();
    }

    fn end(&mut self, signal: Signal) -> ExitStatus {
        let mut process = self.process.take().expect("the agent runs");
        kill(Pid::from_raw(process.id().cast_signed()), signal).unwrap();
        process.wait().unwrap()
    }

    /// Writes a file into the manifest directory atomically.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let beside = self.directory.path().join("manifest.new");
        fs::write(&beside, text).unwrap();
        fs::rename(beside, self.manifests().join(name)).unwrap();
    }

    /// Removes a file from the manifest directory.
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

    /// Returns one pod, found by name, as the agent reports it.
    pub(crate) async fn pod(&self, name: &str) -> Option<proto::Pod> {
        self.get().await.pods.into_iter().find(|pod| pod.name == name)
    }

    /// Waits until the agent reports a state of a pod.
    pub(crate) async fn reaches(&self, name: &str, state: &str) -> proto::Pod {
        let wanted = format!("pod {name} to be {state}");
        self.until(&wanted, async || self.pod(name).await.filter(|pod| pod.state == state))
            .await
    }

    /// Waits until the agent reports a problem that contains all these words.
    pub(crate) async fn reports(&self, words: &[&str]) -> String {
        let says = |problem: &String| words.iter().all(|word| problem.contains(word));
        let problem = async || self.get().await.agent?.problems.into_iter().find(says);
        self.until(&format!("a problem with {words:?}"), problem).await
    }

    /// Returns all changes, oldest first.
    pub(crate) async fn history(&self) -> Vec<proto::Change> {
        self.client().await.history(String::new()).await.unwrap().changes
    }

    /// Sends an override for one container.
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

    /// The address at which the agent serves metrics, from its log.
    pub(crate) async fn http_address(&self) -> SocketAddr {
        let said = |log: &str| {
            let (_, rest) = log.split_once(" http=")?;
            rest.split_whitespace().next()?.parse().ok()
        };
        self.until("the address of the metrics", async || said(&self.log()))
            .await
    }

    /// Waits until `look` returns a value.
    pub(crate) async fn until<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            let looked = Instant::now();
            if let Some(found) = look().await {
                return found;
            }
            assert!(started.elapsed() < PATIENCE, "waited in vain for {what}");
            tokio::time::sleep(super::pause_after(looked)).await;
        }
    }

    /// Waits until a condition holds.
    pub(crate) async fn wait_for(&self, what: &str, holds: impl Fn() -> bool) {
        self.until(what, async || holds().then_some(())).await;
    }

    pub(crate) fn state_file(&self) -> PathBuf {
        self.state_directory().join("state.json")
    }

    /// Runs `vscaled restore` with the agent's configuration. Returns exit code, standard output and standard error.
    pub(crate) fn restore(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vscaled"));
        command.arg("restore").args(&self.arguments).args(arguments);
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code(), text(stdout), text(stderr))
    }

    /// The command line.
    pub(crate) fn arguments(&self) -> &[OsString] {
        &self.arguments
    }

    /// Whether the kill log has a checkpoint, that is, whether the agent has read all counters.
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
