//! Targets of the fuzzer: the inputs from a container runtime.

use prost::Message;

use super::*;

/// The answers of a runtime.
pub(crate) fn answers(bytes: &[u8]) {
    if let Ok(answer) = proto::ListContainersResponse::decode(bytes) {
        answer.containers.into_iter().for_each(|entry| drop(listed(entry)));
    }
    if let Ok(answer) = proto::ListPodSandboxResponse::decode(bytes) {
        answer.items.into_iter().for_each(|sandbox| drop(listed_pod(sandbox)));
    }
    if let Ok(answer) = proto::ContainerStatusResponse::decode(bytes) {
        drop((first_process("id", &answer), stored("id", answer)));
    }
    if let Ok(answer) = proto::ExecSyncResponse::decode(bytes) {
        drop(executed(&answer, Duration::ZERO));
    }
}
