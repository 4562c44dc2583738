//! Targets of the fuzzer: the inputs from the API server and from the kubelet.

use super::follow::kubelet::decode_pod;
use super::object::Decoded;
use super::splitter::{Layout, RawObject, Splitter};
use crate::model::objects::{Pod, VerticalPodAutoscaler};

/// The bytes of a list or of a watch.
pub(crate) fn watch(bytes: &[u8]) {
    for layout in [Layout::Objects, Layout::List] {
        let mut splitter = Splitter::new(layout);
        splitter.push(bytes);
        while let Some(piece) = splitter.next() {
            if let RawObject::Object(text) = piece {
                let text = String::from_utf8_lossy(&text);
                drop((
                    Decoded::<Pod>::parse(&text),
                    Decoded::<VerticalPodAutoscaler>::parse(&text),
                ));
            }
        }
    }
}

/// A pod in the API's protobuf encoding.
pub(crate) fn kubelet_pods(bytes: &[u8]) {
    drop(decode_pod(bytes));
}
