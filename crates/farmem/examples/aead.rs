//! The processor time of a 16-byte read through the cores of client and node, without a transport,
//! with and without encryption, in alternating rounds; and that of messages whose keys are not at
//! hand.
//!
//! `cargo run --release -p tare-farmem --example aead`

use std::hint::black_box;

use rustix::time::{clock_gettime, ClockId};
use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::{Operation, PageSize, Permission, SpaceId};
use tare_farmem::protocol::{
    Authentication, Client, ClientConfig, Datagrams, Node, NodeConfig, Secret,
};
use tare_sim::Instant;

const ROUNDS: usize = 101;
const READS: usize = 20_000;

fn main() {
    println!("16-byte read: client, node, client; processor time of one thread, {ROUNDS} rounds");
    for spaces in [1, 1000, 10_000, 100_000] {
        let plain = &mut Pair::new(Authentication::None, spaces, 64 << 10);
        let aead = &mut Pair::new(authentication(1), spaces, 64 << 10);
        let (mut plains, mut extras) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (without, with) = (plain.round(), aead.round());
            plains.push(without);
            extras.push(with - without);
        }
        println!(
            "{spaces:>6} spaces: without {}, with {} more",
            spread(&mut plains),
            spread(&mut extras)
        );
    }
    // Room for the keys of fewer spaces than there are: the node derives them for each request.
    let few = &mut Pair::new(authentication(3), 1000, 64 << 10);
    let none = &mut Pair::new(authentication(5), 1000, 4);
    let mut extras: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let without = few.round();
            none.round() - without
        })
        .collect();
    println!(
        "keys derived for each message: {} more",
        spread(&mut extras)
    );
    let mut forged = few.forged();
    println!(
        "a forged request of an unknown space: {}",
        spread(&mut forged)
    );
}

fn authentication(first: u8) -> Authentication {
    Authentication::Aead {
        first_nonce: [first; 12],
    }
}

/// The median and the interval of the middle half, in nanoseconds.
fn spread(samples: &mut [f64]) -> String {
    samples.sort_by(f64::total_cmp);
    let at = |part: usize| samples[(samples.len() - 1) * part / 4];
    format!("{:.0} ns ({:.0} to {:.0})", at(2), at(1), at(3))
}

struct Pair {
    client: Client,
    node: Node<Store>,
    spaces: u64,
    next: u64,
    now: Instant,
    sent: Datagrams,
    datagram: Vec<u8>,
    reply: Vec<u8>,
    replies: Datagrams,
}

impl Pair {
    fn new(authentication: Authentication, spaces: u64, keys_max: usize) -> Pair {
        let config = NodeConfig {
            authentication,
            keys_max,
            ..NodeConfig::new(7)
        };
        let mut node = Node::new(config, Store::new(&Config::new(512 << 20)));
        node.set_secret(Secret::new(&[9; 32]));
        let authentication = match authentication {
            Authentication::Aead {
                first_nonce: [first, ..],
            } => self::authentication(first + 1),
            other => other,
        };
        let mut client = Client::new(ClientConfig {
            authentication,
            ..ClientConfig::new(1)
        });
        let now = Instant::from_nanos(1);
        for space in 0..spaces {
            let space = SpaceId(space);
            client.authorize(Secret::new(&[9; 32]).capability(space));
            let alloc = Operation::Alloc {
                bytes: 4096,
                page: PageSize::Small,
                at: Some(0),
                permission: Permission::READ_WRITE,
                sparse: false,
            };
            for operation in [Operation::Open, alloc] {
                let done = node
                    .store_mut()
                    .execute(now, space, &operation, &mut Vec::new());
                done.expect("room for a page");
            }
        }
        let mut pair = Pair {
            client,
            node,
            spaces,
            next: 0,
            now,
            sent: Datagrams::default(),
            datagram: Vec::new(),
            reply: Vec::new(),
            replies: Datagrams::default(),
        };
        (0..spaces.max(READS as u64)).for_each(|_| pair.read());
        pair
    }

    fn read(&mut self) {
        self.now = Instant::from_nanos(self.now.as_nanos() + 1000);
        let space = SpaceId(self.next);
        self.next = (self.next + 1) % self.spaces;
        let read = Operation::Read {
            address: 64,
            len: 16,
        };
        let submitted = self.client.submit(self.now, space, &read);
        submitted.expect("room for an operation");
        while self.client.transmit(self.now, &mut self.sent) {
            self.replies.clear();
            // As a socket would, here and below.
            self.datagram.clear();
            self.sent
                .iter()
                .for_each(|sent| self.datagram.extend_from_slice(sent));
            self.sent.clear();
            self.node
                .receive(self.now, &mut self.datagram, &mut self.replies);
            for reply in self.replies.iter() {
                self.reply.clear();
                self.reply.extend_from_slice(reply);
                self.client.receive(self.now, &mut self.reply);
            }
        }
        self.client.tick(self.now);
        let end = self.client.poll().expect("an outcome");
        assert_eq!(black_box(&end.data).len(), 16);
        self.client.recycle(end.data);
    }

    /// The nanoseconds of a read.
    fn round(&mut self) -> f64 {
        timed(|| (0..READS).for_each(|_| self.read()))
    }

    /// The nanoseconds of a message that the node cannot authenticate, of a space without keys.
    fn forged(&mut self) -> Vec<f64> {
        let mut message = [0; 100];
        message[..8].copy_from_slice(&[1, 5, 2, 0, 100, 0, 0, 0]);
        message[24] = 7;
        let mut space = 1u64 << 40;
        let mut once = || {
            timed(|| {
                for _ in 0..READS {
                    space += 1;
                    message[8..16].copy_from_slice(&space.to_le_bytes());
                    self.node.receive(self.now, &mut message, &mut self.replies);
                }
            })
        };
        (0..11).map(|_| once()).collect()
    }
}

fn timed(work: impl FnOnce()) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    let start = now();
    work();
    (now() - start) / READS as f64
}
