//! How far a resize at the API server has got.

/// Why the cgroups are not given what the spec says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Withheld {
    /// The kubelet has no room for it now.
    Deferred(String),
    Infeasible(String),
    /// The kubelet tried and failed.
    Failed(String),
    /// The kubelet has not answered, and whether the node has room is not known here.
    Unanswered(String),
    /// The kubelet was not asked yet, because what is wanted changes from one moment to the next.
    Postponed(String),
    /// The API server is away. What an operator set, the cgroups have all the same.
    SpecLater(String),
}

impl Withheld {
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Deferred(_) => "Deferred",
            Self::Infeasible(_) => "Infeasible",
            Self::Failed(_) => "ResizeError",
            Self::Unanswered(_) => "Unanswered",
            Self::Postponed(_) => "Postponed",
            Self::SpecLater(_) => "SpecLater",
        }
    }

    pub fn reason(&self) -> &str {
        match self {
            Self::Deferred(why)
            | Self::Infeasible(why)
            | Self::Failed(why)
            | Self::Unanswered(why)
            | Self::Postponed(why)
            | Self::SpecLater(why) => why,
        }
    }
}
