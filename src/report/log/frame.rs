//! Frames of an append-only file: a mark, a length, a checksum, the payload. Pure.
//!
//! [`scan`] distinguishes an end that a crash cut off from damage in the middle: intact frames follow only damage.
//! A payload that was not written is never returned.
//!
//! A payload is everything that happens together or not at all: a protobuf message ([`Entry`]) and then the reports as JSON, one after the other. A payload that is not
//! understood is refused as a whole.

use std::ops::Range;

use prost::Message as _;

use crate::report::content::Report;

/// The first bytes of a file: the kind of the file, then the version of its format.
pub(crate) type Header = [u8; 8];

/// Begins every frame. UTF-8 text, and so a report, cannot contain this mark.
const MARK: [u8; 4] = [0xF6, b'v', b's', 0xFE];

/// The bytes of a frame besides its payload: mark, length, checksum.
pub(crate) const OVERHEAD: usize = 12;

/// The payload as a frame; `None` for a payload of 4 GiB and more.
pub(crate) fn frame(payload: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(payload.len()).ok()?.to_le_bytes();
    let mut frame = Vec::with_capacity(OVERHEAD + payload.len());
    frame.extend_from_slice(&MARK);
    frame.extend_from_slice(&length);
    frame.extend_from_slice(&checksum(length, payload).to_le_bytes());
    frame.extend_from_slice(payload);
    Some(frame)
}

/// The content of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Scanned {
    /// The places of the payloads before the first byte that is not part of an intact frame.
    pub(crate) payloads: Vec<Range<usize>>,
    /// The end of the last intact frame.
    pub(crate) end: usize,
    /// What follows the last intact frame.
    pub(crate) tail: Tail,
}

/// What follows the last intact frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    Clean,
    /// The beginning of a frame, or the zeros that a file system leaves: the write was interrupted by the end of the
    /// machine or the agent, before anything was promised about it.
    Torn,
    /// Other bytes with intact frames after them, or a file that does not begin with the header.
    Damaged,
}

/// Reads a file that begins with this header.
pub(crate) fn scan(header: &Header, bytes: &[u8]) -> Scanned {
    let mut scanned = Scanned {
        payloads: Vec::new(),
        end: 0,
        tail: Tail::Clean,
    };
    if !bytes.starts_with(header) {
        scanned.tail = match bytes {
            [] => Tail::Clean,
            _ if header.starts_with(bytes) => Tail::Torn,
            _ => Tail::Damaged,
        };
        return scanned;
    }
    scanned.end = header.len();
    while let Some(payload) = intact(bytes, scanned.end) {
        scanned.end = payload.end;
        scanned.payloads.push(payload);
    }
    if scanned.end < bytes.len() {
        let later = scanned.end + 1..bytes.len();
        scanned.tail = if later.into_iter().any(|at| intact(bytes, at).is_some()) {
            Tail::Damaged
        } else {
            Tail::Torn
        };
    }
    scanned
}

/// The payload of the frame that begins at this offset.
fn intact(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let (mark, rest) = bytes.get(at..)?.split_first_chunk::<4>()?;
    if *mark != MARK {
        return None;
    }
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let payload = rest.get(..usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    let begin = at + OVERHEAD;
    (checksum(*length, payload) == u32::from_le_bytes(*sum)).then_some(begin..begin + payload.len())
}

fn checksum(length: [u8; 4], payload: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&length);
    sum.update(payload);
    sum.finalize()
}

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
        frame(&[&length, entry.as_slice(), &reports.concat()].concat())
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

    const HEADER: Header = *b"vskills\x01";

    fn file_of(payloads: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut ends) = (HEADER.to_vec(), Vec::new());
        for payload in payloads {
            bytes.extend(frame(payload).unwrap());
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, Tail) {
        let scanned = scan(&HEADER, bytes);
        let payloads = scanned.payloads.into_iter().map(|range| bytes[range].to_vec());
        (payloads.collect(), scanned.tail)
    }

    #[test]
    fn a_file_cut_off_anywhere_gives_every_frame_before_the_cut() {
        let payloads = vec![b"one".to_vec(), Vec::new(), vec![7; 300]];
        let (bytes, ends) = file_of(&payloads);
        for cut in 0..=bytes.len() {
            let whole = ends.iter().filter(|end| **end <= cut).count();
            let clean = cut == 0 || cut == HEADER.len() || ends.contains(&cut);
            let tail = if clean { Tail::Clean } else { Tail::Torn };
            assert_eq!(read(&bytes[..cut]), (payloads[..whole].to_vec(), tail), "cut at {cut}");
        }
    }

    #[test]
    fn zeros_that_a_file_system_left_at_the_end_are_a_torn_end() {
        let (mut bytes, _) = file_of(&[b"one".to_vec()]);
        bytes.extend([0; 4096]);
        assert_eq!(read(&bytes), (vec![b"one".to_vec()], Tail::Torn));
    }

    #[test]
    fn another_version_and_any_other_file_is_damage() {
        assert_eq!(read(b"vskills\x02"), (vec![], Tail::Damaged));
        assert_eq!(read(b"{\"version\":1}"), (vec![], Tail::Damaged));
    }

    proptest! {
        #[test]
        fn a_flipped_bit_never_gives_a_payload_that_was_not_written_and_hides_none_before_it(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..8),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let (mut bytes, ends) = file_of(&payloads);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let before = if at < HEADER.len() { 0 } else { ends.iter().filter(|end| **end <= at).count() };
            let (found, tail) = read(&bytes);
            prop_assert_eq!(&found[..], &payloads[..before]);
            let last = before + 1 == payloads.len();
            let expected = if last && at >= HEADER.len() { Tail::Torn } else { Tail::Damaged };
            prop_assert_eq!(tail, expected);
        }

        #[test]
        fn any_bytes_can_be_scanned(mut bytes: Vec<u8>, with_header: bool) {
            if with_header {
                bytes.splice(0..0, HEADER);
            }
            let scanned = scan(&HEADER, &bytes);
            prop_assert!(scanned.end <= bytes.len());
        }
    }
}

#[cfg(test)]
mod entry_tests {
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
            prop_assert_eq!(Entry::read(&frame[OVERHEAD..]).unwrap(), (entry, reports));
        }

        #[test]
        fn any_bytes_are_an_entry_or_refused(payload: Vec<u8>) {
            if let Ok((entry, reports)) = Entry::read(&payload) {
                prop_assert_eq!(entry.stored.len(), reports.len());
            }
        }
    }
}
