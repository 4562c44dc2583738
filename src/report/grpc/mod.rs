//! Reports to a receiver of `vscaled.report.v1`: out go reports, in come acknowledgements.
//!
//! There is one connection with one stream at a time. The agent reads certificates anew for each connection, so replaced files
//! take effect with the next one. After a receiver is away, hangs, refuses or breaks the protocol, the agent waits, longer each
//! time, and says why in one short sentence; the reports stay in the log.
//!
//! The agent does not trust a receiver: it can acknowledge what this stream sent to it, and nothing else.

mod client;
mod endpoint;
mod session;

use std::error::Error;

use crate::printable::{beginning_of, is_dangerous};

pub use client::{GrpcDelivery, GrpcOptions};
pub use endpoint::{Endpoint, TlsFiles};

/// The version of the protocol, in `Hello.version`.
pub const PROTOCOL_VERSION: u32 = 1;

/// The agent shows so many characters of a receiver's text.
const LONGEST: usize = 300;

/// An error with its causes, bounded and printable: the receiver may have written part of it.
fn in_words(error: &(dyn Error + 'static)) -> String {
    let mut words = error.to_string();
    for cause in anyhow::Chain::new(error).skip(1) {
        let text = cause.to_string();
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
    }
    bounded(&words)
}

/// Text of the receiver: without control characters, and not too long.
fn bounded(text: &str) -> String {
    beginning_of(text.replace(is_dangerous, " "), LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receivers_words_are_bounded() {
        let shown = bounded(&format!("a\u{1b}[2J\n{}", "x".repeat(5000)));
        assert_eq!(shown.chars().count(), LONGEST + 1);
        assert!(shown.starts_with("a [2J x") && !shown.chars().any(char::is_control));
    }

    #[test]
    fn each_cause_is_told_once() {
        let error = anyhow::anyhow!("refused").context("cannot connect: refused");
        let error: Box<dyn Error> = error.context("no receiver").into();
        assert_eq!(in_words(&*error), "no receiver: cannot connect: refused");
    }
}
