//! The data of the demo: an account whose bookings are kept in one object, a line each.
//!
//! An object store replaces whole objects, so a booking is read, add a line, write back: what a lock is for.
//! It does no I/O. The workers and the story call it.

use std::fmt::Write as _;

/// One line of the account.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Booking {
    pub who: String,
    pub amount: i64,
}

/// All bookings, in the order in which they were made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Account {
    bookings: Vec<Booking>,
}

/// The object is not an account: the line that can't be read, counted from 1.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line} of the object is not a booking: {text:?}")]
pub struct NotABooking {
    pub line: usize,
    pub text: String,
}

impl Account {
    /// An account that opens with `amount`, and has `older` bookings that add up to nothing, to give it a size.
    pub fn open(amount: i64, older: usize) -> Account {
        let mut account = Account::default();
        account.book("opening", amount);
        for pair in 0..older / 2 {
            account.book(&format!("older-{pair:05}-in"), 5);
            account.book(&format!("older-{pair:05}-out"), -5);
        }
        account
    }

    /// Adds a booking at the end.
    pub fn book(&mut self, who: &str, amount: i64) {
        self.bookings.push(Booking {
            who: who.to_owned(),
            amount,
        });
    }

    /// The sum of all bookings.
    pub fn balance(&self) -> i64 {
        self.bookings.iter().map(|booking| booking.amount).sum()
    }

    /// Whether `who` has a booking of `amount`.
    pub fn has(&self, who: &str, amount: i64) -> bool {
        self.bookings
            .iter()
            .any(|booking| booking.who == who && booking.amount == amount)
    }

    /// The last few bookings, for the message of a failure.
    pub fn tail(&self) -> &[Booking] {
        &self.bookings[self.bookings.len().saturating_sub(3)..]
    }

    /// The object's bytes.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for booking in &self.bookings {
            writeln!(text, "{} {:+}", booking.who, booking.amount)
                .expect("a String takes all that is written");
        }
        text
    }

    /// Reads an object's bytes.
    ///
    /// # Errors
    /// [`NotABooking`] with the first line that isn't one; a torn object has such a line, or ends without a
    /// line's end.
    pub fn parse(bytes: &[u8]) -> Result<Account, NotABooking> {
        let text = String::from_utf8_lossy(bytes);
        let mut account = Account::default();
        for (index, line) in text.split_inclusive('\n').enumerate() {
            let booking = read_booking(line).ok_or_else(|| NotABooking {
                line: index + 1,
                text: line.chars().take(40).collect(),
            })?;
            account.bookings.push(booking);
        }
        Ok(account)
    }
}

fn read_booking(line: &str) -> Option<Booking> {
    let (who, amount) = line.strip_suffix('\n')?.split_once(' ')?;
    Some(Booking {
        who: who.to_owned(),
        amount: amount.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::Account;

    #[test]
    fn an_account_is_read_back_as_it_was_written() {
        let mut account = Account::open(100, 4);
        account.book("B", -70);
        let read = Account::parse(account.to_text().as_bytes()).unwrap();
        assert_eq!(read, account);
        assert_eq!(read.balance(), 30);
        assert!(read.has("B", -70) && !read.has("B", 70) && !read.has("A", -70));
    }

    #[test]
    fn a_torn_object_is_not_an_account() {
        let text = Account::open(100, 0).to_text();
        let torn = &text.as_bytes()[..text.len() - 1];
        assert_eq!(Account::parse(torn).unwrap_err().line, 1);
        assert_eq!(Account::parse(b"opening +100\nB\n").unwrap_err().line, 2);
    }
}
