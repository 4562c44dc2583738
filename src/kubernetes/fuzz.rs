//! Targets of the fuzzer: what the API server and the kubelet send.

use super::follow;
use super::object::decode;
use super::pieces::{Layout, Piece, Splitter};
use crate::model::objects::{Pod, VerticalPodAutoscaler};

/// The bytes of a list or of a watch.
pub(crate) fn watch(bytes: &[u8]) {
    for layout in [Layout::Objects, Layout::List] {
        let mut splitter = Splitter::new(layout);
        splitter.push(bytes);
        while let Some(piece) = splitter.next() {
            if let Piece::Object(text) = piece {
                let text = String::from_utf8_lossy(&text);
                drop((decode::<Pod>(&text), decode::<VerticalPodAutoscaler>(&text)));
            }
        }
    }
}

/// A pod in the API's protobuf encoding.
pub(crate) fn kubelet_pods(bytes: &[u8]) {
    drop(follow::decode_pod(bytes));
}
