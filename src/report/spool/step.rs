//! One step of the journal: what happens together or not at all. Pure.
//!
//! A step is a frame's payload: a head that says what the step is, then the reports as JSON, one after the other, so that
//! each can be read alone later. What cannot be understood is refused; nothing is guessed.

use std::ops::Range;

use crate::report::content::Report;

/// Says what a step is. The numbers of fields are those on disk.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Head {
    /// What the watcher of kills wants to find again.
    #[prost(bytes = "vec", optional, tag = "1")]
    pub(super) checkpoint: Option<Vec<u8>>,
    /// The number the next report gets, at least.
    #[prost(uint64, tag = "2")]
    pub(super) next: u64,
    /// New reports, by ascending number.
    #[prost(message, repeated, tag = "3")]
    pub(super) stored: Vec<Stored>,
    /// Reports that destinations do not need any more.
    #[prost(message, repeated, tag = "4")]
    pub(super) settled: Vec<Settled>,
    /// Hashes of ids that were stored earlier, 16 bytes each.
    #[prost(bytes = "vec", tag = "5")]
    pub(super) seen: Vec<u8>,
}

/// A report of a step.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Stored {
    /// Its number: reports are told in this order.
    #[prost(uint64, tag = "1")]
    pub(super) number: u64,
    /// Who is owed it.
    #[prost(uint32, tag = "2")]
    pub(super) owed: u32,
    /// The length of its JSON in bytes.
    #[prost(uint32, tag = "3")]
    pub(super) length: u32,
}

/// What one destination does not need any more.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Settled {
    /// Which destinations.
    #[prost(uint32, tag = "1")]
    pub(super) destinations: u32,
    /// Which reports.
    #[prost(uint64, repeated, tag = "2")]
    pub(super) numbers: Vec<u64>,
}

/// Why a payload is no step of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoStep {
    /// Shorter than it says.
    #[error("a step is shorter than it says")]
    Short,
    /// The head is not understood.
    #[error("the head of a step is not understood")]
    Head,
}

const LENGTH: usize = size_of::<u32>();

impl Head {
    /// The payload for this head and its reports, which must be as many and as long as it says.
    pub(super) fn payload(&self, reports: &[&[u8]]) -> Vec<u8> {
        use prost::Message as _;
        let head = self.encode_to_vec();
        // A head near 4 GiB has no frame either: the length of a frame is as wide.
        let length = u32::try_from(head.len()).unwrap_or(u32::MAX);
        let mut payload = length.to_le_bytes().to_vec();
        payload.extend(head);
        reports.iter().for_each(|report| payload.extend_from_slice(report));
        payload
    }

    /// The head in a payload, and where in the payload the reports are.
    ///
    /// # Errors
    /// [`NoStep`].
    pub(super) fn read(payload: &[u8]) -> Result<(Self, Vec<Range<usize>>), NoStep> {
        use prost::Message as _;
        let (length, rest) = payload.split_first_chunk::<LENGTH>().ok_or(NoStep::Short)?;
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| NoStep::Short)?;
        let head = Self::decode(rest.get(..length).ok_or(NoStep::Short)?).map_err(|_| NoStep::Head)?;
        let mut at = LENGTH + length;
        let mut reports = Vec::with_capacity(head.stored.len());
        for stored in &head.stored {
            let end = usize::try_from(stored.length)
                .ok()
                .and_then(|length| at.checked_add(length))
                .filter(|end| *end <= payload.len())
                .ok_or(NoStep::Short)?;
            reports.push(at..end);
            at = end;
        }
        Ok((head, reports))
    }
}

/// A report as it lies in the journal.
///
/// # Errors
/// What serde says.
pub(super) fn write_report(report: &Report) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(report)
}

/// A report from the journal.
///
/// # Errors
/// What serde says; a newer agent may have written it.
pub(super) fn read_report(json: &[u8]) -> Result<Report, serde_json::Error> {
    serde_json::from_slice(json)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::testing::arbitrary_kill;

    proptest! {
        #[test]
        fn a_step_is_read_as_it_was_written(
            checkpoint: Option<Vec<u8>>,
            next: u64,
            kills in prop::collection::vec((arbitrary_kill(), any::<u64>(), any::<u8>()), 0..5),
            settled in prop::collection::vec(any::<(u32, Vec<u64>)>(), 0..3),
        ) {
            let reports: Vec<Report> = kills.iter().map(|(kill, ..)| kill.clone().into()).collect();
            let texts: Vec<_> = reports.iter().map(|report| write_report(report).unwrap()).collect();
            let stored = texts.iter().zip(&kills).map(|(text, (_, number, owed))| Stored {
                number: *number,
                owed: (*owed).into(),
                length: u32::try_from(text.len()).unwrap(),
            });
            let head = Head {
                checkpoint,
                next,
                stored: stored.collect(),
                settled: settled
                    .into_iter()
                    .map(|(destinations, numbers)| Settled { destinations, numbers })
                    .collect(),
                seen: vec![1; 32],
            };
            let payload = head.payload(&texts.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let (read, places) = Head::read(&payload).unwrap();
            prop_assert_eq!(read, head);
            let found: Vec<_> = places.into_iter().map(|at| read_report(&payload[at]).unwrap()).collect();
            prop_assert_eq!(found, reports);
        }

        #[test]
        fn any_bytes_are_a_step_or_refused(payload: Vec<u8>) {
            if let Ok((head, places)) = Head::read(&payload) {
                prop_assert_eq!(head.stored.len(), places.len());
            }
        }
    }
}
