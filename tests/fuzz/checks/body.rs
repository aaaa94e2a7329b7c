//! Bodies, for the checks of both sides: whole or in pieces they read the same, a plain reader sees the same payload,
//! and written again they end where they should.

use fencegate::wire::http1::{
    BodyError, BodyReader, CHUNK_END, Framing, Piece, trailer_fields, write_chunk_head, write_last_chunk,
};

use super::{Draw, plain, shown};

const TRAILER_BYTES_MAX: usize = 512;

/// What came out of a body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Body {
    pub payload: Vec<u8>,
    pub trailers: Vec<u8>,
    pub consumed: usize,
    pub end: End,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    Whole,
    More,
    Bad(BodyError),
}

/// Reads the body at the start of `bytes` and checks all that must hold of it.
pub fn check(framing: Framing, bytes: &[u8], draw: &mut Draw) -> Body {
    let whole = read(framing, bytes, &mut |left| left);
    let pieces = read(framing, bytes, &mut |left| 1 + draw.below(left.min(40)));
    assert_eq!(
        whole,
        pieces,
        "in pieces {framing:?} of {} reads otherwise",
        shown(bytes)
    );
    match framing {
        Framing::None => assert_eq!((whole.consumed, &whole.end), (0, &End::Whole)),
        Framing::Length(length) => check_length(&whole, length, bytes),
        Framing::Chunked => check_chunks(&whole, bytes, draw),
        Framing::UntilClose => {
            assert_eq!((&*whole.payload, &whole.end), (bytes, &End::More));
        }
    }
    whole
}

fn check_length(body: &Body, length: u64, bytes: &[u8]) {
    let there = usize::try_from(length).map_or(bytes.len(), |length| length.min(bytes.len()));
    assert_eq!((body.consumed, &*body.payload), (there, &bytes[..there]));
    assert_eq!(body.end == End::Whole, there as u64 == length);
}

fn check_chunks(body: &Body, bytes: &[u8], draw: &mut Draw) {
    if body.end != End::Whole {
        return;
    }
    let seen = plain::chunks(bytes).unwrap_or_else(|| panic!("only the codec reads {}", shown(bytes)));
    assert_eq!(
        (&seen.payload, &seen.trailers, seen.consumed),
        (&body.payload, &body.trailers, body.consumed),
        "two readings of {}",
        shown(bytes)
    );
    check_trailers(&body.trailers);
    let mut again = vec![];
    let mut rest = &*body.payload;
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at(1 + draw.below(rest.len()));
        write_chunk_head(&mut again, piece.len());
        again.extend_from_slice(piece);
        again.extend_from_slice(CHUNK_END);
        rest = tail;
    }
    write_last_chunk(&mut again, &body.trailers);
    let length = again.len();
    again.extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
    let back = read(Framing::Chunked, &again, &mut |left| left);
    assert_eq!(
        back.consumed,
        length,
        "the next message starts elsewhere: {}",
        shown(&again)
    );
    assert_eq!((&back.payload, &back.trailers), (&body.payload, &body.trailers));
    assert_eq!(back.end, End::Whole);
}

/// Trailers that were let through frame nothing, route nothing, and are fields to everybody.
fn check_trailers(section: &[u8]) {
    let mut written = b"first\r\n".to_vec();
    written.extend_from_slice(section);
    written.extend_from_slice(b"\r\n");
    let seen = plain::head(&written).unwrap_or_else(|| panic!("odd trailers: {}", shown(section)));
    let mine: Vec<(String, Vec<u8>)> = trailer_fields(section)
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec()))
        .collect();
    for ((name, value), (own, own_value)) in seen.fields.iter().zip(&mine) {
        assert_eq!(
            (name, plain::without_spaces(value)),
            (own, plain::without_spaces(own_value))
        );
        let variable = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        for never in [
            "content_length",
            "transfer_encoding",
            "host",
            "connection",
            "authorization",
            "expect",
            "x_http_method_override",
            "x_original_url",
        ] {
            assert_ne!(variable, never, "a trailer that must stand in the head");
        }
    }
    assert_eq!(seen.fields.len(), mine.len(), "{}", shown(section));
}

/// Feeds `bytes` in pieces, as long as `piece` says of what is left, and drops and keeps what the reader says.
fn read(framing: Framing, bytes: &[u8], piece: &mut dyn FnMut(usize) -> usize) -> Body {
    let mut reader = BodyReader::new(framing, TRAILER_BYTES_MAX);
    let (mut payload, mut start, mut fed) = (vec![], 0, 0);
    loop {
        let buf = &bytes[start..fed];
        let (end, trailers, consumed) = match reader.next(buf) {
            Ok(Piece::Data { skip, len }) => {
                assert!(len > 0 && skip + len <= buf.len());
                payload.extend_from_slice(&buf[skip..skip + len]);
                start += skip + len;
                continue;
            }
            Ok(Piece::NeedMore { skip }) if fed < bytes.len() => {
                start += skip;
                fed += piece(bytes.len() - fed);
                continue;
            }
            Ok(Piece::NeedMore { skip }) => (End::More, vec![], start + skip),
            Ok(Piece::End { consumed, trailers }) => {
                assert!(reader.is_done() && reader.finish().is_ok());
                assert!(trailers.end <= consumed && consumed <= buf.len());
                (End::Whole, buf[trailers].to_vec(), start + consumed)
            }
            // What was dropped before a piece is refused hangs on the pieces.
            Err(error) => (End::Bad(error), vec![], 0),
        };
        return Body {
            payload,
            trailers,
            consumed,
            end,
        };
    }
}
