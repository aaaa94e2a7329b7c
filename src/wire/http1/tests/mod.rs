//! The codec against tables of good and bad messages, each fed whole and in pieces, and against seeded noise.

mod bodies;
mod noise;
mod requests;
mod responses;

use super::{
    BodyError, BodyReader, Framing, HeaderStorage, Piece, RequestHead, find_head_end, parse_request,
};

/// What is to be known of a request, owned.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Reading {
    method: String,
    target: String,
    framing: Framing,
    host: String,
    expect_continue: bool,
    fields: Vec<(String, Vec<u8>)>,
}

fn reading(head: &RequestHead<'_, '_>) -> Reading {
    Reading {
        method: head.method.into(),
        target: head.target.into(),
        framing: head.framing,
        host: head.host.into(),
        expect_continue: head.expect_continue,
        fields: head
            .fields
            .iter()
            .map(|f| (f.name.to_owned(), f.value.to_vec()))
            .collect(),
    }
}

/// Where the head ends if it comes in these pieces.
fn head_end<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Option<usize> {
    let mut buf = Vec::new();
    for piece in pieces {
        let seen = buf.len();
        buf.extend_from_slice(piece);
        if let Some(end) = find_head_end(&buf, seen) {
            return Some(end);
        }
    }
    None
}

/// The status that refuses the request, or what was read.
fn verdict(raw: &[u8]) -> Result<Reading, u16> {
    let end = find_head_end(raw, 0).expect("each test request has an end");
    let mut storage = HeaderStorage::new();
    parse_request(&raw[..end], &mut storage)
        .map(|head| reading(&head))
        .map_err(|error| error.status())
}

/// A body as it was read: payload, trailer lines, and how many bytes it took.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Body {
    payload: Vec<u8>,
    trailers: Vec<u8>,
    taken: usize,
}

/// Reads a body that comes `step` bytes at a time. `Ok(None)`: it is not over.
fn read_body(framing: Framing, raw: &[u8], step: usize) -> Result<Option<Body>, BodyError> {
    let mut reader = BodyReader::new(framing, 4096);
    let (mut payload, mut start, mut end) = (Vec::new(), 0, 0);
    loop {
        match reader.next(&raw[start..end])? {
            Piece::Data { skip, len } => {
                assert!(len > 0);
                payload.extend_from_slice(&raw[start + skip..start + skip + len]);
                start += skip + len;
            }
            Piece::NeedMore { skip } => {
                start += skip;
                if end == raw.len() {
                    return Ok(None);
                }
                end = (end + step).min(raw.len());
            }
            Piece::End { consumed, trailers } => {
                assert!(reader.is_done());
                return Ok(Some(Body {
                    payload,
                    trailers: raw[start + trailers.start..start + trailers.end].to_vec(),
                    taken: start + consumed,
                }));
            }
        }
    }
}
