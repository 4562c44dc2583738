//! What the API server refuses the agent's calls for until an operator acts: rules that the role lacks, and the credentials. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::call::{Call, Verb};
use super::error::{Problem, needed_rule};

/// How long a refusal counts that no other answer has ended: longer than the pause of any retry. A pod that is gone retries nothing.
const COUNTS_FOR: Duration = Duration::from_secs(10 * 60);

/// How long after an outage no refusal counts: an API server that has just started may not have read its rules yet.
const STARTS_FOR: Duration = Duration::from_secs(10);

/// The rights that the latest answers found missing.
#[derive(Debug, Default)]
pub(super) struct MissingRights {
    /// When the API server last named a rule, by the rule and its scope. Not of lists: sources report those that are refused.
    rules: BTreeMap<(String, String), Instant>,
    /// When the API server last refused the credentials, and its words.
    credentials: Option<(String, Instant)>,
    outage_ended: Option<Instant>,
}

impl MissingRights {
    /// Notes that the API server answers again.
    pub(super) const fn end_outage(&mut self, now: Instant) {
        self.outage_ended = Some(now);
    }

    /// Takes the outcome of a call.
    pub(super) fn observe<T>(&mut self, call: &Call, outcome: &Result<T, Problem>, now: Instant) {
        let starts = |ended| now.saturating_duration_since(ended) < STARTS_FOR;
        match outcome {
            Err(Problem::Forbidden(_)) if self.outage_ended.is_some_and(starts) => {}
            Err(problem @ Problem::Refused(status)) if status.code == 401 && !status.is_by_webhook() => {
                self.credentials = Some((problem.to_string(), now));
            }
            Err(Problem::Forbidden(_)) if !matches!(call.verb, Verb::List | Verb::Watch) => {
                self.rules.retain(|_, at| counts(*at, now));
                self.rules.insert(needed_rule(call), now);
            }
            Err(problem) if !problem.is_denial() && !problem.names_no_object() && problem.status() != Some(409) => {}
            // A denial by another rule comes after authorisation, and so does the look for an object. A proxy's 404 does not.
            Ok(_) | Err(_) => {
                self.credentials = None;
                self.rules.remove(&needed_rule(call));
            }
        }
    }

    /// A sentence for each missing rule, and one about the credentials, as far as none of `told` has it.
    pub(super) fn problems(&self, told: &[String], now: Instant) -> Vec<String> {
        let is_told = |text: &str| told.iter().any(|told| told.contains(text));
        let mut rules: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for ((rule, scope), _) in self.rules.iter().filter(|(_, at)| counts(**at, now)) {
            rules.entry(rule).or_default().push(scope);
        }
        let rules = rules.into_iter().filter(|(rule, _)| !is_told(rule));
        let mut problems: Vec<_> = rules
            .map(|(rule, scopes)| {
                let others = match scopes.len() {
                    1 => String::new(),
                    scopes => format!(", and {} more like it", scopes - 1),
                };
                let scope = scopes.first().copied().unwrap_or_default();
                format!(
                    "the API server forbids calls of the agent (403): the role lacks the rule {rule} {scope}{others}"
                )
            })
            .collect();
        let is_problem = |(words, at): &&(String, Instant)| counts(*at, now) && !is_told(words);
        let credentials = self.credentials.iter().filter(is_problem);
        problems.extend(credentials.map(|(words, _)| words.clone()));
        problems
    }
}

fn counts(refused_at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(refused_at) < COUNTS_FOR
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::{Kind, Status};

    const RULE: &str = "{apiGroups: [\"\"], resources: [pods/resize], verbs: [patch]}";

    fn resize(namespace: &str) -> Call {
        Call::patch_pod(namespace, "web", "resize")
    }

    fn refused(code: u16) -> Result<(), Problem> {
        Err(Problem::Refused(Status {
            code,
            ..Status::default()
        }))
    }

    fn not_found() -> Result<(), Problem> {
        Err(Problem::Refused(Status {
            code: 404,
            reason: "NotFound".to_owned(),
            ..Status::default()
        }))
    }

    fn forbidden() -> Result<(), Problem> {
        Err(Problem::Forbidden(String::new()))
    }

    #[test]
    fn a_missing_rule_is_told_once() {
        let (mut rights, now) = (MissingRights::default(), Instant::now());
        for namespace in ["bank", "shop", "shop"] {
            rights.observe(&resize(namespace), &forbidden(), now);
        }
        let expected = format!(
            "the API server forbids calls of the agent (403): the role lacks the rule {RULE} in namespace bank, and 1 more like it"
        );
        assert_eq!(rights.problems(&[], now), [expected]);
        let told = format!("cannot write: the role lacks the rule {RULE} in namespace tools");
        assert_eq!(rights.problems(&[told], now), [""; 0], "another problem has the rule");
    }

    #[test]
    fn a_granted_call_ends_its_refusal() {
        let (mut rights, now) = (MissingRights::default(), Instant::now());
        for (answer, is_missing) in [
            (Ok(()), false),
            (refused(422), false),
            (not_found(), false),
            (refused(404), true),
            (refused(503), true),
            (refused(429), true),
        ] {
            rights.observe(&resize("shop"), &forbidden(), now);
            rights.observe(&resize("bank"), &Ok(()), now);
            assert_eq!(
                rights.problems(&[], now).len(),
                1,
                "another namespace has rules of its own"
            );
            rights.observe(&resize("shop"), &answer, now);
            assert_eq!(!rights.problems(&[], now).is_empty(), is_missing, "{answer:?}");
        }
        assert!(rights.problems(&[], now + COUNTS_FOR).is_empty(), "the pod is gone");
    }

    #[test]
    fn an_api_server_that_starts_refuses_nothing() {
        let (mut rights, now) = (MissingRights::default(), Instant::now());
        rights.end_outage(now);
        rights.observe(&resize("shop"), &forbidden(), now);
        assert!(rights.problems(&[], now).is_empty());
        let later = now + STARTS_FOR;
        rights.observe(&resize("shop"), &forbidden(), later);
        assert_eq!(rights.problems(&[], later).len(), 1);
    }

    #[test]
    fn refused_lists_are_left_to_their_source() {
        let (mut rights, now) = (MissingRights::default(), Instant::now());
        let call = |verb| Call::new(verb, Kind::new("", "v1", "events"));
        for verb in [Verb::List, Verb::Watch] {
            rights.observe(&call(verb), &forbidden(), now);
        }
        assert!(rights.problems(&[], now).is_empty());
        rights.observe(&call(Verb::Get), &forbidden(), now);
        assert_eq!(rights.problems(&[], now).len(), 1, "an Event that exists is read");
    }

    #[test]
    fn refused_credentials_are_told_once() {
        let (mut rights, now) = (MissingRights::default(), Instant::now());
        for namespace in ["bank", "shop"] {
            rights.observe(&resize(namespace), &refused(401), now);
        }
        let problems = rights.problems(&[], now);
        assert!(
            problems.len() == 1 && problems[0].contains("the credentials (401)"),
            "{problems:?}"
        );
        assert!(
            rights
                .problems(&[format!("list pods: {}", problems[0])], now)
                .is_empty()
        );
        rights.observe(&resize("shop"), &Ok(()), now);
        assert!(rights.problems(&[], now).is_empty());
    }
}
