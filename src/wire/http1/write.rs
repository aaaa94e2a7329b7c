//! Writing heads and chunks. Field lines are copied as they came, in runs; fields that end at this hop are left
//! out; nothing is re-ordered. Called by the HTTP gate and by `upstream/`.

use httparse::Header;

use super::fields::elements;
use super::head::{line_end, line_start};
use super::{Framing, RequestHead, ResponseHead, Upgrade, Version};

/// What ends the payload of a chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

/// What the gate adds to a request.
#[derive(Clone, Copy, Debug)]
pub struct Forwarded<'a> {
    /// The client's address, for `X-Forwarded-For`.
    pub client_ip: &'a str,
    /// `http` or `https`, for `X-Forwarded-Proto` where the request has none.
    pub proto: &'a str,
    /// The version of HTTP that the client speaks, for `Via`.
    pub via: &'a str,
}

/// Appends the head as it goes to the backend. `pass_upgrade` keeps an [`Upgrade::Other`]; else the wish is left
/// out.
pub fn write_request_head(
    out: &mut Vec<u8>,
    head: &RequestHead<'_, '_>,
    forwarded: Option<&Forwarded<'_>>,
    pass_upgrade: bool,
) {
    out.reserve(head.raw.len() + 128);
    out.extend_from_slice(head.method.as_bytes());
    out.push(b' ');
    out.extend_from_slice(head.target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    copy_lines(
        out,
        head.raw,
        head.fields,
        head.dropped.iter().map(|i| usize::from(*i)),
    );
    if let Some(forwarded) = forwarded {
        write_forwarded(out, forwarded, head.has_forwarded_proto);
    }
    if pass_upgrade && head.upgrade == Upgrade::Other {
        write_upgrade(out, head.fields);
    }
    out.extend_from_slice(b"\r\n");
}

fn write_forwarded(out: &mut Vec<u8>, forwarded: &Forwarded<'_>, has_proto: bool) {
    write_field(out, b"X-Forwarded-For: ", forwarded.client_ip.as_bytes());
    if !has_proto {
        write_field(out, b"X-Forwarded-Proto: ", forwarded.proto.as_bytes());
    }
    out.extend_from_slice(b"Via: ");
    out.extend_from_slice(forwarded.via.as_bytes());
    out.extend_from_slice(b" fencegate\r\n");
}

fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// The protocols to upgrade to, but for `h2c`, which never goes through.
fn write_upgrade(out: &mut Vec<u8>, fields: &[Header<'_>]) {
    for field in fields {
        if !field.name.eq_ignore_ascii_case("upgrade") {
            continue;
        }
        for protocol in elements(field.value) {
            if !protocol.eq_ignore_ascii_case(b"h2c") {
                write_field(out, b"Upgrade: ", protocol);
            }
        }
    }
    out.extend_from_slice(b"Connection: Upgrade\r\n");
}

/// Copies all field lines but the dropped ones, each run of kept lines at once.
fn copy_lines(out: &mut Vec<u8>, raw: &[u8], fields: &[Header<'_>], dropped: impl Iterator<Item = usize>) {
    let Some(first) = fields.first() else { return };
    let mut start = line_start(raw, first);
    for index in dropped {
        out.extend_from_slice(&raw[start..line_start(raw, &fields[index])]);
        start = line_end(raw, fields, index);
    }
    out.extend_from_slice(&raw[start..raw.len() - 2]);
}

/// How an answer goes to its client.
#[derive(Clone, Copy, Debug)]
pub struct ResponseOptions {
    /// The client's version.
    pub client: Version,
    /// The gate closes the connection after this answer.
    pub close: bool,
    /// How the body is framed towards the client: [`ResponseHead::framing_for`]. [`Framing::UntilClose`] goes with
    /// `close`.
    pub body: Framing,
}

/// Appends the head as it goes to the client. An interim answer gets no Connection field; it is not for HTTP/1.0
/// clients.
pub fn write_response_head(out: &mut Vec<u8>, head: &ResponseHead<'_, '_>, options: ResponseOptions) {
    debug_assert!(options.body != Framing::UntilClose || options.close);
    debug_assert!(options.client == Version::V11 || !head.is_interim());
    out.reserve(head.raw.len() + 64);
    let first = head.fields.first();
    let status_line = first.map_or(head.raw.len() - 2, |field| line_start(head.raw, field));
    out.extend_from_slice(b"HTTP/1.1");
    out.extend_from_slice(&head.raw[8..status_line]);
    write_response_fields(out, head, options);
    if head.status == 101 {
        write_upgrade(out, head.fields);
    } else if !head.is_interim() {
        match (options.close, options.client) {
            (true, _) => out.extend_from_slice(b"Connection: close\r\n"),
            (false, Version::V10) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
            (false, Version::V11) => {}
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn write_response_fields(out: &mut Vec<u8>, head: &ResponseHead<'_, '_>, options: ResponseOptions) {
    let dropped = head.dropped.iter().map(|i| usize::from(*i));
    if head.chunked && !keeps_coding(head, options) {
        let is_coding = |f: &Header<'_>| f.name.eq_ignore_ascii_case("transfer-encoding");
        let coding = head.fields.iter().position(is_coding);
        let mut all: Vec<usize> = dropped.chain(coding).collect();
        all.sort_unstable();
        all.dedup();
        copy_lines(out, head.raw, head.fields, all.into_iter());
    } else {
        copy_lines(out, head.raw, head.fields, dropped);
    }
    if options.body == Framing::Chunked && !head.chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
}

/// A bodiless answer to HEAD (or a 304) says with its coding what a GET would get; elsewhere the field goes with
/// the chunks.
fn keeps_coding(head: &ResponseHead<'_, '_>, options: ResponseOptions) -> bool {
    match options.body {
        Framing::Chunked => true,
        Framing::None => options.client == Version::V11 && head.status >= 200 && head.status != 204,
        Framing::Length(_) | Framing::UntilClose => false,
    }
}

/// Appends the line before a chunk of `len` bytes of payload, which [`CHUNK_END`] follows. A chunk of none would
/// end the body.
pub fn write_chunk_head(out: &mut Vec<u8>, len: usize) {
    debug_assert!(len > 0, "an empty chunk ends the body");
    let mut digits = [0u8; 18];
    let mut at = 16;
    digits[16..].copy_from_slice(b"\r\n");
    let mut rest = len;
    while rest > 0 {
        at -= 1;
        digits[at] = b"0123456789abcdef"[rest & 15];
        rest >>= 4;
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends the end of a chunked body, with the raw trailer lines of [`Piece::End`](super::Piece::End), or none.
pub fn write_last_chunk(out: &mut Vec<u8>, trailers: &[u8]) {
    debug_assert!(trailers.is_empty() || trailers.ends_with(b"\r\n"));
    out.extend_from_slice(b"0\r\n");
    out.extend_from_slice(trailers);
    out.extend_from_slice(b"\r\n");
}
