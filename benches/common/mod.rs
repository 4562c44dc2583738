//! Shared parts of the benchmarks: samples with percentiles, and tables of them.
//!
//! Benchmarks print results and judge none: a time on one machine is not a test.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Duration;

use procfs::Current as _;
use serde_json::{Value, json};

/// Durations of repeated measurements.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    /// The duration that `percent` of all samples do not exceed (nearest rank); zero without samples.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (percent * sorted.len()).div_ceil(100);
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    pub(crate) fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }
}

impl FromIterator<Duration> for Samples {
    fn from_iter<I: IntoIterator<Item = Duration>>(samples: I) -> Self {
        Self(samples.into_iter().collect())
    }
}

/// Rows of samples below a title.
#[derive(Debug)]
pub(crate) struct Table {
    part: &'static str,
    title: String,
    rows: Vec<(String, Samples)>,
}

impl Table {
    /// `part` names the measurement in machine-readable results and must not change.
    pub(crate) fn new(part: &'static str, title: impl Into<String>) -> Self {
        Self {
            part,
            title: title.into(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, name: impl Into<String>, samples: Samples) {
        self.rows.push((name.into(), samples));
    }

    /// Prints the rows, and keeps them in microseconds.
    pub(crate) fn print(&self) -> anyhow::Result<()> {
        println!("\n{}", self.title);
        println!(
            "  {:<44} {:>7} {:>11} {:>11} {:>11} {:>11}",
            "", "samples", "p50", "p90", "p99", "longest"
        );
        let mut rows = Vec::new();
        for (name, samples) in &self.rows {
            print!("  {name:<44} {:>7}", samples.0.len());
            let mut row = json!({"name": name.trim(), "samples": samples.0.len()});
            for (percent, key) in [(50, "p50"), (90, "p90"), (99, "p99"), (100, "longest")] {
                let duration = samples.percentile(percent);
                print!(" {:>11}", shown(duration));
                row[format!("{key}_us")] = json!((duration.as_secs_f64() * 1e7).round() / 10.0);
            }
            println!();
            rows.push(row);
        }
        keep(self.part, &self.title, &rows)
    }
}

/// Rows of named figures below a title.
#[derive(Debug)]
pub(crate) struct Figures {
    part: &'static str,
    title: String,
    rows: Vec<Vec<(&'static str, Value)>>,
}

impl Figures {
    pub(crate) fn new(part: &'static str, title: impl Into<String>) -> Self {
        Self {
            part,
            title: title.into(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Every row has the same names.
    pub(crate) fn row(&mut self, row: impl IntoIterator<Item = (&'static str, Value)>) {
        self.rows.push(row.into_iter().collect());
    }

    /// Prints the rows below their names, and keeps them.
    pub(crate) fn print(self) -> anyhow::Result<()> {
        let names = self
            .rows
            .first()
            .into_iter()
            .map(|row| row.iter().map(|(name, _)| (*name).to_owned()).collect());
        let rows = self
            .rows
            .iter()
            .map(|row| row.iter().map(|(_, value)| cell(value)).collect());
        let lines: Vec<Vec<String>> = names.chain(rows).collect();
        let width = |column: usize| {
            lines
                .iter()
                .filter_map(|line| Some(line.get(column)?.chars().count()))
                .max()
        };
        println!("\n{}", self.title);
        for line in &lines {
            for (column, cell) in line.iter().enumerate() {
                print!("  {cell:>0$}", width(column).unwrap_or_default());
            }
            println!();
        }
        let rows = self
            .rows
            .into_iter()
            .map(|row| row.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
        keep(self.part, &self.title, &rows.map(Value::Object).collect::<Vec<_>>())
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        Value::Number(number) if number.is_f64() => format!("{:.2}", number.as_f64().unwrap_or_default()),
        other => other.to_string(),
    }
}

/// The environment variable with the file for machine-readable results, one line of JSON for each table.
const RESULTS: &str = "VSCALED_BENCH_RESULTS";

/// Appends a table to the machine-readable results.
pub(crate) fn keep(part: &str, title: &str, rows: &[Value]) -> anyhow::Result<()> {
    let Some(path) = std::env::var_os(RESULTS).filter(|path| !path.is_empty()) else {
        return Ok(());
    };
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    // The load of one minute, in hundredths as in the kernel.
    let load = (f64::from(procfs::LoadAverage::current()?.one) * 100.0).round() / 100.0;
    let line = json!({"part": part, "title": title, "load": load, "rows": rows});
    Ok(writeln!(file, "{line}")?)
}

/// At least three digits, in the unit that fits.
pub(crate) fn shown(duration: Duration) -> String {
    let micros = duration.as_secs_f64() * 1e6;
    if micros < 1000.0 {
        format!("{micros:.1} µs")
    } else {
        format!("{:.2} ms", micros / 1000.0)
    }
}
