//! The authority that gRPC's C core names on a unix socket.
//!
//! C core (Python, C++, Ruby, ...) sends the socket's path there, `:authority: run%2Fdexorder.sock`. `h2` refuses it: a
//! host has no `%`. This filter writes `_` in its place, in frames of headers only, where C core writes the field: as a
//! literal with its name in full, without Huffman coding. The name of a unix socket's host says nothing to anybody.

const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
/// No frame of headers is larger: the session does not let it be.
const MAX_FRAME: usize = 16 * 1024;
/// A literal with incremental indexing, and a name of ten bytes.
const FIELD: &[u8] = b"\x40\x0a:authority";
const HUFFMAN: u8 = 0x80;

/// Bytes of one connection on their way to its session.
pub struct Authority {
    /// Bytes of a preface, or of a frame's payload, that pass as they are.
    passing: usize,
    /// A frame that has begun: its header, or all of a frame of headers.
    begun: Vec<u8>,
}

impl Default for Authority {
    fn default() -> Self {
        Self { passing: PREFACE, begun: Vec::new() }
    }
}

impl Authority {
    /// Pass bytes on; parts of a frame of headers wait for the rest.
    pub fn filter(&mut self, mut data: &[u8], out: &mut Vec<u8>) {
        while !data.is_empty() {
            if self.passing > 0 {
                let (passed, rest) = data.split_at(self.passing.min(data.len()));
                out.extend_from_slice(passed);
                self.passing -= passed.len();
                data = rest;
                continue;
            }
            let missing = self.size() - self.begun.len();
            let (more, rest) = data.split_at(missing.min(data.len()));
            self.begun.extend_from_slice(more);
            data = rest;
            if self.begun.len() == self.size() {
                self.pass_frame(out);
            }
        }
    }

    /// Bytes to collect: a frame's header, and the payload of a frame of headers.
    fn size(&self) -> usize {
        if self.begun.len() < FRAME_HEADER {
            return FRAME_HEADER;
        }
        if self.is_kept() { FRAME_HEADER + self.payload() } else { FRAME_HEADER }
    }

    fn is_kept(&self) -> bool {
        self.begun[3] == HEADERS && self.payload() <= MAX_FRAME
    }

    fn payload(&self) -> usize {
        usize::from(self.begun[0]) << 16 | usize::from(self.begun[1]) << 8 | usize::from(self.begun[2])
    }

    fn pass_frame(&mut self, out: &mut Vec<u8>) {
        if self.is_kept() {
            rewrite(&mut self.begun);
        } else {
            self.passing = self.payload();
        }
        out.append(&mut self.begun);
    }
}

fn rewrite(frame: &mut [u8]) {
    let Some(start) = frame.windows(FIELD.len()).position(|window| window == FIELD) else { return };
    let Some((size, value)) = frame[start + FIELD.len()..].split_first_mut() else { return };
    if *size < HUFFMAN {
        for byte in value.iter_mut().take(usize::from(*size)).filter(|byte| **byte == b'%') {
            *byte = b'_';
        }
    }
}
