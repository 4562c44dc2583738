//! Which pods a command is about: one by its name, or several by their labels.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use crate::control::Selector;

/// One pod, or a selector.
#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct PodSelection {
    /// namespace/name, a UID, or the beginning of a container's id
    #[arg(value_parser = NonEmptyStringValueParser::new(), required_unless_present = "selector")]
    pod: Option<String>,
    /// In place of POD: every pod with these labels, such as app=web,tier!=db
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "pod", value_parser = selector)]
    selector: Option<String>,
    /// With --selector: only pods of this namespace
    #[arg(short = 'n', long, value_name = "NAME", requires = "selector", value_parser = NonEmptyStringValueParser::new())]
    namespace: Option<String>,
}

impl PodSelection {
    /// Pod, selector and namespace as the protocol has them.
    pub(super) fn parts(&self) -> (String, String, String) {
        let text = |part: &Option<String>| part.clone().unwrap_or_default();
        (text(&self.pod), text(&self.selector), text(&self.namespace))
    }

    /// Whether several pods may be meant.
    pub(super) const fn has_selector(&self) -> bool {
        self.selector.is_some()
    }
}

fn selector(text: &str) -> Result<String, String> {
    match text.parse::<Selector>() {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
