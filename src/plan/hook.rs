//! Hooks: how the agent notifies a container of a change of its memory limit. Pure.
//!
//! A pod's own annotations configure them, for all of its containers or, with `.NAME` after the annotation, for one container.
//! Only the container's own runtime runs a hook, with the container's own rights.

use std::time::Duration;

use jiff::SignedDuration;
use strum::VariantNames as _;

use crate::model::Bytes;
use crate::model::objects::Pod;
use crate::model::objects::annotation::HOOKS;

/// How long a hook may take, and memory use may take to fall after it, without an annotation of the pod.
const WAIT: Duration = Duration::from_secs(30);
const SHORTEST_WAIT: SignedDuration = SignedDuration::from_secs(1);
const LONGEST_WAIT: SignedDuration = SignedDuration::from_mins(2);
/// The memory that is kept for evidence, without an annotation of the pod.
const MEMORY: Bytes = Bytes::new(64 << 20);
const MOST_MEMORY: Bytes = Bytes::new(64 << 30);
/// The longest path that the agent takes from a hook's output, in bytes.
const LONGEST_PATH: usize = 256;
/// The longest annotation that the agent reads, in bytes, and the most arguments.
const LONGEST: usize = 4 << 10;
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

    /// The name in the annotation.
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
    /// Errors: a sentence with the malformed annotation, the beginning of its value, and what is allowed.
    pub fn of(pod: &Pod, container: &str, moment: HookMoment) -> Option<Result<Self, String>> {
        let action = read(pod, moment, "", container, action)?;
        let read_wait = || read(pod, moment, "-wait", container, wait).unwrap_or(Ok(WAIT));
        let read_memory = || read(pod, moment, "-memory", container, memory).unwrap_or(Ok(MEMORY));
        let (wait, memory) = match moment {
            HookMoment::BeforeShrink => (read_wait(), Ok(Bytes::ZERO)),
            HookMoment::AfterGrow => (Ok(WAIT), Ok(Bytes::ZERO)),
            HookMoment::OnMemoryPressure => (read_wait(), read_memory()),
        };
        Some(action.and_then(|action| {
            let (wait, memory) = (wait?, memory?);
            Ok(Self { action, wait, memory })
        }))
    }

    /// Whether a pod has a hook for any container and moment.
    pub fn any(pod: &Pod) -> bool {
        let mut names = pod.metadata.annotations.keys();
        names.any(|name| HOOKS.iter().any(|hook| name.starts_with(hook)))
    }
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

/// Reads the annotation of that container, or else the one of all containers. The error of `parse` says what is allowed.
fn read<T>(
    pod: &Pod,
    moment: HookMoment,
    suffix: &str,
    container: &str,
    parse: fn(&str) -> Result<T, String>,
) -> Option<Result<T, String>> {
    let annotations = &pod.metadata.annotations;
    let name = format!("vscaled.io/{}{suffix}", moment.word());
    let mut names = [format!("{name}.{container}"), name].into_iter();
    let annotation = names.find(|name| annotations.contains_key(name))?;
    let value = annotations.get(&annotation)?;
    Some(parse(value).map_err(|allowed| {
        let value: String = value.chars().take(80).collect();
        format!("metadata.annotations[{annotation}]: {value:?}: allowed is {allowed}")
    }))
}

fn memory(value: &str) -> Result<Bytes, String> {
    let memory = value.trim().parse().ok().filter(|memory| *memory <= MOST_MEMORY);
    memory.ok_or_else(|| format!("0 to {MOST_MEMORY}, as a quantity such as 64Mi"))
}

/// The file that a hook has left: the last word of its output that is an absolute path.
#[must_use]
pub fn path_in(output: &str) -> Option<String> {
    let is_path = |word: &&str| {
        let is_short = (2..=LONGEST_PATH).contains(&word.len());
        word.starts_with('/') && is_short && !word.contains(|letter: char| letter.is_control() || letter == '\u{fffd}')
    };
    output.split_whitespace().rfind(is_path).map(str::to_owned)
}

fn action(value: &str) -> Result<HookAction, String> {
    let action = match value.trim().strip_prefix("signal:") {
        _ if value.len() > LONGEST => None,
        Some(name) => name.trim().parse().ok().map(HookAction::Signal),
        None => command(value).map(HookAction::Command),
    };
    action.ok_or_else(|| {
        let signals = HookSignal::VARIANTS.join(", ");
        format!(
            "a command, as a JSON array of 1 to {MOST_ARGUMENTS} strings in at most {LONGEST} bytes, or `signal: ` and one of \
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

    use super::*;

    const BEFORE_SHRINK: &str = "vscaled.io/before-shrink";
    const BEFORE_SHRINK_WAIT: &str = "vscaled.io/before-shrink-wait";
    const AFTER_GROW: &str = "vscaled.io/after-grow";
    const ON_MEMORY_PRESSURE: &str = "vscaled.io/on-memory-pressure";
    const ON_MEMORY_PRESSURE_MEMORY: &str = "vscaled.io/on-memory-pressure-memory";

    fn pod(annotations: &[(&str, &str)]) -> Pod {
        let mut pod = Pod::default();
        let annotations = annotations
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        pod.metadata.annotations = annotations.collect();
        pod
    }

    fn refusal(name: &str, value: &str) -> String {
        let pod = pod(&[(BEFORE_SHRINK, r#"["true"]"#), (name, value)]);
        let hook = Hook::of(&pod, "app", HookMoment::BeforeShrink).unwrap();
        hook.unwrap_err().to_string()
    }

    #[test]
    fn a_containers_own_hook_goes_before_that_of_all() {
        let pod = pod(&[
            (AFTER_GROW, "signal: SIGHUP"),
            ("vscaled.io/after-grow.app", r#"["tell", "{new}"]"#),
            ("vscaled.io/before-shrink.app", " signal:SIGUSR1 "),
            ("vscaled.io/before-shrink-wait.app", "5s"),
        ]);
        let hook = |container, moment| Hook::of(&pod, container, moment).map(Result::unwrap);
        let command = HookAction::Command(vec!["tell".to_owned(), "{new}".to_owned()]);
        assert_eq!(hook("app", HookMoment::AfterGrow).unwrap().action, command);
        let told = hook("side", HookMoment::AfterGrow).unwrap();
        assert_eq!((told.action, told.wait), (HookAction::Signal(HookSignal::SigHup), WAIT));
        let asked = hook("app", HookMoment::BeforeShrink).unwrap();
        assert_eq!(asked.action, HookAction::Signal(HookSignal::SigUsr1));
        assert_eq!(asked.wait, Duration::from_secs(5));
        assert_eq!(hook("side", HookMoment::BeforeShrink), None);
        assert!(Hook::any(&pod) && !Hook::any(&Pod::default()));
    }

    #[test]
    fn what_cannot_be_followed_names_the_annotation_the_value_and_what_is_allowed() {
        assert_eq!(
            refusal(BEFORE_SHRINK, "jcmd 1 GC.run"),
            "metadata.annotations[vscaled.io/before-shrink]: \"jcmd 1 GC.run\": allowed is a command, as a JSON array of 1 to 64 \
             strings in at most 4096 bytes, or `signal: ` and one of SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT, SIGWINCH"
        );
        assert_eq!(
            refusal("vscaled.io/before-shrink-wait.app", "1h"),
            "metadata.annotations[vscaled.io/before-shrink-wait.app]: \"1h\": allowed is 1s to 2m"
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
    fn evidence_is_a_path_among_what_was_printed_and_has_memory_kept_for_it() {
        let dumped = "PID 1\nDumping heap to /tmp/app.hprof ...\nHeap dump file created [12 bytes in 0.1 secs]";
        assert_eq!(path_in(dumped).as_deref(), Some("/tmp/app.hprof"));
        assert_eq!(path_in("/a\n/b\n").as_deref(), Some("/b"));
        for nothing in ["", "/", "no/path", &format!("/{}", "x".repeat(300)), "/\u{1b}[2J"] {
            assert_eq!(path_in(nothing), None, "{nothing:?}");
        }
        let hook = |annotations: &[(&str, &str)]| {
            let pod = pod(&[&[(ON_MEMORY_PRESSURE, "signal: SIGUSR1")], annotations].concat());
            Hook::of(&pod, "app", HookMoment::OnMemoryPressure).unwrap()
        };
        assert_eq!(hook(&[]).unwrap().memory, MEMORY);
        let said = [
            ("vscaled.io/on-memory-pressure-memory.app", "1Gi"),
            ("vscaled.io/on-memory-pressure-wait", "90s"),
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
        fn whatever_an_annotation_holds_it_is_read_or_refused(value in "\\PC{0,60}|[\\[\\]\"{}:,a%0-9 ]{0,60}", old: u64, new: u64) {
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
