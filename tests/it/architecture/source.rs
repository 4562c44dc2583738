//! A minimal parser of Rust that lists the paths in a file. The input is source text. The output are paths such as
//! `crate::plan::Step`, with grouped imports expanded and `self` and `super` resolved.
//!
//! Comments and literals are not code. Paths from macros are not found.

use std::iter::Peekable;
use std::str::CharIndices;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mention {
    /// Counted from 1.
    pub(super) line: usize,
    /// The segments; the first is a crate's name, `crate`, or a name in scope.
    pub(super) path: Vec<String>,
}

/// The paths in `code`, which belongs to the module `module` of the crate.
pub(super) fn mentions(code: &str, module: &[String]) -> Vec<Mention> {
    let tokens: Vec<_> = tokens(code).collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let in_import = at > 0 && matches!(tokens[at - 1].text, "use" | "crate" | "extern");
        let starts_path = is_name(tokens[at].text) && (in_import || text(&tokens, at + 1) == "::");
        at = if starts_path {
            take_path(&tokens, at, &[], &mut found)
        } else {
            at + 1
        };
    }
    for mention in &mut found {
        resolve(&mut mention.path, module);
    }
    found
}

/// The names and keywords in `code`, each with its line.
pub(super) fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    tokens(code)
        .filter(|token| is_name(token.text))
        .map(|token| (token.line, token.text))
}

/// Reads the path that begins at `at`, below `prefix`, and returns its end.
fn take_path(tokens: &[Token<'_>], mut at: usize, prefix: &[String], found: &mut Vec<Mention>) -> usize {
    let line = tokens[at].line;
    let mut path = prefix.to_vec();
    loop {
        match text(tokens, at) {
            "{" => {
                at += 1;
                while !matches!(text(tokens, at), "}" | "") {
                    at = match text(tokens, at) {
                        "as" => at + 2,
                        name if is_name(name) => take_path(tokens, at, &path, found),
                        _ => at + 1,
                    };
                }
                return at + 1;
            }
            name if is_name(name) => path.push(name.to_owned()),
            _ => break,
        }
        at += 1;
        if text(tokens, at) != "::" {
            break;
        }
        at += 1;
    }
    found.push(Mention { line, path });
    at
}

/// Turns `self::` and `super::` at the beginning of a path into `crate::`.
fn resolve(path: &mut Vec<String>, module: &[String]) {
    let up = path.iter().take_while(|segment| *segment == "super").count();
    let relative = up + usize::from(path.first().is_some_and(|first| first == "self"));
    if relative > 0 {
        let kept = module.len().saturating_sub(up);
        path.splice(
            ..relative,
            std::iter::once("crate".to_owned()).chain(module[..kept].iter().cloned()),
        );
    }
}

#[derive(Clone, Copy)]
struct Token<'a> {
    line: usize,
    text: &'a str,
}

fn text<'a>(tokens: &[Token<'a>], at: usize) -> &'a str {
    tokens.get(at).map_or("", |token| token.text)
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Names, `::` and single characters of punctuation.
fn tokens(code: &str) -> impl Iterator<Item = Token<'_>> {
    let mut rest = code.char_indices().peekable();
    let mut line = 1;
    std::iter::from_fn(move || {
        loop {
            let (start, first) = rest.next()?;
            let following = &code[start + first.len_utf8()..];
            match first {
                '\n' => line += 1,
                '/' if following.starts_with('/') => skip(&mut rest, following.find('\n').unwrap_or(following.len())),
                '/' if following.starts_with('*') => {
                    let comment = following.find("*/").map_or(following.len(), |end| end + 2);
                    line += following[..comment].matches('\n').count();
                    skip(&mut rest, comment);
                }
                '"' => {
                    let literal = string_length(following);
                    line += following[..literal].matches('\n').count();
                    skip(&mut rest, literal);
                }
                '\'' => skip(&mut rest, character_length(following)),
                'r' if raw_string_length(following).is_some() => {
                    let literal = raw_string_length(following)?;
                    line += following[..literal].matches('\n').count();
                    skip(&mut rest, literal);
                }
                ':' if following.starts_with(':') => {
                    skip(&mut rest, 1);
                    return Some(Token { line, text: "::" });
                }
                _ if first.is_alphanumeric() || first == '_' => {
                    let more = following
                        .find(|c: char| !c.is_alphanumeric() && c != '_')
                        .unwrap_or(following.len());
                    skip(&mut rest, more);
                    return Some(Token {
                        line,
                        text: &code[start..start + first.len_utf8() + more],
                    });
                }
                _ if first.is_whitespace() => {}
                _ => {
                    return Some(Token {
                        line,
                        text: &code[start..start + first.len_utf8()],
                    });
                }
            }
        }
    })
}

/// Drops the next `bytes` bytes, which end at a character boundary.
fn skip(rest: &mut Peekable<CharIndices<'_>>, bytes: usize) {
    let Some(&(start, _)) = rest.peek() else { return };
    while rest.next_if(|(at, _)| *at < start + bytes).is_some() {}
}

/// The length of a string literal after its opening quote, including the closing one.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// The length of a raw string after its `r`, if one begins there.
fn raw_string_length(text: &str) -> Option<usize> {
    let hashes = text.len() - text.trim_start_matches('#').len();
    let body = text[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(hashes + 1 + body.find(&end)? + end.len())
}

/// The length of a character literal after its opening quote; zero for a lifetime.
fn character_length(text: &str) -> usize {
    let mut characters = text.char_indices();
    match characters.next() {
        Some((_, '\\')) => text[2..].find('\'').map_or(0, |end| end + 3),
        Some(_) => characters
            .next()
            .filter(|(_, c)| *c == '\'')
            .map_or(0, |(at, _)| at + 1),
        None => 0,
    }
}

#[test]
fn grouped_imports_are_taken_apart() {
    let code = "use crate::{plan::{Step as S, Via}, resources};\nfn f() -> super::super::objects::Pod { self::g() }";
    let module = ["decide".to_owned(), "matching".to_owned()];
    let found: Vec<_> = mentions(code, &module)
        .into_iter()
        .map(|m| (m.line, m.path.join("::")))
        .collect();
    let expected = [
        (1, "crate::plan::Step"),
        (1, "crate::plan::Via"),
        (1, "crate::resources"),
        (2, "crate::objects::Pod"),
        (2, "crate::decide::matching::g"),
    ];
    assert_eq!(found, expected.map(|(line, path)| (line, path.to_owned())));
}

#[test]
fn comments_and_literals_are_not_code() {
    let code = r##"
        //! [`crate::a::A`]
        /* crate::a::A
        */
        let quoted = "crate::b::B \" crate::c::C";
        let raw = r#"crate::d::D"#; let quote = '"'; let escaped = '\''; let name: &'static str = "";
        crate::e::E
    "##;
    let expected = Mention {
        line: 7,
        path: ["crate", "e", "E"].map(str::to_owned).to_vec(),
    };
    assert_eq!(mentions(code, &[]), [expected]);
}
