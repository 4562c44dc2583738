//! The enumerations, one word for another.

use crate::oom::{Confidence, Level, Role};
use crate::report::proto;

/// The level in a message.
pub(super) const fn level(level: Level) -> proto::Level {
    match level {
        Level::Container => proto::Level::Container,
        Level::Pod => proto::Level::Pod,
        Level::Qos => proto::Level::Qos,
        Level::Kubepods => proto::Level::Kubepods,
        Level::Node => proto::Level::Node,
        Level::Other => proto::Level::Other,
        Level::Unknown => proto::Level::Unspecified,
    }
}

/// The level a message means; a newer one is not known.
pub(super) fn level_of(level: i32) -> Level {
    match proto::Level::try_from(level).unwrap_or_default() {
        proto::Level::Container => Level::Container,
        proto::Level::Pod => Level::Pod,
        proto::Level::Qos => Level::Qos,
        proto::Level::Kubepods => Level::Kubepods,
        proto::Level::Node => Level::Node,
        proto::Level::Other => Level::Other,
        proto::Level::Unspecified => Level::Unknown,
    }
}

/// The role in a message.
pub(super) const fn role(role: Role) -> proto::Role {
    match role {
        Role::Main => proto::Role::Main,
        Role::Child => proto::Role::Child,
        Role::Unknown => proto::Role::Unspecified,
    }
}

/// The role a message means; a newer one is not known.
pub(super) fn role_of(role: i32) -> Role {
    match proto::Role::try_from(role).unwrap_or_default() {
        proto::Role::Main => Role::Main,
        proto::Role::Child => Role::Child,
        proto::Role::Unspecified => Role::Unknown,
    }
}

/// The confidence in a message.
pub(super) const fn confidence(confidence: Confidence) -> proto::Confidence {
    match confidence {
        Confidence::Exact => proto::Confidence::Exact,
        Confidence::Procfs => proto::Confidence::Procfs,
        Confidence::OnlyCounterThatRose => proto::Confidence::OnlyCounterThatRose,
        Confidence::Ambiguous => proto::Confidence::Ambiguous,
        Confidence::CounterAlone => proto::Confidence::CounterAlone,
        Confidence::LogAlone => proto::Confidence::LogAlone,
    }
}

/// The confidence a message means. There is no word here for a newer one.
pub(super) fn confidence_of(confidence: i32) -> Option<Confidence> {
    match proto::Confidence::try_from(confidence).unwrap_or_default() {
        proto::Confidence::Exact => Some(Confidence::Exact),
        proto::Confidence::Procfs => Some(Confidence::Procfs),
        proto::Confidence::OnlyCounterThatRose => Some(Confidence::OnlyCounterThatRose),
        proto::Confidence::Ambiguous => Some(Confidence::Ambiguous),
        proto::Confidence::CounterAlone => Some(Confidence::CounterAlone),
        proto::Confidence::LogAlone => Some(Confidence::LogAlone),
        proto::Confidence::Unspecified => None,
    }
}
