//! The table of all fences: a concurrent map from a resource to its [`Entry`].
//!
//! Its key is a 128-bit keyed hash of the resource's name, with a key of this process: names would cost twice
//! the memory. Two names with one hash would share the higher mark: that refuses too much, never too little,
//! and with a secret key nobody can look for such a pair. No guard of the map leaves this file.

use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::Arc;

use dashmap::DashMap;
use parking_lot::Mutex;
use siphasher::sip128::SipHasher13;

use super::{Claim, Core, Door};
use crate::base::Token;

/// A resource as the table knows it: a 128-bit keyed hash of its name. Packed as a token is.
#[repr(Rust, packed(8))]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(u128);

/// One fence: its door, and a slow state `S` for as long as there is one.
#[derive(Debug)]
pub struct Entry<S> {
    /// The way that nearly every request takes.
    pub door: Door,
    /// Everything else; `None` where it can be made again from the door.
    pub slow: Mutex<Option<Box<S>>>,
}

/// The concurrent map of all fences.
#[derive(Debug)]
pub struct Table<S> {
    map: DashMap<Key, Arc<Entry<S>>, BuildHasherDefault<KeyIsHash>>,
    secret: (u64, u64),
}

impl<S> Default for Table<S> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a secret key, drawn once; no decision depends on it"
    )]
    fn default() -> Self {
        Table {
            map: DashMap::default(),
            // The standard library's random keys, drawn from the system.
            secret: (RandomState::new().hash_one(0u8), RandomState::new().hash_one(1u8)),
        }
    }
}

impl<S> Table<S> {
    /// The key of a resource's name.
    #[must_use]
    pub fn key(&self, name: &str) -> Key {
        let hash = SipHasher13::new_with_keys(self.secret.0, self.secret.1).hash(name.as_bytes());
        Key(u128::from(hash.h1) << 64 | u128::from(hash.h2))
    }

    /// The fence of `key`, if it was seen.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<Arc<Entry<S>>> {
        self.map.get(&key).map(|entry| Arc::clone(&entry))
    }

    /// Whether a claim could commit at this moment at the fence of `key`, if that was seen.
    #[must_use]
    pub fn admits(&self, key: Key, claim: Claim) -> Option<bool> {
        self.map.get(&key).map(|entry| entry.door.admits(claim))
    }

    /// The fence of `key`, made bare where it was not seen before.
    #[must_use]
    pub fn get_or_bare(&self, key: Key) -> Arc<Entry<S>> {
        if let Some(entry) = self.get(key) {
            return entry;
        }
        Arc::clone(&self.map.entry(key).or_insert_with(|| Arc::new(Entry::new(None))))
    }

    /// Puts a mark in at the start, from the ledger.
    pub fn load(&self, key: Key, mark: Token) {
        self.map.insert(key, Arc::new(Entry::new(Some(mark))));
    }

    /// Forgets a fence that never had a mark and that nobody holds: writes without a token leave such ones.
    pub fn forget_bare(&self, key: Key) {
        // With the shard locked, a count of one means that nobody else has it or can get it.
        self.map.remove_if(&key, |_, entry| {
            Arc::strong_count(entry) == 1
                && entry.door.mark().is_none()
                && entry.door.committed() == 0
                && !entry.door.is_shut()
                && entry.slow.lock().is_none()
        });
    }

    /// How many fences there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Calls `see` for each fence that has a slow state. `see` must not come back to the table.
    pub fn each_slow(&self, mut see: impl FnMut(&Door, &S)) {
        for entry in &self.map {
            if let Some(slow) = entry.slow.lock().as_deref() {
                see(&entry.door, slow);
            }
        }
    }
}

impl<S> Entry<S> {
    fn new(mark: Option<Token>) -> Entry<S> {
        Entry {
            door: Door::new(mark),
            slow: Mutex::new(None),
        }
    }

    /// The core of this fence while it has no slow state.
    #[must_use]
    pub fn core_at_rest(&self) -> Core {
        Core::at_rest(&self.door)
    }
}

/// The key is a hash already: takes its low half as it is.
#[derive(Default, Debug)]
pub struct KeyIsHash(u64);

impl Hasher for KeyIsHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, key: u128) {
        self.0 = key as u64;
    }
}
