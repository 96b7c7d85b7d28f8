//! The portable path alone, small enough for Miri:
//! `cargo +nightly miri test -p tare-gcm --test portable`.

use tare_gcm::{
    open_batch, seal_batch, Error, Key, Nonce, OpenPacket, Path, SealPacket, SharedRead,
    SharedWrite, Tag,
};

fn key() -> Key {
    Key::with_path(&[1; 16], Path::Portable).unwrap()
}

#[test]
fn case_two_of_the_specification() {
    let key = Key::with_path(&[0; 16], Path::Portable).unwrap();
    let mut out = [0; 16];
    let tag = key
        .seal(
            Nonce::from([0; 12]),
            &[],
            &[0; 16],
            SharedWrite::from(&mut out[..]),
        )
        .unwrap();
    assert_eq!(out[..4], [0x03, 0x88, 0xda, 0xce]);
    assert_eq!(tag.as_bytes()[..4], [0xab, 0x6e, 0x47, 0xd4]);
}

#[test]
fn scattered_is_contiguous_in_pieces() {
    let plaintext: Vec<u8> = (0..=300).map(|i| i as u8).collect();
    let mut whole = plaintext.clone();
    let tag = key()
        .seal_in_place(Nonce::from([3; 12]), b"aad", &mut whole)
        .unwrap();
    let mut sealed = vec![0; plaintext.len()];
    let (a, b) = sealed.split_at_mut(17);
    let mut outs = [SharedWrite::from(a), SharedWrite::from(b)];
    let pieces = [&plaintext[..259], &[], &plaintext[259..]];
    assert_eq!(
        key().seal_scattered(Nonce::from([3; 12]), b"aad", &pieces, &mut outs),
        Ok(tag)
    );
    assert_eq!(sealed, whole);
    let mut opened = vec![0; plaintext.len()];
    let (a, b) = opened.split_at_mut(100);
    let pieces = [
        SharedRead::from(&sealed[..1]),
        SharedRead::from(&sealed[1..]),
    ];
    assert_eq!(
        key().open_scattered(&Nonce::from([3; 12]), b"aad", &pieces, &tag, &mut [a, b]),
        Ok(())
    );
    assert_eq!(opened, plaintext);
    let forged = Tag::from([0; 16]);
    let (a, b) = opened.split_at_mut(100);
    let result = key().open_scattered(&Nonce::from([3; 12]), b"aad", &pieces, &forged, &mut [a, b]);
    assert_eq!(
        (result, opened),
        (Err(Error::Forged), vec![0; plaintext.len()])
    );
}

#[test]
fn a_batch_in_place() {
    let key = key();
    let mut data = [[5u8; 33], [6; 33]];
    let mut packets: Vec<SealPacket<'_>> = data
        .iter_mut()
        .map(|d| SealPacket::in_place(&key, Nonce::from([1; 12]), &[], d).unwrap())
        .collect();
    seal_batch(&mut packets);
    let tags: Vec<Tag> = packets.iter().map(|p| p.tag().unwrap()).collect();
    drop(packets);
    let mut packets: Vec<OpenPacket<'_>> = data
        .iter_mut()
        .zip(&tags)
        .map(|(d, tag)| OpenPacket::in_place(&key, Nonce::from([1; 12]), &[], d, *tag).unwrap())
        .collect();
    assert_eq!(open_batch(&mut packets), 2);
    drop(packets);
    assert_eq!(data, [[5; 33], [6; 33]]);
}

#[test]
fn a_tag_goes_through_shared_memory() {
    let mut room = [0u8; 17];
    for offset in 0..2 {
        let tag = Tag::from([7; 16]);
        tag.store(SharedWrite::from(&mut room[offset..offset + 16]))
            .unwrap();
        assert_eq!(
            Tag::load(SharedRead::from(&room[offset..offset + 16])),
            Ok(tag)
        );
    }
}
