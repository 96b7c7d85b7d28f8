//! The messages of a benchmark and the keys that seal and open them.
//!
//! What a timed loop calls is marked `#[inline]`: the loop is in another module, and with a call
//! left in it, messages of 60 bytes take 8 % longer.

use tare_gcm::{
    open_each, seal_each, Key, Nonce, OpenPacket, Path, SealPacket, SharedRead, SharedWrite, Tag,
};

use super::Operation;

/// Additional data of a message: those of ESP with extended sequence numbers.
pub(super) const AAD: [u8; 12] = [7; 12];

/// Messages, of which each call takes as many as there are outputs, again from the first after the
/// last.
pub(super) struct Messages<'a> {
    at: usize,
    sources: Vec<&'a [u8]>,
    tags: Vec<Tag>,
    outputs: Vec<&'a mut [u8]>,
}

/// Bytes at a chosen offset in a page. Where messages lie decides how often an access takes two
/// cache lines, and how often a load waits for a store to the same place of another page; the
/// allocator would choose anew in every trial.
pub(super) struct Placed {
    room: Vec<u8>,
    start: usize,
    len: usize,
}

/// The smallest page.
pub(super) const PAGE: usize = 4096;

impl Placed {
    pub(super) fn new(len: usize, offset: usize) -> Placed {
        let room = vec![0; len + 2 * PAGE];
        Placed {
            start: room.as_ptr().align_offset(PAGE) + offset,
            room,
            len,
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.room[self.start..][..self.len]
    }
}

impl<'a> Messages<'a> {
    /// Messages of `size` bytes, each at the start of a whole number of cache lines.
    pub(super) fn new(
        keys: &[Vec<u8>],
        operation: Operation,
        size: usize,
        sources: &'a mut [u8],
        outputs: &'a mut [u8],
    ) -> anyhow::Result<Messages<'a>> {
        for (at, byte) in sources.iter_mut().enumerate() {
            *byte = at as u8;
        }
        let keys = Keys::new(keys, Path::best())?;
        let stride = size.next_multiple_of(64);
        let mut messages = Messages {
            at: 0,
            sources: Vec::new(),
            tags: Vec::new(),
            outputs: Vec::new(),
        };
        for (at, source) in sources.chunks_exact_mut(stride).enumerate() {
            let source = &mut source[..size];
            messages.tags.push(match operation {
                Operation::Seal => Tag::from([0; 16]),
                Operation::Open => keys.of(at).seal_in_place(nonce(at), &AAD, source)?,
            });
            messages.sources.push(source);
        }
        for output in outputs.chunks_exact_mut(stride) {
            messages.outputs.push(&mut output[..size]);
        }
        Ok(messages)
    }

    /// The next call's messages.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Call<'_, 'a> {
        let (first, batch) = (self.at, self.outputs.len());
        self.at += batch;
        if self.at + batch > self.tags.len() {
            self.at = 0;
        }
        Call {
            first,
            sources: &self.sources[first..][..batch],
            tags: &mut self.tags[first..][..batch],
            outputs: &mut self.outputs,
        }
    }
}

/// The messages of one call.
pub(super) struct Call<'c, 'a> {
    /// The number of the first.
    pub(super) first: usize,
    pub(super) sources: &'c [&'a [u8]],
    pub(super) tags: &'c mut [Tag],
    pub(super) outputs: &'c mut [&'a mut [u8]],
}

pub(super) fn nonce(message: usize) -> Nonce {
    Nonce::from_parts([0x5c; 4], message as u64)
}

/// One key for all messages, or one for each.
pub(super) struct Keys {
    keys: Vec<Key>,
    /// The bits of a message's number that choose its key: none or all.
    mask: usize,
}

impl Keys {
    pub(super) fn new(keys: &[Vec<u8>], path: Path) -> anyhow::Result<Keys> {
        let keys = keys
            .iter()
            .map(|key| Key::with_path(key, path))
            .collect::<Result<Vec<_>, _>>()?;
        let mask = if keys.len() == 1 { 0 } else { usize::MAX };
        Ok(Keys { keys, mask })
    }

    #[inline(always)]
    fn of(&self, message: usize) -> &Key {
        &self.keys[message & self.mask]
    }

    #[inline]
    pub(super) fn seal_one(&self, messages: &mut Messages<'_>) -> anyhow::Result<()> {
        let call = messages.next();
        call.tags[0] = self.of(call.first).seal(
            nonce(call.first),
            &AAD,
            call.sources[0],
            SharedWrite::from(&mut *call.outputs[0]),
        )?;
        Ok(())
    }

    #[inline]
    pub(super) fn open_one(&self, messages: &mut Messages<'_>) -> anyhow::Result<()> {
        let call = messages.next();
        self.of(call.first).open(
            &nonce(call.first),
            &AAD,
            SharedRead::from(call.sources[0]),
            &call.tags[0],
            call.outputs[0],
        )?;
        Ok(())
    }

    #[inline]
    pub(super) fn seal_batch(&self, messages: &mut Messages<'_>) -> anyhow::Result<()> {
        let call = messages.next();
        let buffers = call.sources.iter().zip(call.outputs.iter_mut());
        let packets = buffers.enumerate().map_while(|(at, (source, output))| {
            let number = call.first + at;
            let output = SharedWrite::from(&mut **output);
            SealPacket::new(self.of(number), nonce(number), &AAD, source, output).ok()
        });
        let (batch, mut sealed) = (call.tags.len(), 0);
        seal_each(packets, |number, tag| {
            call.tags[number] = tag;
            sealed += 1;
        });
        anyhow::ensure!(sealed == batch, "{sealed} of {batch} messages were sealed");
        Ok(())
    }

    #[inline]
    pub(super) fn open_batch(&self, messages: &mut Messages<'_>) -> anyhow::Result<()> {
        let call = messages.next();
        let buffers = call.sources.iter().zip(call.outputs.iter_mut());
        let packets = buffers.zip(call.tags.iter()).enumerate();
        let packets = packets.map_while(|(at, ((source, output), tag))| {
            let number = call.first + at;
            let source = SharedRead::from(*source);
            OpenPacket::new(self.of(number), nonce(number), &AAD, source, *tag, output).ok()
        });
        let (batch, opened) = (call.tags.len(), open_each(packets, |_, _| {}));
        anyhow::ensure!(opened == batch, "{opened} of {batch} messages were opened");
        Ok(())
    }
}

/// Opens the next call's messages one by one, each copied to private memory first.
#[inline]
pub(super) fn open_copy(
    key: &Key,
    private: &mut Vec<u8>,
    messages: &mut Messages<'_>,
) -> anyhow::Result<()> {
    let call = messages.next();
    for (at, source) in call.sources.iter().enumerate() {
        private.clear();
        private.extend_from_slice(source);
        key.open_in_place(&nonce(call.first + at), &AAD, private, &call.tags[at])?;
    }
    Ok(())
}
