//! The backend's side: connecting, keeping idle connections, sending.
//!
//! [`Conn::send`] is the one place where bytes of a request leave, and those of a session by [`Conn::carry`] and [`Conn::pour`]. It takes the [`Flight`], so that forwarding
//! without an admission doesn't compile, and it asks the flight before each system call that could carry the last
//! byte. A connection that is dropped is reset, so that the kernel sends nothing more of it (S6).

mod pool;
mod probe;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, UnixStream};

pub use self::pool::{NoConn, Pool, Slot, Slots};
pub use self::probe::Amiss;
use crate::base::Buf;
use crate::config::{Target, Upstream};
use crate::keeper::{Cut, Flight};
use crate::net::{Chute, ClientTls, Stream};

/// Where the backend is and how it is connected.
#[derive(Clone, Debug)]
pub struct Backend {
    /// Where it is.
    pub target: Target,
    /// TLS towards it; over TCP alone.
    pub tls: Option<Arc<ClientTls>>,
    /// How long a connect may take, all addresses of the name and TLS's handshake together.
    pub connect_timeout: Duration,
    /// A4: TCP_USER_TIMEOUT stays below it.
    pub settle_after: Duration,
}

/// One connection to the backend.
#[derive(Debug)]
pub struct Conn {
    /// The socket. Read it freely; write it by [`Conn::send`] alone.
    stream: Stream,
    /// What came and was not taken yet.
    pub inbox: Buf,
    /// Bytes of the present request that the socket took.
    sent: u64,
    /// Whether it carried a request before this one.
    reused: bool,
    own: bool,
    idle_since: Instant,
    /// From here on it is not kept.
    retires_at: Option<Instant>,
    _slot: Slot,
}

/// One of several requests on their way on one connection: see [`Conn::send_row`].
#[derive(Debug)]
pub struct Ride<'k> {
    /// What lets it through.
    pub flight: Flight<'k>,
    /// How many bytes the connection takes before its first.
    pub begins: u64,
    /// And with its last; `u64::MAX` while that is not known.
    pub ends: u64,
}

/// Of a row so much goes out at once: what commits has to be answered for.
const ROW_BYTES_MAX: usize = 64 * 1024;

/// A name may lead elsewhere by now, and a certificate may have been replaced: so a connection that depends on
/// either is replaced as well, however busy it is kept.
const AGE_MAX: Duration = Duration::from_secs(60);

/// From here on an idle connection is looked at by a system call before it is used.
const PAUSE: Duration = Duration::from_millis(10);

/// What became of an attempt to send.
#[derive(Debug)]
pub enum Sent {
    /// Everything that was given has been taken.
    All,
    /// A part was taken; there is more to do at once.
    Part,
    /// The socket takes nothing now.
    Blocked,
    /// The flight may not send its last byte. The connection must be dropped.
    Cut(Cut),
    /// The connection is broken. [`Conn::sent`] says whether anything had been taken.
    Broken(io::Error),
}

impl Conn {
    /// Sends from the front of `outbox`. `last` says that the request ends with it; `first_byte` that it counts as
    /// committed from its first byte on.
    ///
    /// The flight commits before a system call that could carry the byte that counts, and is taken back right
    /// after it if that byte was not taken: nothing is awaited in between.
    pub fn send(&mut self, flight: &mut Flight<'_>, outbox: &mut Buf, last: bool, first_byte: bool) -> Sent {
        if outbox.is_empty() {
            return Sent::All;
        }
        let commits = last || first_byte;
        if commits && let Err(cut) = flight.commit() {
            return Sent::Cut(cut);
        }
        let result = self.stream.try_write(outbox.filled());
        if let Ok(taken) = result {
            outbox.consume(taken);
            // A part of a record is not nothing.
            self.sent += taken.max(1) as u64;
        }
        let counts = if first_byte {
            self.sent > 0
        } else {
            last && outbox.is_empty()
        };
        if commits && !counts {
            flight.uncommit();
        }
        match result {
            Ok(_) if outbox.is_empty() => Sent::All,
            Ok(_) => Sent::Part,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Sent::Blocked,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Sent::Part,
            Err(error) => Sent::Broken(error),
        }
    }

    /// Sends from the front of `outbox`, in which requests stand one behind the other; `rides` are theirs, in their
    /// order. Each commits before a system call that could carry its last byte, and is taken back right after it if that
    /// byte was not taken. One that may not commit stops what comes before it from going no further than to its first
    /// byte; at that byte it is [`Sent::Cut`].
    ///
    /// With TLS a record that was made and not taken whole goes as it is: where one that ends in it may not commit, nothing
    /// of it may go, and that is [`Sent::Cut`] too. [`Stream::sealed`] tells, and the connection must be dropped then.
    pub fn send_row<'r, 'k: 'r>(
        &mut self,
        rides: impl Iterator<Item = &'r mut Ride<'k>>,
        outbox: &mut Buf,
    ) -> Sent {
        if outbox.is_empty() {
            return Sent::All;
        }
        let sealed = self.stream.sealed();
        let mut len = match sealed {
            0 => outbox.len().min(ROW_BYTES_MAX),
            sealed => sealed,
        };
        let mut committed: SmallVec<[&mut Ride<'k>; 16]> = SmallVec::new();
        for ride in rides {
            if ride.ends > self.sent + len as u64 {
                break;
            }
            match ride.flight.commit() {
                Ok(()) => committed.push(ride),
                Err(cut) if sealed > 0 || ride.begins <= self.sent => {
                    committed.into_iter().for_each(|ride| ride.flight.uncommit());
                    return Sent::Cut(cut);
                }
                Err(_later) => {
                    len = usize::try_from(ride.begins - self.sent).unwrap_or(len).min(len);
                    break;
                }
            }
        }
        let result = self.stream.try_write(&outbox.filled()[..len]);
        if let Ok(taken) = result {
            outbox.consume(taken);
            self.sent += taken as u64;
        }
        for ride in committed {
            if ride.ends > self.sent {
                ride.flight.uncommit();
            }
        }
        match result {
            Ok(_) if outbox.is_empty() => Sent::All,
            Ok(_) => Sent::Part,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Sent::Blocked,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Sent::Part,
            Err(error) => Sent::Broken(error),
        }
    }

    /// Sends from the front of a session's `outbox`: every byte of it counts, so the flight is asked each time.
    pub fn carry(&mut self, flight: &mut Flight<'_>, outbox: &mut Buf) -> Sent {
        if outbox.is_empty() {
            return Sent::All;
        }
        match flight.go_on() {
            Ok(()) => self.send(flight, outbox, false, true),
            Err(cut) => Sent::Cut(cut),
        }
    }

    /// As [`Conn::carry`], for what stands in a pipe of the kernel's: it was read, and counts as the outbox does. A pipe
    /// that is dropped sends nothing of what is in it.
    pub fn pour(&mut self, flight: &mut Flight<'_>, chute: &mut Chute) -> Sent {
        if let Err(cut) = flight.go_on() {
            return Sent::Cut(cut);
        }
        let result = chute.pour(&self.stream);
        if let Ok(taken) = result {
            self.sent += taken as u64;
        }
        if self.sent == 0 {
            flight.uncommit();
        }
        match result {
            Ok(_) if chute.is_empty() => Sent::All,
            Ok(_) => Sent::Part,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Sent::Blocked,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Sent::Part,
            Err(error) => Sent::Broken(error),
        }
    }

    /// Reads into the inbox.
    ///
    /// # Errors
    /// Those of the socket, `WouldBlock` among them.
    pub fn read(&mut self) -> io::Result<usize> {
        self.stream.try_read(&mut self.inbox, usize::MAX)
    }

    /// Reads at most `max` bytes past the inbox, which is empty.
    ///
    /// # Errors
    /// Those of the socket, `WouldBlock` among them.
    pub fn read_into(&mut self, buf: &mut Buf, max: usize) -> io::Result<usize> {
        debug_assert!(self.inbox.is_empty());
        self.stream.try_read(buf, max)
    }

    /// Bytes of the present request that the socket took.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether it carried a request before the present one: then the backend may have closed it meanwhile.
    #[must_use]
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// The socket, for reading and for waiting.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether it can carry another request of the client that it belongs to; if so, it is made ready for it.
    pub fn again(&mut self) -> bool {
        self.sent = 0;
        self.is_fresh(Duration::MAX)
    }

    /// From now on it belongs to one client: the backend has authenticated it as a whole.
    pub fn bind(&mut self) {
        self.own = true;
    }

    /// Whether it belongs to one client.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.own
    }

    /// Notes that its last answer has come whole.
    pub fn rest(&mut self, now: Instant) {
        self.reused = true;
        self.idle_since = now;
    }

    /// Whether an idle connection can still be used: the backend neither closed it nor sent anything.
    fn is_fresh(&mut self, idle_max: Duration) -> bool {
        if !self.inbox.is_empty() {
            return false;
        }
        let idle = self.idle_since.elapsed();
        // Used a moment ago, the runtime knows what the kernel said since, and looking costs no system call. After a
        // pause the kernel is asked itself: a system call is cheap then, and a write on a closed connection is not.
        idle <= idle_max && self.stream.is_silent(idle >= PAUSE)
    }

    /// Ends our side of a tunnel or a session.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn end_writes(&mut self) -> io::Result<()> {
        self.stream.end_writes()
    }

    /// Closes a connection in order that carries nothing any more, instead of resetting it.
    pub fn close(mut self) {
        self.stream.forgive();
        self.stream.close();
    }
}

impl Backend {
    /// The backend of a listener.
    #[must_use]
    pub fn of(upstream: &Upstream) -> Backend {
        Backend {
            target: upstream.target.clone(),
            tls: upstream.tls.clone(),
            connect_timeout: upstream.connect_timeout,
            settle_after: upstream.settle_after,
        }
    }

    /// Connects, trying the addresses of the name in their order. The name is resolved anew each time.
    async fn connect(&self) -> io::Result<Stream> {
        match tokio::time::timeout(self.connect_timeout, self.attempt()).await {
            Ok(result) => result,
            Err(_elapsed) => Err(io::Error::new(io::ErrorKind::TimedOut, "connect_timeout is over")),
        }
    }

    async fn attempt(&self) -> io::Result<Stream> {
        let (host, port) = match &self.target {
            Target::Unix { path } => return Ok(Stream::unix(UnixStream::connect(path).await?)),
            Target::Tcp { host, port } => (host, *port),
        };
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses(host, port).await? {
            match self.connect_to(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Whether where it is and who it is can't change while a connection stands.
    fn is_fixed(&self) -> bool {
        self.tls.is_none()
            && match &self.target {
                Target::Tcp { host, .. } => host.parse::<IpAddr>().is_ok(),
                Target::Unix { .. } => true,
            }
    }

    async fn connect_to(&self, address: SocketAddr) -> io::Result<Stream> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        // Before connecting, so that it holds from the first byte on: closing, also by kill -9, sends a reset and
        // drops what the kernel still has.
        socket.set_linger(Some(Duration::ZERO))?;
        socket.set_tcp_user_timeout(Some(user_timeout(self.settle_after)))?;
        socket.set_tcp_nodelay(true)?;
        let socket = TcpSocket::from_std_stream(socket.into()).connect(address).await?;
        match &self.tls {
            None => Ok(Stream::tcp(socket)),
            Some(tls) => tls.connect(socket).await,
        }
    }
}

async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    match host.parse() {
        Ok(ip) => Ok(vec![SocketAddr::new(ip, port)]),
        Err(_not_an_address) => Ok(tokio::net::lookup_host((host, port)).await?.collect()),
    }
}

/// Below `settle_after`, so that what the peer did not acknowledge is dropped before the doubt ends; never zero,
/// which would mean the system's default.
fn user_timeout(settle_after: Duration) -> Duration {
    (settle_after * 3 / 4).max(Duration::from_millis(1))
}
