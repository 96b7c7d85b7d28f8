//! The connections of a stack, by identity and by addresses and ports.

use std::collections::HashMap;

use crate::tcp::connection::Connection;
use crate::tcp::headers::Tuple;
use crate::tcp::secret::Secret;

/// The identity of a connection; that of one that is gone is not used again for 2³² others in its
/// place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    pub(crate) index: u32,
    generation: u32,
}

struct Slot<B> {
    generation: u32,
    connection: Option<Box<Connection<B>>>,
}

/// The connections. Places in the hash table depend on the secret, so that a peer cannot choose
/// ports whose connections are all in one place.
pub(crate) struct Table<B> {
    slots: Vec<Slot<B>>,
    free: Vec<u32>,
    by_tuple: HashMap<Tuple, u32, Secret>,
    max: usize,
}

impl<B> Table<B> {
    pub(crate) fn new(max: usize, secret: Secret) -> Table<B> {
        Table {
            slots: Vec::new(),
            free: Vec::new(),
            by_tuple: HashMap::with_hasher(secret),
            max,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_tuple.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.max
    }

    /// Adds a connection; the caller has looked that there is room, and none with its tuple.
    pub(crate) fn insert(&mut self, connection: Connection<B>) -> Id {
        let tuple = connection.tuple;
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                connection: None,
            });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.connection = Some(Box::new(connection));
        self.by_tuple.insert(tuple, index);
        Id {
            index,
            generation: slot.generation,
        }
    }

    /// Removes and returns a connection.
    pub(crate) fn remove(&mut self, index: u32) -> Option<Box<Connection<B>>> {
        let slot = self.slots.get_mut(index as usize)?;
        let connection = slot.connection.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.by_tuple.remove(&connection.tuple);
        self.free.push(index);
        Some(connection)
    }

    pub(crate) fn find(&self, tuple: &Tuple) -> Option<u32> {
        self.by_tuple.get(tuple).copied()
    }

    /// Returns the identity of the connection in a place.
    pub(crate) fn id(&self, index: u32) -> Option<Id> {
        let slot = self.slots.get(index as usize)?;
        slot.connection.as_ref().map(|_| Id {
            index,
            generation: slot.generation,
        })
    }

    pub(crate) fn at(&mut self, index: u32) -> Option<&mut Connection<B>> {
        self.slots
            .get_mut(index as usize)?
            .connection
            .as_deref_mut()
    }

    pub(crate) fn get(&self, id: Id) -> Option<&Connection<B>> {
        let slot = self.slots.get(id.index as usize)?;
        let connection = slot.connection.as_deref()?;
        (slot.generation == id.generation).then_some(connection)
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut Connection<B>> {
        let slot = self.slots.get_mut(id.index as usize)?;
        let connection = slot.connection.as_deref_mut()?;
        (slot.generation == id.generation).then_some(connection)
    }
}
