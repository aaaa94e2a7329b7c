//! Closing a client connection so that the client sees the answer: half-close, read on within bounds, close.
//! What is read is never taken for a request.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::{Alarm, Stream};
use crate::base::buf::BUF_MAX;

/// How long a client may go on sending what nobody takes.
const TOTAL: Duration = Duration::from_secs(30);
/// How long it may pause meanwhile.
const PAUSE: Duration = Duration::from_secs(5);

/// Sends the end of our side and takes what the client still sends, until it ends too or time is over.
pub async fn close(stream: Stream, alarm: &mut Alarm) {
    close_within(stream, alarm, TOTAL).await;
}

/// The same, for no longer than `total`: for a client that doesn't have to send the rest of something first.
pub async fn close_within(mut stream: Stream, alarm: &mut Alarm, total: Duration) {
    if stream.end_writes().is_err() {
        return;
    }
    let end = Instant::now() + total;
    let mut waste = Vec::with_capacity(BUF_MAX / 8);
    loop {
        let deadline = end.min(Instant::now() + PAUSE);
        let ready = poll_fn(|cx| match stream.poll_discard_ready(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => alarm.poll(cx, deadline).map(|()| false),
        });
        if !ready.await {
            return;
        }
        match stream.try_discard(&mut waste) {
            Ok(0) => return,
            Ok(_) if Instant::now() < end => {}
            Ok(_) => return,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
