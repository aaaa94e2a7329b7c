//! A TCP forwarder in front of one member: it can pass bytes on, keep them, or cut its connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// What happens to bytes on their way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Pass,
    /// Both ways they stay here until that changes.
    Hold,
    /// Only answers stay here.
    HoldAnswers,
    /// Connections are closed, and new ones too.
    Cut,
}

struct Shared {
    mode: Mutex<Mode>,
    changed: Condvar,
    open: Mutex<Vec<TcpStream>>,
}

pub struct Forwarder {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Forwarder {
    pub fn before(port: u16) -> Forwarder {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            mode: Mutex::new(Mode::Pass),
            changed: Condvar::new(),
            open: Mutex::default(),
        });
        let acceptor = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if *acceptor.mode.lock().unwrap() == Mode::Cut {
                    continue;
                }
                if let Ok(server) = TcpStream::connect(("127.0.0.1", port)) {
                    acceptor.join(&client, &server);
                }
            }
        });
        Forwarder { address, shared }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn set(&self, mode: Mode) {
        *self.shared.mode.lock().unwrap() = mode;
        self.shared.changed.notify_all();
        if mode == Mode::Cut {
            for stream in self.shared.open.lock().unwrap().drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

impl Shared {
    fn join(self: &Arc<Self>, client: &TcpStream, server: &TcpStream) {
        let streams = [client, server].map(|stream| stream.try_clone().unwrap());
        for stream in &streams {
            // Else each small frame waits for an acknowledgement.
            stream.set_nodelay(true).unwrap();
        }
        self.open.lock().unwrap().extend(streams);
        for (from, to, is_answer) in [(client, server, false), (server, client, true)] {
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let shared = self.clone();
            std::thread::spawn(move || shared.copy(from, to, is_answer));
        }
    }

    fn copy(&self, mut from: TcpStream, mut to: TcpStream, is_answer: bool) {
        let mut bytes = [0; 16 * 1024];
        while let Ok(n) = from.read(&mut bytes) {
            if n == 0 {
                break;
            }
            let held = |mode: &mut Mode| *mode == Mode::Hold || (*mode == Mode::HoldAnswers && is_answer);
            let mode = self.changed.wait_while(self.mode.lock().unwrap(), held).unwrap();
            drop(mode);
            if to.write_all(&bytes[..n]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.set(Mode::Cut);
        // The acceptor ends with the next connection's failure to be kept; it holds no port that matters.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(100));
    }
}
