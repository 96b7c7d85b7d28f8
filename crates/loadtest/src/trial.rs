//! A trial: its load, and its results.

use std::time::Duration;

use serde::{Serialize, Serializer};
use tare_histogram::{Latency, LoadFigures};

use crate::schedule::Rate;

/// The length of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// For a time.
    Time(Duration),
    /// A number of frames of each stream.
    Frames(u64),
}

/// The load that a trial offers on each stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The rate of each stream.
    pub rate: Rate,
    /// The length of the trial.
    pub length: Length,
}

impl Load {
    /// A rate for a time.
    pub const fn new(rate: Rate, time: Duration) -> Load {
        Load {
            rate,
            length: Length::Time(time),
        }
    }
}

/// One trial, counted to the last packet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// Its number, which its stamps carry.
    pub number: u16,
    /// The rate asked for, of each stream.
    #[serde(rename = "load_bits_per_second")]
    pub load: Rate,
    /// The time for which it was to send.
    #[serde(rename = "duration_ns", serialize_with = "as_nanos")]
    pub duration: Duration,
    /// The reasons why attempts before this one were invalid.
    pub invalid: Vec<String>,
    /// Its streams, as they were given.
    pub streams: Vec<StreamRecord>,
    /// Its ports.
    pub ports: Vec<PortRecord>,
}

/// The packets of a stream: `tx_packets = rx_packets + lost`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StreamRecord {
    /// The stream.
    pub name: String,
    /// Packets sent.
    pub tx_packets: u64,
    /// Their bytes, without checksums.
    pub tx_bytes: u64,
    /// Of those sent, packets that arrived, each counted once.
    pub rx_packets: u64,
    /// Their bytes, without checksums.
    pub rx_bytes: u64,
    /// Packets sent that did not arrive.
    pub lost: u64,
    /// Of those lost, what the receiving interface dropped.
    pub ingress_drop: u64,
    /// Packets that arrived again.
    pub duplicates: u64,
    /// Packets that arrived after later ones (RFC 4737 section 3).
    pub reordered: u64,
    /// The largest distance of such a packet from its place, in packets.
    pub reorder_offset_max: u64,
    /// Packets too far behind to tell whether they had arrived; they count as lost.
    pub late: u64,
    /// Packets that arrived after sending had ended: those that the network had queued or delayed.
    pub drained: u64,
    /// Of `tx_packets`, those without room for a stamp; the rest of the record knows only their
    /// totals.
    pub tx_unstamped: u64,
    /// Packets without a stamp that arrived beyond those sent.
    pub surplus: u64,
    /// The latencies; `None` if no packet that arrived was stamped.
    pub latency: Option<Latency>,
}

/// The other frames of a port: `received` counts every frame, those of the streams included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortRecord {
    /// Frames received.
    pub received: u64,
    /// Stamped frames of an earlier trial or an unknown stream.
    pub stray: u64,
    /// Frames of the streams whose contents have changed.
    pub damaged: u64,
    /// Frames that the tester did not send.
    pub foreign: u64,
    /// Stamped frames that were to be received elsewhere.
    pub misdelivered: u64,
    /// Frames that the interface received and dropped.
    pub ingress_drop: u64,
    /// Frames that the interface took and did not send.
    pub egress_drop: u64,
    /// Time that the generator lost and did not make up for, in nanoseconds.
    pub slipped_ns: u64,
}

impl Trial {
    /// The packets of all streams.
    pub fn figures(&self) -> LoadFigures {
        let mut sum = LoadFigures::default();
        for stream in &self.streams {
            sum.merge(&stream.figures(self.duration));
        }
        sum
    }

    /// Packets sent on all streams.
    pub fn sent(&self) -> u64 {
        self.figures().sent()
    }

    /// Packets lost on all streams.
    pub fn lost(&self) -> u64 {
        self.figures().lost()
    }

    /// Lost of sent, of all streams; 0 if none was sent.
    pub fn loss_ratio(&self) -> f64 {
        self.figures().loss_ratio().unwrap_or(0.0)
    }

    /// True if nothing was lost.
    pub fn is_lossless(&self) -> bool {
        self.lost() == 0
    }

    /// The rate that arrived, of the stream on which the least did.
    pub fn forwarded(&self) -> Rate {
        let received = |s: &StreamRecord| self.gbps(s.rx_packets, s.rx_bytes) * 1e9;
        let rates = self.streams.iter().map(|s| Rate::from_f64(received(s)));
        rates.min().unwrap_or_default()
    }

    /// Packets that arrived on all streams after sending had ended.
    pub fn drained(&self) -> u64 {
        self.streams.iter().map(|stream| stream.drained).sum()
    }

    /// Packets per second, in millions.
    pub fn mpps(&self, packets: u64) -> f64 {
        packets as f64 / self.duration.as_secs_f64() / 1e6
    }

    /// Gigabits per second on the wire.
    pub fn gbps(&self, packets: u64, bytes: u64) -> f64 {
        let bytes = bytes + packets * crate::schedule::OVERHEAD as u64;
        bytes as f64 * 8.0 / self.duration.as_secs_f64() / 1e9
    }
}

impl StreamRecord {
    /// Its packets, sent for `duration`. Each packet offered is one sent: a trial that offers less
    /// than its load is invalid.
    pub fn figures(&self, duration: Duration) -> LoadFigures {
        let (sent, received) = (self.tx_packets, self.rx_packets);
        LoadFigures::new(sent, sent, received, 0, duration)
            .unwrap_or_else(|error| unreachable!("a receiver counts each packet once: {error}"))
            .with_bytes(self.tx_bytes, self.rx_bytes)
    }

    /// Packets lost in the network, not at the receiving interface.
    pub fn lost_elsewhere(&self) -> u64 {
        self.lost - self.ingress_drop
    }

    /// Lost of sent, in percent.
    pub fn lost_percent(&self) -> f64 {
        ratio(self.lost, self.tx_packets) * 100.0
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

fn as_nanos<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
