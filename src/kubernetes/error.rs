//! What can go wrong with a call, in words that say what to do about it.

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;

use super::call::Call;

/// A call that came to nothing.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {problem}")]
pub struct ApiError {
    pub call: String,
    pub problem: Problem,
}

impl ApiError {
    pub(super) fn of(call: &Call, problem: Problem) -> Self {
        Self {
            call: call.to_string(),
            problem,
        }
    }
}

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("the API server did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// There is no connection, or it broke.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    /// 401.
    #[error(
        "the API server does not accept the credentials (401): {0}; a service account's token may have expired or been revoked"
    )]
    Unauthorised(String),
    /// 403 by RBAC.
    #[error(
        "forbidden (403): the role lacks the rule {{apiGroups: [\"{group}\"], resources: [{resource}], verbs: [{verb}]}} {scope}"
    )]
    Forbidden {
        /// The API group, empty for the core group.
        group: String,
        /// The resource, with its subresource.
        resource: String,
        verb: &'static str,
        /// Where the rule must hold.
        scope: String,
    },
    /// 404: no such object, or no such kind.
    #[error("not found (404): {0}")]
    NotFound(String),
    /// 409: the object has changed meanwhile, or exists already.
    #[error("conflict (409): {0}")]
    Conflict(String),
    /// 410: what is asked for is too far in the past.
    #[error("the resource version is too old (410)")]
    Expired,
    /// 429.
    #[error("the API server asks for fewer calls (429): {message}")]
    Throttled {
        message: String,
        /// How long it wants to be left alone.
        retry_after: Option<Duration>,
    },
    /// 5xx.
    #[error("the API server cannot answer now ({code}): {message}")]
    Unavailable {
        code: u16,
        message: String,
        /// How long it wants to be left alone.
        retry_after: Option<Duration>,
    },
    /// Any other no: of a rule, an admission webhook, a quota.
    #[error("refused ({code} {reason}): {message}")]
    Refused {
        code: u16,
        /// The API's word for it.
        reason: String,
        message: String,
    },
    /// The answer is not what this API answers with.
    #[error("the answer cannot be read: {0}")]
    Unreadable(String),
}

/// The parts of a `metav1.Status` that matter.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) code: u16,
    pub(super) reason: String,
    pub(super) message: String,
}

impl Status {
    /// The status in an answer's body, or what there is of it: not everybody between here and the
    /// API server speaks its language.
    pub(super) fn read(code: StatusCode, body: &[u8]) -> Self {
        const ENOUGH: usize = 300;
        let mut status = serde_json::from_slice::<Self>(body).unwrap_or_else(|_| Self {
            message: String::from_utf8_lossy(body).chars().take(ENOUGH).collect(),
            ..Self::default()
        });
        status.code = code.as_u16();
        status
    }
}

impl Problem {
    /// What a status says about a call.
    pub(super) fn of(status: Status, call: &Call, retry_after: Option<Duration>) -> Self {
        let Status { code, reason, message } = status;
        match code {
            401 => Self::Unauthorised(message),
            // Admission says 403 as well, and its words may be anything; only authorisers speak of what a user cannot do
            // (`forbiddenMessage`, apiserver `pkg/endpoints/handlers/responsewriters`).
            403 if message.contains(": User \"") && message.contains("\" cannot ") => Self::Forbidden {
                group: call.kind.group.to_owned(),
                resource: call.resource(),
                verb: call.verb.as_str(),
                scope: match &call.namespace {
                    Some(namespace) => format!("in namespace {namespace}"),
                    None => "in a ClusterRole bound with a ClusterRoleBinding".to_owned(),
                },
            },
            404 => Self::NotFound(message),
            409 => Self::Conflict(message),
            410 => Self::Expired,
            429 => Self::Throttled { message, retry_after },
            500.. => Self::Unavailable {
                code,
                message,
                retry_after,
            },
            _ => Self::Refused { code, reason, message },
        }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub const fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Timeout(_) | Self::Unreachable(_) | Self::Throttled { .. } | Self::Unavailable { .. }
        )
    }

    /// Whether nothing that could answer for the API server did: gateways say 502 and 504, an API server that starts or ends 503.
    pub(super) const fn is_silence(&self) -> bool {
        matches!(
            self,
            Self::Timeout(_) | Self::Unreachable(_) | Self::Unavailable { code: 502..=504, .. }
        )
    }

    /// Whether a patch that names an object by its UID found none: it is gone, and perhaps another has its name.
    pub fn names_nobody(&self) -> bool {
        match self {
            Self::NotFound(message) => !message.contains("could not find the requested resource"),
            // In capitals: what it quotes besides, such as names, has none.
            Self::Conflict(message) => message.contains("UID"),
            Self::Refused { message, .. } => message.contains("metadata.uid"),
            _ => false,
        }
    }

    /// How long the API server wants to be left alone, if it says so.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Throttled { retry_after, .. } | Self::Unavailable { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The value of the metric's label `code`: the HTTP status, or a word where there was none.
    pub(super) fn code(&self) -> String {
        match self {
            Self::Timeout(_) => "timeout".to_owned(),
            Self::Unreachable(_) => "unreachable".to_owned(),
            Self::Unreadable(_) => "unreadable".to_owned(),
            Self::Unauthorised(_) => "401".to_owned(),
            Self::Forbidden { .. } => "403".to_owned(),
            Self::NotFound(_) => "404".to_owned(),
            Self::Conflict(_) => "409".to_owned(),
            Self::Expired => "410".to_owned(),
            Self::Throttled { .. } => "429".to_owned(),
            Self::Unavailable { code, .. } | Self::Refused { code, .. } => code.to_string(),
        }
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
            ..Status::default()
        };
        Problem::of(status, &call, Some(Duration::from_secs(7)))
    }

    #[test]
    fn a_missing_rule_is_spelt_as_it_must_be_written() {
        let message = "replicasets.apps is forbidden: User \"x\" cannot list resource \"replicasets\"";
        assert_eq!(
            problem(403, message).to_string(),
            "forbidden (403): the role lacks the rule {apiGroups: [\"apps\"], resources: [replicasets], verbs: [list]} \
             in namespace shop"
        );
    }

    #[test]
    fn an_admission_plugin_that_says_403_is_no_missing_rule() {
        let refused = problem(403, "pods \"web\" is forbidden: exceeded quota: compute");
        assert!(matches!(refused, Problem::Refused { code: 403, .. }), "{refused}");
    }

    #[test]
    fn an_admission_webhook_that_speaks_of_what_cannot_be_is_quoted() {
        let words = "admission webhook \"limits.example.com\" denied the request: memory of web cannot be above 2Gi";
        let refused = problem(403, words).to_string();
        assert!(refused.contains("memory of web cannot be above 2Gi"), "{refused}");
        assert!(!refused.contains("the role lacks"), "{refused}");
    }

    #[test]
    fn a_conflict_over_a_pod_is_not_another_pod_whatever_its_name() {
        let modified = "Operation cannot be fulfilled on pods \"druid-0\": the object has been modified";
        assert!(!problem(409, modified).names_nobody());
        let other = "Precondition failed: UID in precondition: a, UID in object meta: b";
        assert!(problem(409, other).names_nobody());
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
    fn an_answer_that_is_no_status_is_quoted() {
        let status = Status::read(StatusCode::BAD_GATEWAY, b"<html>no upstream</html>");
        assert_eq!(
            (status.code, status.message.as_str()),
            (502, "<html>no upstream</html>")
        );
    }
}
