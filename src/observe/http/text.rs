//! The two formats of metrics, and which one a caller prefers, as text or compressed. Pure.

use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;

/// The content type of OpenMetrics 1.0 text.
pub(super) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The content type of Prometheus's text format 0.0.4.
pub(super) const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether a caller prefers [`PLAIN`], by the weights in its `Accept` header. OpenMetrics is the default.
pub(super) fn prefers_plain(accept: &str) -> bool {
    weight(accept, "text/plain") > weight(accept, "application/openmetrics-text")
}

/// Whether a caller takes a compressed answer, by the weights in its `Accept-Encoding` header.
pub(super) fn takes_gzip(accept_encoding: &str) -> bool {
    weight(accept_encoding, "gzip") > 0.0
}

/// The weight that a header gives to a kind of answer: 0 if it does not name it. Case does not matter in headers (RFC 9110).
fn weight(header: &str, kind: &str) -> f32 {
    let weights = header.split(',').filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_kind = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(kind));
        let weight = parts.find_map(|part| part.strip_prefix(['q', 'Q'])?.strip_prefix('='));
        is_kind.then(|| weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0)))
    });
    weights.fold(0.0, f32::max)
}

pub(super) fn gzip(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text)?;
    encoder.finish()
}

/// OpenMetrics text without exemplars, as text of format 0.0.4. There a family has the name of its samples, and no unit.
pub(super) fn plain(open_metrics: &str) -> String {
    let mut plain = String::with_capacity(open_metrics.len());
    let mut help = "";
    for line in open_metrics.lines() {
        if let Some(family) = line.strip_prefix("# HELP ") {
            help = family.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|family| family.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                _ => ("", kind),
            };
            let family = format!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n");
            plain.push_str(&family);
        } else if !line.starts_with('#') {
            plain.push_str(line);
            plain.push('\n');
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_gets_the_format_that_it_prefers() {
        for open_metrics in [
            "",
            "*/*",
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            "text/plain;q=nonsense",
        ] {
            assert!(!prefers_plain(open_metrics), "{open_metrics}");
        }
        for plain in [
            "text/plain",
            "text/plain; version=0.0.4, */*; q=0.1",
            "application/openmetrics-text;q=0.4, text/plain;q=0.6",
            "application/openmetrics-text;Q=0.4, Text/Plain",
        ] {
            assert!(prefers_plain(plain), "{plain}");
        }
    }

    #[test]
    fn a_caller_that_takes_gzip_says_so() {
        for takes in ["gzip", "GZIP", "deflate, gzip;q=0.5", "gzip;q=1.0, *;q=0"] {
            assert!(takes_gzip(takes), "{takes}");
        }
        for other in ["", "identity", "gzip;q=0", "x-gzip", "br"] {
            assert!(!takes_gzip(other), "{other}");
        }
    }

    #[test]
    fn families_are_named_after_their_samples() {
        let open_metrics = "# HELP passes Passes.\n# TYPE passes counter\n# UNIT passes seconds\npasses_total{pod=\"a\"} 1\n\
                            # HELP build About.\n# TYPE build info\nbuild_info{version=\"1\"} 1\n\
                            # HELP age Age.\n# TYPE age gauge\nage 2\n# EOF\n";
        assert_eq!(
            plain(open_metrics),
            "# HELP passes_total Passes.\n# TYPE passes_total counter\npasses_total{pod=\"a\"} 1\n\
             # HELP build_info About.\n# TYPE build_info gauge\nbuild_info{version=\"1\"} 1\n\
             # HELP age Age.\n# TYPE age gauge\nage 2\n"
        );
    }
}
