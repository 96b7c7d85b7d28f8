//! Cuts a stream of chunks into blocks that carry the bytes before them along.

/// Bytes in a block; only the last may be shorter.
pub(crate) const BLOCK_BYTES: usize = 64 * 1024;
/// Bytes of the preceding block that a block carries along, for tests that look back.
pub(crate) const HISTORY_BYTES: usize = 192;
const HISTORY_WORDS: usize = HISTORY_BYTES / 8;

/// A piece of the stream as bytes and as 64-bit little-endian words. Bit 0 of byte 0 is the first
/// bit, so a word shifted *left* by one stands beside its predecessors.
pub(crate) struct Block<'a> {
    bytes: &'a [u8],
    words: &'a [u64],
    first: bool,
}

impl Block<'_> {
    /// Returns the block's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[HISTORY_BYTES..]
    }

    /// Returns the block's complete words.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words[HISTORY_WORDS..]
    }

    /// Returns the block together with the last `back` bytes before it. At the start of the stream
    /// there are none, and the slice starts with the block.
    pub(crate) fn bytes_from(&self, back: usize) -> &[u8] {
        &self.bytes[HISTORY_BYTES - if self.first { 0 } else { back }..]
    }

    /// [`Block::bytes_from`] in words.
    pub(crate) fn words_from(&self, back: usize) -> &[u64] {
        &self.words[HISTORY_WORDS - if self.first { 0 } else { back }..]
    }
}

/// Collects chunks of any size and hands out blocks.
pub(crate) struct Blocks {
    /// History, then as much of the block as has arrived.
    bytes: Vec<u8>,
    words: Vec<u64>,
    first: bool,
}

impl Blocks {
    pub(crate) fn new() -> Self {
        let mut bytes = Vec::with_capacity(HISTORY_BYTES + BLOCK_BYTES);
        bytes.resize(HISTORY_BYTES, 0);
        Blocks {
            bytes,
            words: Vec::with_capacity((HISTORY_BYTES + BLOCK_BYTES) / 8),
            first: true,
        }
    }

    /// Appends `chunk`, giving every block that becomes full to `sink`.
    pub(crate) fn push(&mut self, mut chunk: &[u8], mut sink: impl FnMut(&Block<'_>)) {
        while !chunk.is_empty() {
            let room = HISTORY_BYTES + BLOCK_BYTES - self.bytes.len();
            let (now, later) = chunk.split_at(room.min(chunk.len()));
            self.bytes.extend_from_slice(now);
            chunk = later;
            if self.bytes.len() == HISTORY_BYTES + BLOCK_BYTES {
                self.emit(&mut sink);
            }
        }
    }

    /// Gives the last, incomplete block to `sink`.
    pub(crate) fn finish(mut self, mut sink: impl FnMut(&Block<'_>)) {
        if self.bytes.len() > HISTORY_BYTES {
            self.emit(&mut sink);
        }
    }

    fn emit(&mut self, sink: &mut impl FnMut(&Block<'_>)) {
        self.words.clear();
        self.words.extend(
            self.bytes
                .chunks_exact(8)
                .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))),
        );
        sink(&Block {
            bytes: &self.bytes,
            words: &self.words,
            first: self.first,
        });
        self.first = false;
        let keep = self.bytes.len() - HISTORY_BYTES;
        self.bytes.copy_within(keep.., 0);
        self.bytes.truncate(HISTORY_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_depend_on_how_the_stream_was_chunked() {
        let stream: Vec<u8> = (0..200_001u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for chunk in [1, 7, 4096, 65_536, 200_001] {
            let (mut bytes, mut words, mut looked_back) = (Vec::new(), Vec::new(), 0);
            let mut sink = |block: &Block<'_>| {
                let back = block.bytes_from(5);
                if bytes.is_empty() {
                    assert_eq!(back, block.bytes());
                } else {
                    assert_eq!(back[..5], bytes[bytes.len() - 5..]);
                    looked_back += 1;
                }
                bytes.extend_from_slice(block.bytes());
                words.extend_from_slice(block.words());
            };
            let mut blocks = Blocks::new();
            for piece in stream.chunks(chunk) {
                blocks.push(piece, &mut sink);
            }
            blocks.finish(&mut sink);
            assert_eq!(bytes, stream);
            assert_eq!(words.len(), stream.len() / 8);
            assert_eq!(looked_back, 3);
        }
    }
}
