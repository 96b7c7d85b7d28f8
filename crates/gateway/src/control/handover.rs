//! The state of the control side, for another process.

use serde::{Deserialize, Serialize};
use tare_histogram::Histogram;
use tare_sim::Instant;

use super::{Control, Counters};
use crate::exchange;
use crate::handover::State;
use crate::interface::InterfaceId;

/// The counters that go on.
#[derive(Serialize, Deserialize)]
struct AllCounters<W> {
    control: Counters,
    exchange: exchange::Counters,
    #[serde(default)]
    negotiations: Histogram,
    workers: W,
}

impl Control {
    /// Returns true while a negotiation is in progress that a handover would break off.
    pub(crate) fn is_proposing(&self) -> bool {
        self.exchange.is_proposing()
    }

    /// Returns the state that another process needs, with counters of the workers. No worker may
    /// use an SA from here on, until it is known that the other process will not.
    pub(crate) fn export(&self, workers: &impl Serialize) -> State {
        let (routes, given) = self.routes.export(&self.exchange, &self.clock);
        let interfaces = [(false, &self.private), (true, &self.public)];
        let known = interfaces.into_iter().flat_map(|(public, interface)| {
            let neighbors = interface.neighbors.iter();
            neighbors.filter_map(move |n| Some((public, n.address, n.mac?)))
        });
        let counters = AllCounters {
            control: self.counters,
            exchange: self.exchange.counters(),
            negotiations: self.exchange.negotiation_latency().clone(),
            workers,
        };
        State {
            routes,
            given,
            neighbors: known.collect(),
            paths: self.paths.export(&self.clock),
            sa_ttl: self.exchange.sa_ttl(),
            counters: serde_json::to_string(&counters).unwrap_or_default(),
        }
    }

    /// Takes over the state of another process: to be called before the first [`Control::tick`].
    /// Returns the names of routes whose SAs are not valid here, because their configuration has
    /// changed, and the counters of the workers, unless the other program has others.
    pub(crate) fn import<W: for<'a> Deserialize<'a>>(
        &mut self,
        now: Instant,
        state: &State,
    ) -> (Vec<String>, Option<W>) {
        let inside = self.clock.inside(now);
        self.routes.import_given(&state.routes, &state.given);
        let mut gone = Vec::new();
        for route in &state.routes {
            let exchange = &mut self.exchange;
            let keep = |number| exchange.import(now, number, &route.negotiated(), state.sa_ttl);
            match self.routes.import(route, keep) {
                Some(number) => drop(self.watched.insert(number)),
                None => gone.push(route.id.clone()),
            }
        }
        for (public, address, mac) in &state.neighbors {
            let id = match public {
                true => InterfaceId::Public,
                false => InterfaceId::Private,
            };
            let neighbors = &mut self.interface_mut(id).neighbors;
            neighbors.assume(inside, *address, *mac);
        }
        self.paths.import(&state.paths);
        self.dirty = true;
        let counters: Option<AllCounters<W>> = serde_json::from_str(&state.counters).ok();
        let workers = counters.map(|counters| {
            self.counters.add(&counters.control);
            self.exchange
                .go_on(&counters.exchange, &counters.negotiations);
            counters.workers
        });
        (gone, workers)
    }
}
