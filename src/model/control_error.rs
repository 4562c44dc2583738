//! The reasons of the agent to refuse a request, or every change.

/// The one problem of an agent that its configuration requests.
pub const OBSERVING: &str = "observing only: nothing is written";

/// The reason why the agent did not carry out a request. It changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// No pod has the name that the request gives.
    #[error("{0}")]
    NotFound(String),
    /// A part of the request cannot be used. The text names the field, as in `containers[0].limits.memory`, and what is allowed.
    #[error("{0}")]
    Invalid(String),
    /// The agent refuses the request, and gives the numbers that forbid it.
    #[error("{0}")]
    Refused(String),
    /// The caller should try again later.
    #[error("busy: {0}; try again in a moment")]
    Busy(String),
    #[error("{0}")]
    Internal(String),
}

impl ControlError {
    /// The error of a pod's name that no pod has. `nearest` are the most similar names, best first.
    pub fn no_pod(name: &str, nearest: &[String]) -> Self {
        let offer = match nearest {
            [] => String::new(),
            names => format!(" (did you mean {}?)", names.join(" or ")),
        };
        Self::NotFound(format!(
            "no pod on this node is called {name:?}{offer}: `vscalectl get` lists them"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_type() {
        let text = |text: &str| text.to_owned();
        let not_found = |nearest: &[&str]| {
            let nearest: Vec<String> = nearest.iter().map(|name| text(name)).collect();
            ControlError::no_pod("shop/w", &nearest)
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
            (ControlError::Invalid(text("ttlUs: too long")), "ttlUs: too long"),
            (ControlError::Refused(text("no room")), "no room"),
            (ControlError::Busy(text("full")), "busy: full; try again in a moment"),
            (ControlError::Internal(text("it broke")), "it broke"),
        ] {
            assert_eq!(error.to_string(), said);
        }
    }
}
