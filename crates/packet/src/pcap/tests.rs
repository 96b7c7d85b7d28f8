use super::*;
use proptest::prelude::*;

const ORDERS: [ByteOrder; 2] = [ByteOrder::Little, ByteOrder::Big];
const RESOLUTIONS: [Resolution; 2] = [Resolution::Micros, Resolution::Nanos];

/// A capture of `frames`, a microsecond apart.
fn capture(header: Header, frames: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), header).unwrap();
    for (i, frame) in frames.iter().enumerate() {
        writer.write(i as u64 * 1000, frame).unwrap();
    }
    writer.into_inner()
}

/// The first record of `bytes` in words, or why there is none.
fn failure(bytes: &[u8]) -> String {
    read_frames(bytes, 1 << 20).unwrap_err().to_string()
}

fn headers() -> impl Strategy<Value = Header> {
    (0..2usize, 0..2usize, 1..=FRAME_BYTES_MAX).prop_map(|(order, resolution, snaplen)| Header {
        order: ORDERS[order],
        resolution: RESOLUTIONS[resolution],
        snaplen,
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_again_in_every_order_and_resolution(
        header in headers(),
        records in prop::collection::vec((0..u64::from(u32::MAX), prop::collection::vec(any::<u8>(), 0..300)), 0..20),
    ) {
        let unit = header.nanos_per_unit();
        let mut writer = Writer::new(Vec::new(), header).unwrap();
        for (time, frame) in &records {
            writer.write(time * unit, frame).unwrap();
        }
        let bytes = writer.into_inner();
        let mut reader = Reader::new(&bytes[..]).unwrap();
        prop_assert_eq!(reader.header(), header);
        for (time, frame) in &records {
            let record = reader.next_record().unwrap().unwrap();
            prop_assert_eq!(record.time_ns, time * unit);
            prop_assert_eq!(record.line_bytes as usize, frame.len());
            prop_assert_eq!(record.frame, &frame[..frame.len().min(header.snaplen as usize)]);
        }
        prop_assert_eq!(reader.next_record().unwrap(), None);
    }

    #[test]
    fn a_capture_cut_anywhere_is_an_error_or_fewer_records(
        header in headers(),
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 14..80), 1..5),
        at in any::<prop::sample::Index>(),
    ) {
        let header = Header { snaplen: 0, ..header };
        let bytes = capture(header, &frames);
        let at = at.index(bytes.len());
        // Complete records end here.
        let ends: Vec<usize> = frames.iter().scan(FILE_HEADER, |end, frame| {
            *end += RECORD_HEADER + frame.len();
            Some(*end)
        }).collect();
        match read_frames(&bytes[..at], usize::MAX) {
            Ok(read) => {
                prop_assert!(ends.contains(&at));
                prop_assert!(read.iter().map(|f| &f[..]).eq(frames.iter().take(read.len()).map(|f| &f[..])));
            }
            Err(Error::ShortHeader { bytes }) => prop_assert_eq!(bytes, at),
            Err(Error::Empty) => prop_assert_eq!(at, FILE_HEADER),
            Err(Error::Record { number, offset, .. }) => {
                let whole = ends.iter().filter(|&&end| end <= at).count();
                prop_assert_eq!(number, whole as u64 + 1);
                prop_assert_eq!(offset, whole.checked_sub(1).map_or(FILE_HEADER, |i| ends[i]) as u64);
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn arbitrary_bytes_behind_a_header_are_read_within_bounds(
        header in headers(),
        bytes in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..400),
    ) {
        let mut file = capture(header, &[]);
        file.extend(&bytes);
        let mut reader = Reader::new(&file[..]).unwrap();
        let mut read = 0;
        while let Ok(Some(record)) = reader.next_record() {
            read += RECORD_HEADER + record.frame.len();
            prop_assert!(read <= bytes.len());
        }
        prop_assert!(reader.frame.capacity() <= 2 * FRAME_BYTES_MAX as usize);
    }
}

#[test]
fn a_file_of_known_bytes_is_read() {
    // As tcpdump on a big-endian machine writes it: 1.5 s, four of fourteen bytes kept.
    let file = [
        0xa1, 0xb2, 0xc3, 0xd4, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 1, //
        0, 0, 0, 1, 0, 7, 0xa1, 0x20, 0, 0, 0, 4, 0, 0, 0, 14, 1, 2, 3, 4,
    ];
    let mut reader = Reader::new(&file[..]).unwrap();
    let expected = Record {
        time_ns: 1_500_000_000,
        frame: &[1, 2, 3, 4],
        line_bytes: 14,
    };
    assert_eq!(reader.next_record().unwrap(), Some(expected));
    assert_eq!(reader.header().snaplen, 4);
}

#[test]
fn a_wrong_file_is_refused_in_words() {
    let frame = vec![7; 60];
    let file = capture(Header::default(), &[frame.clone(), frame.clone()]);
    let with = |at: usize, bytes: &[u8]| {
        let mut file = file.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let cases: [(Vec<u8>, &str); 15] = [
        (vec![], "the file ends after 0 bytes, expected a pcap header of 24"),
        (file[..23].to_vec(), "the file ends after 23 bytes, expected a pcap header of 24"),
        (with(0, b"\x0a\x0d\x0d\x0a"), "the file begins with 0a0d0d0a (pcapng; convert it: editcap -F pcap IN.pcapng OUT.pcap), expected a pcap file: a1b2c3d4 or a1b23c4d in either byte order"),
        (with(0, b"\x1f\x8b\x08\x00"), "the file begins with 1f8b0800 (gzip; decompress it first), expected a pcap file: a1b2c3d4 or a1b23c4d in either byte order"),
        (with(0, b"\x34\xcd\xb2\xa1"), "the file begins with 34cdb2a1, expected a pcap file: a1b2c3d4 or a1b23c4d in either byte order"),
        (with(6, &[3]), "pcap version 2.3, expected 2.4"),
        (with(20, &[101]), "link type 101, expected Ethernet (1)"),
        (with(23, &[0x44]), "link type 0x44000001: Ethernet frames with their checksum or other extras, expected plain Ethernet (1)"),
        (file[..24].to_vec(), "the capture has no record, expected at least one"),
        (file[..110].to_vec(), "record 2 at byte 100: the file ends after 10 bytes of the record's header of 16"),
        (file[..175].to_vec(), "record 2 at byte 100: the file ends after 59 bytes of the record's frame of 60"),
        (with(108, &[0, 0, 5]), "record 2 at byte 100: a frame of 327680 bytes, expected at most 262144"),
        (with(16, &[59, 0, 0]), "record 1 at byte 24: a frame of 60 bytes, expected at most 59"),
        (with(112, &[59]), "record 2 at byte 100: 60 bytes captured of a frame of 59, expected no more than it has"),
        (with(112, &[61]), "record 2 at byte 100: 60 bytes captured of a frame of 61, expected all of it (capture without a snapshot length)"),
    ];
    for (bytes, message) in cases {
        assert_eq!(failure(&bytes), message);
    }
    let short = capture(Header::default(), &[vec![0; 13]]);
    assert_eq!(
        failure(&short),
        "record 1 at byte 24: a frame of 13 bytes, expected at least an Ethernet header of 14"
    );
    assert_eq!(
        read_frames(&file[..], 300).unwrap_err().to_string(),
        "record 2 at byte 100: more than 300 bytes of memory for its frames"
    );
}

#[test]
fn a_source_that_gives_byte_after_byte_is_read_the_same() {
    struct Slow<'a>(&'a [u8], bool);
    impl Read for Slow<'_> {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let n = bytes.len().min(1);
            self.0.read(&mut bytes[..n])
        }
    }
    let frames = [vec![1; 60], vec![2; 1514]];
    let file = capture(Header::default(), &frames);
    let read = read_frames(Slow(&file, false), 1 << 20).unwrap();
    assert!(read.iter().map(|f| f.to_vec()).eq(frames));
}
