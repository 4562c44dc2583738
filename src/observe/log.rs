//! Log lines on stderr: text on a terminal, JSON elsewhere, and a filter that can change. Every line is clean, whatever its fields
//! hold. A field named as one that JSON lines have (`level`, `target`, a span's `name`) would be in them twice.

use std::io::{self, IsTerminal as _, Write};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use tracing::Subscriber;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::printable::{json, printable};

/// The levels of the log, from the fewest lines to the most, and `off`.
pub const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// The format of log lines on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// Lines for people.
    Text,
    /// One JSON object in each line.
    Json,
}

/// The target of this program's own lines.
const PROGRAM: &str = "vscaled";

/// A handle that changes the filter of the log.
#[derive(Debug, Clone)]
pub struct LogFilter(reload::Handle<Targets, Registry>);

impl LogFilter {
    /// Replaces the filter.
    ///
    /// Errors: `level` is no filter; the old filter stays.
    pub fn set(&self, level: &str) -> Result<()> {
        Ok(self.0.reload(filter(level)?)?)
    }
}

/// Sets up logging for this process, once.
///
/// Errors: `level` is no filter, or logging was set up before.
pub fn init(format: LogFormat, level: &str) -> Result<LogFilter> {
    let terminal = io::stderr().is_terminal();
    let (subscriber, filter) = subscriber(format, terminal, filter(level)?, io::stderr);
    subscriber.try_init()?;
    Ok(filter)
}

fn filter(level: &str) -> Result<Targets> {
    parse_filter(level).with_context(|| format!("logLevel {level:?} is not a log filter"))
}

/// Parses levels and `target=level` directives, separated by commas. A level alone shows lines of libraries up to `info`: their debug
/// lines, a dozen for each call, would hide those of this program. `Targets` itself takes a lone word that is no level for a
/// target, which silences everything else; this parser takes such a word for a misspelt level. A directive wins over a level alone,
/// wherever either stands.
pub fn parse_filter(text: &str) -> Option<Targets> {
    let mut levels_first: Vec<_> = text.split(',').map(str::trim).collect();
    levels_first.sort_by_key(|directive| directive.contains('='));
    let mut directives = levels_first.into_iter();
    directives.try_fold(Targets::new(), |filter, directive| match directive.split_once('=') {
        Some((_, "")) => None,
        Some((target, level)) => Some(filter.with_target(target, level.parse::<LevelFilter>().ok()?)),
        None if LEVELS.contains(&directive) => {
            let level = directive.parse::<LevelFilter>().ok()?;
            let of_libraries = level.min(LevelFilter::INFO);
            Some(filter.with_default(of_libraries).with_target(PROGRAM, level))
        }
        None => None,
    })
}

fn subscriber<W>(
    format: LogFormat,
    terminal: bool,
    filter: Targets,
    writer: W,
) -> (impl Subscriber + Send + Sync, LogFilter)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(filter);
    let lines = tracing_subscriber::fmt::layer().with_ansi(false);
    let lines = match (format, terminal) {
        (LogFormat::Text, _) | (LogFormat::Auto, true) => lines.with_writer(CleanLines(writer, false)).boxed(),
        (LogFormat::Json, _) | (LogFormat::Auto, false) => {
            let lines = lines.with_writer(CleanLines(writer, true));
            lines.json().flatten_event(true).with_span_list(false).boxed()
        }
    };
    let subscriber = tracing_subscriber::registry().with(filter).with(lines);
    (subscriber, LogFilter(handle))
}

/// Cleans each line on its way to a writer: of JSON if the flag is set, else of text.
struct CleanLines<W>(W, bool);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for CleanLines<W> {
    type Writer = CleanLines<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        CleanLines(self.0.make_writer(), self.1)
    }
}

impl<W: Write> Write for CleanLines<W> {
    /// Takes a whole line: the layer writes each line at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let clean = if self.1 { json(text) } else { printable(text, &[]) };
        writeln!(self.0, "{clean}").map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is logged by `work`, which may change the filter.
    pub(crate) fn logged(format: LogFormat, level: &str, work: impl FnOnce(&LogFilter)) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let (subscriber, handle) = subscriber(format, false, filter(level).unwrap(), move || writer.clone());
        tracing::subscriber::with_default(subscriber, || work(&handle));
        String::from_utf8(sink.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_level_shows_no_debug_lines_of_libraries() {
        let lines = |level| {
            logged(LogFormat::Text, level, |_| {
                tracing::debug!(target: "h2::codec", "a frame");
                tracing::warn!(target: "h2::codec", "a bad frame");
                tracing::debug!(target: "vscaled::plan", "a plan");
            })
        };
        let debug = lines("debug");
        assert!(
            debug.contains("a plan") && debug.contains("a bad frame") && !debug.contains("a frame"),
            "{debug}"
        );
        assert!(lines("debug,h2=debug").contains("a frame"));
        assert!(lines("vscaled=debug,info").contains("a plan"), "the directive's");
        assert!(!lines("info").contains("a plan") && !lines("error").contains("a bad frame"));
    }

    #[test]
    fn json_lines_have_their_fields_at_the_top() {
        let text = logged(LogFormat::Json, "info", |_| {
            tracing::info!(pod = "default/web", "resized");
        });
        let line: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
        assert_eq!(
            (&line["level"], &line["message"], &line["pod"]),
            (&"INFO".into(), &"resized".into(), &"default/web".into())
        );
    }

    #[test]
    fn what_a_pass_logs_says_which_pod_and_why() {
        let pass = || {
            let span = tracing::error_span!("pass", pod = "default/web", cause = "drift");
            span.in_scope(|| tracing::warn!("refused"));
        };
        let text = logged(LogFormat::Json, "warn", |_| pass());
        let line: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
        let about = serde_json::json!({"name": "pass", "pod": "default/web", "cause": "drift"});
        assert_eq!((&line["span"], &line["spans"]), (&about, &serde_json::Value::Null));
        let text = logged(LogFormat::Text, "warn", |_| pass());
        assert!(text.contains(r#"pass{pod="default/web" cause="drift"}"#), "{text}");
    }

    #[test]
    fn text_lines_are_for_reading() {
        let text = logged(LogFormat::Text, "info", |_| {
            tracing::warn!(file = "a.yaml", "broken");
        });
        assert!(
            text.ends_with("broken file=\"a.yaml\"\n") && text.contains(" WARN "),
            "{text}"
        );
    }

    #[test]
    fn every_field_of_a_line_is_cleaned() {
        let hostile = crate::printable::tests::HOSTILE;
        for format in [LogFormat::Text, LogFormat::Json] {
            let text = logged(format, "info", |_| {
                let span = tracing::error_span!("pass", pod = %hostile, cause = hostile);
                span.in_scope(
                    || tracing::warn!(why = %hostile, debug = ?hostile, text = hostile, "{hostile}\nERROR forged"),
                );
            });
            let line = text.strip_suffix('\n').unwrap();
            assert!(!line.contains(crate::printable::is_dangerous), "{line:?}");
        }
    }

    #[test]
    fn the_filter_changes_while_lines_are_written() {
        let text = logged(LogFormat::Text, "info", |filter| {
            tracing::debug!("one");
            filter.set("debug").unwrap();
            tracing::debug!("two");
            assert!(filter.set("=,=").is_err());
            tracing::debug!("three");
            filter.set("off").unwrap();
            tracing::error!("four");
        });
        let last_words: Vec<_> = text.lines().filter_map(|line| line.split(' ').next_back()).collect();
        assert_eq!(last_words, ["two", "three"]);
    }

    #[test]
    fn the_format_follows_the_terminal_unless_set() {
        for (format, terminal, is_json) in [
            (LogFormat::Auto, true, false),
            (LogFormat::Auto, false, true),
            (LogFormat::Text, true, false),
            (LogFormat::Text, false, false),
            (LogFormat::Json, true, true),
        ] {
            let sink = Sink::default();
            let writer = sink.clone();
            let (subscriber, _filter) = subscriber(format, terminal, filter("info").unwrap(), move || writer.clone());
            tracing::subscriber::with_default(subscriber, || tracing::info!("resized"));
            let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
            assert!(text.contains("resized"), "{text}");
            assert_eq!(text.starts_with('{'), is_json, "{format:?} {terminal}: {text}");
        }
    }
}
