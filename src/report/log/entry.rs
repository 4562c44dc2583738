//! The payload of a frame: everything that happens together or not at all. Pure.
//!
//! A payload is a protobuf message ([`Entry`]) and then the reports as JSON, one after the other. A payload that is not
//! understood is refused as a whole.

use prost::Message as _;

use super::frame;
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

const LENGTH: usize = size_of::<u32>();

impl Entry {
    /// The frame for this entry and the JSON of its reports, which must be as many and as long as it says; `None` if it
    /// would be 4 GiB long.
    pub(super) fn frame(&self, reports: &[Vec<u8>]) -> Option<Vec<u8>> {
        let entry = self.encode_to_vec();
        let length = u32::try_from(entry.len()).ok()?.to_le_bytes();
        frame::frame(&[&length, entry.as_slice(), &reports.concat()].concat())
    }

    /// The entry in a payload, and its reports. A newer agent may have written some that are not understood.
    pub(super) fn read(payload: &[u8]) -> Result<(Self, Vec<Report>), String> {
        let short = || "an entry is shorter than it says".to_owned();
        let (length, rest) = payload.split_first_chunk::<LENGTH>().ok_or_else(short)?;
        let (entry, mut rest) = split(rest, u32::from_le_bytes(*length)).ok_or_else(short)?;
        let entry = Self::decode(entry).map_err(|_| "an entry is not understood".to_owned())?;
        let mut reports = Vec::with_capacity(entry.stored.len());
        for stored in &entry.stored {
            let (report, after) = split(rest, stored.length).ok_or_else(short)?;
            reports.push(serde_json::from_slice(report).map_err(|error| error.to_string())?);
            rest = after;
        }
        Ok((entry, reports))
    }
}

fn split(bytes: &[u8], at: u32) -> Option<(&[u8], &[u8])> {
    bytes.split_at_checked(usize::try_from(at).ok()?)
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
            let texts: Vec<_> = reports.iter().map(|report| serde_json::to_vec(report).unwrap()).collect();
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
            let frame = entry.frame(&texts).unwrap();
            prop_assert_eq!(Entry::read(&frame[frame::OVERHEAD..]).unwrap(), (entry, reports));
        }

        #[test]
        fn any_bytes_are_an_entry_or_refused(payload: Vec<u8>) {
            if let Ok((entry, reports)) = Entry::read(&payload) {
                prop_assert_eq!(entry.stored.len(), reports.len());
            }
        }
    }
}
