//! The reasons of the agent to refuse a request, or every change.

/// The one problem of an agent that its configuration requests.
pub const OBSERVING: &str = "observing only: nothing is written";

/// The reason why the agent did not carry out a request. It changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    #[error(
        "no pod on this node is called {pod:?}{}: `vscalectl get` lists them",
        did_you_mean(nearest)
    )]
    NotFound {
        pod: String,
        /// The most similar names, best first.
        nearest: Vec<String>,
    },
    #[error("{pod:?} fits {}: name one of them", candidates.join(" and "))]
    Ambiguous {
        pod: String,
        /// The pods that the text fits, in an unambiguous notation.
        candidates: Vec<String>,
    },
    /// A field of the request cannot be used.
    #[error("{field}: {message}")]
    Invalid {
        /// The field, as in `containers[0].limits.memory`.
        field: String,
        /// The mistake, and the allowed values.
        message: String,
    },
    /// The agent refuses the request, and gives the numbers that forbid it.
    #[error("{0}")]
    Refused(String),
    /// The caller should try again later.
    #[error("busy: {0}; try again in a moment")]
    Busy(String),
    #[error("{0}")]
    Internal(String),
}

fn did_you_mean(nearest: &[String]) -> String {
    match nearest {
        [] => String::new(),
        names => format!(" (did you mean {}?)", names.join(" or ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_type() {
        let text = |text: &str| text.to_owned();
        let not_found = |nearest: &[&str]| ControlError::NotFound {
            pod: text("shop/w"),
            nearest: nearest.iter().map(|name| text(name)).collect(),
        };
        for (error, said) in [
            (
                not_found(&[]),
                "no pod on this node is called \"shop/w\": `vscalectl get` lists them",
            ),
            (
                not_found(&["shop/web", "shop/wiki"]),
                "no pod on this node is called \"shop/w\" (did you mean shop/web or shop/wiki?): `vscalectl get` lists them",
            ),
            (
                ControlError::Ambiguous {
                    pod: text("c0ff"),
                    candidates: vec![text("u-1"), text("u-2")],
                },
                "\"c0ff\" fits u-1 and u-2: name one of them",
            ),
            (
                ControlError::Invalid {
                    field: text("ttlUs"),
                    message: text("too long"),
                },
                "ttlUs: too long",
            ),
            (ControlError::Refused(text("no room")), "no room"),
            (ControlError::Busy(text("full")), "busy: full; try again in a moment"),
            (ControlError::Internal(text("it broke")), "it broke"),
        ] {
            assert_eq!(error.to_string(), said);
        }
    }
}
