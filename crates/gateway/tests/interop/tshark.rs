//! A capture of our ESP, read by tshark, which is given the keys.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::process::Command;

use tare_gateway::dataplane::esp;
use tare_gateway::dataplane::SequenceMode;
use tare_packet::pcap::{Header, Writer};

use crate::missing;
use crate::tunnels::{a_hop_further, hex, lengths, Gateway, Secret, Tunnel};

/// What is asked of each packet.
const FIELDS: [&str; 8] = [
    "esp.spi",
    "esp.sequence",
    "esp.icv_good",
    "esp.pad_len",
    "esp.protocol",
    "udp.dstport",
    "udp.checksum.status",
    "esp.decrypted_data",
];

#[test]
fn tshark_decrypts_a_capture_of_ours() {
    let program = "tshark";
    if !missing::has(program, &["--version"], "tshark", "captures of our ESP") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("esp.pcap");
    let mut capture = Writer::new(
        BufWriter::new(File::create(&path).unwrap()),
        Header::default(),
    )
    .unwrap();
    let mut expected = Vec::new();
    let mut time_ns = 0;
    for tunnel in Tunnel::matrix() {
        let lengths = lengths(&tunnel);
        let packets: Vec<_> = lengths.iter().map(|&len| tunnel.packet(len)).collect();
        let frames = Gateway::new(std::slice::from_ref(&tunnel)).seal(&packets);
        for (number, (packet, frame)) in (1..).zip(packets.iter().zip(&frames)) {
            time_ns += 1_000_000;
            capture.write(time_ns, frame).unwrap();
            expected.push(row(&tunnel, number, packet));
        }
    }
    capture.into_inner().flush().unwrap();

    let mut tshark = Command::new(program);
    // Its own folders, so that nobody's preferences count.
    tshark.env("HOME", folder.path()).arg("-r").arg(&path);
    tshark.args(["-n", "-d", "udp.port==6000,data", "-T", "fields"]);
    for preference in [
        "esp.enable_encryption_decode:TRUE",
        "esp.enable_authentication_check:TRUE",
        "udp.check_checksum:TRUE",
    ] {
        tshark.args(["-o", preference]);
    }
    for tunnel in Tunnel::matrix() {
        tshark.args(["-o", &sa(&tunnel)]);
    }
    for field in FIELDS {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let found = String::from_utf8(output.stdout).unwrap();
    assert_eq!(found.lines().count(), expected.len(), "{errors}");
    for (n, (found, expected)) in found.lines().zip(&expected).enumerate() {
        assert_eq!(found, expected, "packet {n}: {FIELDS:?}: {errors}");
    }
}

/// An SA, as tshark 4.0 wants it.
fn sa(tunnel: &Tunnel) -> String {
    let (src, dst) = tunnel.outer();
    let family = if tunnel.outer_v6 { "IPv6" } else { "IPv4" };
    let Secret { key, salt } = tunnel.secret_out();
    let (spi, key, salt) = (tunnel.spi_out(), hex(&key), hex(&salt));
    format!(
        r#"uat:esp_sa:"{family}","{src}","{dst}","0x{spi:08x}","AES-GCM with 16 octet ICV [RFC4106]","0x{key}{salt}","NULL","""#
    )
}

/// What tshark is to say of a packet.
fn row(tunnel: &Tunnel, number: u64, packet: &[u8]) -> String {
    let inner = a_hop_further(packet);
    let padding = esp::padding(inner.len()) as u8;
    let next = if tunnel.inner_v6 { 41 } else { 4 };
    let mut plain = inner;
    plain.extend(1..=padding);
    plain.extend([padding, next]);
    // It knows no extended numbers, so it takes the ICV that covers one for a bad one; decrypting
    // needs no ICV.
    let icv_good = u8::from(tunnel.sequence_mode == SequenceMode::Plain);
    [
        format!("0x{:08x}", tunnel.spi_out()),
        number.to_string(),
        icv_good.to_string(),
        padding.to_string(),
        format!("0x{next:02x}"),
        "6000".to_string(),
        "1".to_string(),
        hex(&plain),
    ]
    .join("\t")
}
