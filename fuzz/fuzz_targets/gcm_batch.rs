//! Batches of any mixture of keys and lengths: the same as single calls.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tare_gcm::{open_batch, seal_batch, Key, Nonce, OpenPacket, Path, SealPacket};

fuzz_target!(|input: &[u8]| {
    for path in Path::available() {
        let keys = [16, 32, 16, 32].map(|len| Key::with_path(&vec![len as u8; len], path).unwrap());
        let packets: Vec<(usize, usize)> = input
            .chunks_exact(2)
            .take(80)
            .map(|c| {
                (
                    usize::from(c[0]) % 4,
                    usize::from(c[0] / 4) * 4 + usize::from(c[1]),
                )
            })
            .collect();
        let aad = [5u8; 40];
        let aad = |i: usize| &aad[..[0, 8, 12, 16, 17, 40][i % 6]];
        let nonce = |i: usize| Nonce::from([i as u8; 12]);
        let plaintexts: Vec<Vec<u8>> = packets
            .iter()
            .map(|(key, len)| vec![*key as u8; *len])
            .collect();
        let mut data = plaintexts.clone();
        let mut batch: Vec<SealPacket<'_>> = data
            .iter_mut()
            .enumerate()
            .map(|(i, data)| {
                SealPacket::in_place(&keys[packets[i].0], nonce(i), aad(i), data).unwrap()
            })
            .collect();
        seal_batch(&mut batch);
        let tags: Vec<_> = batch.iter().map(|packet| packet.tag().unwrap()).collect();
        drop(batch);
        for (i, plaintext) in plaintexts.iter().enumerate() {
            let mut single = plaintext.clone();
            let tag = keys[packets[i].0]
                .seal_in_place(nonce(i), aad(i), &mut single)
                .unwrap();
            assert_eq!((&single, tag), (&data[i], tags[i]));
        }
        let mut batch: Vec<OpenPacket<'_>> = data
            .iter_mut()
            .enumerate()
            .map(|(i, data)| {
                OpenPacket::in_place(&keys[packets[i].0], nonce(i), aad(i), data, tags[i]).unwrap()
            })
            .collect();
        assert_eq!(open_batch(&mut batch), packets.len());
        drop(batch);
        assert_eq!(data, plaintexts);
    }
});
