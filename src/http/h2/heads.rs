//! What can be told of heads only as they arrive: which have a fragment in their path, and which take too long.
//!
//! A fragment in a target is refused (two readings of one name). The h2 crate gives the path as the http crate holds
//! it, and that one cuts a fragment off without a word. So the frames of heads are decoded a second time, by the
//! crate's own decoder, on their way to the crate; of other frames only the beginning is looked at.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use futures_core::Stream as _;
use h2::Codec;
use h2::frame::{DEFAULT_MAX_FRAME_SIZE, Frame, HEADER_LEN};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::net::Duplex;

/// What begins a connection (RFC 9113, 3.4).
const PREFACE_LEN: usize = 24;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
/// More streams with fragments than this, and not asked about: nothing is believed any more.
const NOTED_MAX: usize = 1024;

/// A connection whose heads are looked at as they are read.
#[derive(Debug)]
pub struct Screened {
    io: Duplex,
    heads: Heads,
    /// How long a head may take to arrive, and the alarm for the one that has begun.
    patience: Duration,
    alarm: Option<Pin<Box<Sleep>>>,
}

/// What was found so far.
#[derive(Clone, Debug, Default)]
pub struct Fragments(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    streams: Vec<u32>,
    /// The decoder is at its end while the connection may go on.
    blind: bool,
}

impl Fragments {
    /// Whether the path of this stream had a fragment, or may have had one.
    pub fn had_one(&self, stream: u32) -> bool {
        let mut noted = self.0.lock();
        let found = noted.streams.iter().position(|noted| *noted == stream);
        found.map(|at| noted.streams.swap_remove(at)).is_some() || noted.blind
    }
}

impl Screened {
    /// Screens a connection from its preface on, whose heads may be as large as `head_list_max`.
    pub fn new(io: Duplex, head_list_max: usize, patience: Duration) -> (Screened, Fragments) {
        let fragments = Fragments::default();
        let mut codec = Codec::new(Fed::default());
        codec.set_max_recv_header_list_size(head_list_max);
        let heads = Heads {
            codec,
            noted: fragments.clone(),
            at: At::Preface(PREFACE_LEN),
            header: BytesMut::with_capacity(HEADER_LEN),
            open: false,
            anew: false,
        };
        let screened = Screened {
            io,
            heads,
            patience,
            alarm: None,
        };
        (screened, fragments)
    }
}

/// The decoder, and where in the frames it is.
#[derive(Debug)]
struct Heads {
    codec: Codec<Fed, bytes::Bytes>,
    noted: Fragments,
    at: At,
    header: BytesMut,
    /// The frame under way, or the last one, begins or continues a head that does not end with it.
    open: bool,
    /// Some frame has ended that left no head open: what has begun by now began after it.
    anew: bool,
}

/// What the next byte belongs to.
#[derive(Debug)]
enum At {
    Preface(usize),
    Header,
    /// So many more bytes of a frame, which the decoder gets or not.
    Payload {
        left: usize,
        wanted: bool,
    },
}

impl Heads {
    /// Whether a head, or what may become one, has begun and not ended.
    fn is_within_a_head(&self) -> bool {
        self.open || !self.header.is_empty() || matches!(self.at, At::Payload { wanted: true, .. })
    }

    fn look(&mut self, mut bytes: &[u8]) {
        let mut fed = false;
        while !bytes.is_empty() {
            match &mut self.at {
                At::Preface(left) => {
                    let taken = bytes.len().min(*left);
                    bytes.advance(taken);
                    *left -= taken;
                    if *left == 0 {
                        self.at = At::Header;
                    }
                }
                At::Header => {
                    let taken = bytes.len().min(HEADER_LEN - self.header.len());
                    self.header.extend_from_slice(&bytes[..taken]);
                    bytes.advance(taken);
                    if self.header.len() == HEADER_LEN {
                        fed |= self.begin_frame();
                    }
                }
                At::Payload { left, wanted } => {
                    let taken = bytes.len().min(*left);
                    if *wanted {
                        self.codec.get_mut().0.extend_from_slice(&bytes[..taken]);
                        fed = true;
                    }
                    bytes.advance(taken);
                    *left -= taken;
                    if *left == 0 {
                        self.end_frame();
                    }
                }
            }
        }
        if fed {
            self.decode();
        }
    }

    /// True where the decoder gets this frame.
    fn begin_frame(&mut self) -> bool {
        let header = self.header.split();
        let left = usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
        // A frame that is too large ends the connection: nothing of it is kept here.
        let wanted = matches!(header[3], HEADERS | CONTINUATION) && left <= DEFAULT_MAX_FRAME_SIZE as usize;
        if matches!(header[3], HEADERS | CONTINUATION) {
            self.open = header[4] & END_HEADERS == 0;
        }
        if wanted {
            self.codec.get_mut().0.extend_from_slice(&header);
        }
        if left == 0 {
            self.end_frame();
        } else {
            self.at = At::Payload { left, wanted };
        }
        wanted
    }

    fn end_frame(&mut self) {
        self.at = At::Header;
        self.anew |= !self.open;
    }

    fn decode(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            match Pin::new(&mut self.codec).poll_next(&mut cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(Frame::Headers(head)))) => {
                    let stream = u32::from(head.stream_id());
                    let (pseudo, _fields) = head.into_parts();
                    if pseudo.path.is_some_and(|path| path.contains('#')) {
                        self.note(stream);
                    }
                }
                // Of another kind, or malformed in one stream: the crate says so to the client.
                Poll::Ready(Some(Ok(_) | Err(h2::proto::Error::Reset(..)))) => {}
                Poll::Ready(Some(Err(_)) | None) => {
                    self.noted.0.lock().blind = true;
                    return;
                }
            }
        }
    }

    fn note(&self, stream: u32) {
        let mut noted = self.noted.0.lock();
        if noted.streams.len() < NOTED_MAX {
            noted.streams.push(stream);
        } else {
            noted.blind = true;
        }
    }
}

/// What the decoder reads: the frames that it was given, and then no end.
#[derive(Debug, Default)]
struct Fed(BytesMut);

impl AsyncRead for Fed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.0.is_empty() {
            return Poll::Pending;
        }
        let taken = self.0.len().min(out.remaining());
        out.put_slice(&self.0.split_to(taken));
        Poll::Ready(Ok(()))
    }
}

/// Asked for by the decoder's type; it never writes.
impl AsyncWrite for Fed {
    fn poll_write(self: Pin<&mut Self>, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Screened {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Screened {
            io,
            heads,
            patience,
            alarm,
        } = self.get_mut();
        let before = out.filled().len();
        if let Poll::Ready(read) = Pin::new(io).poll_read(cx, out) {
            read?;
            heads.look(&out.filled()[before..]);
            let within = heads.is_within_a_head();
            if std::mem::take(&mut heads.anew) || !within {
                *alarm = None;
            }
            if !within {
                return Poll::Ready(Ok(()));
            }
            // However many bytes come: the head as a whole has its time.
            let alarm = alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep(*patience)));
            return match alarm.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                Poll::Pending => Poll::Ready(Ok(())),
            };
        }
        if let Some(alarm) = alarm {
            ready!(alarm.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl AsyncWrite for Screened {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::{END_HEADERS, HEADER_LEN, HEADERS, PREFACE_LEN, Screened};
    use crate::base::Buf;
    use crate::net::{Duplex, Stream, pipe};
    use bytes::Bytes;
    use std::pin::Pin;
    use std::task::Poll;
    use std::time::Duration;
    use tokio::io::{AsyncRead as _, ReadBuf};

    const PATIENCE: Duration = Duration::from_secs(1);

    /// A head of one indexed field, `:method: GET`.
    fn head(stream: u8) -> [u8; HEADER_LEN + 1] {
        [0, 0, 1, HEADERS, END_HEADERS, 0, 0, 0, stream, 0x82]
    }

    /// Gives the pieces one by one, with a pause of the virtual clock after each; says whether all were read.
    async fn reads_all(pieces: &[Vec<u8>], pause: Duration) -> bool {
        let (near, mut far) = pipe();
        let io = Duplex::new(Stream::pipe(near), Buf::default());
        let (mut screened, _) = Screened::new(io, 1 << 16, PATIENCE);
        let mut room = [0; 1024];
        far.send(Bytes::from(vec![b' '; PREFACE_LEN]));
        for piece in std::iter::once(&Vec::new()).chain(pieces) {
            far.send(Bytes::copy_from_slice(piece));
            let mut buf = ReadBuf::new(&mut room);
            let read = std::future::poll_fn(|cx| Pin::new(&mut screened).poll_read(cx, &mut buf)).await;
            if read.is_err() {
                return false;
            }
            tokio::time::sleep(pause).await;
            // Nothing has come meanwhile: it waits on, unless the head is late.
            let mut buf = ReadBuf::new(&mut room);
            let read =
                std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut screened).poll_read(cx, &mut buf)));
            if read.await.is_ready() {
                return false;
            }
        }
        true
    }

    fn wait<T>(what: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        runtime.unwrap().block_on(what)
    }

    #[test]
    fn a_client_whose_reads_always_end_within_the_next_head_is_not_late() {
        // Each piece ends one head and begins another.
        let mut pieces = Vec::new();
        let mut left = Vec::new();
        for stream in 0..20 {
            let head = head(2 * stream + 1);
            left.extend_from_slice(&head[..5]);
            pieces.push(std::mem::take(&mut left));
            left.extend_from_slice(&head[5..]);
        }
        assert!(wait(reads_all(&pieces, PATIENCE / 4)));
    }

    #[test]
    fn a_slow_body_is_not_late_whatever_the_reads_cut_apart() {
        let pieces = [
            vec![0, 0, 9, 0],
            vec![0, 0, 0, 0, 1, b'a'],
            vec![b'b'],
            vec![b'c'],
        ];
        assert!(wait(reads_all(&pieces, PATIENCE * 3 / 4)));
    }

    #[test]
    fn a_head_that_comes_byte_by_byte_is_late() {
        let pieces: Vec<Vec<u8>> = head(1).iter().map(|byte| vec![*byte]).collect();
        assert!(!wait(reads_all(&pieces, PATIENCE / 4)));
        assert!(wait(reads_all(&pieces, PATIENCE / 20)));
    }
}
