//! A lock service with leases and fencing tokens, small enough to read: what etcd, ZooKeeper or Consul are in
//! earnest. It lives in the demo's own process; the workers speak to it over TCP, one line a connection.
//!
//! ```text
//! acquire NAME TTL_MS   → token N        waits while another holds it; `busy` after a while
//! renew NAME N TTL_MS   → held | lost
//! release NAME N        → held | lost    what it was before
//! ```
//!
//! It knows nothing of the store: it can end a lease, but it can't take back what a holder has sent.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Who holds which name, until when. Time is passed in.
#[derive(Default)]
pub struct Leases {
    held: HashMap<String, Lease>,
    /// The last token given out. One counter for all names, as with etcd's revision: it only grows.
    last: u64,
}

struct Lease {
    token: u64,
    ends: Instant,
}

impl Leases {
    /// Takes the name and gives its new token.
    ///
    /// # Errors
    /// The moment at which the present lease ends, if it isn't released or renewed before.
    pub fn acquire(&mut self, name: &str, ttl: Duration, now: Instant) -> Result<u64, Instant> {
        if let Some(lease) = self.held.get(name)
            && lease.ends > now
        {
            return Err(lease.ends);
        }
        self.last += 1;
        let lease = Lease {
            token: self.last,
            ends: now + ttl,
        };
        self.held.insert(name.to_owned(), lease);
        Ok(self.last)
    }

    /// Makes the lease last until `ttl` from now, if the token still holds it.
    pub fn renew(&mut self, name: &str, token: u64, ttl: Duration, now: Instant) -> bool {
        match self.held.get_mut(name) {
            Some(lease) if lease.token == token && lease.ends > now => {
                lease.ends = now + ttl;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Ends the lease, if the token still holds it.
    pub fn release(&mut self, name: &str, token: u64, now: Instant) -> bool {
        let held = self.renew(name, token, Duration::ZERO, now);
        if held {
            self.held.remove(name);
        }
        held
    }
}

/// The service. Its threads end with the demo's process; each connection is one line and one answer.
pub struct LockService {
    pub address: SocketAddr,
}

#[derive(Default)]
struct Shared {
    leases: Mutex<Leases>,
    /// A lease was released or renewed: those who wait look again.
    changed: Condvar,
}

impl LockService {
    /// Listens on a loopback port of the system's choice.
    ///
    /// # Errors
    /// When no port or no thread can be had.
    pub fn start() -> std::io::Result<LockService> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        std::thread::Builder::new()
            .name("lock".to_owned())
            .spawn(move || {
                for stream in listener.incoming().flatten() {
                    let shared = Arc::clone(&shared);
                    std::thread::spawn(move || shared.serve(&stream));
                }
            })?;
        Ok(LockService { address })
    }
}

impl Shared {
    /// Answers one connection; what goes wrong on it is its client's to see.
    fn serve(&self, stream: &TcpStream) {
        let mut line = String::new();
        let read = stream
            .set_read_timeout(Some(LINE_TIMEOUT))
            .and_then(|()| BufReader::new(stream).read_line(&mut line));
        if read.is_ok() {
            let answer = self.answer(line.trim_end()).unwrap_or_else(|| "error".to_owned());
            let _ = writeln!(&*stream, "{answer}");
        }
    }

    fn answer(&self, line: &str) -> Option<String> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["acquire", name, ttl] => Some(self.acquire(name, millis(ttl)?)),
            ["renew", name, token, ttl] => {
                let (token, ttl) = (token.parse().ok()?, millis(ttl)?);
                Some(self.change(|leases| leases.renew(name, token, ttl, Instant::now())))
            }
            ["release", name, token] => {
                let token = token.parse().ok()?;
                Some(self.change(|leases| leases.release(name, token, Instant::now())))
            }
            _ => None,
        }
    }

    fn acquire(&self, name: &str, ttl: Duration) -> String {
        let patience = Instant::now() + ACQUIRE_WAIT_MAX;
        let mut leases = self.leases.lock();
        loop {
            match leases.acquire(name, ttl, Instant::now()) {
                Ok(token) => return format!("token {token}"),
                Err(_) if Instant::now() >= patience => return "busy".to_owned(),
                Err(ends) => self.changed.wait_until(&mut leases, ends.min(patience)),
            };
        }
    }

    fn change(&self, change: impl FnOnce(&mut Leases) -> bool) -> String {
        let held = change(&mut self.leases.lock());
        self.changed.notify_all();
        if held { "held" } else { "lost" }.to_owned()
    }
}

fn millis(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_millis)
}

/// A worker's side of the protocol.
pub struct LockClient {
    pub address: SocketAddr,
    pub name: String,
    pub ttl: Duration,
}

/// The lock service couldn't be asked, or its answer made no sense.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("the lock service at {address} can't be asked")]
    Away {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("the lock service answered {answer:?} to {question:?}")]
    Unclear { question: String, answer: String },
}

impl LockClient {
    /// Waits for the lock and gives the token.
    ///
    /// # Errors
    /// [`LockError`], also when the lock didn't come free in time.
    pub fn acquire(&self) -> Result<u64, LockError> {
        let question = format!("acquire {} {}", self.name, self.ttl.as_millis());
        let answer = self.ask(&question)?;
        answer
            .strip_prefix("token ")
            .and_then(|token| token.parse().ok())
            .ok_or(LockError::Unclear { question, answer })
    }

    /// Asks whether the token still holds the lock, and makes its lease last for another `ttl` if so.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn renew(&self, token: u64) -> Result<bool, LockError> {
        self.ask_held(format!("renew {} {token} {}", self.name, self.ttl.as_millis()))
    }

    /// Gives the lock back.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn release(&self, token: u64) -> Result<bool, LockError> {
        self.ask_held(format!("release {} {token}", self.name))
    }

    fn ask_held(&self, question: String) -> Result<bool, LockError> {
        match self.ask(&question)?.as_str() {
            "held" => Ok(true),
            "lost" => Ok(false),
            answer => Err(LockError::Unclear {
                answer: answer.to_owned(),
                question,
            }),
        }
    }

    fn ask(&self, question: &str) -> Result<String, LockError> {
        let exchange = || {
            let mut stream = TcpStream::connect(self.address)?;
            stream.set_read_timeout(Some(ACQUIRE_WAIT_MAX + LINE_TIMEOUT))?;
            writeln!(stream, "{question}")?;
            let mut answer = String::new();
            BufReader::new(stream).read_line(&mut answer)?;
            Ok(answer.trim_end().to_owned())
        };
        exchange().map_err(|source| LockError::Away {
            address: self.address,
            source,
        })
    }
}

/// How long a client may take to send its line.
const LINE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an `acquire` waits at most.
const ACQUIRE_WAIT_MAX: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::{Leases, LockClient, LockService};
    use std::time::{Duration, Instant};

    const TTL: Duration = Duration::from_secs(1);

    #[test]
    fn a_lease_that_ended_makes_way_for_a_higher_token_and_cannot_be_renewed() {
        let (mut leases, start) = (Leases::default(), Instant::now());
        let first = leases.acquire("a", TTL, start).unwrap();
        assert_eq!(leases.acquire("a", TTL, start + TTL / 2), Err(start + TTL));
        assert!(leases.renew("a", first, TTL, start + TTL / 2));
        let ended = start + TTL / 2 + TTL;
        assert!(!leases.renew("a", first, TTL, ended));
        let second = leases.acquire("a", TTL, ended).unwrap();
        assert!(second > first);
        assert!(!leases.release("a", first, ended) && leases.release("a", second, ended));
    }

    #[test]
    fn names_do_not_wait_for_each_other_and_never_share_a_token() {
        let (mut leases, now) = (Leases::default(), Instant::now());
        let (a, b) = (leases.acquire("a", TTL, now), leases.acquire("b", TTL, now));
        assert!(a.is_ok() && b.is_ok() && a != b);
    }

    #[test]
    fn a_waiting_client_gets_the_lock_as_soon_as_it_is_released() {
        let service = LockService::start().unwrap();
        let client = |ttl| LockClient {
            address: service.address,
            name: "a".to_owned(),
            ttl,
        };
        let first = client(Duration::from_secs(600)).acquire().unwrap();
        let waiter = client(TTL);
        let waiting = std::thread::spawn(move || waiter.acquire().unwrap());
        assert!(client(TTL).release(first).unwrap());
        assert!(waiting.join().unwrap() > first);
    }
}
