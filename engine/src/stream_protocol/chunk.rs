//! A delivery, which is one chunk of the stream as it lies on the broker's disk: read piece by piece, since messages may be
//! large and only their beginnings matter.
//!
//! Layout: the protocol, "Deliver", and
//! <https://github.com/rabbitmq/osiris/blob/348db0528986d6025b823bcf1ae0570aa63f5e25/src/osiris_log.erl#L49-L81>.

use super::key;

/// Bytes of a delivery's frame in front of the first entry: size, key, version, subscription and the chunk's header.
pub const HEAD: usize = 4 + 2 + 2 + 1 + 48;

/// Bytes that tell what an entry is: the largest entry's own header.
pub const ENTRY_HEAD: usize = 11;

/// Bytes of a message that are enough to recognise one of ours.
pub const MESSAGE_HEAD: usize = 320;

/// What stands in front of a chunk's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Our number for the subscription.
    pub subscription: u8,
    /// Entries to come: messages, or batches of them.
    pub entries: u16,
    /// The first message's offset.
    pub first: u64,
    /// How many messages it has.
    pub records: u32,
    /// Bytes of the frame behind the head.
    pub rest: usize,
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryHead {
    /// Bytes of this head.
    pub head: usize,
    /// Bytes behind it.
    pub length: usize,
    /// How many messages it has.
    pub records: u16,
    /// Whether it is a single message, rather than a batch, which we never send.
    pub is_message: bool,
}

/// Whether the frame that begins here is a delivery; none before its key has come.
#[must_use]
pub fn is_delivery(input: &[u8]) -> Option<bool> {
    let key = input.get(4..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*key) == key::DELIVER)
}

/// Bytes of the whole frame that begins here; none before its size has come.
#[must_use]
pub fn frame_len(input: &[u8]) -> Option<usize> {
    usize::try_from(number::<4>(input, 0)?).ok()?.checked_add(4)
}

impl Head {
    /// Reads the first [`HEAD`] bytes of a delivery's frame. None where they are none.
    #[must_use]
    pub fn read(input: &[u8]) -> Option<Self> {
        let size = number::<4>(input, 0)?;
        Some(Self {
            subscription: *input.get(8)?,
            entries: u16::try_from(number::<2>(input, 11)?).ok()?,
            records: u32::try_from(number::<4>(input, 13)?).ok()?,
            first: number::<8>(input, 33)?,
            rest: usize::try_from(size).ok()?.checked_sub(HEAD - 4)?,
        })
    }
}

impl EntryHead {
    /// Reads the head of the entry that begins here; [`ENTRY_HEAD`] bytes are enough. None where there are too few.
    #[must_use]
    pub fn read(input: &[u8]) -> Option<Self> {
        let first = *input.first()?;
        if first & 0x80 == 0 {
            return Some(Self {
                head: 4,
                length: usize::try_from(number::<4>(input, 0)?).ok()?,
                records: 1,
                is_message: true,
            });
        }
        Some(Self {
            head: ENTRY_HEAD,
            length: usize::try_from(number::<4>(input, 7)?).ok()?,
            records: u16::try_from(number::<2>(input, 1)?).ok()?,
            is_message: false,
        })
    }
}

/// A big-endian number of `N` bytes at a place.
fn number<const N: usize>(input: &[u8], at: usize) -> Option<u64> {
    let bytes = input.get(at..)?.first_chunk::<N>()?;
    Some(bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_a_chunk_of_rabbitmq_3_10_is_read() {
        // Written down from a connection with 3.10.8: three messages from offset 3 on.
        let frame = b"\0\0\x03\x51\x00\x08\x00\x01\x00P\x00\x00\x03\x00\x00\x00\x03\x00\x00\x01\xa2.3\xd3\"\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x03\xe92\xe1\x19\x00\x00\x03\x1c\x00\x00\x00\x0e\x00\x00\x00\x00\x00\x00\x01\x02\x00Sr";
        assert_eq!(is_delivery(frame), Some(true));
        let head = Head::read(frame).expect("a head");
        assert_eq!(
            head,
            Head {
                subscription: 0,
                entries: 3,
                first: 3,
                records: 3,
                rest: 0x31c,
            }
        );
        let entry = EntryHead::read(&frame[HEAD..]).expect("an entry");
        assert_eq!((entry.head, entry.length, entry.is_message), (4, 0x102, true));
    }

    #[test]
    fn a_batch_is_passed_over_by_its_own_length() {
        let batch = b"\x90\x00\x05\x00\x00\x01\x00\x00\x00\x00\x40";
        let entry = EntryHead::read(batch).expect("a batch");
        assert_eq!(
            (entry.head, entry.length, entry.records, entry.is_message),
            (11, 0x40, 5, false)
        );
        assert_eq!(EntryHead::read(&batch[..5]), None);
    }
}
