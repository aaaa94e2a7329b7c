//! Closing a client connection so that the client sees the answer: half-close, read on within bounds, close.
//! What is read is never taken for a request.

use std::future::poll_fn;
use std::io;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::net::TcpStream;

use super::alarm::Alarm;
use crate::base::buf::BUF_MAX;

/// How long a client may go on sending what nobody takes.
const TOTAL: Duration = Duration::from_secs(30);
/// How long it may pause meanwhile.
const PAUSE: Duration = Duration::from_secs(5);

/// Sends the end of our side and takes what the client still sends, until it ends too or time is over.
pub async fn close(stream: TcpStream, alarm: &mut Alarm) {
    if SockRef::from(&stream)
        .shutdown(std::net::Shutdown::Write)
        .is_err()
    {
        return;
    }
    let end = Instant::now() + TOTAL;
    let mut waste = Vec::new();
    loop {
        let deadline = end.min(Instant::now() + PAUSE);
        let ready = poll_fn(|cx| {
            if let std::task::Poll::Ready(ready) = stream.poll_read_ready(cx) {
                return std::task::Poll::Ready(ready.is_ok());
            }
            alarm.poll(cx, deadline).map(|()| false)
        });
        if !ready.await {
            return;
        }
        waste.clear();
        waste.reserve(BUF_MAX / 8);
        match stream.try_read_buf(&mut waste) {
            Ok(0) => return,
            Ok(_) if Instant::now() < end => {}
            Ok(_) => return,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// Resets the connection: an answer was broken off, and its client must not take it for whole.
pub fn reset(stream: TcpStream) {
    let _best_effort = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    drop(stream);
}
