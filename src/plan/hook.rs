//! Hooks: what a container wants to be told about its memory limit, and how. Pure.
//!
//! A pod's own annotations say it, for all of its containers or, with `.NAME` behind the annotation, for the one of that name.
//! Only the container's own runtime runs it, with the container's own rights.

use std::time::Duration;

use jiff::SignedDuration;
use strum::VariantNames as _;

use crate::model::Bytes;
use crate::model::objects::annotation::{
    AFTER_GROW, BEFORE_SHRINK, BEFORE_SHRINK_WAIT, HOOKS, ON_MEMORY_PRESSURE, ON_MEMORY_PRESSURE_MEMORY,
    ON_MEMORY_PRESSURE_WAIT,
};
use crate::model::objects::{ObjectMeta, Pod};

/// How long a hook may take, and what is in use may take to fall, where the pod does not say.
const WAIT: Duration = Duration::from_secs(30);
const SHORTEST_WAIT: SignedDuration = SignedDuration::from_secs(1);
const LONGEST_WAIT: SignedDuration = SignedDuration::from_mins(2);
/// The memory that is kept for evidence where the pod does not say how much.
const MEMORY: Bytes = Bytes::new(64 << 20);
const MOST_MEMORY: Bytes = Bytes::new(64 << 30);
/// The longest path that is taken from what a hook printed, in bytes.
const LONGEST_PATH: usize = 256;
/// The longest annotation that is read, in bytes, and the most arguments.
const LONGEST: usize = 4 << 10;
const MOST_ARGUMENTS: usize = 64;

/// When a hook is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Moment {
    /// A memory limit is about to come down.
    BeforeShrink,
    /// A memory limit has grown.
    AfterGrow,
    /// A memory limit is about to be reached and cannot grow.
    OnMemoryPressure,
}

impl Moment {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::BeforeShrink, Self::AfterGrow, Self::OnMemoryPressure];

    /// As the annotation names it.
    pub fn word(self) -> &'static str {
        self.into()
    }

    const fn annotation(self) -> &'static str {
        match self {
            Self::BeforeShrink => BEFORE_SHRINK,
            Self::AfterGrow => AFTER_GROW,
            Self::OnMemoryPressure => ON_MEMORY_PRESSURE,
        }
    }
}

/// What one container wants to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    pub action: HookAction,
    /// How long it may take, together with what it is for.
    pub wait: Duration,
    /// The memory that is kept for it below what the container may have at most; none but for evidence.
    pub memory: Bytes,
}

/// How a container is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookAction {
    /// By a command that runs in the container: a program and its arguments.
    Command(Vec<String>),
    /// By a signal to its first process.
    Signal(HookSignal),
}

/// The signals that programs take as a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "UPPERCASE")]
pub enum HookSignal {
    SigHup,
    SigUsr1,
    SigUsr2,
    SigQuit,
    SigWinch,
}

/// An annotation of a hook that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("metadata.annotations[{annotation}]: {value:?}: allowed is {allowed}")]
pub struct HookError {
    pub annotation: String,
    /// The beginning of what it holds.
    pub value: String,
    pub allowed: String,
}

impl Hook {
    /// What a container of the pod wants to be told at that moment, if anything.
    pub fn of(pod: &Pod, container: &str, moment: Moment) -> Option<Result<Self, HookError>> {
        let (name, value) = annotation(&pod.metadata, moment.annotation(), container)?;
        let (wait, memory) = match moment {
            Moment::BeforeShrink => (Some(BEFORE_SHRINK_WAIT), Ok(Bytes::ZERO)),
            Moment::AfterGrow => (None, Ok(Bytes::ZERO)),
            Moment::OnMemoryPressure => (Some(ON_MEMORY_PRESSURE_WAIT), kept(pod, container)),
        };
        let wait = wait.and_then(|wait| annotation(&pod.metadata, wait, container));
        let action = action(value).ok_or_else(|| {
            let signals = HookSignal::VARIANTS.join(", ");
            let allowed = format!(
                "a command, as a JSON array of 1 to {MOST_ARGUMENTS} strings in at most {LONGEST} bytes, or `signal: ` and one of \
                 {signals}"
            );
            error(name, value, allowed)
        });
        let wait = wait.map_or(Ok(WAIT), |(name, value)| {
            let allowed = || format!("{SHORTEST_WAIT:#} to {LONGEST_WAIT:#}");
            read_wait(value).ok_or_else(|| error(name, value, allowed()))
        });
        Some(action.and_then(|action| {
            let (wait, memory) = (wait?, memory?);
            Ok(Self { action, wait, memory })
        }))
    }

    /// Whether anything of a pod is to be told at any moment.
    pub fn any(pod: &Pod) -> bool {
        let mut names = pod.metadata.annotations.keys();
        names.any(|name| HOOKS.iter().any(|hook| name.starts_with(hook)))
    }
}

/// An argument of a command, with the limits of before and after for `{old}` and `{new}`, in bytes. `{new:75%}` is three
/// quarters of it.
pub fn filled_in(argument: &str, old: u64, new: u64) -> String {
    let mut filled = String::new();
    let mut rest = argument;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let value = after
            .split_once('}')
            .and_then(|(name, rest)| Some((amount(name, old, new)?, rest)));
        if let Some((value, after)) = value {
            filled.push_str(&value.to_string());
            rest = after;
        } else {
            filled.push('{');
            rest = after;
        }
    }
    filled + rest
}

fn amount(name: &str, old: u64, new: u64) -> Option<u64> {
    let (name, percent) = name.split_once(':').unwrap_or((name, "100%"));
    let percent: u64 = percent
        .strip_suffix('%')?
        .parse()
        .ok()
        .filter(|percent| *percent <= 100)?;
    let whole = match name {
        "old" => old,
        "new" => new,
        _ => return None,
    };
    let part = u128::from(whole) * u128::from(percent) / 100;
    u64::try_from(part).ok()
}

/// The annotation of that container, or else the one of all.
fn annotation<'a>(metadata: &'a ObjectMeta, name: &str, container: &str) -> Option<(String, &'a str)> {
    let own = format!("{name}.{container}");
    [own, name.to_owned()].into_iter().find_map(|name| {
        let value = metadata.annotations.get(&name)?;
        Some((name, value.as_str()))
    })
}

/// The memory that is kept for a container's evidence.
fn kept(pod: &Pod, container: &str) -> Result<Bytes, HookError> {
    let Some((name, value)) = annotation(&pod.metadata, ON_MEMORY_PRESSURE_MEMORY, container) else {
        return Ok(MEMORY);
    };
    let read = Bytes::parse(value.trim()).ok().filter(|memory| *memory <= MOST_MEMORY);
    read.ok_or_else(|| error(name, value, format!("0 to {MOST_MEMORY}, as a quantity such as 64Mi")))
}

/// The file that a hook says it has left: the last word it printed that is an absolute path.
#[must_use]
pub fn path_in(output: &str) -> Option<String> {
    let is_path = |word: &&str| {
        let is_short = (2..=LONGEST_PATH).contains(&word.len());
        word.starts_with('/') && is_short && !word.contains(|letter: char| letter.is_control() || letter == '\u{fffd}')
    };
    output.split_whitespace().rfind(is_path).map(str::to_owned)
}

fn action(value: &str) -> Option<HookAction> {
    if value.len() > LONGEST {
        return None;
    }
    if let Some(name) = value.trim().strip_prefix("signal:") {
        return name.trim().parse().ok().map(HookAction::Signal);
    }
    let command: Vec<String> = serde_json::from_str(value).ok()?;
    let runs = command.first().is_some_and(|program| !program.is_empty()) && command.len() <= MOST_ARGUMENTS;
    let is_text = command.iter().all(|argument| !argument.contains('\0'));
    (runs && is_text).then_some(HookAction::Command(command))
}

fn read_wait(value: &str) -> Option<Duration> {
    let wait: SignedDuration = value.trim().parse().ok()?;
    let wait = (SHORTEST_WAIT..=LONGEST_WAIT).contains(&wait).then_some(wait)?;
    Duration::try_from(wait).ok()
}

fn error(annotation: String, value: &str, allowed: String) -> HookError {
    HookError {
        annotation,
        value: value.chars().take(80).collect(),
        allowed,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        let hook = Hook::of(&pod, "app", Moment::BeforeShrink).unwrap();
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
        assert_eq!(hook("app", Moment::AfterGrow).unwrap().action, command);
        let told = hook("side", Moment::AfterGrow).unwrap();
        assert_eq!((told.action, told.wait), (HookAction::Signal(HookSignal::SigHup), WAIT));
        let asked = hook("app", Moment::BeforeShrink).unwrap();
        assert_eq!(asked.action, HookAction::Signal(HookSignal::SigUsr1));
        assert_eq!(asked.wait, Duration::from_secs(5));
        assert_eq!(hook("side", Moment::BeforeShrink), None);
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
            Hook::of(&pod, "app", Moment::OnMemoryPressure).unwrap()
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
            for moment in [Moment::AfterGrow, Moment::BeforeShrink] {
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
