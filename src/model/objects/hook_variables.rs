//! The variables in which the author of a pod declares the hooks of a container. Pure.
//!
//! The API server lets nobody change the variables of a container. Who may change annotations may not: `pods/status` gives that
//! right and no right to choose a command.

use std::collections::BTreeMap;

use serde::Serializer;
use serde_json::json;

use super::memory_settings::Variable;

/// The longest value that the agent reads, in bytes. A longer one is cut, and is then no hook.
pub const LONGEST_HOOK: usize = 4 << 10;

/// For each moment: the variables of the hook, of its time limit, and of the memory that is kept for it.
pub const HOOK_VARIABLES: [[&str; 3]; 3] = [
    [
        "VSCALED_BEFORE_SHRINK",
        "VSCALED_BEFORE_SHRINK_WAIT",
        "VSCALED_BEFORE_SHRINK_MEMORY",
    ],
    [
        "VSCALED_AFTER_GROW",
        "VSCALED_AFTER_GROW_WAIT",
        "VSCALED_AFTER_GROW_MEMORY",
    ],
    [
        "VSCALED_ON_MEMORY_PRESSURE",
        "VSCALED_ON_MEMORY_PRESSURE_WAIT",
        "VSCALED_ON_MEMORY_PRESSURE_MEMORY",
    ],
];

/// The values by variable. None stands for a value from elsewhere (`valueFrom`), which others can change.
pub type HookVariables = BTreeMap<&'static str, Option<String>>;

/// The hook variables of an environment. Of several variables of one name the process gets the last.
pub(super) fn read(env: &[Variable]) -> HookVariables {
    let literal = |variable: &Variable| {
        let is_literal = variable.value_from.is_none();
        is_literal.then(|| variable.value.chars().take(LONGEST_HOOK + 1).collect())
    };
    let named = env.iter().filter_map(|variable| {
        let mut names = HOOK_VARIABLES.as_flattened().iter();
        Some((*names.find(|name| **name == variable.name)?, literal(variable)))
    });
    named.collect()
}

/// Writes the variables as a manifest has them: the state file keeps them.
pub(super) fn as_env<S: Serializer>(variables: &HookVariables, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(variables.iter().map(|(name, value)| match value {
        Some(value) => json!({"name": name, "value": value}),
        None => json!({"name": name, "valueFrom": {}}),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::objects::Container;

    #[test]
    fn hooks_outlast_the_agent() {
        let [[before_shrink, ..], [after_grow, ..], _] = HOOK_VARIABLES;
        let from = json!({"configMapKeyRef": {"name": "hooks", "key": "a"}});
        let env = json!([
            {"name": before_shrink, "value": "signal: SIGHUP"},
            {"name": after_grow, "valueFrom": from},
            {"name": "PATH", "value": "/bin"},
        ]);
        let declared: Container = serde_json::from_value(json!({"name": "app", "env": env})).unwrap();
        assert_eq!(declared.hook_variables.len(), 2);
        let saved = serde_json::to_value(&declared).unwrap();
        assert_eq!(serde_json::from_value::<Container>(saved).unwrap(), declared);
    }
}
