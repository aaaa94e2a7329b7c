//! Bodies: strict chunks, trailers, and the same result however the bytes come in.

use super::super::{
    BodyError, BodyReader, CHUNK_END, Framing, Piece, trailer_fields, write_chunk_head, write_last_chunk,
};
use super::{Body, read_body};

#[test]
fn good_chunks_are_read_whole_and_byte_by_byte() {
    for (raw, payload, trailers) in [
        ("0\r\n\r\n", "", ""),
        ("5\r\nhello\r\n0\r\n\r\n", "hello", ""),
        ("5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", "hello world", ""),
        ("A\r\n0123456789\r\n000\r\n\r\n", "0123456789", ""),
        ("0000000000000001\r\nx\r\n0\r\n\r\n", "x", ""),
        ("1;a=b;c=\"d e\"\r\nx\r\n0;last\r\n\r\n", "x", ""),
        ("2\r\n\r\n\r\n0\r\n\r\n", "\r\n", ""),
        ("1\r\nx\r\n0\r\nX-Sum: 1\r\n\r\n", "x", "X-Sum: 1\r\n"),
        (
            "0\r\nx-amz-checksum-crc32:AA==\r\nY: \r\n\r\n",
            "",
            "x-amz-checksum-crc32:AA==\r\nY: \r\n",
        ),
    ] {
        let longer = format!("{raw}GET / HTTP/1.1\r\n\r\n");
        let want = Body {
            payload: payload.into(),
            trailers: trailers.into(),
            taken: raw.len(),
        };
        for step in [1, 2, 3, longer.len()] {
            let got = read_body(Framing::Chunked, longer.as_bytes(), step);
            assert_eq!(got, Ok(Some(want.clone())), "{raw:?} by {step}");
        }
        for end in 0..raw.len() {
            assert_eq!(
                read_body(Framing::Chunked, &raw.as_bytes()[..end], 1),
                Ok(None),
                "{raw:?} cut at {end}"
            );
        }
    }
}

#[test]
fn malformed_chunks_are_refused() {
    let long = format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(1024));
    let many = format!(
        "{}0\r\n\r\n",
        format!("1;{}\r\nx\r\n", "e".repeat(1000)).repeat(17)
    );
    for raw in [
        "\r\n",
        "x\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "5\t;a\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "-1\r\n",
        ";a\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\rhello\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello\r0\r\n\r\n",
        "5\r\nhello!\r\n0\r\n\r\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        "5;a\rb\r\nhello\r\n0\r\n\r\n",
        "5;a\0\r\nhello\r\n0\r\n\r\n",
        "5;\u{e9}\r\nhello\r\n0\r\n\r\n",
        "00000000000000001\r\nx\r\n0\r\n\r\n",
        "8000000000000000\r\n",
        "ffffffffffffffff\r\n",
        "10000000000000000\r\n",
        &long,
        &many,
    ] {
        for step in [1, raw.len()] {
            let got = read_body(Framing::Chunked, raw.as_bytes(), step);
            assert!(matches!(got, Err(BodyError::Chunk(_))), "{raw:?}: {got:?}");
        }
    }
}

#[test]
fn trailers_that_frame_route_or_authenticate_are_refused() {
    for lines in [
        "Content-Length: 5\r\n",
        "transfer-encoding: chunked\r\n",
        "A: 1\r\nHost: h\r\n",
        "Authorization: x\r\n",
        "Trailer: x\r\n",
        "Connection: x\r\n",
        "Expect: 100-continue\r\n",
        "Content-Range: bytes 0-1/2\r\n",
        "content_range: bytes 0-1/2\r\n",
        "Destination: /b\r\n",
        "A: 1\r\nX-HTTP-Method-Override: DELETE\r\n",
        "X_HTTP_Method: DELETE\r\n",
        "x-original-method: DELETE\r\n",
        "X-Original-URL: /b\r\n",
        "X-Rewrite-URL: /b\r\n",
        "A : 1\r\n",
        "A: 1\r\n 2\r\n",
        " A: 1\r\n",
        "A: 1\n",
        "A: 1\nB: 2\r\n",
        "\n",
        "A: 1\rB: 2\r\n",
        "A: \0\r\n",
        "A\r\n",
    ] {
        let raw = format!("0\r\n{lines}\r\n");
        for step in [1, raw.len()] {
            let got = read_body(Framing::Chunked, raw.as_bytes(), step);
            assert!(matches!(got, Err(BodyError::Trailer(_))), "{raw:?}: {got:?}");
        }
    }
}

#[test]
fn a_framing_field_with_another_sign_in_its_name_is_no_trailer() {
    for name in [
        "Transfer&Encoding",
        "transfer_encoding",
        "Content.Length",
        "CONTENT~LENGTH",
    ] {
        let raw = format!("0\r\n{name}: 3\r\n\r\n");
        let got = read_body(Framing::Chunked, raw.as_bytes(), raw.len());
        assert!(matches!(got, Err(BodyError::Trailer(_))), "{raw:?}: {got:?}");
    }
}

#[test]
fn a_trailer_section_is_bounded() {
    for raw in [
        format!("0\r\nA: {}\r\n\r\n", "a".repeat(5000)),
        format!("0\r\n{}\r\n", "A: a\r\n".repeat(65)),
        format!("0\r\nA: {}", "a".repeat(5000)),
    ] {
        for step in [1, raw.len()] {
            let got = read_body(Framing::Chunked, raw.as_bytes(), step);
            assert_eq!(got, Err(BodyError::TrailersTooLong));
        }
    }
}

#[test]
fn trailer_fields_can_be_looked_at() {
    let fields: Vec<_> = trailer_fields(b"A: 1 \r\nFencing-Token:34\r\nEmpty:\r\n").collect();
    let want: Vec<(&str, &[u8])> = vec![("A", b"1"), ("Fencing-Token", b"34"), ("Empty", b"")];
    assert_eq!(fields, want);
    assert_eq!(trailer_fields(b"").count(), 0);
}

#[test]
fn a_length_takes_so_many_bytes_and_no_more() {
    let body = read_body(Framing::Length(5), b"helloGET", 2).unwrap().unwrap();
    assert_eq!((body.payload.as_slice(), body.taken), (b"hello".as_slice(), 5));
    assert_eq!(read_body(Framing::Length(6), b"hello", 2), Ok(None));
    for framing in [Framing::Length(0), Framing::None] {
        assert_eq!(read_body(framing, b"GET", 3).unwrap().unwrap().taken, 0);
    }
    let mut reader = BodyReader::new(Framing::Length(5), 0);
    assert_eq!(reader.remaining(), Some(5));
    assert_eq!(reader.next(b"hel"), Ok(Piece::Data { skip: 0, len: 3 }));
    assert_eq!(
        (reader.remaining(), reader.finish()),
        (Some(2), Err(BodyError::BrokenOff))
    );
}

#[test]
fn only_a_body_that_ends_by_closing_may_end_so() {
    let mut reader = BodyReader::new(Framing::UntilClose, 0);
    assert_eq!(reader.next(b"abc"), Ok(Piece::Data { skip: 0, len: 3 }));
    assert_eq!(reader.next(b""), Ok(Piece::NeedMore { skip: 0 }));
    assert_eq!((reader.finish(), reader.is_done()), (Ok(()), true));
    let mut reader = BodyReader::new(Framing::Chunked, 0);
    assert_eq!(reader.next(b"3\r\nab"), Ok(Piece::Data { skip: 3, len: 2 }));
    assert_eq!(reader.finish(), Err(BodyError::BrokenOff));
}

#[test]
fn what_is_written_in_chunks_is_read_back() {
    for len in [1, 9, 15, 16, 255, 4096, 65537] {
        let payload = vec![b'x'; len];
        let mut out = Vec::new();
        write_chunk_head(&mut out, len);
        assert_eq!(out, format!("{len:x}\r\n").into_bytes());
        out.extend_from_slice(&payload);
        out.extend_from_slice(CHUNK_END);
        write_last_chunk(&mut out, b"A: 1\r\n");
        let body = read_body(Framing::Chunked, &out, 1000).unwrap().unwrap();
        assert_eq!(
            (body.payload, body.trailers.as_slice()),
            (payload, b"A: 1\r\n".as_slice())
        );
        assert_eq!(body.taken, out.len());
    }
}
