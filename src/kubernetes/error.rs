//! The errors of a call, with messages that name the remedy.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;

use super::call::Call;
use crate::printable::beginning_of;

/// The longest message of a refusal that is kept, in characters. The API server quotes whole specs, and a webhook says what it
/// likes; the message stays with its pod, in the history and in the state file.
const LONGEST_MESSAGE: usize = 2000;
/// The longest reason that is kept, in characters. A webhook chooses it, too.
const LONGEST_REASON: usize = 100;

/// A failed call.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {problem}")]
pub struct ApiError {
    pub call: String,
    pub problem: Problem,
}

impl ApiError {
    /// The failure of this call.
    pub fn of(call: &Call, problem: Problem) -> Self {
        Self {
            call: call.to_string(),
            problem,
        }
    }
}

/// The reason why a call failed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Problem {
    #[error("the API server did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The connection cannot be made, or broke.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    /// 403 by RBAC: the missing rule as YAML, and its scope.
    #[error("forbidden (403): the role lacks the rule {0}")]
    Forbidden(String),
    /// Any other refusal: by validation, an admission webhook, a quota, or an API server that cannot answer now.
    #[error("{0}")]
    Refused(Status),
    /// The answer is not in the format of this API.
    #[error("the answer cannot be read: {0}")]
    Unreadable(String),
}

/// The parts of a `metav1.Status` that the agent reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    pub code: u16,
    /// The API's machine-readable reason, such as `Invalid`.
    pub reason: String,
    pub message: String,
    /// The wait that the API server asks for (`Retry-After`).
    #[serde(skip)]
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            code, reason, message, ..
        } = self;
        match code {
            401 => write!(
                f,
                "the API server does not accept the credentials (401): {message}; a service account's token may have \
                 expired or been revoked"
            ),
            404 => write!(f, "not found (404): {message}"),
            409 => write!(f, "conflict (409): {message}"),
            410 => f.write_str("the resource version is too old (410)"),
            429 => write!(f, "the API server asks for fewer calls (429): {message}"),
            500.. => write!(f, "the API server cannot answer now ({code}): {message}"),
            _ => write!(f, "refused ({code} {reason}): {message}"),
        }
    }
}

impl Status {
    /// The status in an answer's body, or the beginning of a proxy's text.
    pub(super) fn read(code: StatusCode, body: &[u8], retry_after: Option<Duration>) -> Self {
        const ENOUGH: usize = 300;
        let status = serde_json::from_slice::<Self>(body).unwrap_or_else(|_| Self {
            message: String::from_utf8_lossy(body).chars().take(ENOUGH).collect(),
            ..Self::default()
        });
        Self {
            code: code.as_u16(),
            reason: beginning_of(status.reason, LONGEST_REASON),
            message: beginning_of(status.message, LONGEST_MESSAGE),
            retry_after,
        }
    }

    /// Whether a rule denies the request and will deny it again. Below 400 and with 408, only a proxy answers.
    pub fn is_denial(&self) -> bool {
        !matches!(self.code, 0..=399 | 401 | 404 | 408..=410 | 429 | 500..) || self.code == 404 && self.is_by_webhook()
    }

    /// Whether an admission webhook chose code and text (`ToStatusErr`, apiserver `pkg/admission/plugin/webhook/errors`).
    pub(super) fn is_by_webhook(&self) -> bool {
        self.message.starts_with("admission webhook \"")
    }

    /// Whether the API server serves the call's path for no object (`NewGenericServerResponse`, apimachinery `pkg/api/errors`).
    pub(super) fn names_no_path(&self) -> bool {
        let is_said = |text| self.message.starts_with(text);
        is_said("the server could not find the requested resource")
            || is_said("the server does not allow this method on the requested resource")
    }
}

/// The RBAC rule that allows a call, as YAML, and its scope.
pub(super) fn needed_rule(call: &Call) -> (String, String) {
    let scope = match &call.namespace {
        Some(namespace) => format!("in namespace {namespace}"),
        None => "in a ClusterRole bound with a ClusterRoleBinding".to_owned(),
    };
    let (group, resource, verb) = (call.kind.group, call.resource(), call.verb);
    let rule = format!("{{apiGroups: [\"{group}\"], resources: [{resource}], verbs: [{verb}]}}");
    (rule, scope)
}

impl Problem {
    /// The problem that a status describes.
    pub(super) fn of(status: Status, call: &Call) -> Self {
        let message = &status.message;
        // Admission plugins answer 403 with arbitrary messages. Only authorisers write what a user cannot do
        // (`forbiddenMessage`, apiserver `pkg/endpoints/handlers/responsewriters`).
        if status.code != 403 || !(message.contains(": User \"") && message.contains("\" cannot ")) {
            return Self::Refused(status);
        }
        let (rule, scope) = needed_rule(call);
        Self::Forbidden(format!("{rule} {scope}"))
    }

    /// The HTTP status of the answer, if there was an answer.
    pub const fn status(&self) -> Option<u16> {
        match self {
            Self::Forbidden(_) => Some(403),
            Self::Refused(status) => Some(status.code),
            Self::Timeout(_) | Self::Unreachable(_) | Self::Unreadable(_) => None,
        }
    }

    /// Whether the same call may succeed later with unchanged rules and objects.
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Unreachable(_)) || matches!(self.status(), Some(408 | 429 | 500..))
    }

    /// Whether a rule denies the call and will deny it again.
    pub fn is_denial(&self) -> bool {
        matches!(self, Self::Forbidden(_)) || matches!(self, Self::Refused(status) if status.is_denial())
    }

    /// Whether the API server did not answer: gateways answer 502 and 504 in its place, and it answers 503 while it starts or ends.
    pub fn is_silence(&self) -> bool {
        match self {
            Self::Timeout(_) | Self::Unreachable(_) => true,
            Self::Refused(status) => matches!(status.code, 502..=504) && !status.is_by_webhook(),
            Self::Forbidden(_) | Self::Unreadable(_) => false,
        }
    }

    /// The pause of all calls that the API server asks for. What a webhook asks for is about one object.
    pub(super) fn pause(&self) -> Option<Duration> {
        let Self::Refused(status) = self else { return None };
        self.retry_after().filter(|_| !status.is_by_webhook())
    }

    /// Whether the API server has no such object, or does not serve the kind in a version that it serves (`serviceErrorHandler`,
    /// apiserver `pkg/server`). Other paths that it does not serve it answers with a text, as a proxy does.
    pub fn names_no_object(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 404 && status.reason == "NotFound")
    }

    /// Whether a patch with a UID found no such pod: the pod is gone, and another may have its name.
    pub fn names_no_pod(&self) -> bool {
        let Self::Refused(status) = self else { return false };
        match status.code {
            _ if status.is_by_webhook() => false,
            404 => status.message.starts_with("pods \""),
            // In capitals, which quoted names cannot contain.
            409 => status.message.contains("UID"),
            _ => status.is_denial() && status.message.contains("metadata.uid"),
        }
    }

    /// The wait that the API server asks for, if the problem is retryable.
    pub fn retry_after(&self) -> Option<Duration> {
        let Self::Refused(status) = self else { return None };
        status.retry_after.filter(|_| self.is_retryable())
    }

    /// The value of the metric's label `code`: the HTTP status, or a word if there was no answer.
    pub(super) fn code(&self) -> String {
        self.status()
            .map_or_else(|| <&str>::from(self).to_owned(), |code| code.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::{Kind, Verb};

    fn problem(code: u16, message: &str) -> Problem {
        let call = Call::new(Verb::List, Kind::new("apps", "v1", "replicasets")).within(Some("shop"));
        let status = Status {
            code,
            message: message.to_owned(),
            retry_after: Some(Duration::from_secs(7)),
            ..Status::default()
        };
        Problem::of(status, &call)
    }

    #[test]
    fn a_long_refusal_is_kept_in_part() {
        let body = serde_json::json!({"reason": "Invalid", "message": "é".repeat(30_000)}).to_string();
        let status = Status::read(StatusCode::UNPROCESSABLE_ENTITY, body.as_bytes(), None);
        assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
        assert_eq!(status.message.chars().count(), LONGEST_MESSAGE + 1);
        let whole = "é".repeat(LONGEST_MESSAGE);
        let body = serde_json::json!({"message": whole}).to_string();
        let status = Status::read(StatusCode::UNPROCESSABLE_ENTITY, body.as_bytes(), None);
        assert_eq!(status.message, whole, "nothing is cut, and nothing says so");
        let body = serde_json::json!({"reason": "é".repeat(30_000), "message": "no"}).to_string();
        let status = Status::read(StatusCode::FORBIDDEN, body.as_bytes(), None);
        assert_eq!(status.reason.chars().count(), LONGEST_REASON + 1);
    }

    #[test]
    fn a_missing_rule_is_spelt_out() {
        let message = "replicasets.apps is forbidden: User \"x\" cannot list resource \"replicasets\"";
        assert_eq!(
            problem(403, message).to_string(),
            "forbidden (403): the role lacks the rule {apiGroups: [\"apps\"], resources: [replicasets], verbs: [list]} \
             in namespace shop"
        );
    }

    #[test]
    fn a_403_of_admission_is_no_missing_rule() {
        let refused = problem(403, "pods \"web\" is forbidden: exceeded quota: compute");
        assert!(
            matches!(&refused, Problem::Refused(status) if status.code == 403),
            "{refused}"
        );
    }

    #[test]
    fn a_webhooks_impossible_words_are_quoted() {
        let words = "admission webhook \"limits.example.com\" denied the request: memory of web cannot be above 2Gi";
        let refused = problem(403, words).to_string();
        assert!(refused.contains("memory of web cannot be above 2Gi"), "{refused}");
        assert!(!refused.contains("the role lacks"), "{refused}");
    }

    #[test]
    fn a_conflict_is_not_another_pod() {
        let modified = "Operation cannot be fulfilled on pods \"druid-0\": the object has been modified";
        assert!(!problem(409, modified).names_no_pod());
        let other = "Precondition failed: UID in precondition: a, UID in object meta: b";
        assert!(problem(409, other).names_no_pod());
    }

    #[test]
    fn the_time_to_wait_is_kept_where_waiting_helps() {
        for code in [429, 503] {
            let problem = problem(code, "busy");
            assert!(problem.is_retryable());
            assert_eq!(problem.retry_after(), Some(Duration::from_secs(7)));
            assert_eq!(problem.code(), code.to_string());
        }
        assert!(!problem(404, "").is_retryable());
    }

    #[test]
    fn each_answer_has_its_consequences() {
        // Whether the call may succeed later, whether the API server is away, whether a rule denies the call.
        for (code, is_retryable, is_silence, is_denial) in [
            (302, false, false, false),
            (400, false, false, true),
            (401, false, false, false),
            (403, false, false, true),
            (404, false, false, false),
            (408, true, false, false),
            (409, false, false, false),
            (410, false, false, false),
            (422, false, false, true),
            (429, true, false, false),
            (499, false, false, true),
            (500, true, false, false),
            (501, true, false, false),
            (502, true, true, false),
            (503, true, true, false),
            (504, true, true, false),
            (505, true, false, false),
        ] {
            let problem = problem(code, "busy");
            let Problem::Refused(status) = &problem else {
                panic!("{problem}");
            };
            assert_eq!(
                (problem.is_retryable(), problem.is_silence(), status.is_denial()),
                (is_retryable, is_silence, is_denial),
                "{code}"
            );
            assert_eq!(problem.retry_after().is_some(), is_retryable, "{code}");
            assert_eq!(problem.status(), Some(code));
        }
        for (problem, word, waits) in [
            (Problem::Timeout(Duration::from_secs(30)), "timeout", true),
            (Problem::Unreachable("refused".to_owned()), "unreachable", true),
            (Problem::Unreadable("<html>".to_owned()), "unreadable", false),
        ] {
            assert_eq!((problem.is_retryable(), problem.is_silence()), (waits, waits), "{word}");
            assert_eq!((problem.code(), problem.status()), (word.to_owned(), None));
        }
    }

    #[test]
    fn a_refusal_names_its_kind() {
        for (code, words) in [
            (401, "does not accept the credentials (401): gone"),
            (404, "not found (404): gone"),
            (409, "conflict (409): gone"),
            (410, "the resource version is too old (410)"),
            (429, "asks for fewer calls (429): gone"),
            (422, "refused (422 ): gone"),
            (499, "refused (499 ): gone"),
            (500, "cannot answer now (500): gone"),
        ] {
            let text = problem(code, "gone").to_string();
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn a_rule_for_all_namespaces_is_of_a_clusterrole() {
        let status = Status {
            code: 403,
            message: "nodes \"n\" is forbidden: User \"x\" cannot get resource \"nodes\"".to_owned(),
            ..Status::default()
        };
        let text = Problem::of(status, &Call::new(Verb::Get, Kind::new("", "v1", "nodes"))).to_string();
        let rule =
            "{apiGroups: [\"\"], resources: [nodes], verbs: [get]} in a ClusterRole bound with a ClusterRoleBinding";
        assert!(text.ends_with(rule), "{text}");
    }

    #[test]
    fn a_webhooks_code_says_nothing_of_the_api_server() {
        let words = "admission webhook \"limits.example.com\" denied the request: not now";
        for code in [429, 502, 503, 504] {
            let denied = problem(code, words);
            assert!(!denied.is_silence() && denied.pause().is_none(), "{denied}");
            assert_eq!(denied.retry_after(), Some(Duration::from_secs(7)), "for this object");
            assert!(problem(code, "busy").pause().is_some());
        }
    }

    #[test]
    fn an_answer_that_is_no_status_is_quoted() {
        let status = Status::read(StatusCode::BAD_GATEWAY, b"<html>no upstream</html>", None);
        assert_eq!(
            (status.code, status.message.as_str()),
            (502, "<html>no upstream</html>")
        );
    }
}
