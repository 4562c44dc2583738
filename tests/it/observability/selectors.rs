//! A minimal parser for the selectors in queries.

/// A metric in a query, with its label matchers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) name: String,
    pub(crate) matchers: Vec<Matcher>,
}

/// `label="value"`, or another comparison.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Matcher {
    pub(crate) label: String,
    pub(crate) comparison: String,
    pub(crate) value: String,
}

/// All uses of vscaled's metrics in an expression.
pub(crate) fn selectors(expression: &str) -> Vec<Selector> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find("vscaled_") {
        rest = &rest[start..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
        let braced = after.strip_prefix('{').and_then(|after| after.split_once('}'));
        found.push(Selector {
            name: name.to_owned(),
            matchers: braced.map_or_else(Vec::new, |(inside, _)| inside.split(',').map(matcher).collect()),
        });
        rest = after;
    }
    found
}

fn matcher(text: &str) -> Matcher {
    let (label, rest) = text.trim().split_at(text.trim().find(['=', '!']).unwrap());
    let (comparison, value) = rest.split_at(rest.find('"').unwrap());
    Matcher {
        label: label.to_owned(),
        comparison: comparison.to_owned(),
        value: value.trim_matches('"').to_owned(),
    }
}

/// The labels by which an expression groups.
pub(crate) fn groupings(expression: &str) -> Vec<&str> {
    let groups = expression.split("by (").skip(1);
    groups
        .flat_map(|group| group.split_once(')').unwrap().0.split(','))
        .map(str::trim)
        .collect()
}

#[test]
fn a_query_is_taken_apart() {
    let query = r#"sum by (a, b) (rate(vscaled_x_total{job="vscaled", code!~"2..|404"}[5m])) > vscaled_y"#;
    assert_eq!(groupings(query), ["a", "b"]);
    let found = selectors(query);
    assert_eq!(
        (found[0].name.as_str(), found[1].name.as_str()),
        ("vscaled_x_total", "vscaled_y")
    );
    assert_eq!(found[0].matchers[1], matcher(r#" code!~"2..|404""#));
    let Matcher {
        label,
        comparison,
        value,
    } = &found[0].matchers[1];
    assert_eq!([label, comparison, value], ["code", "!~", "2..|404"]);
}
