//! The format of an append-only file: frames of a mark, a length, a checksum and a payload. Pure.
//!
//! [`read`] distinguishes an end that a crash cut off from damage in the middle: only after damage do intact frames
//! follow. It never gives a payload that was not written.
//!
//! A payload is one step of the log: a protobuf message ([`Entry`]), then reports as JSON, one after the other. The agent
//! refuses a payload as a whole if it does not understand a part of it.

use std::io;
use std::ops::Range;

use anyhow::{Context as _, Result};
use prost::Message as _;

use crate::report::content::Report;

/// The first bytes of a file: the kind of the file, then the version of its format.
pub(super) type Header = [u8; 8];

/// Begins every frame. UTF-8 text, and so a report, cannot contain this mark.
const MARK: [u8; 4] = [0xF6, b'v', b's', 0xFE];

/// The bytes of a frame besides its payload: mark, length, checksum.
const OVERHEAD: usize = 12;

/// Puts a payload into a frame.
///
/// Errors: the payload has 4 GiB or more.
pub(super) fn frame(payload: &[u8]) -> io::Result<Vec<u8>> {
    let length = length_of(payload)?;
    let sum = checksum(length, payload).to_le_bytes();
    Ok([&MARK, &length, &sum, payload].concat())
}

fn length_of(bytes: &[u8]) -> io::Result<[u8; 4]> {
    let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    Ok(length.to_le_bytes())
}

/// Gives `take` the payloads of a file with this header, up to the first that is damaged or that `take` refuses.
///
/// Returns the damage of the rest. A torn end is no damage: it is the beginning of a frame, or the zeros that a file system
/// leaves, and no commit has returned for it.
pub(super) fn read(header: &Header, bytes: &[u8], mut take: impl FnMut(&[u8]) -> Result<()>) -> Option<String> {
    if !bytes.starts_with(header) {
        let is_torn = header.starts_with(bytes);
        return (!is_torn).then(|| "it is no log of the version this agent writes".to_owned());
    }
    let mut end = header.len();
    while let Some(payload) = intact(bytes, end) {
        let next = payload.end;
        if let Err(error) = take(&bytes[payload]) {
            return Some(format!("at byte {end}: {error:#}"));
        }
        end = next;
    }
    let is_damaged = (end + 1..bytes.len()).any(|at| intact(bytes, at).is_some());
    is_damaged.then(|| format!("at byte {end}: not what was written"))
}

/// The payload of the frame that begins at this offset.
fn intact(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let rest = bytes.get(at..)?.strip_prefix(&MARK)?;
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

/// One step of the log. The tags are those on disk; earlier versions used 2 and 5.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Entry {
    /// The position of the watcher after the kills of this entry and all before.
    #[prost(bytes = "vec", optional, tag = "1")]
    pub(super) checkpoint: Option<Vec<u8>>,
    /// New reports, by ascending number.
    #[prost(message, repeated, tag = "3")]
    pub(super) stored: Vec<Stored>,
    #[prost(message, repeated, tag = "4")]
    pub(super) acknowledged: Vec<Acknowledged>,
}

/// A report of an entry.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Stored {
    /// The queues deliver reports in the order of their numbers.
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

impl Entry {
    /// Puts the entry and the JSON of its reports, one after the other, into a frame.
    ///
    /// Errors: the frame would have 4 GiB or more.
    pub(super) fn frame(&self, json: &[u8]) -> io::Result<Vec<u8>> {
        let entry = self.encode_to_vec();
        frame(&[&length_of(&entry)?, entry.as_slice(), json].concat())
    }

    /// Takes the entry and its reports out of a payload.
    pub(super) fn read(payload: &[u8]) -> Result<(Self, Vec<Report>)> {
        const SHORT: &str = "an entry is shorter than it says";
        let (length, mut rest) = payload.split_first_chunk().context(SHORT)?;
        let mut next = |length: u32| rest.split_off(..usize::try_from(length)?).context(SHORT);
        let entry = Self::decode(next(u32::from_le_bytes(*length))?).context("an entry is not understood")?;
        let reports = entry.stored.iter();
        let reports = reports.map(|stored| Ok(serde_json::from_slice(next(stored.length)?)?));
        let reports = reports.collect::<Result<_>>()?;
        Ok((entry, reports))
    }
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

    /// The payloads, and whether the rest is damaged.
    fn read_all(bytes: &[u8]) -> (Vec<Vec<u8>>, bool) {
        let mut payloads = Vec::new();
        let damage = read(&HEADER, bytes, |payload| {
            payloads.push(payload.to_vec());
            Ok(())
        });
        (payloads, damage.is_some())
    }

    #[test]
    fn a_cut_file_gives_every_whole_frame() {
        let payloads = vec![b"one".to_vec(), Vec::new(), vec![7; 300]];
        let (bytes, ends) = file_of(&payloads);
        for cut in 0..=bytes.len() {
            let whole = ends.iter().filter(|end| **end <= cut).count();
            assert_eq!(
                read_all(&bytes[..cut]),
                (payloads[..whole].to_vec(), false),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn zeros_at_the_end_are_torn() {
        let (mut bytes, _) = file_of(&[b"one".to_vec()]);
        bytes.extend([0; 4096]);
        assert_eq!(read_all(&bytes), (vec![b"one".to_vec()], false));
    }

    #[test]
    fn another_version_and_any_other_file_is_damage() {
        assert_eq!(read_all(b"vskills\x02"), (vec![], true));
        assert_eq!(read_all(b"{\"version\":1}"), (vec![], true));
    }

    proptest! {
        #[test]
        fn a_flipped_bit_hides_only_later_payloads(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..8),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let (mut bytes, ends) = file_of(&payloads);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let before = if at < HEADER.len() { 0 } else { ends.iter().filter(|end| **end <= at).count() };
            let (found, is_damaged) = read_all(&bytes);
            prop_assert_eq!(&found[..], &payloads[..before]);
            let last = before + 1 == payloads.len();
            prop_assert_eq!(is_damaged, !last || at < HEADER.len());
        }

        #[test]
        fn any_bytes_can_be_scanned(mut bytes: Vec<u8>, with_header: bool) {
            if with_header {
                bytes.splice(0..0, HEADER);
            }
            let damage = read(&HEADER, &bytes, |_| Ok(()));
            prop_assert!(!with_header || damage.is_none_or(|damage| damage.starts_with("at byte ")));
        }
    }
}

#[cfg(test)]
mod entry_tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::testing::arbitrary_kill;

    #[test]
    fn ids_of_an_earlier_version_are_passed_over() {
        let entry = Entry {
            checkpoint: Some(vec![1]),
            ..Entry::default()
        };
        // Tag 5 with two bytes.
        let message = [prost::Message::encode_to_vec(&entry), vec![0x2a, 2, 7, 7]].concat();
        let payload = [&length_of(&message).unwrap(), message.as_slice()].concat();
        assert_eq!(Entry::read(&payload).unwrap(), (entry, Vec::new()));
    }

    proptest! {
        #[test]
        fn an_entry_is_read_as_it_was_written(
            checkpoint: Option<Vec<u8>>,
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
                stored: stored.collect(),
                acknowledged: acknowledged
                    .into_iter()
                    .map(|(destinations, numbers)| Acknowledged { destinations, numbers })
                    .collect(),
            };
            let frame = entry.frame(&texts.concat()).unwrap();
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
