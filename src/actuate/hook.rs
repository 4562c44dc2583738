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
use crate::model::{Bytes, Cause, ContainerName, Evidence, HookEnd, LiveContainer, LivePod};
use crate::plan::hook::{Hook, HookAction, HookMoment, filled_in, former_hooks, path_in};
use crate::plan::shrink::leaves_room;
use crate::runtime::{ContainerRuntime, Executed, Problem};
use crate::slots::Class;

const NO_RUNTIME: &str = "there is no container runtime to run it";
/// The time between two reads of a container's memory use.
const POLL: Duration = Duration::from_millis(100);

/// A hook that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookRun {
    /// Counts up over all hooks of the pod.
    pub number: u64,
    pub container: ContainerName,
    /// The hook runs in this container only, not in a later one of the same name.
    pub live: LiveContainer,
    pub moment: HookMoment,
    pub hook: Hook,
    pub old: u64,
    pub new: u64,
}

/// Runs the hook of a pod in that namespace. Before a shrink, waits until the container's memory fits the new limit. The wait for a
/// slot has the hook's time limit, and so has the hook from then on.
pub async fn run_hook(node: Arc<Node>, namespace: &str, run: &HookRun) -> HookEnd {
    let wait = run.hook.wait;
    let class = match run.moment {
        HookMoment::OnMemoryPressure => Class::Privileged,
        HookMoment::BeforeShrink | HookMoment::AfterGrow => Class::Ordinary,
    };
    let namespace = namespace.to_owned();
    let Ok(_slot) = tokio::time::timeout(wait, node.concurrency.hooks.wait(&namespace, class)).await else {
        return HookEnd::failed(format!("not run: other containers' hooks were running for {wait:?}"));
    };
    let began = Instant::now();
    let RuntimeLink::Found(runtime) = &node.runtime else {
        return HookEnd::failed(format!("not run: {NO_RUNTIME}"));
    };
    let (mut told, exit_code, output) = match &run.hook.action {
        HookAction::Command(command) => match execute(runtime.as_ref(), run, command).await {
            Ok(Executed { exit_code, output }) => {
                let ended = format!("ended with {exit_code}");
                let how = if exit_code == 0 { Ok(ended) } else { Err(ended) };
                (how, Some(exit_code), output)
            }
            Err(why) => (Err(why), None, String::new()),
        },
        HookAction::Signal(signal) => {
            let sent = send(&node, runtime.as_ref(), &run.live, *signal as i32).await;
            (sent.map(|()| format!("{signal} was sent")), None, String::new())
        }
    };
    if run.moment == HookMoment::BeforeShrink
        && let Ok(how) = &mut told
    {
        let left = wait.saturating_sub(began.elapsed());
        match tokio::time::timeout(left, wait_for_room(&node, run)).await {
            Ok(Ok(())) => how.push_str(", and what is in use fits the new limit"),
            Ok(Err(why)) => told = Err(format!("{how}, but {why}")),
            Err(_) => told = Err(format!("{how}, but memory in use did not fall in {wait:?}")),
        }
    }
    let path = path_in(&output).filter(|_| run.moment == HookMoment::OnMemoryPressure);
    let named = path.as_ref().map(|path| format!(" and named {path}"));
    let left = named.unwrap_or_default();
    let after = |how: String| format!("{how}{left} (after {} ms)", began.elapsed().as_millis());
    HookEnd {
        how: told.map(&after).map_err(&after),
        output,
        evidence: (run.moment == HookMoment::OnMemoryPressure).then_some(Evidence { path, exit_code }),
    }
}

/// Has the runtime run a hook's command in its container.
///
/// Errors: a sentence.
async fn execute(runtime: &dyn ContainerRuntime, run: &HookRun, command: &[String]) -> Result<Executed, String> {
    let fill = |argument: &String| filled_in(argument, run.old, run.new);
    let command: Vec<_> = command.iter().map(fill).collect();
    let executed = runtime.exec(&run.live.id, &command, run.hook.wait).await;
    executed.map_err(|error| match error.problem {
        Problem::Deadline { .. }
        | Problem::Refused {
            code: Code::DeadlineExceeded,
            ..
        } => "it did not end in time".to_owned(),
        Problem::Refused {
            code: Code::OutOfRange, ..
        } => "it printed too much to be read".to_owned(),
        _ => error.to_string(),
    })
}

/// Why hooks of a pod would not run now, a sentence each. `forbidden_by` is the configuration key that forbids them.
/// Only the runtime can check whether a command can run.
pub async fn hook_problems(node: &Node, pod: &Pod, live: &LivePod, forbidden_by: Option<&str>) -> Vec<String> {
    let mut problems: Vec<_> = former_hooks(pod).collect();
    for (name, container) in &live.containers {
        for moment in HookMoment::ALL {
            let tried = match (Hook::of(pod, name, moment), &node.runtime) {
                (None, _) => continue,
                (Some(Err(why)), _) => Err(why),
                (Some(Ok(_)), _) if let Some(setting) = forbidden_by => {
                    Err(format!("the agent's configuration forbids it: {setting}"))
                }
                (Some(Ok(hook)), RuntimeLink::Found(runtime)) => match hook.action {
                    HookAction::Signal(_) => send(node, runtime.as_ref(), container, 0)
                        .await
                        .map_err(|why| format!("its signal cannot be sent: {why}")),
                    HookAction::Command(_) => Ok(()),
                },
                (Some(Ok(_)), _) => Err(NO_RUNTIME.to_owned()),
            };
            if let Err(why) = tried {
                let (moment, container) = (moment.word(), name.to_string());
                problems.push(format!("{}: {why}", Cause::Hook { moment, container }));
            }
        }
    }
    problems
}

/// Has the runtime send a signal to the first process of a container, or sends it itself where the runtime cannot. Signal 0
/// only tries whether one may be sent.
///
/// Errors: a sentence.
async fn send(
    node: &Node,
    runtime: &dyn ContainerRuntime,
    LiveContainer { id, path }: &LiveContainer,
    signal: i32,
) -> Result<(), String> {
    match runtime.signal(id, signal.unsigned_abs()).await {
        Err(error) if error.problem == Problem::Unimplemented => {
            let pid = runtime.first_process(id).await.map_err(|error| error.to_string())?;
            let (proc_root, signal) = (Path::new("/proc"), Signal::from_named_raw(signal));
            signal_in(&node.hierarchy, proc_root, path, pid.unwrap_or_default(), signal)
        }
        sent => sent.map_err(|error| error.to_string()),
    }
}

/// Waits until the container's memory fits the new limit.
///
/// Errors: a sentence, when the cgroup cannot be read.
async fn wait_for_room(node: &Arc<Node>, run: &HookRun) -> Result<(), String> {
    loop {
        let (node, path) = (Arc::clone(node), run.live.path.clone());
        let read = move || Cgroup::open(&node.hierarchy, &path).and_then(|cgroup| cgroup.outer().memory_reading());
        let reading = tokio::task::spawn_blocking(read)
            .await
            .map_err(|panic| panic.to_string())?;
        if leaves_room(&reading.map_err(|error| error.to_string())?, Bytes::new(run.new)) {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::plan::hook::HookSignal;
    use crate::runtime::RuntimeError;
    use crate::runtime::testing::{FakeRuntime, failed};

    /// Records what it is told to run.
    #[derive(Debug, Default)]
    struct CallRecorder {
        exit_code: i32,
        /// Why a call fails.
        refuses: Option<Problem>,
        calls: Mutex<Vec<String>>,
    }

    impl CallRecorder {
        fn answer<T>(&self, call: String, answer: T) -> Result<T, RuntimeError> {
            self.calls.lock().push(call);
            match self.refuses.clone() {
                None => Ok(answer),
                Some(problem) => Err(failed("ExecSync", problem)),
            }
        }
    }

    impl FakeRuntime for CallRecorder {
        fn exec(&self, id: &str, command: &[String]) -> Result<Executed, RuntimeError> {
            let executed = Executed {
                exit_code: self.exit_code,
                output: "dumped to /tmp/heap".to_owned(),
            };
            self.answer(format!("{id}: {}", command.join(" ")), executed)
        }

        fn signal(&self, id: &str, signal: u32) -> Result<(), RuntimeError> {
            self.answer(format!("{id}: {signal}"), ())
        }

        fn first_process(&self) -> Result<Option<i32>, RuntimeError> {
            Ok(None)
        }
    }

    fn refused(code: Code) -> CallRecorder {
        let message = String::new();
        CallRecorder {
            refuses: Some(Problem::Refused { code, message }),
            ..CallRecorder::default()
        }
    }

    fn command() -> HookAction {
        HookAction::Command(["set", "{old}", "{new}"].map(str::to_owned).into())
    }

    /// Runs a hook of a container that uses so many MiB and whose limit goes from 128 MiB to 64. Returns how that ended, and what the
    /// runtime was told.
    async fn ran(runtime: CallRecorder, moment: HookMoment, action: HookAction, used: u64) -> (HookEnd, Vec<String>) {
        ran_beside(0, runtime, moment, action, used).await
    }

    /// The same, beside so many hooks of its namespace that hang, as far as there are slots for them.
    async fn ran_beside(
        hanging: usize,
        runtime: CallRecorder,
        moment: HookMoment,
        action: HookAction,
        used: u64,
    ) -> (HookEnd, Vec<String>) {
        let root = tempfile::tempdir().unwrap();
        let app = root.path().join("pod/app");
        fs::create_dir_all(&app).unwrap();
        fs::write(app.join("memory.current"), format!("{}\n", used << 20)).unwrap();
        let runtime = Arc::new(runtime);
        let mut node = Node::on_files(root.path());
        node.runtime = RuntimeLink::Found(Arc::clone(&runtime) as _);
        let (hooks, namespace) = (&node.concurrency.hooks, "shop".to_owned());
        let slots = (0..hanging).map_while(|_| hooks.take(&namespace, Class::Ordinary).ok());
        let _slots: Vec<_> = slots.collect();
        let run = HookRun {
            number: 1,
            container: "app".into(),
            live: LivePod::on_files(["app"]).containers["app"].clone(),
            moment,
            hook: Hook {
                action,
                wait: Duration::from_millis(500),
                memory: Bytes::ZERO,
            },
            old: 128 << 20,
            new: 64 << 20,
        };
        let end = run_hook(Arc::new(node), &namespace, &run).await;
        let calls = std::mem::take(&mut *runtime.calls.lock());
        (end, calls)
    }

    #[tokio::test]
    async fn a_command_ends_well_with_zero_alone() {
        let ended = |exit_code| CallRecorder {
            exit_code,
            ..CallRecorder::default()
        };
        for (runtime, is_ok, expected) in [
            (ended(0), true, "ended with 0 (after "),
            (ended(3), false, "ended with 3 (after "),
            (refused(Code::DeadlineExceeded), false, "it did not end in time (after "),
            (
                refused(Code::OutOfRange),
                false,
                "it printed too much to be read (after ",
            ),
        ] {
            let (end, calls) = ran(runtime, HookMoment::AfterGrow, command(), 100).await;
            assert_eq!(end.how.is_ok(), is_ok, "{end:?}");
            let (Ok(how) | Err(how)) = end.how;
            assert!(how.starts_with(expected), "{how}");
            assert_eq!(calls, ["app: set 134217728 67108864"]);
        }
    }

    #[tokio::test]
    async fn only_a_hook_under_pressure_leaves_evidence() {
        for moment in HookMoment::ALL {
            let (end, _) = ran(CallRecorder::default(), moment, command(), 40).await;
            let evidence = (moment == HookMoment::OnMemoryPressure).then(|| Evidence {
                path: Some("/tmp/heap".to_owned()),
                exit_code: Some(0),
            });
            let how = end.how.unwrap();
            assert_eq!(how.contains("named /tmp/heap"), evidence.is_some(), "{how}");
            let waits = how.contains("fits the new limit");
            assert_eq!(waits, moment == HookMoment::BeforeShrink, "{how}");
            assert_eq!(end.evidence, evidence);
        }
        let (end, _) = ran(CallRecorder::default(), HookMoment::BeforeShrink, command(), 60).await;
        let why = end.how.unwrap_err();
        assert!(why.starts_with("ended with 0, but memory in use did not fall"), "{why}");
    }

    #[tokio::test]
    async fn only_evidence_starts_beside_hooks_that_hang() {
        for (moment, runs) in [(HookMoment::AfterGrow, false), (HookMoment::OnMemoryPressure, true)] {
            let (end, calls) = ran_beside(9, CallRecorder::default(), moment, command(), 40).await;
            assert_eq!((end.how.is_ok(), calls.len()), (runs, usize::from(runs)), "{end:?}");
        }
    }

    #[tokio::test]
    async fn a_signal_goes_through_the_runtime() {
        let signal = || HookAction::Signal(HookSignal::SigUsr2);
        let unimplemented = CallRecorder {
            refuses: Some(Problem::Unimplemented),
            ..CallRecorder::default()
        };
        for (runtime, is_ok, expected) in [
            (CallRecorder::default(), true, "SIGUSR2 was sent"),
            (
                unimplemented,
                false,
                "the runtime does not say which process is the first",
            ),
            (refused(Code::Internal), false, "ExecSync at /run/x.sock"),
        ] {
            let (end, calls) = ran(runtime, HookMoment::AfterGrow, signal(), 40).await;
            assert_eq!(end.how.is_ok(), is_ok, "{end:?}");
            let (Ok(how) | Err(how)) = end.how;
            assert!(how.starts_with(expected), "{how}");
            assert_eq!(calls, ["app: 12"]);
        }
    }

    #[tokio::test]
    async fn a_hooks_problems_are_found_without_a_run() {
        let env = json!([{"name": "VSCALED_AFTER_GROW", "value": "signal: SIGHUP"}]);
        let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "app", "env": env}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let live = LivePod::on_files(["app"]);
        let root = tempfile::tempdir().unwrap();
        let mut node = Node::on_files(root.path());
        let without = hook_problems(&node, &pod, &live, None).await;
        assert!(
            matches!(&without[..], [one] if one.ends_with(NO_RUNTIME)),
            "{without:?}"
        );
        for (runtime, forbidden_by, expected) in [
            (CallRecorder::default(), None, None),
            (
                CallRecorder::default(),
                Some("hooks.run"),
                Some("forbids it: hooks.run"),
            ),
            (refused(Code::Internal), None, Some("its signal cannot be sent: ")),
        ] {
            let runtime = Arc::new(runtime);
            node.runtime = RuntimeLink::Found(Arc::clone(&runtime) as _);
            let problems = hook_problems(&node, &pod, &live, forbidden_by).await;
            assert_eq!(problems.len(), usize::from(expected.is_some()), "{problems:?}");
            let is_expected = |problem: &String| expected.is_some_and(|expected| problem.contains(expected));
            assert!(problems.iter().all(is_expected), "{problems:?}");
            let tries: &[&str] = if forbidden_by.is_none() { &["app: 0"] } else { &[] };
            assert_eq!(*runtime.calls.lock(), tries, "a signal of 0 only tries");
        }
    }
}
