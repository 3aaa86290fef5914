//! Taking `basic.ack` out of what a broker says, and nothing else.

/// Type, channel and size of a frame (AMQP 0-9-1, section 4.2.3, "General Frame Format").
const HEAD: usize = 7;

/// As [`HEAD`], with the class and the method at the start of a method frame's payload.
const METHOD_HEAD: usize = HEAD + 4;

/// The type of a method frame.
const METHOD: u8 = 1;

/// Class 60, method 80 (<https://www.rabbitmq.com/amqp-0-9-1-reference#basic.ack>).
const BASIC_ACK: [u8; 4] = [0, 60, 0, 80];

/// Follows the frames from a broker to one client, from the first byte on.
#[derive(Debug, Default)]
pub(super) struct AckFilter {
    /// The beginning of a frame, until enough of it is there.
    head: Vec<u8>,
    /// How many bytes are left of the frame whose head is known.
    left: usize,
    /// Whether that frame is swallowed.
    is_swallowed: bool,
}

impl AckFilter {
    /// Appends to `passed` what is to be passed on, and returns how many acks were swallowed.
    pub(super) fn pass(&mut self, mut bytes: &[u8], swallow: bool, passed: &mut Vec<u8>) -> u64 {
        let mut swallowed = 0;
        while !bytes.is_empty() {
            let wanted = if self.left > 0 {
                self.left
            } else {
                self.wanted_head() - self.head.len()
            };
            let (taken, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            if self.left > 0 {
                self.left -= taken.len();
                if !self.is_swallowed {
                    passed.extend_from_slice(taken);
                }
                continue;
            }
            self.head.extend_from_slice(taken);
            if self.head.len() == self.wanted_head() {
                self.is_swallowed = swallow && self.head.get(HEAD..) == Some(&BASIC_ACK);
                if self.is_swallowed {
                    swallowed += 1;
                } else {
                    passed.extend_from_slice(&self.head);
                }
                self.left = self.frame_len().saturating_sub(self.head.len());
                self.head.clear();
            }
        }
        swallowed
    }

    fn wanted_head(&self) -> usize {
        match self.head.first() {
            Some(&METHOD) => METHOD_HEAD,
            _ => HEAD,
        }
    }

    /// The whole frame's length, with its end octet.
    fn frame_len(&self) -> usize {
        let size = self.head.get(3..HEAD).unwrap_or_default();
        size.iter().fold(0, |size, byte| size << 8 | usize::from(*byte)) + HEAD + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![kind, 0, 1];
        frame.extend((payload.len() as u32).to_be_bytes());
        frame.extend(payload);
        frame.push(0xCE);
        frame
    }

    fn ack(tag: u64) -> Vec<u8> {
        frame(METHOD, &[&BASIC_ACK[..], &tag.to_be_bytes(), &[0]].concat())
    }

    #[test]
    fn acks_are_swallowed_and_all_else_is_passed_however_the_bytes_are_split() {
        let nack = frame(METHOD, &[0, 60, 0, 120, 0, 0, 0, 0, 0, 0, 0, 9, 0]);
        let heartbeat = frame(8, &[]);
        // A body that looks like an ack.
        let body = frame(3, &ack(7));
        let others = [heartbeat.clone(), nack.clone(), body.clone(), heartbeat.clone()].concat();
        let all = [ack(1), heartbeat.clone(), nack, ack(2), body, ack(3), heartbeat].concat();
        for size in [1, 2, 5, 7, 11, 13, all.len()] {
            let mut filter = AckFilter::default();
            let mut passed = Vec::new();
            let swallowed: u64 = all
                .chunks(size)
                .map(|chunk| filter.pass(chunk, true, &mut passed))
                .sum();
            assert_eq!((swallowed, &passed), (3, &others), "in pieces of {size}");

            let mut passed = Vec::new();
            let mut filter = AckFilter::default();
            all.chunks(size)
                .for_each(|chunk| assert_eq!(filter.pass(chunk, false, &mut passed), 0));
            assert_eq!(passed, all);
        }
    }
}
