//! Runs a hook: notifies a container that its memory limit is about to come down, has grown, or will be reached.
//!
//! A hook runs apart from any pass. Only the lower limit that the hook announces waits for it, and not for long.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tonic::Code;

use super::node::{Node, RuntimeLink};
use crate::cgroup::{Cgroup, signal_in};
use crate::model::objects::Pod;
use crate::model::{Bytes, Cause, Evidence, HookEnd, LiveContainer, LivePod};
use crate::plan::hook::{Hook, HookAction, HookMoment, HookSignal, filled_in, path_in};
use crate::plan::shrink::leaves_room;
use crate::runtime::{ContainerRuntime, Executed, Problem, RuntimeError};

const NO_RUNTIME: &str = "there is no container runtime to run it";
/// The time between two reads of a container's memory use.
const POLL: Duration = Duration::from_millis(100);

/// A hook that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookRun {
    /// Counts up over all hooks of the pod.
    pub number: u64,
    pub container: String,
    /// The hook runs in this container only, not in a later one of the same name.
    pub live: LiveContainer,
    pub moment: HookMoment,
    pub hook: Hook,
    pub old: u64,
    pub new: u64,
}

/// Runs the hook. Before a shrink, waits until the container's memory fits the new limit. Always ends within the hook's time.
pub async fn run_hook(node: Arc<Node>, run: &HookRun) -> HookEnd {
    let wait = run.hook.wait;
    let Ok(_permit) = tokio::time::timeout(wait, node.concurrency.hooks.acquire()).await else {
        return HookEnd::failed(format!("not run: other containers' hooks were running for {wait:?}"));
    };
    let began = Instant::now();
    let RuntimeLink::Found(runtime) = &node.runtime else {
        return HookEnd::failed(format!("not run: {NO_RUNTIME}"));
    };
    let mut exit_code = None;
    let (told, output) = match &run.hook.action {
        HookAction::Command(command) => {
            let fill = |argument: &String| filled_in(argument, run.old, run.new);
            let command: Vec<_> = command.iter().map(fill).collect();
            let result = runtime.exec(&run.live.id, &command, wait).await;
            exit_code = result.as_ref().ok().map(|executed| executed.exit_code);
            ended(result)
        }
        HookAction::Signal(signal) => {
            let sent = send(&node, runtime.as_ref(), &run.live, Some(number(*signal))).await;
            (sent.map(|()| format!("{signal} was sent")), String::new())
        }
    };
    let told = match (told, run.moment) {
        (Ok(told), HookMoment::BeforeShrink) => {
            let left = wait.saturating_sub(began.elapsed());
            let fell = tokio::time::timeout(left, wait_for_room(Arc::clone(&node), run)).await;
            let fell = fell.unwrap_or_else(|_| Err(format!("memory in use did not fall in {wait:?}")));
            match fell {
                Ok(()) => Ok(format!("{told}, and what is in use fits the new limit")),
                Err(why) => Err(format!("{told}, but {why}")),
            }
        }
        (told, _) => told,
    };
    let evidence = (run.moment == HookMoment::OnMemoryPressure).then(|| Evidence {
        path: path_in(&output),
        exit_code,
    });
    let path = evidence.as_ref().and_then(|evidence| evidence.path.as_ref());
    let left = path.map(|path| format!(" and named {path}")).unwrap_or_default();
    let after = |how: String| format!("{how}{left} (after {} ms)", began.elapsed().as_millis());
    HookEnd {
        how: told.map(&after).map_err(&after),
        output,
        evidence,
    }
}

/// Why hooks of a pod would not run now, a sentence each. `forbidden_by` is the configuration key that forbids them. Only the
/// runtime knows whether a command can run.
pub async fn hook_problems(node: &Node, pod: &Pod, live: &LivePod, forbidden_by: Option<&str>) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, container) in &live.containers {
        for moment in HookMoment::ALL {
            let Some(hook) = Hook::of(pod, name, moment) else {
                continue;
            };
            let tried = match (hook.map(|hook| hook.action), &node.runtime) {
                (Err(error), _) => Err(error.to_string()),
                (Ok(_), _) if let Some(setting) = forbidden_by => {
                    Err(format!("the agent's configuration forbids it: {setting}"))
                }
                (Ok(HookAction::Signal(_)), RuntimeLink::Found(runtime)) => {
                    let tried = send(node, runtime.as_ref(), container, None).await;
                    tried.map_err(|why| format!("its signal cannot be sent: {why}"))
                }
                (Ok(HookAction::Command(_)), RuntimeLink::Found(_)) => Ok(()),
                (Ok(_), _) => Err(NO_RUNTIME.to_owned()),
            };
            let (moment, container) = (moment.word(), name.clone());
            let problem = |why| format!("{}: {why}", Cause::Hook { moment, container });
            problems.extend(tried.err().map(problem));
        }
    }
    problems
}

/// Has the runtime send a signal to the first process of a container, or sends it itself where the runtime cannot. Without a
/// signal, only tries whether one may be sent.
///
/// Errors: a sentence.
async fn send(
    node: &Node,
    runtime: &dyn ContainerRuntime,
    LiveContainer { id, path }: &LiveContainer,
    signal: Option<Signal>,
) -> Result<(), String> {
    let number = signal.map_or(0, |signal| signal.as_raw().unsigned_abs());
    match runtime.signal(id, number).await {
        Err(error) if error.problem == Problem::Unimplemented => {
            let pid = runtime.first_process(id).await.map_err(|error| error.to_string())?;
            let proc_root = Path::new("/proc");
            signal_in(&node.hierarchy, proc_root, path, pid.unwrap_or_default(), signal)
        }
        sent => sent.map_err(|error| error.to_string()),
    }
}

/// Waits until the container's memory fits the new limit.
///
/// Errors: a sentence, when the cgroup cannot be read.
async fn wait_for_room(node: Arc<Node>, run: &HookRun) -> Result<(), String> {
    let wanted = Bytes::new(run.new);
    loop {
        let (node, path) = (Arc::clone(&node), run.live.path.clone());
        let read = move || Cgroup::open(&node.hierarchy, &path).and_then(|cgroup| cgroup.outer().memory_reading());
        let reading = tokio::task::spawn_blocking(read).await;
        let reading = reading.map_err(|panic| panic.to_string())?;
        let reading = reading.map_err(|error| error.to_string())?;
        if leaves_room(&reading, wanted) {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// How a command ended, and its output.
fn ended(result: Result<Executed, RuntimeError>) -> (Result<String, String>, String) {
    match result {
        Ok(Executed { exit_code: 0, output }) => (Ok("ended with 0".to_owned()), output),
        Ok(Executed { exit_code, output }) => (Err(format!("ended with {exit_code}")), output),
        Err(error) => {
            let code = match error.problem {
                Problem::Deadline { .. } => Code::DeadlineExceeded,
                Problem::Refused { code, .. } => code,
                _ => Code::Unknown,
            };
            let why = match code {
                Code::OutOfRange => "it printed too much to be read".to_owned(),
                Code::DeadlineExceeded => "it did not end in time".to_owned(),
                _ => error.to_string(),
            };
            (Err(why), String::new())
        }
    }
}

const fn number(signal: HookSignal) -> Signal {
    match signal {
        HookSignal::SigHup => Signal::HUP,
        HookSignal::SigUsr1 => Signal::USR1,
        HookSignal::SigUsr2 => Signal::USR2,
        HookSignal::SigQuit => Signal::QUIT,
        HookSignal::SigWinch => Signal::WINCH,
    }
}
