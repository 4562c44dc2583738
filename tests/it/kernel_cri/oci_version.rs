//! The weight formula that follows from an OCI runtime's version, for comparison with the values of its containers.

use vscaled::model::WeightFormula;

/// The formula of an OCI runtime, from the output of `runc --version` or `crun --version`.
///
/// Quadratic since runc 1.3.2 (opencontainers/cgroups 0.0.4) and crun 1.23. `None` for other runtimes and for text
/// without a version.
pub(super) fn of_oci_runtime(version_text: &str) -> Option<WeightFormula> {
    let mut words = version_text.lines().next()?.split_whitespace();
    let first_quadratic = match words.next()? {
        "runc" => [1, 3, 2],
        "crun" => [1, 23, 0],
        _ => return None,
    };
    let version = words.find_map(version_number)?;
    Some(if version >= first_quadratic {
        WeightFormula::Quadratic
    } else {
        WeightFormula::Linear
    })
}

/// Parses `1.3.2`, `1.23`, and versions of distributions: `1.1.5+ds1`, `1.3.0-rc.1`. A missing part is zero.
fn version_number(word: &str) -> Option<[u64; 3]> {
    let plain = word.split(['+', '-', '~']).next()?;
    let mut parts = plain.split('.').map(str::parse::<u64>);
    let number = [
        parts.next()?.ok()?,
        parts.next()?.ok()?,
        parts.next().unwrap_or(Ok(0)).ok()?,
    ];
    parts.next().is_none().then_some(number)
}

#[test]
fn versions_are_read_as_runtimes_and_distributions_print_them() {
    let cases = [
        ("runc version 1.1.5+ds1\ncommit: x", Some(WeightFormula::Linear)),
        ("runc version 1.3.1", Some(WeightFormula::Linear)),
        ("runc version 1.3.2", Some(WeightFormula::Quadratic)),
        ("runc version 1.5.0-rc.1+dev", Some(WeightFormula::Quadratic)),
        ("crun version 1.8.1\ncommit: x", Some(WeightFormula::Linear)),
        ("crun version 1.22", Some(WeightFormula::Linear)),
        ("crun version 1.23", Some(WeightFormula::Quadratic)),
        ("runsc version release-20250101.0", None),
        ("runc version unknown", None),
        ("", None),
    ];
    for (text, formula) in cases {
        assert_eq!(of_oci_runtime(text), formula, "{text}");
    }
}
