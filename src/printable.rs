//! Text of tenants, made fit for people's screens and for files that people read. Pure.
//!
//! The API server allows every character in annotations, in conditions and in the fields of custom resources. Control characters
//! (C0 and C1) move a terminal's cursor, line ends forge lines, and format characters hide text or reverse its order. The sinks
//! clean what they write: `cli::page` for people who run a program, [`io`](crate::cli::io) for documents,
//! [`log`](crate::observe::log), the audit log, and Events. A caller cannot forget it.

use std::borrow::Cow;

/// Whether a character can change how other text looks: control and format characters (Unicode's Cc and Cf), the separators of
/// lines and paragraphs, and noncharacters.
pub fn is_dangerous(character: char) -> bool {
    let is_last_of_plane = u32::from(character) & 0xfffe == 0xfffe;
    character.is_control()
        || is_last_of_plane
        || matches!(character,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{fdd0}'..='\u{fdef}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}' | '\u{e0020}'..='\u{e007f}')
}

/// The text with its dangerous characters escaped as in Rust, except those in `kept`.
pub fn printable<'a>(text: &'a str, kept: &[char]) -> Cow<'a, str> {
    escaped(text, kept, |character| character.escape_default().to_string())
}

/// A document of JSON whose texts have their dangerous characters escaped. Line ends and tabs can only stand between texts.
pub fn json(document: &str) -> Cow<'_, str> {
    escaped(document, &['\n', '\t'], |character| {
        let mut units = [0; 2];
        let units = character.encode_utf16(&mut units).iter();
        units.map(|unit| format!("\\u{unit:04x}")).collect()
    })
}

/// The same, of a document of JSON that is read as YAML, which has no surrogates.
pub fn yaml(document: &str) -> Cow<'_, str> {
    escaped(document, &['\n', '\t'], |character| {
        format!("\\U{:08x}", u32::from(character))
    })
}

/// A text, or so many characters of a longer one.
pub fn beginning_of(mut text: String, longest: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(longest) {
        text.truncate(end);
        text.push('…');
    }
    text
}

fn escaped<'a>(text: &'a str, kept: &[char], escape: impl Fn(char) -> String) -> Cow<'a, str> {
    let is_escaped = |character: char| is_dangerous(character) && !kept.contains(&character);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let pieces = text.chars().map(|character| match is_escaped(character) {
        true => escape(character),
        false => character.to_string(),
    });
    Cow::Owned(pieces.collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// C0, DEL, C1, bidi, zero-width, a tag and noncharacters.
    pub(crate) const HOSTILE: &str = "\u{1b}[2J\u{7}\r\u{7f}\u{9b}31m\u{85}\u{202e}\u{2066}\u{200b}\u{200d}\u{feff}\u{ad}\
                                      \u{2028}\u{e0041}\u{fdd1}\u{ffff}\u{1fffe}";

    #[test]
    fn dangerous_characters_are_escaped_and_text_stays() {
        let shown = printable(HOSTILE, &[]);
        assert!(!shown.contains(is_dangerous), "{shown:?}");
        assert!(shown.ends_with("\\u{fdd1}\\u{ffff}\\u{1fffe}"), "{shown}");
        assert!(shown.starts_with("\\u{1b}[2J\\u{7}\\r\\u{7f}\\u{9b}31m"), "{shown}");
        let ordinary = "Grüße, 日本語 🙂 → \"x\" \\ no-break\u{a0}space";
        assert!(matches!(printable(ordinary, &[]), Cow::Borrowed(_)) && matches!(json(ordinary), Cow::Borrowed(_)));
        assert_eq!(printable("a\nb\tc", &['\n']), "a\nb\\tc");
    }

    proptest! {
        #[test]
        fn a_document_holds_the_same_texts_afterwards(text in "\\PC{0,9}|[\u{0}-\u{2fff}\u{e0000}-\u{e0080}]{0,30}") {
            let document = serde_json::to_string_pretty(&[&text]).unwrap();
            let (json, yaml) = (json(&document), yaml(&document));
            let is_shown = |shown: &str| shown.replace('\n', "").contains(is_dangerous);
            prop_assert!(!is_shown(&json) && !is_shown(&yaml));
            prop_assert_eq!(&serde_json::from_str::<[String; 1]>(&json).unwrap()[0], &text);
            prop_assert_eq!(&serde_saphyr::from_str::<[String; 1]>(&yaml).unwrap()[0], &text);
        }
    }
}
