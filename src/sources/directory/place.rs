//! Which pods of a manifest are this node's.

use std::sync::Arc;

use crate::sources::NodeView;

/// What a pod's node is called where this one has no name.
const UNNAMED: &str = "this-node";

/// Leaves the pods bound to this node, or to none yet: a manifest here is placed here, like a static pod. Without a
/// name, the node takes all.
pub(super) fn placed_here(mut view: NodeView, node_name: &str) -> NodeView {
    let here = if node_name.is_empty() { UNNAMED } else { node_name };
    view.pods
        .retain(|pod| node_name.is_empty() || pod.spec.node_name.is_empty() || pod.spec.node_name == node_name);
    for pod in view.pods.iter_mut().filter(|pod| pod.spec.node_name.is_empty()) {
        here.clone_into(&mut Arc::make_mut(pod).spec.node_name);
    }
    view
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::parse_manifests;

    #[test]
    fn manifests_of_another_node_are_left_out_and_those_of_none_are_placed_here() {
        let pod = |name: &str, node: &str| {
            format!(
                "---\n{{kind: Pod, metadata: {{name: {name}, uid: u-{name}}}, spec: {{nodeName: '{node}', containers: [{{name: c}}]}}}}\n"
            )
        };
        let text = [pod("here", "n"), pod("there", "m"), pod("anywhere", "")].concat();
        let all = parse_manifests("test.yaml", &text).unwrap().view;
        let names = |view: &NodeView| -> Vec<String> {
            let pods = view.pods.iter();
            pods.map(|pod| format!("{} {}", pod.metadata.name, pod.spec.node_name))
                .collect()
        };
        assert_eq!(names(&placed_here(all.clone(), "n")), ["here n", "anywhere n"]);
        assert_eq!(
            names(&placed_here(all, "")),
            ["here n", "there m", "anywhere this-node"]
        );
    }
}
