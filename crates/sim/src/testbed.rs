//! Nodes that know neither clock nor socket, joined by lines, in virtual time.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use crate::{Carried, EventQueue, Instant, Line, LineConfig, Random, SkewedClock};

/// A protocol core that a [`Testbed`] drives: messages and times in, messages out.
///
/// The times that a node is given are those of its own clock, which the testbed may have set wrong.
pub trait Node: Any {
    /// What it sends and receives.
    type Message: Carried;

    /// Takes a message that has arrived at one of its interfaces, and adds what it sends to `out`.
    fn receive(
        &mut self,
        now: Instant,
        interface: usize,
        message: Self::Message,
        out: &mut Outbox<Self::Message>,
    );

    /// When [`Node::tick`] is to be called next, by the node's own clock; [`Instant::NEVER`] if the
    /// node waits for messages only.
    fn next_deadline(&self) -> Instant {
        Instant::NEVER
    }

    /// Does what is due at `now`, and adds what it sends to `out`. It is called again at once if it
    /// leaves a deadline that is not later than `now`.
    fn tick(&mut self, now: Instant, out: &mut Outbox<Self::Message>) {
        let _ = (now, out);
    }
}

/// The messages that a node sends, in their order.
#[derive(Debug)]
pub struct Outbox<M>(Vec<(usize, M)>);

impl<M> Outbox<M> {
    /// Sends a message from an interface of the node, counted from 0.
    #[inline]
    pub fn send(&mut self, interface: usize, message: M) {
        self.0.push((interface, message));
    }
}

/// A node of a testbed, and its type.
pub struct NodeId<N> {
    index: usize,
    node: PhantomData<fn() -> N>,
}

impl<N> NodeId<N> {
    /// One of its interfaces, counted from 0.
    pub fn interface(self, interface: usize) -> Interface {
        Interface {
            node: self.index,
            interface,
        }
    }
}

/// An interface of a node, where a cable ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    node: usize,
    interface: usize,
}

/// A cable of a testbed: a line in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cable {
    /// The line from the first of its ends to the second; the other one is the next.
    there: usize,
}

/// Nodes, the cables between them, and the time.
///
/// The same seed and the same calls give the same run, on every machine. What is due at one moment
/// is done in this order: frames arrive, in the order in which their lines were connected; nodes
/// tick, in the order in which they were added; changes happen, in the order in which they were
/// scheduled.
pub struct Testbed<M> {
    now: Instant,
    random: Random,
    stations: Vec<Station<M>>,
    links: Vec<Link<M>>,
    /// By link: when its next frame arrives.
    arrivals: Vec<Instant>,
    /// By station, in true time: when its node is to tick.
    deadlines: Vec<Instant>,
    /// A node or a clock may have been changed since the deadlines were asked for.
    stale: bool,
    changes: EventQueue<Change<M>>,
    /// Kept for its memory.
    outbox: Outbox<M>,
}

type Change<M> = Box<dyn FnOnce(&mut Testbed<M>)>;

/// The place of a node, which stays when the node is killed.
struct Station<M> {
    node: Option<Box<dyn Node<Message = M>>>,
    clock: SkewedClock,
    /// Calls of its node in a row that left something due.
    ticks_at_once: u32,
    /// The links that its interfaces send on.
    interfaces: Vec<Option<usize>>,
}

struct Link<M> {
    line: Line<M>,
    to: Interface,
}

/// What is due next.
enum Due {
    Arrival(usize),
    Tick(usize),
    Change,
}

impl<M: Carried + 'static> Testbed<M> {
    /// An empty testbed at time zero. The seed decides the faults of its lines, and what
    /// [`Testbed::random`] gives.
    pub fn new(seed: u64) -> Testbed<M> {
        Testbed {
            now: Instant::ZERO,
            random: Random::new(seed),
            stations: Vec::new(),
            links: Vec::new(),
            arrivals: Vec::new(),
            deadlines: Vec::new(),
            stale: false,
            changes: EventQueue::new(),
            outbox: Outbox(Vec::new()),
        }
    }

    /// Adds a node.
    pub fn add<N: Node<Message = M>>(&mut self, node: N) -> NodeId<N> {
        self.stations.push(Station {
            node: Some(Box::new(node)),
            clock: SkewedClock::default(),
            ticks_at_once: 0,
            interfaces: Vec::new(),
        });
        self.deadlines.push(Instant::NEVER);
        self.stale = true;
        NodeId {
            index: self.stations.len() - 1,
            node: PhantomData,
        }
    }

    /// Joins two interfaces by a line in each direction. Both have the same properties, but faults
    /// of their own: their seeds come from that of the testbed, and that of `config` is not used.
    ///
    /// # Panics
    /// If one of the interfaces is connected, and as [`Line::new`].
    pub fn connect(
        &mut self,
        a: impl Into<Interface>,
        b: impl Into<Interface>,
        config: &LineConfig,
    ) -> Cable {
        let [there, back] = [(); 2].map(|()| LineConfig {
            seed: self.random.next_u64(),
            ..*config
        });
        self.connect_lines(a, b, &there, &back)
    }

    /// Joins two interfaces by a line from `a` to `b` and one back, with the seeds that they have.
    ///
    /// # Panics
    /// As [`Testbed::connect`].
    pub fn connect_lines(
        &mut self,
        a: impl Into<Interface>,
        b: impl Into<Interface>,
        there: &LineConfig,
        back: &LineConfig,
    ) -> Cable {
        let cable = Cable {
            there: self.links.len(),
        };
        let (a, b) = (a.into(), b.into());
        for (from, to, config) in [(a, b, there), (b, a, back)] {
            let interfaces = &mut self.stations[from.node].interfaces;
            if interfaces.len() <= from.interface {
                interfaces.resize(from.interface + 1, None);
            }
            let place = &mut interfaces[from.interface];
            assert!(place.is_none(), "{from:?} is connected already");
            *place = Some(self.links.len());
            let line = Line::new(config);
            self.links.push(Link { line, to });
            self.arrivals.push(Instant::NEVER);
        }
        cable
    }

    /// The true time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The time by the clock of a node.
    pub fn time_of<N>(&self, id: NodeId<N>) -> Instant {
        self.stations[id.index].clock.at(self.now)
    }

    /// The clock of a node, to set it wrong.
    pub fn clock_mut<N>(&mut self, id: NodeId<N>) -> &mut SkewedClock {
        self.stale = true;
        &mut self.stations[id.index].clock
    }

    /// Random numbers for the scenario itself.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// A node.
    ///
    /// # Panics
    /// If it was killed.
    pub fn node<N: Node<Message = M>>(&self, id: NodeId<N>) -> &N {
        let node: &dyn Any = self.stations[id.index].node.as_deref().expect(KILLED);
        node.downcast_ref().expect("a node keeps its type")
    }

    /// A node, to change what needs neither time nor lines.
    ///
    /// # Panics
    /// If it was killed.
    pub fn node_mut<N: Node<Message = M>>(&mut self, id: NodeId<N>) -> &mut N {
        self.stale = true;
        self.running(id)
    }

    fn running<N: Node<Message = M>>(&mut self, id: NodeId<N>) -> &mut N {
        let node: &mut dyn Any = self.stations[id.index].node.as_deref_mut().expect(KILLED);
        node.downcast_mut().expect("a node keeps its type")
    }

    /// Lets a node do something now, by its own clock: what its user, its operator or another
    /// interface would make it do. What it adds to the outbox is sent.
    ///
    /// # Panics
    /// If it was killed.
    pub fn act<N: Node<Message = M>, T>(
        &mut self,
        id: NodeId<N>,
        act: impl FnOnce(&mut N, Instant, &mut Outbox<M>) -> T,
    ) -> T {
        let now = self.time_of(id);
        let mut outbox = std::mem::take(&mut self.outbox);
        let result = act(self.running(id), now, &mut outbox);
        self.outbox = outbox;
        self.flush(id.index);
        result
    }

    /// Takes a node away, with all that it knows. What arrives for it is dropped.
    pub fn kill<N>(&mut self, id: NodeId<N>) {
        self.stations[id.index].node = None;
        self.stale = true;
    }

    /// Puts a node in the place of the one that is or was there, with its cables and its clock.
    pub fn restart<N: Node<Message = M>>(&mut self, id: NodeId<N>, node: N) {
        self.stations[id.index].node = Some(Box::new(node));
        self.stale = true;
    }

    /// False for a node that was killed and not restarted.
    pub fn is_running<N>(&self, id: NodeId<N>) -> bool {
        self.stations[id.index].node.is_some()
    }

    /// The lines of a cable: from its first end to its second, and back.
    pub fn lines(&self, cable: Cable) -> [&Line<M>; 2] {
        [
            &self.links[cable.there].line,
            &self.links[cable.there + 1].line,
        ]
    }

    /// Changes the properties of both lines of a cable, as [`Line::set_config`] does.
    pub fn set_cable(&mut self, cable: Cable, config: &LineConfig) {
        self.set_lines(cable, config, config);
    }

    /// Changes the properties of the line from the first end of a cable to its second, and of the
    /// one back.
    pub fn set_lines(&mut self, cable: Cable, there: &LineConfig, back: &LineConfig) {
        self.links[cable.there].line.set_config(there);
        self.links[cable.there + 1].line.set_config(back);
    }

    /// Cuts a cable, or joins it again, as [`Line::set_cut`] does.
    pub fn set_cut(&mut self, cable: Cable, cut: bool) {
        self.set_lines_cut(cable, [cut; 2]);
    }

    /// Cuts or joins the line from the first end of a cable to its second, and the one back.
    pub fn set_lines_cut(&mut self, cable: Cable, cut: [bool; 2]) {
        for (link, cut) in self.links[cable.there..].iter_mut().zip(cut) {
            link.line.set_cut(cut);
        }
    }

    /// Lets something happen at a time: a fault, its end, a message, or whatever else can be done
    /// to a testbed. A time that has passed is now.
    pub fn at(&mut self, when: Instant, change: impl FnOnce(&mut Testbed<M>) + 'static) {
        self.changes.push(when, Box::new(change));
    }

    /// Cuts a cable at `first` and joins it again after `down`, and so on with `up` in between,
    /// until `end`; it is joined at the end.
    pub fn flap(
        &mut self,
        cable: Cable,
        first: Instant,
        down: Duration,
        up: Duration,
        end: Instant,
    ) {
        if first < end {
            self.at(first, move |testbed| {
                testbed.set_cut(cable, true);
                testbed.at((first + down).min(end), move |testbed| {
                    testbed.set_cut(cable, false)
                });
                testbed.flap(cable, first + down + up, down, up, end);
            });
        }
    }

    /// When something happens next by itself; `None` if nothing will.
    pub fn next_event(&mut self) -> Option<Instant> {
        self.refresh();
        self.due().map(|(at, _)| at)
    }

    /// When the next frame arrives anywhere; `None` if none is in flight.
    pub fn next_arrival(&self) -> Option<Instant> {
        let next = self.arrivals.iter().min().copied();
        next.filter(|at| *at < Instant::NEVER)
    }

    /// Lets time pass, and everything happen, up to a time, that included.
    pub fn run_until(&mut self, end: Instant) {
        while self.step(end) {}
        self.now = self.now.max(end);
    }

    /// Lets this much time pass.
    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    /// Lets time pass until `is_reached` returns true, which is asked after each event, or until
    /// `end`. Returns whether it was reached.
    pub fn run_until_reached(
        &mut self,
        end: Instant,
        mut is_reached: impl FnMut(&Testbed<M>) -> bool,
    ) -> bool {
        loop {
            if is_reached(self) {
                return true;
            }
            if !self.step(end) {
                self.now = self.now.max(end);
                return false;
            }
        }
    }

    /// Does what is due next, if it is due by `end`.
    #[inline]
    fn step(&mut self, end: Instant) -> bool {
        self.refresh();
        let Some((at, due)) = self.due().filter(|(at, _)| *at <= end) else {
            return false;
        };
        self.now = self.now.max(at);
        match due {
            Due::Arrival(link) => self.arrive(link),
            Due::Tick(station) => self.tick(station),
            Due::Change => {
                if let Some((_, change)) = self.changes.pop(self.now) {
                    change(self);
                }
            }
        }
        true
    }

    /// The earliest of all that is to happen. It is looked for among one number for each line and
    /// each node: for the few that a testbed has, that is less work than keeping them in order.
    #[inline]
    fn due(&self) -> Option<(Instant, Due)> {
        let mut next = (Instant::NEVER, Due::Change);
        for (n, &at) in self.arrivals.iter().enumerate() {
            if at < next.0 {
                next = (at, Due::Arrival(n));
            }
        }
        for (n, &at) in self.deadlines.iter().enumerate() {
            if at < next.0 {
                next = (at, Due::Tick(n));
            }
        }
        let at = self.changes.next_at();
        if at < next.0 {
            next = (at, Due::Change);
        }
        (next.0 < Instant::NEVER).then_some(next)
    }

    /// Asks all nodes for their deadlines, if one of them may have been changed from outside.
    #[inline]
    fn refresh(&mut self) {
        if self.stale {
            (0..self.stations.len()).for_each(|index| self.ask(index));
            self.stale = false;
        }
    }

    /// Asks a node for its deadline.
    #[inline]
    fn ask(&mut self, index: usize) {
        let station = &self.stations[index];
        let deadline = station.node.as_ref().map(|node| node.next_deadline());
        let deadline = deadline.unwrap_or(Instant::NEVER);
        self.deadlines[index] = station.clock.when(self.now, deadline);
    }

    #[inline]
    fn arrive(&mut self, link: usize) {
        let Link { line, to } = &mut self.links[link];
        let arrived = line.pop(self.now);
        self.arrivals[link] = line.next_arrival().unwrap_or(Instant::NEVER);
        let Interface { node, interface } = *to;
        let station = &mut self.stations[node];
        if let (Some((_, message)), Some(receiver)) = (arrived, &mut station.node) {
            let now = station.clock.at(self.now);
            receiver.receive(now, interface, message, &mut self.outbox);
            self.flush(node);
        }
    }

    fn tick(&mut self, index: usize) {
        let station = &mut self.stations[index];
        let now = station.clock.at(self.now);
        if let Some(node) = &mut station.node {
            node.tick(now, &mut self.outbox);
            // A node may do its work in parts, but one that never gets on would hang the test.
            station.ticks_at_once = match node.next_deadline() > now {
                true => 0,
                false => station.ticks_at_once + 1,
            };
            assert!(
                station.ticks_at_once < TICKS_AT_ONCE_MAX,
                "node {index} is still due at {now}, after {TICKS_AT_ONCE_MAX} calls at that time"
            );
            self.flush(index);
        }
    }

    /// Puts what a node has sent on its lines, and asks for its deadline: it has just acted.
    #[inline]
    fn flush(&mut self, index: usize) {
        let interfaces = &self.stations[index].interfaces;
        for (interface, message) in self.outbox.0.drain(..) {
            let Some(Some(link)) = interfaces.get(interface).copied() else {
                panic!("node {index} sent from interface {interface}, which is not connected")
            };
            let line = &mut self.links[link].line;
            line.offer(self.now, message);
            self.arrivals[link] = line.next_arrival().unwrap_or(Instant::NEVER);
        }
        self.ask(index);
    }
}

/// Calls of [`Node::tick`] at one time after which a node is taken to be stuck.
const TICKS_AT_ONCE_MAX: u32 = 10_000;

const KILLED: &str = "a node that is running";

impl<N> From<NodeId<N>> for Interface {
    /// Its first interface.
    fn from(id: NodeId<N>) -> Interface {
        id.interface(0)
    }
}

// Whatever the node is: it is not in the identifier.
impl<N> Clone for NodeId<N> {
    fn clone(&self) -> NodeId<N> {
        *self
    }
}

impl<N> Copy for NodeId<N> {}

impl<N> fmt::Debug for NodeId<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({})", self.index)
    }
}

impl<M> Default for Outbox<M> {
    fn default() -> Outbox<M> {
        Outbox(Vec::new())
    }
}

impl<M> fmt::Debug for Testbed<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Testbed")
            .field("now", &self.now)
            .field("nodes", &self.stations.len())
            .field("lines", &self.links.len())
            .field("changes", &self.changes)
            .finish_non_exhaustive()
    }
}
