//! Seeded noise: mutated messages never panic the codec, and what it takes has one reading, also in the form in
//! which it goes on. A seed that finds something becomes a named test.

use super::super::{
    CHUNK_END, Framing, HeaderStorage, ResponseOptions, Version, find_head_end, parse_request,
    parse_response, write_chunk_head, write_last_chunk, write_request_head, write_response_head,
};
use super::{Body, head_end, read_body, reading, verdict};

/// xorshift64.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    /// One to four small changes, mostly with pieces that matter to the grammar.
    fn mutate(&mut self, raw: &mut Vec<u8>, pieces: &[&[u8]]) {
        for _ in 0..=self.below(4) {
            let at = self.below(raw.len() + 1);
            let cut = (at + self.below(4)).min(raw.len());
            match self.below(4) {
                0 => drop(raw.drain(at..cut)),
                1 => drop(raw.splice(at..cut, [self.next() as u8])),
                _ => drop(raw.splice(at..cut, pieces[self.below(pieces.len())].iter().copied())),
            }
        }
    }
}

const REQUESTS: &[&[u8]] = &[
    b"PUT /a/b?c=d HTTP/1.1\r\nHost: h:1\r\nFencing-Token: 34\r\nConnection: x-a, close\r\nX-A: 1\r\nContent-Length: 5\r\n\r\n",
    b"POST http://h/a HTTP/1.1\r\nHost: h\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\nUpgrade: h2c\r\n\r\n",
    b"\r\nGET / HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\nExpect: 100-continue\r\nKeep-Alive: 3\r\n\r\n",
];

const PIECES: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b":",
    b",",
    b"\0",
    b"\r\n\r\n",
    b"\r\n ",
    b"#",
    b"@",
    b";",
    b"5",
    b"0",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"chunked",
    b"Host: h\r\n",
    b"Connection: ",
    b"X-A",
    b"content-length",
    b"Expect: 100-continue\r\n",
    b"Upgrade: x\r\n",
    b"HTTP/1.0",
    b"\xff",
    b"http://h",
];

#[test]
fn a_mutated_request_is_refused_or_goes_on_with_the_same_reading() {
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let (mut taken, mut refused) = (0, 0);
    for round in 0..20_000 {
        let mut raw = REQUESTS[round % REQUESTS.len()].to_vec();
        noise.mutate(&mut raw, PIECES);
        let Some(end) = find_head_end(&raw, 0) else {
            continue;
        };
        assert_eq!(head_end(raw.chunks(1)), Some(end), "{raw:?}");
        let mut storage = HeaderStorage::new();
        let Ok(head) = parse_request(&raw[..end], &mut storage) else {
            refused += 1;
            continue;
        };
        taken += 1;
        let mut want = reading(&head);
        let mut index = 0u16..;
        want.fields
            .retain(|_| !head.dropped.contains(&index.next().unwrap()));
        let mut out = Vec::new();
        write_request_head(&mut out, &head, None, false);
        assert_eq!(find_head_end(&out, 0), Some(out.len()), "{raw:?}");
        assert_eq!(verdict(&out), Ok(want), "{raw:?}");
        assert_one_framing(&out);
    }
    assert!(
        taken > 1_000 && refused > 1_000,
        "{taken} taken, {refused} refused"
    );
}

/// A reading of its own: lines by CRLF, names before the colon, no help from the parser.
fn assert_one_framing(out: &[u8]) {
    let text = String::from_utf8_lossy(out).to_ascii_lowercase();
    let lines: Vec<&str> = text.strip_suffix("\r\n\r\n").unwrap().split("\r\n").collect();
    let count = |name: &str| lines.iter().filter(|l| l.starts_with(name)).count();
    assert!(!text.replace("\r\n", "").contains(['\r', '\n', '\0']), "{text:?}");
    assert!(
        count("content-length:") + count("transfer-encoding:") <= 1,
        "{text:?}"
    );
    assert_eq!(count("host:"), 1, "{text:?}");
    for gone in [
        "connection:",
        "keep-alive:",
        "te:",
        "upgrade:",
        "proxy-connection:",
    ] {
        assert_eq!(count(gone), 0, "{text:?}");
    }
}

#[test]
fn a_mutated_answer_is_lost_or_goes_on_with_the_same_reading() {
    let answers: [&[u8]; 2] = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close, x-a\r\nX-A: b\r\nETag: \"x\"\r\n\r\n",
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\nKeep-Alive: 1\r\nServer: s\r\n\r\n",
    ];
    let mut noise = Noise(0x2545_f491_4f6c_dd1d);
    let mut taken = 0;
    for round in 0..10_000 {
        let mut raw = answers[round % 2].to_vec();
        noise.mutate(&mut raw, PIECES);
        let Some(end) = find_head_end(&raw, 0) else {
            continue;
        };
        let mut storage = HeaderStorage::new();
        let Ok(head) = parse_response(&raw[..end], "PUT", &mut storage) else {
            continue;
        };
        if head.status < 200 {
            continue;
        }
        taken += 1;
        for client in [Version::V11, Version::V10] {
            let body = head.framing_for(client);
            let close = body == Framing::UntilClose;
            let mut out = Vec::new();
            write_response_head(&mut out, &head, ResponseOptions { client, close, body });
            assert_eq!(find_head_end(&out, 0), Some(out.len()), "{raw:?}");
            let mut storage = HeaderStorage::new();
            let again = parse_response(&out, "PUT", &mut storage).unwrap();
            assert_eq!(
                (again.status, again.framing, again.reason),
                (head.status, body, head.reason),
                "{raw:?}"
            );
        }
    }
    assert!(taken > 300, "{taken} taken");
}

#[test]
fn mutated_chunks_read_the_same_whole_and_in_pieces_and_written_again() {
    let bodies: [&[u8]; 3] = [
        b"5\r\nhello\r\n3;a=b\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n",
        b"10\r\n0123456789abcdef\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"1\r\nx\r\n2\r\n\r\n\r\n0\r\nA: b\r\nC: d\r\n\r\n",
    ];
    let mut noise = Noise(0xd1b5_4a32_d192_ed03);
    let mut taken = 0;
    for round in 0..20_000 {
        let mut raw = bodies[round % 3].to_vec();
        noise.mutate(&mut raw, PIECES);
        let whole = read_body(Framing::Chunked, &raw, raw.len().max(1));
        for step in [1, 1 + noise.below(7)] {
            assert_eq!(
                read_body(Framing::Chunked, &raw, step),
                whole,
                "{raw:?} by {step}"
            );
        }
        let Ok(Some(body)) = whole else { continue };
        taken += 1;
        let out = write_again(&body);
        let again = read_body(Framing::Chunked, &out, 3).unwrap().unwrap();
        assert_eq!(
            (again.payload, again.trailers),
            (body.payload, body.trailers),
            "{raw:?}"
        );
        assert_eq!(again.taken, out.len());
    }
    assert!(taken > 300, "{taken} taken");
}

fn write_again(body: &Body) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in body.payload.chunks(7) {
        write_chunk_head(&mut out, piece.len());
        out.extend_from_slice(piece);
        out.extend_from_slice(CHUNK_END);
    }
    write_last_chunk(&mut out, &body.trailers);
    out
}
