//! What a connection has subscribed to, as far as the gate has to know: how many confirmations a command of that kind
//! gets. `words.rs` finds the commands, `down.rs` counts their confirmations.

/// A kind of these commands, and of their confirmations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subscription {
    Subscribe,
    Unsubscribe,
    PatternSubscribe,
    PatternUnsubscribe,
    /// Of shards: the server also takes those away by itself, so that nothing can be counted on.
    Shard,
}

impl Subscription {
    /// The kind of a command in lower case, or of the first word of a confirmation.
    pub fn of(word: &[u8]) -> Option<Subscription> {
        match word {
            b"subscribe" => Some(Subscription::Subscribe),
            b"unsubscribe" => Some(Subscription::Unsubscribe),
            b"psubscribe" => Some(Subscription::PatternSubscribe),
            b"punsubscribe" => Some(Subscription::PatternUnsubscribe),
            b"ssubscribe" | b"sunsubscribe" => Some(Subscription::Shard),
            _ => None,
        }
    }
}

/// How many there are of each.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Subscribed {
    channels: i64,
    patterns: i64,
    shards: i64,
}

impl Subscribed {
    /// Whether there are any: messages may come.
    pub fn is_any(&self) -> bool {
        *self != Subscribed::default()
    }

    /// A confirmation has come, with the number that it tells: of channels and patterns together, or of shards.
    pub fn note(&mut self, kind: Subscription, count: i64) {
        let grown = count.saturating_sub(self.channels + self.patterns);
        match kind {
            Subscription::Subscribe | Subscription::Unsubscribe => self.channels += grown,
            Subscription::PatternSubscribe | Subscription::PatternUnsubscribe => self.patterns += grown,
            Subscription::Shard => self.shards = count,
        }
    }

    /// How many confirmations a command gets that has so many names behind it: one for each, or for each that there is,
    /// and one where there is none. `None` where that can't be told.
    pub fn confirmations(&self, kind: Subscription, names: usize) -> Option<u64> {
        let all = match kind {
            Subscription::Unsubscribe => self.channels,
            Subscription::PatternUnsubscribe => self.patterns,
            // Without a name they are errors.
            Subscription::Subscribe | Subscription::PatternSubscribe => 1,
            Subscription::Shard => return None,
        };
        let count = match names {
            0 => u64::try_from(all).unwrap_or_default(),
            names => names as u64,
        };
        Some(count.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unsubscribed_from_without_names_is_what_the_confirmations_told() {
        let mut subscribed = Subscribed::default();
        assert_eq!(subscribed.confirmations(Subscription::Unsubscribe, 0), Some(1));
        // SUBSCRIBE a a b, PSUBSCRIBE c*, SUBSCRIBE b
        for count in [1, 1, 2] {
            subscribed.note(Subscription::Subscribe, count);
        }
        subscribed.note(Subscription::PatternSubscribe, 3);
        subscribed.note(Subscription::Subscribe, 3);
        assert_eq!(subscribed.confirmations(Subscription::Unsubscribe, 0), Some(2));
        assert_eq!(subscribed.confirmations(Subscription::Unsubscribe, 5), Some(5));
        assert_eq!(
            subscribed.confirmations(Subscription::PatternUnsubscribe, 0),
            Some(1)
        );
        for count in [2, 1] {
            subscribed.note(Subscription::Unsubscribe, count);
        }
        assert!(subscribed.is_any());
        subscribed.note(Subscription::PatternUnsubscribe, 0);
        assert!(!subscribed.is_any());
    }
}
