//! Fits an answer about all pods into the largest answer, so that nobody's large pods keep an operator from seeing the others. Pure.

use std::collections::BTreeMap;

use prost::Message as _;

use crate::control::{LARGEST_ANSWER, LEFT_OUT, proto};
use crate::share::max_min_share;

/// The most bytes of all pods in an answer. The rest is for the agent and its problems.
const MOST_BYTES: u64 = LARGEST_ANSWER as u64 / 4 * 3;

/// Leaves out pods of namespaces whose pods are larger together than their fair share of an answer. Returns a sentence for each of
/// these namespaces.
pub(super) fn fit(pods: &mut Vec<proto::Pod>) -> Vec<String> {
    let mut sizes = BTreeMap::<String, u64>::new();
    for pod in &*pods {
        *sizes.entry(pod.namespace.clone()).or_default() += bytes_of(pod);
    }
    if sizes.values().sum::<u64>() <= MOST_BYTES {
        return Vec::new();
    }
    let share_of = |(namespace, size): (&String, &u64)| {
        let others = sizes.iter().filter(|(other, _)| *other != namespace);
        let share = max_min_share(MOST_BYTES, *size, others.map(|(_, size)| *size));
        (namespace.clone(), (share, 0))
    };
    // How many bytes a namespace may have still, and how many of its pods are left out.
    let mut shares: BTreeMap<String, (u64, usize)> = sizes.iter().map(share_of).collect();
    pods.retain(|pod| {
        let Some((left, left_out)) = shares.get_mut(&pod.namespace) else {
            return false;
        };
        let rest = left.checked_sub(bytes_of(pod));
        *left = rest.unwrap_or(*left);
        *left_out += usize::from(rest.is_none());
        rest.is_some()
    });
    let large = shares.into_iter().filter(|(_, (_, left_out))| *left_out > 0);
    let sentence = |(namespace, (_, left_out)): (String, (u64, usize))| {
        format!(
            "{LEFT_OUT}{left_out} pods of namespace {namespace}, which is too large for it: `vscalectl explain POD` \
             shows one"
        )
    };
    large.map(sentence).collect()
}

/// The bytes of a pod in an answer, with its tag and its length.
fn bytes_of(pod: &proto::Pod) -> u64 {
    u64::try_from(pod.encoded_len() + 8).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(namespace: &str, count: usize, bytes: usize) -> Vec<proto::Pod> {
        let pod = proto::Pod {
            namespace: namespace.to_owned(),
            vpa_spec: Some("x".repeat(bytes)),
            ..proto::Pod::default()
        };
        vec![pod; count]
    }

    fn count(pods: &[proto::Pod], namespace: &str) -> usize {
        pods.iter().filter(|pod| pod.namespace == namespace).count()
    }

    #[test]
    fn usual_pods_are_all_in_the_answer() {
        let mut all = [pods("shop", 100, 4 << 10), pods("bank", 100, 4 << 10)].concat();
        assert!(fit(&mut all).is_empty() && all.len() == 200);
    }

    #[test]
    fn large_pods_leave_others_in_the_answer() {
        let mut all = [
            pods("shop", 50, 4 << 10),
            pods("hostile", 100, 64 << 10),
            pods("bank", 50, 4 << 10),
        ]
        .concat();
        let problems = fit(&mut all);
        assert_eq!((count(&all, "shop"), count(&all, "bank")), (50, 50));
        let shown = count(&all, "hostile");
        assert!(shown > 0, "it has its share");
        let left_out = format!("{LEFT_OUT}{} pods of namespace hostile", 100 - shown);
        assert!(
            problems.len() == 1 && problems[0].starts_with(&left_out),
            "{problems:?}"
        );
        let answer = proto::GetReply { agent: None, pods: all };
        assert!(answer.encoded_len() <= LARGEST_ANSWER);
    }
}
