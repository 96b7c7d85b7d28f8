//! A batch gives what single calls give.

use tare_gcm::{
    open_batch, open_each, seal_batch, seal_each, Error, Key, Nonce, OpenPacket, Path, SealPacket,
    SharedRead, SharedWrite, Tag,
};

/// The same packets, one at a time and as a batch, must have the same ciphertext and tags.
fn check(path: Path, keys: &[Key], lens: &[usize]) {
    let plaintexts: Vec<Vec<u8>> = lens
        .iter()
        .enumerate()
        .map(|(i, len)| (0..*len).map(|b| (b * 7 + i) as u8).collect())
        .collect();
    // Four packets may be alike; others differ in their additional data.
    let aad_len = |i: usize| match lens.len() {
        4 => 12,
        _ => [0, 5, 8, 12, 13, 16, 17, 40, 1, 2, 3][i % 11],
    };
    let aads: Vec<Vec<u8>> = (0..lens.len())
        .map(|i| vec![!i as u8; aad_len(i)])
        .collect();
    let key = |i: usize| &keys[i % keys.len()];
    let mut outs: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
    let mut packets: Vec<SealPacket<'_>> = outs
        .iter_mut()
        .enumerate()
        .map(|(i, out)| {
            let out = SharedWrite::from(&mut out[..]);
            SealPacket::new(
                key(i),
                Nonce::from([i as u8; 12]),
                &aads[i],
                &plaintexts[i],
                out,
            )
            .unwrap()
        })
        .collect();
    seal_batch(&mut packets);
    let tags: Vec<Tag> = packets.iter().map(|p| p.tag().unwrap()).collect();
    drop(packets);
    for i in 0..lens.len() {
        let mut single = plaintexts[i].clone();
        let tag = key(i)
            .seal_in_place(Nonce::from([i as u8; 12]), &aads[i], &mut single)
            .unwrap();
        assert_eq!(outs[i], single, "{path}: packet {i} of {lens:?}");
        assert_eq!(tags[i], tag, "{path}: packet {i} of {lens:?}");
    }

    // Every fifth packet is forged: it alone must be refused, and wiped.
    let mut backs: Vec<Vec<u8>> = lens.iter().map(|len| vec![0xaa; *len]).collect();
    let mut packets: Vec<OpenPacket<'_>> = backs
        .iter_mut()
        .enumerate()
        .map(|(i, back)| {
            let mut tag = *tags[i].as_bytes();
            tag[i % 16] ^= u8::from(i % 5 == 0);
            let ciphertext = SharedRead::from(&outs[i][..]);
            OpenPacket::new(
                key(i),
                Nonce::from([i as u8; 12]),
                &aads[i],
                ciphertext,
                Tag::from(tag),
                back,
            )
            .unwrap()
        })
        .collect();
    let authentic = open_batch(&mut packets);
    assert_eq!(authentic, (0..lens.len()).filter(|i| i % 5 != 0).count());
    let outcomes: Vec<bool> = packets
        .iter()
        .map(|p| p.outcome().unwrap().is_ok())
        .collect();
    drop(packets);
    for i in 0..lens.len() {
        assert_eq!(outcomes[i], i % 5 != 0);
        let expected = if outcomes[i] {
            plaintexts[i].clone()
        } else {
            vec![0; lens[i]]
        };
        assert_eq!(backs[i], expected, "{path}: packet {i} of {lens:?}");
    }

    // The same, described as they go; some have been worked on before.
    let mut data = plaintexts.clone();
    let mut each = vec![None; lens.len()];
    let packets = data.iter_mut().enumerate().map(|(i, data)| {
        let nonce = Nonce::from([i as u8; 12]);
        let mut packet = SealPacket::in_place(key(i), nonce, &aads[i], data).unwrap();
        if i % 7 == 3 {
            seal_batch(std::slice::from_mut(&mut packet));
        }
        packet
    });
    seal_each(packets, |i, tag| assert!(each[i].replace(tag).is_none()));
    assert!(each.iter().zip(&tags).all(|(e, tag)| *e == Some(*tag)));
    assert_eq!(data, outs);
    let mut each = vec![None; lens.len()];
    let packets = data.iter_mut().enumerate().map(|(i, data)| {
        let mut tag = *tags[i].as_bytes();
        tag[i % 16] ^= u8::from(i % 5 == 0);
        let nonce = Nonce::from([i as u8; 12]);
        let mut packet =
            OpenPacket::in_place(key(i), nonce, &aads[i], data, Tag::from(tag)).unwrap();
        if i % 7 >= 5 {
            open_batch(std::slice::from_mut(&mut packet));
        }
        packet
    });
    let count = open_each(packets, |i, outcome| {
        assert!(each[i].replace(outcome).is_none());
    });
    assert_eq!(count, authentic);
    let expected = |i: usize| match i % 5 {
        0 => Err(Error::Forged),
        _ => Ok(()),
    };
    assert!((0..lens.len()).all(|i| each[i] == Some(expected(i))));
    assert_eq!(data, backs);

    // In place, both ways.
    let mut data = plaintexts.clone();
    let mut packets: Vec<SealPacket<'_>> = data
        .iter_mut()
        .enumerate()
        .map(|(i, data)| {
            SealPacket::in_place(key(i), Nonce::from([i as u8; 12]), &aads[i], data).unwrap()
        })
        .collect();
    seal_batch(&mut packets);
    seal_batch(&mut packets); // again, which must change nothing
    assert!(packets
        .iter()
        .zip(&tags)
        .all(|(p, tag)| p.tag() == Some(*tag)));
    drop(packets);
    assert_eq!(data, outs);
    let mut packets: Vec<OpenPacket<'_>> = data
        .iter_mut()
        .enumerate()
        .map(|(i, data)| {
            OpenPacket::in_place(key(i), Nonce::from([i as u8; 12]), &aads[i], data, tags[i])
                .unwrap()
        })
        .collect();
    assert_eq!(open_batch(&mut packets), lens.len());
    drop(packets);
    assert_eq!(data, plaintexts);
}

#[test]
fn a_batch_equals_single_calls() {
    for path in Path::available() {
        let key = |seed: u8, len: usize| Key::with_path(&vec![seed; len], path).unwrap();
        let one = [key(1, 16)];
        let one_of_256 = [key(6, 32)];
        let same_size = [key(1, 32), key(2, 32), key(3, 32)];
        let both_sizes = [key(1, 16), key(2, 32), key(3, 16), key(4, 32), key(5, 16)];
        for len in 0..=200 {
            check(path, &one, &[len; 4]);
            check(path, &one_of_256, &[len; 4]);
            check(path, &same_size, &[len; 5]);
        }
        let lens: Vec<usize> = (0..150).map(|i| (i * 37) % 300).collect();
        // In all company: those that go four at a time, those of two registers, and both in turn.
        let short: Vec<usize> = (0..150).map(|i| (i * 37 + i / 13) % 66).collect();
        let long: Vec<usize> = (0..150).map(|i| 64 + (i * 37 + i / 13) % 66).collect();
        let both: Vec<usize> = (0..300)
            .map(|i| (i * 37 + i / 13) % 64 + 65 * (i / [1, 3, 5, 7][i / 75] % 2))
            .collect();
        for keys in [&one[..], &one_of_256[..], &same_size[..], &both_sizes[..]] {
            check(path, keys, &lens);
            check(path, keys, &short);
            check(path, keys, &long);
            check(path, keys, &both);
            check(path, keys, &[60; 33]);
            check(path, keys, &[48; 33]);
            check(path, keys, &[112; 33]);
            check(path, keys, &[128; 33]);
            check(path, keys, &[]);
        }
    }
}
