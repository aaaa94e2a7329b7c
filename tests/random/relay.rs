//! Between the gate and its backend: bytes can be held, delayed, lost or delivered late, and connections cut, at random
//! or by the test.
//!
//! It keeps to A4: what it holds it delivers soon, or never. It has little room, so that the gate's socket is full before
//! long while it holds something, and what the gate has let in stands there and can still be cut.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use super::Dice;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// To the backend.
    Up,
    /// From it.
    Down,
}

pub struct Relay {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// What was held longer is never delivered.
    held_max: Duration,
}

struct State {
    dice: Dice,
    /// One piece of data in so many meets an accident; 0 for none.
    accident_one_in: u64,
    /// One piece in so many of those behind which much stands is held for a while; 0 for none.
    stall_one_in: u64,
    held_until: [Option<Instant>; 2],
    open: Vec<Weak<Pair>>,
}

/// Two connections that belong together.
struct Pair {
    gate: TcpStream,
    backend: TcpStream,
    held_until: Mutex<[Option<Instant>; 2]>,
    /// What went up since something came down.
    unanswered: AtomicUsize,
    /// Both are to end by a reset.
    cut: AtomicBool,
}

/// What may happen to a piece of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Accident {
    None,
    Delay,
    /// In two pieces.
    Split,
    /// It is lost, and the connection with it.
    Cut,
    /// The gate loses its connection; the data arrives after that.
    Late,
}

/// What its sockets hold of the gate's bytes, about; and how much the gate's own socket holds grows with the second.
const ROOM: usize = 8 * 1024;
const SEGMENT: u32 = 1400;
/// So often it looks whether a connection that has ended one way is lost.
const LOOK: Duration = Duration::from_millis(10);

impl Relay {
    pub fn before(port: u16, seed: u64, held_max: Duration) -> Relay {
        let listener = narrow();
        let own = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                dice: Dice::new(seed),
                accident_one_in: 0,
                stall_one_in: 0,
                held_until: [None; 2],
                open: Vec::new(),
            }),
            changed: Condvar::new(),
            held_max,
        });
        let acceptor = Arc::clone(&shared);
        thread::spawn(move || {
            for gate in listener.incoming().flatten() {
                if let Ok(backend) = TcpStream::connect(("127.0.0.1", port)) {
                    acceptor.join(gate, backend);
                }
            }
        });
        Relay { port: own, shared }
    }

    /// From now on one piece of data in so many meets an accident; 0 ends that.
    pub fn accidents(&self, one_in: u64) {
        self.shared.state.lock().unwrap().accident_one_in = one_in;
    }

    /// From now on one piece in so many of a large command is held here, and whatever stands behind it; 0 ends that. What is
    /// small overtakes it on other connections, and nothing is lost.
    pub fn stalls(&self, one_in: u64) {
        self.shared.state.lock().unwrap().stall_one_in = one_in;
    }

    /// All bytes on this way stay here for so long.
    pub fn hold(&self, way: Way, time: Duration) {
        self.shared.state.lock().unwrap().held_until[way as usize] = Some(Instant::now() + time);
    }

    /// The same for the connections that there are, or one in so many of them: those that come later overtake them.
    pub fn hold_open(&self, way: Way, time: Duration, one_in: u64) {
        let mut state = self.shared.state.lock().unwrap();
        for pair in state.open.clone() {
            if state.dice.one_in(one_in)
                && let Some(pair) = pair.upgrade()
            {
                pair.held_until.lock().unwrap()[way as usize] = Some(Instant::now() + time);
            }
        }
    }

    /// Cuts all connections, or one in so many.
    pub fn cut(&self, one_in: u64) {
        let mut state = self.shared.state.lock().unwrap();
        // Whoever is the last to hold a pair resets it: nobody but its threads may hold it for long.
        for pair in state.open.clone() {
            if state.dice.one_in(one_in)
                && let Some(pair) = pair.upgrade()
            {
                pair.cut();
            }
        }
        self.shared.changed.notify_all();
    }

    /// Nothing happens any more that the test doesn't say.
    pub fn calm(&self) {
        let mut state = self.shared.state.lock().unwrap();
        (state.accident_one_in, state.stall_one_in, state.held_until) = (0, 0, [None; 2]);
        for pair in state.open.iter().filter_map(Weak::upgrade) {
            *pair.held_until.lock().unwrap() = [None; 2];
        }
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn join(self: &Arc<Self>, gate: TcpStream, backend: TcpStream) {
        for stream in [&gate, &backend] {
            stream.set_nodelay(true).unwrap();
            // Whoever takes nothing for so long is given up.
            stream.set_write_timeout(Some(self.held_max / 5)).unwrap();
        }
        let pair = Arc::new(Pair {
            gate,
            backend,
            held_until: Mutex::default(),
            unanswered: AtomicUsize::new(0),
            cut: AtomicBool::new(false),
        });
        let open = &mut self.state.lock().unwrap().open;
        open.retain(|pair| pair.strong_count() > 0);
        open.push(Arc::downgrade(&pair));
        for way in [Way::Up, Way::Down] {
            let (shared, pair) = (Arc::clone(self), Arc::clone(&pair));
            thread::spawn(move || shared.copy(pair, way));
        }
    }

    fn copy(&self, pair: Arc<Pair>, way: Way) {
        let mut bytes = [0; 16 * 1024];
        loop {
            let (from, to) = pair.ends(way);
            let read = match (&*from).read(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Ok(0) if !pair.is_cut() => {
                    // What was read was delivered: the end stands behind it.
                    let _gone_already = to.shutdown(Shutdown::Write);
                    if way == Way::Up {
                        pair.follow_gate();
                    }
                    break;
                }
                Ok(0) | Err(_) => {
                    pair.cut();
                    break;
                }
                Ok(read) => read,
            };
            if !self.deliver(&pair, way, &bytes[..read]) {
                pair.cut();
                break;
            }
        }
    }

    /// False where the connection is over.
    fn deliver(&self, pair: &Pair, way: Way, bytes: &[u8]) -> bool {
        let came = Instant::now();
        let (accident, time, at) = self.meet(pair, way, bytes.len(), came);
        if pair.is_cut() {
            return false;
        }
        let (_, to) = pair.ends(way);
        // What stands behind this in the kernel's room is not on its way any more once the gate has given it up.
        let goes_on = || way == Way::Down || !is_reset(&pair.gate);
        let soon =
            |to: &TcpStream, bytes: &[u8]| came.elapsed() < self.held_max && { to }.write_all(bytes).is_ok();
        match accident {
            Accident::None => soon(to, bytes) && goes_on(),
            Accident::Delay => {
                thread::sleep(time);
                soon(to, bytes) && goes_on()
            }
            Accident::Split => {
                let (one, two) = bytes.split_at(at);
                soon(to, one) && {
                    thread::sleep(time / 8);
                    soon(to, two) && goes_on()
                }
            }
            Accident::Cut => false,
            Accident::Late => {
                // The gate is to notice before.
                pair.lose_gate();
                thread::sleep(Duration::from_millis(50) + time);
                let _too_late_or_not = soon(to, bytes);
                false
            }
        }
    }

    /// Waits while this way is held, and says what else happens to it.
    fn meet(&self, pair: &Pair, way: Way, len: usize, came: Instant) -> (Accident, Duration, usize) {
        let mut state = self.state.lock().unwrap();
        loop {
            let (all, own) = (state.held_until, *pair.held_until.lock().unwrap());
            let Some(until) = all[way as usize].max(own[way as usize]) else {
                break;
            };
            let now = Instant::now();
            if now >= until || came + self.held_max <= now {
                break;
            }
            state = self.changed.wait_timeout(state, until - now).unwrap().0;
        }
        let is_large = pair.count(way, len) > ROOM;
        let one_in = state.stall_one_in;
        if is_large && one_in > 0 && state.dice.one_in(one_in) {
            return (Accident::Delay, self.held_max / 2, 0);
        }
        let one_in = state.accident_one_in;
        if one_in == 0 || !state.dice.one_in(one_in) {
            return (Accident::None, Duration::ZERO, 0);
        }
        let kinds: &[Accident] = match way {
            Way::Up => &[
                Accident::Delay,
                Accident::Split,
                Accident::Cut,
                Accident::Late,
                Accident::Late,
                Accident::Late,
            ],
            Way::Down => &[Accident::Delay, Accident::Delay, Accident::Split, Accident::Cut],
        };
        let accident = state.dice.pick(kinds);
        let most = self.held_max / 2;
        let time = state.dice.millis(u64::try_from(most.as_millis()).unwrap());
        let at = usize::try_from(state.dice.below(len as u64)).unwrap();
        (accident, time, at)
    }
}

impl Pair {
    fn ends(&self, way: Way) -> (&TcpStream, &TcpStream) {
        match way {
            Way::Up => (&self.gate, &self.backend),
            Way::Down => (&self.backend, &self.gate),
        }
    }

    /// Counts a piece; says how much went up since something came down.
    fn count(&self, way: Way, len: usize) -> usize {
        match way {
            Way::Up => self.unanswered.fetch_add(len, Ordering::Relaxed) + len,
            Way::Down => {
                self.unanswered.store(0, Ordering::Relaxed);
                0
            }
        }
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    /// Both end by a reset, as soon as both threads have seen it.
    fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        for stream in [&self.gate, &self.backend] {
            let _gone_already = SockRef::from(stream).set_linger(Some(Duration::ZERO));
            // Wakes who reads, and says nothing to the other side.
            let _gone_already = stream.shutdown(Shutdown::Read);
        }
    }

    /// The gate has ended its side; that it gives the connection up after that is for the backend to know, too.
    fn follow_gate(&self) {
        while !self.is_cut() {
            match look(&self.gate, LOOK) {
                0 => {}
                ended if ended & libc::POLLERR != 0 => return self.cut(),
                _ => return,
            }
        }
    }

    /// The gate is reset, whatever was owed to it. An end would say that the backend has closed its side.
    fn lose_gate(&self) {
        self.cut.store(true, Ordering::SeqCst);
        reset(&self.gate);
        let _gone_already = self.backend.shutdown(Shutdown::Read);
    }
}

/// Resets it at once, whoever else holds it. Nobody may be reading it.
fn reset(stream: &TcpStream) {
    let nowhere = libc::sockaddr {
        sa_family: libc::AF_UNSPEC as libc::sa_family_t,
        sa_data: [0; 14],
    };
    let len = libc::socklen_t::try_from(size_of_val(&nowhere)).unwrap();
    // SAFETY: the address outlives the call, which is told its length.
    let _gone_already = unsafe { libc::connect(stream.as_raw_fd(), &raw const nowhere, len) };
}

/// Whether its other side has reset it, though what came before can still be read.
fn is_reset(stream: &TcpStream) -> bool {
    look(stream, Duration::ZERO) & libc::POLLERR != 0
}

/// What there is to know of a socket, bytes and room aside; waits so long for it.
fn look(stream: &TcpStream, patience: Duration) -> libc::c_short {
    let mut poll = libc::pollfd {
        fd: stream.as_raw_fd(),
        events: 0,
        revents: 0,
    };
    let patience = libc::c_int::try_from(patience.as_millis()).unwrap();
    // SAFETY: one entry, which outlives the call.
    unsafe { libc::poll(&raw mut poll, 1, patience) };
    poll.revents
}

/// A listener whose connections have little room.
fn narrow() -> TcpListener {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // Before it listens: what comes inherits both, and the gate's socket is told.
    socket.set_recv_buffer_size(ROOM).unwrap();
    socket.set_tcp_mss(SEGMENT).unwrap();
    let anywhere: SocketAddr = ([127, 0, 0, 1], 0).into();
    socket.bind(&anywhere.into()).unwrap();
    socket.listen(1024).unwrap();
    socket.into()
}
