//! The payload of a frame: everything that happens together or not at all. Pure.
//!
//! A payload is a protobuf message ([`Entry`]) and then the reports as JSON, one after the other, so that each can be read
//! alone later. A payload that is not understood is refused as a whole.

use std::ops::Range;

use prost::Message as _;

use crate::report::content::Report;

/// One step of the log. The tags are those on disk.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Entry {
    /// The position of the watcher after the kills of this entry and all before.
    #[prost(bytes = "vec", optional, tag = "1")]
    pub(super) checkpoint: Option<Vec<u8>>,
    /// A number that no report has yet, and no report gets later.
    #[prost(uint64, tag = "2")]
    pub(super) last_number: u64,
    /// New reports, by ascending number.
    #[prost(message, repeated, tag = "3")]
    pub(super) stored: Vec<Stored>,
    #[prost(message, repeated, tag = "4")]
    pub(super) acknowledged: Vec<Acknowledged>,
    /// Hashes of the ids of earlier reports, 16 bytes each.
    #[prost(bytes = "vec", tag = "5")]
    pub(super) known_ids: Vec<u8>,
}

/// A report of an entry.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Stored {
    /// Reports are delivered in the order of their numbers.
    #[prost(uint64, tag = "1")]
    pub(super) number: u64,
    /// The destinations that have not acknowledged the report.
    #[prost(uint32, tag = "2")]
    pub(super) pending: u32,
    /// The length of its JSON in bytes.
    #[prost(uint32, tag = "3")]
    pub(super) length: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Acknowledged {
    #[prost(uint32, tag = "1")]
    pub(super) destinations: u32,
    #[prost(uint64, repeated, tag = "2")]
    pub(super) numbers: Vec<u64>,
}

/// A payload that is no entry of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidEntry {
    #[error("an entry is shorter than it says")]
    Short,
    #[error("an entry is not understood")]
    NotUnderstood,
}

const LENGTH: usize = size_of::<u32>();

impl Entry {
    /// The payload for this entry and its reports, which must be as many and as long as it says; and the offset of the
    /// first report in the payload.
    pub(super) fn payload(&self, reports: &[&[u8]]) -> (Vec<u8>, usize) {
        let entry = self.encode_to_vec();
        // An entry near 4 GiB has no frame either: the length of a frame is as wide.
        let length = u32::try_from(entry.len()).unwrap_or(u32::MAX);
        let mut payload = length.to_le_bytes().to_vec();
        payload.extend(entry);
        let first = payload.len();
        reports.iter().for_each(|report| payload.extend_from_slice(report));
        (payload, first)
    }

    /// The entry in a payload, and the places of its reports in the payload.
    pub(super) fn read(payload: &[u8]) -> Result<(Self, Vec<Range<usize>>), InvalidEntry> {
        let (length, rest) = payload.split_first_chunk::<LENGTH>().ok_or(InvalidEntry::Short)?;
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| InvalidEntry::Short)?;
        let entry = Self::decode(rest.get(..length).ok_or(InvalidEntry::Short)?);
        let entry = entry.map_err(|_| InvalidEntry::NotUnderstood)?;
        let mut at = LENGTH + length;
        let mut reports = Vec::with_capacity(entry.stored.len());
        for stored in &entry.stored {
            let end = usize::try_from(stored.length)
                .ok()
                .and_then(|length| at.checked_add(length))
                .filter(|end| *end <= payload.len())
                .ok_or(InvalidEntry::Short)?;
            reports.push(at..end);
            at = end;
        }
        Ok((entry, reports))
    }
}

/// A report as JSON, as the log holds it.
pub(super) fn to_json(report: &Report) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(report)
}

/// A report from the log. A newer agent may have written one that is not understood.
pub(super) fn from_json(json: &[u8]) -> Result<Report, serde_json::Error> {
    serde_json::from_slice(json)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::testing::arbitrary_kill;

    proptest! {
        #[test]
        fn an_entry_is_read_as_it_was_written(
            checkpoint: Option<Vec<u8>>,
            last_number: u64,
            kills in prop::collection::vec((arbitrary_kill(), any::<u64>(), any::<u8>()), 0..5),
            acknowledged in prop::collection::vec(any::<(u32, Vec<u64>)>(), 0..3),
        ) {
            let reports: Vec<Report> = kills.iter().map(|(kill, ..)| kill.clone().into()).collect();
            let texts: Vec<_> = reports.iter().map(|report| to_json(report).unwrap()).collect();
            let stored = texts.iter().zip(&kills).map(|(text, (_, number, pending))| Stored {
                number: *number,
                pending: (*pending).into(),
                length: u32::try_from(text.len()).unwrap(),
            });
            let entry = Entry {
                checkpoint,
                last_number,
                stored: stored.collect(),
                acknowledged: acknowledged
                    .into_iter()
                    .map(|(destinations, numbers)| Acknowledged { destinations, numbers })
                    .collect(),
                known_ids: vec![1; 32],
            };
            let (payload, _) = entry.payload(&texts.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let (read, places) = Entry::read(&payload).unwrap();
            prop_assert_eq!(read, entry);
            let found: Vec<_> = places.into_iter().map(|at| from_json(&payload[at]).unwrap()).collect();
            prop_assert_eq!(found, reports);
        }

        #[test]
        fn any_bytes_are_an_entry_or_refused(payload: Vec<u8>) {
            if let Ok((entry, places)) = Entry::read(&payload) {
                prop_assert_eq!(entry.stored.len(), places.len());
            }
        }
    }
}
