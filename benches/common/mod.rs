//! What the benchmarks share: samples with their percentiles, and tables of them.
//!
//! Benchmarks print and never judge: a time on somebody's machine is not a test.

use std::time::Duration;

/// Durations of one thing, taken many times.
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
    title: String,
    rows: Vec<(String, Samples)>,
}

impl Table {
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, name: impl Into<String>, samples: Samples) {
        self.rows.push((name.into(), samples));
    }

    pub(crate) fn print(&self) {
        println!("\n{}", self.title);
        println!(
            "  {:<44} {:>7} {:>11} {:>11} {:>11} {:>11}",
            "", "samples", "p50", "p90", "p99", "longest"
        );
        for (name, samples) in &self.rows {
            print!("  {name:<44} {:>7}", samples.0.len());
            for percent in [50, 90, 99, 100] {
                print!(" {:>11}", shown(samples.percentile(percent)));
            }
            println!();
        }
    }
}

/// Three digits at least, in the unit that fits.
pub(crate) fn shown(duration: Duration) -> String {
    let micros = duration.as_secs_f64() * 1e6;
    if micros < 1000.0 {
        format!("{micros:.1} µs")
    } else {
        format!("{:.2} ms", micros / 1000.0)
    }
}
