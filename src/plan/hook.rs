//! Hooks: how the agent notifies a container of a change of its memory limit. Pure.
//!
//! Literal variables in the container's spec configure them, which nobody can change after the pod was created. Only the
//! container's own runtime runs a hook, with the container's own rights.

use std::time::Duration;

use jiff::SignedDuration;
use strum::VariantNames as _;

use crate::model::Bytes;
use crate::model::objects::annotation::former_hook;
use crate::model::objects::{Container, HOOK_VARIABLES, LONGEST_HOOK, Pod};

/// How long a hook may take, and memory use may take to fall after it, without a variable that says so.
const WAIT: Duration = Duration::from_secs(30);
const SHORTEST_WAIT: SignedDuration = SignedDuration::from_secs(1);
const LONGEST_WAIT: SignedDuration = SignedDuration::from_mins(2);
/// The memory that is kept for evidence, without a variable that says so.
const MEMORY: Bytes = Bytes::new(64 << 20);
const MOST_MEMORY: Bytes = Bytes::new(64 << 30);
/// The longest path that the agent takes from a hook's output, in bytes.
const LONGEST_PATH: usize = 256;
/// The most arguments of a command.
const MOST_ARGUMENTS: usize = 64;

/// The moment at which a hook is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum HookMoment {
    /// A memory limit is about to come down.
    BeforeShrink,
    /// A memory limit has grown.
    AfterGrow,
    /// A memory limit is about to be reached and cannot grow.
    OnMemoryPressure,
}

impl HookMoment {
    pub const ALL: [Self; 3] = [Self::BeforeShrink, Self::AfterGrow, Self::OnMemoryPressure];

    /// The name in records and metrics.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

/// The hook of one container at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    pub action: HookAction,
    /// How long the hook and its effect on memory use may take.
    pub wait: Duration,
    /// The memory that is kept for the hook below the container's highest limit. Zero unless the hook saves evidence.
    pub memory: Bytes,
}

/// What the agent does in the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookAction {
    /// Runs a command in the container: a program and its arguments.
    Command(Vec<String>),
    /// Sends a signal to the container's first process.
    Signal(HookSignal),
}

/// The signals that programs use as a message, with their numbers on Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "UPPERCASE")]
pub enum HookSignal {
    SigHup = 1,
    SigUsr1 = 10,
    SigUsr2 = 12,
    SigQuit = 3,
    SigWinch = 28,
}

impl Hook {
    /// The hook of a container of the pod at that moment, if it has one.
    ///
    /// Errors: a sentence with the malformed variable, the beginning of its value, and what is allowed.
    pub fn of(pod: &Pod, container: &str, moment: HookMoment) -> Option<Result<Self, String>> {
        let container = pod.all_containers().find(|declared| declared.name == container)?;
        let [hook, time, space] = HOOK_VARIABLES[moment as usize];
        let action = read(container, hook, action)?;
        let wait = read(container, time, wait).unwrap_or(Ok(WAIT));
        let memory = match moment {
            HookMoment::OnMemoryPressure => read(container, space, memory).unwrap_or(Ok(MEMORY)),
            HookMoment::BeforeShrink | HookMoment::AfterGrow => {
                read(container, space, no_memory).unwrap_or(Ok(Bytes::ZERO))
            }
        };
        Some(action.and_then(|action| {
            let (wait, memory) = (wait?, memory?);
            Ok(Self { action, wait, memory })
        }))
    }

    /// Whether a pod has a hook for any container and moment.
    pub fn any(pod: &Pod) -> bool {
        pod.all_containers()
            .any(|container| !container.hook_variables.is_empty())
    }
}

/// The annotations that declared hooks in earlier versions, a sentence for each with the variable that replaces it.
pub fn former_hooks(pod: &Pod) -> impl Iterator<Item = String> {
    pod.metadata.annotations.keys().filter_map(|annotation| {
        let (variable, container) = former_hook(annotation)?;
        let container = container.map_or("each container".to_owned(), |name| format!("container {name}"));
        Some(format!(
            "metadata.annotations[{annotation}] runs no hook, because not only the pod's author can write it: set \
             {variable} in the env of {container} instead (docs/hooks.md)"
        ))
    })
}

/// An argument of a command, with the old and the new limit in bytes for `{old}` and `{new}`. `{new:75%}` is three
/// quarters of the new limit.
pub fn filled_in(argument: &str, old: u64, new: u64) -> String {
    let mut parts = argument.split('{');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |filled, part| {
        let known = part
            .split_once('}')
            .and_then(|(name, rest)| Some((amount(name, old, new)?, rest)));
        match known {
            Some((value, rest)) => format!("{filled}{value}{rest}"),
            None => filled + "{" + part,
        }
    })
}

fn amount(name: &str, old: u64, new: u64) -> Option<u64> {
    let (name, percent) = name.split_once(':').unwrap_or((name, "100%"));
    let percent: u64 = percent.strip_suffix('%')?.parse().ok()?;
    let whole = match name {
        "old" => old,
        "new" => new,
        _ => return None,
    };
    let part = u128::from(whole) * u128::from(percent) / 100;
    u64::try_from(part).ok().filter(|_| percent <= 100)
}

/// Reads a variable of the container. The error of `parse` says what is allowed.
fn read<T>(container: &Container, variable: &str, parse: fn(&str) -> Result<T, String>) -> Option<Result<T, String>> {
    let Some(value) = container.hook_variables.get(variable)? else {
        let why = format!("env[{variable}]: valueFrom: allowed is only value, which nobody can change later");
        return Some(Err(why));
    };
    Some(parse(value).map_err(|allowed| {
        let value: String = value.chars().take(80).collect();
        format!("env[{variable}]: {value:?}: allowed is {allowed}")
    }))
}

fn no_memory(_: &str) -> Result<Bytes, String> {
    Err("no memory before a shrink or after growth".to_owned())
}

fn memory(value: &str) -> Result<Bytes, String> {
    let memory = value.trim().parse().ok().filter(|memory| *memory <= MOST_MEMORY);
    memory.ok_or_else(|| format!("0 to {MOST_MEMORY}, as a quantity such as 64Mi"))
}

/// The file that a hook has left: the last word of its output that is an absolute path.
pub fn path_in(output: &str) -> Option<String> {
    let is_path = |word: &&str| {
        let is_short = (2..=LONGEST_PATH).contains(&word.len());
        word.starts_with('/') && is_short && !word.contains(|letter: char| letter.is_control() || letter == '\u{fffd}')
    };
    output.split_whitespace().rfind(is_path).map(str::to_owned)
}

fn action(value: &str) -> Result<HookAction, String> {
    let action = match value.trim().strip_prefix("signal:") {
        _ if value.len() > LONGEST_HOOK => None,
        Some(name) => name.trim().parse().ok().map(HookAction::Signal),
        None => command(value).map(HookAction::Command),
    };
    action.ok_or_else(|| {
        let signals = HookSignal::VARIANTS.join(", ");
        format!(
            "a command, as a JSON array of 1 to {MOST_ARGUMENTS} strings in at most {LONGEST_HOOK} bytes, or `signal: ` and one of \
             {signals}"
        )
    })
}

fn command(value: &str) -> Option<Vec<String>> {
    let command: Vec<String> = serde_json::from_str(value).ok()?;
    let has_program = command.first().is_some_and(|program| !program.is_empty());
    let is_text = command.iter().all(|argument| !argument.contains('\0'));
    (has_program && is_text && command.len() <= MOST_ARGUMENTS).then_some(command)
}

fn wait(value: &str) -> Result<Duration, String> {
    let wait: Option<SignedDuration> = value.trim().parse().ok();
    let wait = wait.filter(|wait| (SHORTEST_WAIT..=LONGEST_WAIT).contains(wait));
    let wait = wait.and_then(|wait| Duration::try_from(wait).ok());
    wait.ok_or_else(|| format!("{SHORTEST_WAIT:#} to {LONGEST_WAIT:#}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const BEFORE_SHRINK: &str = "VSCALED_BEFORE_SHRINK";
    const BEFORE_SHRINK_WAIT: &str = "VSCALED_BEFORE_SHRINK_WAIT";
    const AFTER_GROW: &str = "VSCALED_AFTER_GROW";
    const ON_MEMORY_PRESSURE: &str = "VSCALED_ON_MEMORY_PRESSURE";
    const ON_MEMORY_PRESSURE_MEMORY: &str = "VSCALED_ON_MEMORY_PRESSURE_MEMORY";

    /// A pod whose container `app` has these variables.
    fn pod(env: &[(&str, &str)]) -> Pod {
        let env = env.iter().map(|(name, value)| json!({"name": name, "value": value}));
        pod_of(&json!([{"name": "app", "env": env.collect::<Vec<_>>()}, {"name": "side"}]))
    }

    fn pod_of(containers: &Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {"containers": containers}})).unwrap()
    }

    fn refusal(name: &str, value: &str) -> String {
        let pod = pod(&[(BEFORE_SHRINK, r#"["true"]"#), (name, value)]);
        let hook = Hook::of(&pod, "app", HookMoment::BeforeShrink).unwrap();
        hook.unwrap_err().to_string()
    }

    #[test]
    fn a_hook_is_its_containers_authors() {
        let pod = pod(&[
            (AFTER_GROW, "signal: SIGHUP"),
            (AFTER_GROW, r#"["tell", "{new}"]"#),
            (BEFORE_SHRINK, " signal:SIGUSR1 "),
            (BEFORE_SHRINK_WAIT, "5s"),
        ]);
        let hook = |container, moment| Hook::of(&pod, container, moment).map(Result::unwrap);
        let command = HookAction::Command(vec!["tell".to_owned(), "{new}".to_owned()]);
        let told = hook("app", HookMoment::AfterGrow).unwrap();
        assert_eq!(
            (told.action, told.wait),
            (command, WAIT),
            "the process gets the last one"
        );
        let asked = hook("app", HookMoment::BeforeShrink).unwrap();
        assert_eq!(asked.action, HookAction::Signal(HookSignal::SigUsr1));
        assert_eq!(asked.wait, Duration::from_secs(5));
        assert_eq!(hook("side", HookMoment::AfterGrow), None);
        assert_eq!(hook("other", HookMoment::AfterGrow), None);
        assert!(Hook::any(&pod) && !Hook::any(&Pod::default()));
    }

    #[test]
    fn hooks_in_annotations_are_only_told() {
        let mut pod = pod(&[]);
        let hook = || r#"["/bin/sh"]"#.to_owned();
        let names = [
            "before-shrink",
            "after-grow.app",
            "on-memory-pressure",
            "on-memory-pressure-wait.app",
            "ignore",
        ];
        pod.metadata.annotations = names.map(|name| (format!("vscaled.io/{name}"), hook())).into();
        for moment in HookMoment::ALL {
            assert_eq!(Hook::of(&pod, "app", moment), None, "{moment:?}");
        }
        assert!(!Hook::any(&pod));
        let said: Vec<_> = former_hooks(&pod).collect();
        assert_eq!(said.len(), 4, "{said:?}");
        assert_eq!(
            said[0],
            "metadata.annotations[vscaled.io/after-grow.app] runs no hook, because not only the pod's author can write it: set \
             VSCALED_AFTER_GROW in the env of container app instead (docs/hooks.md)"
        );
        assert!(
            said[1].contains("set VSCALED_BEFORE_SHRINK in the env of each container"),
            "{}",
            said[1]
        );
        assert!(said[3].contains("VSCALED_ON_MEMORY_PRESSURE_WAIT"), "{}", said[3]);
    }

    #[test]
    fn a_changeable_value_is_no_hook() {
        let from = json!({"configMapKeyRef": {"name": "hooks", "key": "a"}});
        let env = json!([{"name": AFTER_GROW, "valueFrom": from}]);
        let pod = pod_of(&json!([{"name": "app", "env": env}]));
        assert_eq!(
            Hook::of(&pod, "app", HookMoment::AfterGrow).unwrap().unwrap_err(),
            "env[VSCALED_AFTER_GROW]: valueFrom: allowed is only value, which nobody can change later"
        );
    }

    #[test]
    fn a_slim_pod_keeps_only_bounded_hooks() {
        let long = format!(r#"["{}"]"#, "é".repeat(1 << 20));
        let pod = pod(&[
            ("PATH", "/bin"),
            ("VSCALED_HOOK", "x"),
            (AFTER_GROW, &long),
            (BEFORE_SHRINK, "signal: SIGHUP"),
        ]);
        let kept = &pod.spec.containers[0].hook_variables;
        assert_eq!(kept.keys().copied().collect::<Vec<_>>(), [AFTER_GROW, BEFORE_SHRINK]);
        assert!(kept.values().flatten().all(|value| value.len() < 3 * LONGEST_HOOK));
        assert!(Hook::of(&pod, "app", HookMoment::AfterGrow).unwrap().unwrap_err().len() < 400);
    }

    #[test]
    fn an_unreadable_hook_names_what_is_allowed() {
        assert_eq!(
            refusal(BEFORE_SHRINK, "jcmd 1 GC.run"),
            "env[VSCALED_BEFORE_SHRINK]: \"jcmd 1 GC.run\": allowed is a command, as a JSON array of 1 to 64 strings in at \
             most 4096 bytes, or `signal: ` and one of SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT, SIGWINCH"
        );
        assert_eq!(
            refusal(BEFORE_SHRINK_WAIT, "1h"),
            "env[VSCALED_BEFORE_SHRINK_WAIT]: \"1h\": allowed is 1s to 2m"
        );
        assert_eq!(
            refusal("VSCALED_BEFORE_SHRINK_MEMORY", "64Mi"),
            "env[VSCALED_BEFORE_SHRINK_MEMORY]: \"64Mi\": allowed is no memory before a shrink or after growth"
        );
        for value in [
            "",
            "[]",
            r#"[""]"#,
            "[1]",
            r#"["a\u0000"]"#,
            "signal: SIGKILL",
            "signal:",
            "{}",
        ] {
            assert!(
                refusal(BEFORE_SHRINK, value).contains("allowed is a command"),
                "{value}"
            );
        }
        let many = format!("[{}]", vec![r#""x""#; 1000].join(","));
        let fat = format!(r#"["{}"]"#, "x".repeat(1 << 20));
        for value in [many, fat, "[".repeat(4000)] {
            assert!(refusal(BEFORE_SHRINK, &value).len() < 400);
        }
        for value in ["0s", "-5s", "soon", "2m 1s", "P1Y"] {
            assert!(refusal(BEFORE_SHRINK_WAIT, value).ends_with("1s to 2m"), "{value}");
        }
    }

    #[test]
    fn evidence_is_a_path_in_the_output() {
        let dumped = "PID 1\nDumping heap to /tmp/app.hprof ...\nHeap dump file created [12 bytes in 0.1 secs]";
        assert_eq!(path_in(dumped).as_deref(), Some("/tmp/app.hprof"));
        assert_eq!(path_in("/a\n/b\n").as_deref(), Some("/b"));
        for nothing in ["", "/", "no/path", &format!("/{}", "x".repeat(300)), "/\u{1b}[2J"] {
            assert_eq!(path_in(nothing), None, "{nothing:?}");
        }
        let hook = |env: &[(&str, &str)]| {
            let pod = pod(&[&[(ON_MEMORY_PRESSURE, "signal: SIGUSR1")], env].concat());
            Hook::of(&pod, "app", HookMoment::OnMemoryPressure).unwrap()
        };
        assert_eq!(hook(&[]).unwrap().memory, MEMORY);
        let said = [
            (ON_MEMORY_PRESSURE_MEMORY, "1Gi"),
            ("VSCALED_ON_MEMORY_PRESSURE_WAIT", "90s"),
        ];
        let said = hook(&said).unwrap();
        assert_eq!((said.memory.get(), said.wait.as_secs()), (1 << 30, 90));
        for wrong in ["much", "-1", "65Gi", ""] {
            let refused = hook(&[(ON_MEMORY_PRESSURE_MEMORY, wrong)]).unwrap_err().to_string();
            assert!(
                refused.ends_with("allowed is 0 to 64Gi, as a quantity such as 64Mi"),
                "{refused}"
            );
        }
    }

    #[test]
    fn limits_are_filled_in_as_bytes_and_other_braces_stay() {
        let filled = |text| filled_in(text, 200, 150);
        assert_eq!(filled("SoftMaxHeapSize={new}"), "SoftMaxHeapSize=150");
        assert_eq!(filled("{old}>{new:75%}"), "200>112");
        assert_eq!(
            filled("{ {newer} {new:} {new:101%} {}"),
            "{ {newer} {new:} {new:101%} {}"
        );
        assert_eq!(filled_in("{new:100%}", 0, u64::MAX), u64::MAX.to_string());
    }

    proptest! {
        #[test]
        fn whatever_a_variable_holds_it_is_read_or_refused(value in "\\PC{0,60}|[\\[\\]\"{}:,a%0-9 ]{0,60}", old: u64, new: u64) {
            let pod = pod(&[(AFTER_GROW, &value), (BEFORE_SHRINK, &value), (BEFORE_SHRINK_WAIT, &value)]);
            for moment in [HookMoment::AfterGrow, HookMoment::BeforeShrink] {
                let hook = Hook::of(&pod, "app", moment).unwrap();
                let in_bounds = hook.is_ok_and(|hook| (1..=120).contains(&hook.wait.as_secs()));
                prop_assert!(in_bounds || Hook::of(&pod, "app", moment).unwrap().is_err());
            }
            let filled = filled_in(&value, old, new);
            let is_same = filled == value;
            prop_assert!(is_same || value.contains('{'), "{}", filled);
        }
    }
}
