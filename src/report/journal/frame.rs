//! Bytes that prove themselves: a mark, a length, a checksum, the payload. Pure.
//!
//! In come payloads, out goes the file's content, and back. What a crash cut off at the end is told from what was
//! damaged in the middle: after a torn end nothing intact follows. No payload that was not written is ever given back.

use std::ops::Range;

/// The first bytes of a journal: what it is, and the version of its format.
pub(crate) type Header = [u8; 8];

/// Begins every frame. No UTF-8 text holds it, so no report does.
const MARK: [u8; 4] = [0xF6, b'v', b's', 0xFE];

/// The bytes of a frame besides its payload: mark, length, checksum.
pub(crate) const OVERHEAD: usize = 12;

/// The payload as a frame; nothing where it is longer than a frame can say.
pub(crate) fn frame(payload: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(payload.len()).ok()?.to_le_bytes();
    let mut frame = Vec::with_capacity(OVERHEAD + payload.len());
    frame.extend_from_slice(&MARK);
    frame.extend_from_slice(&length);
    frame.extend_from_slice(&checksum(length, payload).to_le_bytes());
    frame.extend_from_slice(payload);
    Some(frame)
}

/// What a journal holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Scanned {
    /// Where the payloads are, up to the first thing that is none.
    pub(crate) payloads: Vec<Range<usize>>,
    /// Where the last of them ends.
    pub(crate) end: usize,
    /// What comes after.
    pub(crate) tail: Tail,
}

/// What comes after the last frame that could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Nothing.
    Clean,
    /// The beginning of a frame, or what a file system leaves of one: it was being written when the machine or the agent
    /// died, so nobody was told that it is safe.
    Torn,
    /// Something else, with intact frames after it; or it is not a journal of this version at all.
    Damaged,
}

/// Reads a journal that begins like this.
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

/// The payload of the frame that begins there, if one does.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: Header = *b"vscspl\x00\x01";

    fn journal(payloads: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
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
    fn a_journal_cut_off_anywhere_gives_every_frame_before_the_cut() {
        let payloads = vec![b"one".to_vec(), Vec::new(), vec![7; 300]];
        let (bytes, ends) = journal(&payloads);
        for cut in 0..=bytes.len() {
            let whole = ends.iter().filter(|end| **end <= cut).count();
            let clean = cut == 0 || cut == HEADER.len() || ends.contains(&cut);
            let tail = if clean { Tail::Clean } else { Tail::Torn };
            assert_eq!(read(&bytes[..cut]), (payloads[..whole].to_vec(), tail), "cut at {cut}");
        }
    }

    #[test]
    fn zeros_that_a_file_system_left_at_the_end_are_a_torn_end() {
        let (mut bytes, _) = journal(&[b"one".to_vec()]);
        bytes.extend([0; 4096]);
        assert_eq!(read(&bytes), (vec![b"one".to_vec()], Tail::Torn));
    }

    #[test]
    fn another_version_and_any_other_file_is_damage() {
        assert_eq!(read(b"vscspl\x00\x02"), (vec![], Tail::Damaged));
        assert_eq!(read(b"{\"version\":1}"), (vec![], Tail::Damaged));
    }

    proptest! {
        #[test]
        fn a_flipped_bit_never_gives_a_payload_that_was_not_written_and_hides_none_before_it(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..8),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let (mut bytes, ends) = journal(&payloads);
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
        fn any_bytes_can_be_scanned(mut bytes: Vec<u8>, as_journal: bool) {
            if as_journal {
                bytes.splice(0..0, HEADER);
            }
            let scanned = scan(&HEADER, &bytes);
            prop_assert!(scanned.end <= bytes.len());
        }
    }
}
