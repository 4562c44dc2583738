//! A command line as its program gets it: with references to variables replaced, and scripts split into commands. Pure.
//!
//! A container's author writes all of it, so every replacement and every character costs some of the work that
//! [`Variables`] allow.

use std::collections::HashMap;

use super::memory_settings::Variables;

/// How much work one container's command line may cost. A character of a replacement or a reference costs one.
pub(super) const MOST_WORK: usize = 256 << 10;

/// Replaces `$(NAME)` by the variables before index `before`, as the kubelet does (`Expand`, kubernetes
/// `third_party/forked/golang/expansion`): `$$` stands for `$`, and a reference to an unknown variable stays.
pub(super) fn expand(text: &str, variables: &Variables, before: usize) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((plain, after)) = rest.split_once('$') {
        if !variables.spend(plain.len() + 1) {
            return expanded;
        }
        expanded.push_str(plain);
        let reference = after.strip_prefix('(').and_then(|name| name.split_once(')'));
        let Some((name, after)) = reference else {
            expanded.push('$');
            rest = after.strip_prefix('$').unwrap_or(after);
            continue;
        };
        let value = variables.value(name, before);
        expanded.push_str(&value.unwrap_or_else(|| format!("$({name})")));
        rest = after;
    }
    if variables.spend(rest.len()) {
        expanded.push_str(rest);
    }
    expanded
}

/// Splits a script into commands and their words as a POSIX shell does, and replaces its variables and those of its
/// environment. References that only a running shell can replace stay as they are written.
pub(super) fn split(script: &str, variables: &Variables) -> Vec<Vec<String>> {
    let mut splitter = ScriptSplitter::default();
    let mut rest = script;
    while let Some(character) = rest.chars().next() {
        if !variables.spend(1) {
            splitter.word = None;
            break;
        }
        rest = &rest[character.len_utf8()..];
        match (splitter.quote, character) {
            (Some('\''), '\'') | (Some('"'), '"') => splitter.quote = None,
            (Some('\''), _) => splitter.push(character),
            (_, '\\') => rest = splitter.push_escaped(rest),
            (_, '$') => rest = splitter.push_reference(rest, variables),
            (Some(_), _) => splitter.push(character),
            (None, '\'' | '"') => {
                splitter.quote = Some(character);
                splitter.word.get_or_insert_default();
            }
            (None, '#') if splitter.word.is_none() => rest = &rest[rest.find('\n').unwrap_or(rest.len())..],
            (None, ';' | '&' | '|' | '\n' | '(' | ')') => {
                splitter.end_command(variables);
                splitter.depends |= matches!(character, '&' | '|') && rest.starts_with(character);
            }
            (None, '<' | '>') => {
                splitter.end_word();
                rest = rest.strip_prefix('&').unwrap_or(rest);
            }
            (None, _) if character.is_whitespace() => splitter.end_word(),
            (None, _) => splitter.push(character),
        }
    }
    splitter.end_word();
    splitter.commands.push(splitter.command);
    splitter.commands
}

#[derive(Default)]
struct ScriptSplitter {
    commands: Vec<Vec<String>>,
    /// The command that is being read.
    command: Vec<String>,
    /// The word that is being read.
    word: Option<String>,
    quote: Option<char>,
    /// Whether the command that is being read runs depends on the one before it.
    depends: bool,
    /// The number of `if`, `case` and loops that are open.
    depth: usize,
    /// The variables that the script sets itself.
    set: HashMap<String, String>,
}

impl ScriptSplitter {
    fn end_word(&mut self) {
        self.command.extend(self.word.take());
    }

    /// Ends a command, and keeps the variables that it sets. If the command may not run, a variable with a value keeps it.
    fn end_command(&mut self, variables: &Variables) {
        self.end_word();
        let mut assignments = Vec::new();
        for word in &self.command {
            match (word.as_str(), word.split_once('=')) {
                ("if" | "while" | "until" | "for" | "case", _) if assignments.is_empty() => self.depth += 1,
                ("fi" | "done" | "esac", _) => self.depth = self.depth.saturating_sub(1),
                ("then" | "else" | "do" | "{" | "export" | "readonly" | "local", _) => {}
                (_, Some((name, value))) if reference(name).2.is_empty() => assignments.push((name, value)),
                // A program: the assignments before it are in its own environment.
                _ => {
                    assignments.clear();
                    break;
                }
            }
        }
        for (name, value) in assignments {
            let may_be_skipped = self.depends || self.depth > 0;
            if may_be_skipped && (self.set.contains_key(name) || variables.value(name, usize::MAX).is_some()) {
                continue;
            }
            let known = Some(value).filter(|value| !value.contains(['$', '`']));
            let value = known.map_or_else(|| format!("${{{name}}}"), str::to_owned);
            self.set.insert(name.to_owned(), value);
        }
        self.depends &= self.command.is_empty();
        self.commands.push(std::mem::take(&mut self.command));
    }

    fn push(&mut self, character: char) {
        self.word.get_or_insert_default().push(character);
    }

    /// Reads what follows a backslash. The shell drops a backslash together with the line's end after it.
    fn push_escaped<'a>(&mut self, rest: &'a str) -> &'a str {
        let Some(next) = rest.chars().next() else {
            return rest;
        };
        if self.quote.is_some() && !matches!(next, '\n' | '"' | '\\' | '$' | '`') {
            self.push('\\');
            return rest;
        }
        if next != '\n' {
            self.push(next);
        }
        &rest[next.len_utf8()..]
    }

    /// Reads what follows a dollar sign. Outside of quotes, a value can be several words.
    fn push_reference<'a>(&mut self, rest: &'a str, variables: &Variables) -> &'a str {
        let (name, default, after) = reference(rest);
        let as_written = &rest[..rest.len() - after.len()];
        let own = self.set.get(name).filter(|value| variables.spend(value.len())).cloned();
        let value = own.or_else(|| variables.value(name, usize::MAX));
        if let (None, Some(default)) = (&value, default.filter(|_| as_written.contains('='))) {
            self.set.insert(name.to_owned(), default.to_owned());
        }
        let Some(value) = value.as_deref().filter(|_| !name.is_empty()).or(default) else {
            self.word.get_or_insert_default().push_str(&format!("${as_written}"));
            return after;
        };
        for character in value.chars() {
            if self.quote.is_none() && character.is_whitespace() {
                self.end_word();
            } else {
                self.push(character);
            }
        }
        after
    }
}

/// Reads a reference after a dollar sign: the variable's name (empty for another kind of reference), its default value,
/// and the text that follows.
fn reference<'a>(rest: &'a str) -> (&'a str, Option<&'a str>, &'a str) {
    let other = |character: char| !(character.is_ascii_alphanumeric() || character == '_');
    let split = |text: &'a str| text.split_at(text.find(other).unwrap_or(text.len()));
    if rest.starts_with('(') {
        return ("", None, after_parentheses(rest));
    }
    let Some(braced) = rest.strip_prefix('{') else {
        let (name, after) = split(rest);
        return (name, None, after);
    };
    let (inside, after) = braced.split_once('}').unwrap_or(("?", ""));
    let (name, operator) = split(inside);
    let default = operator.strip_prefix(':').unwrap_or(operator).strip_prefix(['-', '=']);
    if operator.is_empty() || default.is_some() {
        (name, default, after)
    } else {
        ("", None, after)
    }
}

/// The text that follows `(…)`, which may be nested.
fn after_parentheses(rest: &str) -> &str {
    let mut depth = 0_usize;
    let end = rest.find(|character| {
        depth += usize::from(character == '(');
        depth -= usize::from(character == ')');
        depth == 0
    });
    end.map_or("", |end| &rest[end + 1..])
}
