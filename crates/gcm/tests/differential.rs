//! quick
use aws_lc_rs::aead::{self, LessSafeKey, UnboundKey};
use tare_gcm::{Key, Nonce, Path, SharedRead, SharedWrite};

#[test]
fn equal() {
    for path in Path::available() {
        for key_len in [16usize, 32] {
            let kb: Vec<u8> = (0..key_len as u8).map(|i| i.wrapping_mul(37)).collect();
            let alg = if key_len == 16 { &aead::AES_128_GCM } else { &aead::AES_256_GCM };
            let ours = Key::with_path(&kb, path).unwrap();
            let theirs = LessSafeKey::new(UnboundKey::new(alg, &kb).unwrap());
            for len in 0..4097usize {
                let pt: Vec<u8> = (0..len).map(|i| (i * 7 + 3) as u8).collect();
                let aad: Vec<u8> = (0..len % 40).map(|i| i as u8).collect();
                let n = [len as u8; 12];
                let mut ct = pt.clone();
                let tag = theirs.seal_in_place_separate_tag(aead::Nonce::assume_unique_for_key(n), aead::Aad::from(&aad[..]), &mut ct).unwrap();
                let mut out = vec![0xAA; len];
                let t = ours.seal(Nonce::from(n), &aad, &pt, SharedWrite::from(&mut out[..])).unwrap();
                assert_eq!(ct, out, "{path} {key_len} {len}");
                assert_eq!(t.as_bytes(), tag.as_ref(), "{path} {key_len} {len}");
                let mut back = vec![0x55; len];
                ours.open(&Nonce::from(n), &aad, SharedRead::from(&ct[..]), &t, &mut back).unwrap();
                assert_eq!(back, pt);
            }
        }
    }
}
