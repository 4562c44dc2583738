//! Reports to a receiver of `vscaled.report.v1`: out go reports, in come acknowledgements.
//!
//! One connection with one stream at a time. Certificates are read anew for each connection, so replaced files take effect
//! with the next one. A receiver that is away, that hangs, that refuses or that talks nonsense is left alone for a while,
//! longer each time, and says why in one short sentence; its reports stay in the spool.
//!
//! What a receiver sends is not trusted: it can settle what was sent to it on this stream, and nothing else.

mod client;
mod endpoint;
mod session;

use std::error::Error;

pub use client::{GrpcDelivery, GrpcOptions, Identity};
pub use endpoint::{Endpoint, TlsFiles};

/// The version of the protocol, in `Hello.version`.
pub const PROTOCOL_VERSION: u32 = 1;

/// What a receiver says is shown up to this many characters.
const LONGEST: usize = 300;

/// An error with its causes, bounded and printable: part of it may come from the other end.
fn in_words(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
        cause = error.source();
    }
    bounded(&words)
}

/// Text of the other end: without control characters, and not too long.
fn bounded(text: &str) -> String {
    let mut clean: String = text
        .chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .take(LONGEST)
        .collect();
    if text.chars().nth(LONGEST).is_some() {
        clean.push('…');
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_other_end_says_is_bounded_and_printable() {
        let shown = bounded(&format!("a\u{1b}[2J\n{}", "x".repeat(5000)));
        assert_eq!(shown.chars().count(), LONGEST + 1);
        assert!(shown.starts_with("a [2J x") && !shown.chars().any(char::is_control));
    }
}
