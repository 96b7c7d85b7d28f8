//! The status of a running guest and its host, as JSON and for Prometheus.

use serde::{Deserialize, Serialize};
use tare_daemon::{Metrics, ProcessStatus};

use crate::host::DeviceCounters;

/// The status of a host and its guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The host's process.
    #[serde(flatten)]
    pub process: ProcessStatus,
    /// The variant of the path.
    pub variant: String,
    /// The guest's address.
    pub address: String,
    /// The exits that are simulated; empty in the report of an older host.
    #[serde(default)]
    pub exits: String,
    /// The simulated cost of an exit, in cycles of the time stamp counter.
    #[serde(default)]
    pub switch_cycles: u64,
    /// The host's side, over all queue pairs.
    pub host: HostReport,
    /// The guest's side, in its own words, over all queue pairs; missing until it has told.
    pub guest: Option<GuestReport>,
    /// Each queue pair.
    pub pairs: Vec<PairReport>,
}

/// The status of a queue pair: a thread of the host, and one of the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PairReport {
    /// The host's side.
    pub host: HostReport,
    /// The guest's side; missing until it has told.
    pub guest: Option<GuestReport>,
}

tare_daemon::counters! {
    /// The device.
    pub struct HostReport {
        packets => "packets_total": "Packets that came from the network for the guest",
        to_guest => "to_guest_frames_total": "Frames given to the guest: packets, or several merged",
        from_guest => "from_guest_frames_total": "Frames that the guest has sent",
        too_long => "too_long_frames_total": "Frames longer than the guest's MTU allows, dropped",
        malformed => "malformed_chains_total": "Chains of the guest's that are no frame",
        interrupts => "interrupts_sent_total": "Interrupts of the guest",
        no_buffer => "no_buffer_total": "Passes in which the guest had no buffer for a frame",
        resets => "device_resets_total": "Resets by the guest after its first start",
        steering_dropped => "steering_dropped_frames_total": "Frames that arrived by the network of another queue pair and found no room, dropped",
    }
}

tare_daemon::counters! {
    /// The guest.
    pub struct GuestReport {
        opened => "connections_total": "Connections accepted",
        closed => "connections_closed_total": "Of them, those that are over",
        handshakes => "handshakes_total": "Handshakes of TLS that were done",
        tls_failures => "tls_failures_total": "Connections that ended with an error of TLS",
        cut_off => "cut_off_total": "Connections that ended without the notice of TLS, or with an error of TCP",
        records_in => "records_opened_total": "Records opened",
        records_out => "records_sealed_total": "Records sealed",
        bytes_in => "data_received_bytes_total": "Bytes of data opened",
        bytes_out => "data_sent_bytes_total": "Bytes of data sealed",
        frames_in => "frames_received_total": "Frames received from the host",
        frames_malformed => "frames_malformed_total": "Frames with a header that no device writes, dropped",
        bounced => "bounced_bytes_total": "Bytes copied through the bounce buffer",
        kicks => "kicks_total": "Exits to notify the host",
        interrupts => "interrupts_taken_total": "Exits for interrupts by the host",
        halts => "halts_total": "Exits to wait for an interrupt",
        faults => "device_faults_total": "Times that the host broke the rules of the ring and was given up",
        cpu_ns => "cpu_seconds_total": "Processor time of the guest, idle polling included",
        polling_ns => "polling_seconds_total": "Of it, time in which the guest looked for work in vain",
    }
}

impl HostReport {
    pub(super) fn of(counters: &DeviceCounters, steering_dropped: u64) -> HostReport {
        HostReport {
            packets: counters.packets,
            to_guest: counters.to_guest,
            from_guest: counters.from_guest,
            too_long: counters.too_long,
            malformed: counters.malformed,
            interrupts: counters.interrupts,
            no_buffer: counters.no_buffer,
            resets: counters.resets,
            steering_dropped,
        }
    }
}

impl Report {
    /// Returns the status of queue pairs, with the sums over all of them and nothing else.
    pub(super) fn of_pairs(pairs: Vec<PairReport>) -> Report {
        let (mut host, mut guest) = (HostReport::default(), None::<GuestReport>);
        for pair in &pairs {
            host.add(&pair.host);
            if let Some(told) = &pair.guest {
                guest.get_or_insert_default().add(told);
            }
        }
        Report {
            host,
            guest,
            pairs,
            ..Report::default()
        }
    }
}

impl tare_daemon::Report for Report {
    fn prometheus(&self) -> String {
        let mut page = Metrics::new("tare_cvm");
        self.process.metrics(&mut page);
        page.counters(HostReport::INFO, &[(&[], self.host.values())]);
        if let Some(guest) = &self.guest {
            page.counters(GuestReport::INFO, &[(&[], guest.values())]);
        }
        if self.pairs.len() < 2 {
            return page.into_text();
        }
        // Under other names: beside their sum, they would be counted twice.
        let mut by_pair = Metrics::new("tare_cvm_pair");
        let numbers: Vec<String> = (0..self.pairs.len()).map(|n| n.to_string()).collect();
        let labels: Vec<[(&str, &str); 1]> = numbers.iter().map(|n| [("pair", &n[..])]).collect();
        let pairs = || labels.iter().map(|labels| &labels[..]).zip(&self.pairs);
        let host: Vec<_> = pairs()
            .map(|(labels, pair)| (labels, pair.host.values()))
            .collect();
        by_pair.counters(HostReport::INFO, &host);
        let guest: Vec<_> = pairs()
            .filter_map(|(labels, pair)| Some((labels, pair.guest?.values())))
            .collect();
        by_pair.counters(GuestReport::INFO, &guest);
        page.into_text() + &by_pair.into_text()
    }
}
