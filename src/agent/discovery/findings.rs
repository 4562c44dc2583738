//! What is wrong with the node, as far as one look has found it.

/// What one look gathered so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) problems: Vec<String>,
    /// Whether something essential is missing: look again soon.
    pub(super) incomplete: bool,
}

impl Findings {
    pub(super) fn problem(&mut self, text: impl std::fmt::Display) {
        self.problems.push(text.to_string());
        self.incomplete = true;
    }
}
