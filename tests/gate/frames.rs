//! HTTP/2 by hand, for what no library sends: frames as bytes, and heads whose fields are written as they are
//! (literal, never indexed, no Huffman code).

use std::io::{self, Read, Write};
use std::net::TcpStream;

use super::PATIENCE;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub const ENHANCE_YOUR_CALM: u32 = 11;

/// What a client sends first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// How a stream ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// By an answer, whole: its status and its body.
    Answered(u16, String),
    /// By RST_STREAM, with its code; the status, where an answer had begun.
    Reset(u32, Option<u16>),
    /// By the end of the connection; the code of its GOAWAY, if one came.
    Closed(Option<u32>),
}

/// One frame's bytes.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut out = length[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

/// A head's fields, each literal and never indexed.
pub fn block(fields: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0x10);
        string(&mut out, name.as_ref());
        string(&mut out, value.as_ref());
    }
    out
}

fn string(out: &mut Vec<u8>, text: &[u8]) {
    // The length as an integer with a prefix of 7 bits.
    if text.len() < 127 {
        out.push(u8::try_from(text.len()).unwrap());
    } else {
        out.push(127);
        let mut rest = text.len() - 127;
        while rest >= 128 {
            out.push(0x80 | u8::try_from(rest & 127).unwrap());
            rest >>= 7;
        }
        out.push(u8::try_from(rest).unwrap());
    }
    out.extend(text);
}

/// One connection.
pub struct Frames {
    pub stream: TcpStream,
    inbox: Vec<u8>,
}

impl Frames {
    /// With prior knowledge; SETTINGS ask for heads without a dynamic table, so that a status can be read.
    pub fn open(port: u16) -> Frames {
        let mut frames = Frames::connect(port);
        frames.send(PREFACE);
        frames.send(frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]));
        frames
    }

    /// Without a word.
    pub fn connect(port: u16) -> Frames {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Frames {
            stream,
            inbox: Vec::new(),
        }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.try_send(bytes).unwrap();
        self
    }

    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// A whole head.
    pub fn headers(
        &mut self,
        stream: u32,
        fields: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)],
        end: bool,
    ) -> &mut Self {
        let flags = END_HEADERS | if end { END_STREAM } else { 0 };
        self.send(frame(HEADERS, flags, stream, &block(fields)))
    }

    pub fn data(&mut self, stream: u32, data: &[u8], end: bool) -> &mut Self {
        self.send(frame(DATA, u8::from(end), stream, data))
    }

    /// The next frame; `None` at the connection's end.
    pub fn read(&mut self) -> io::Result<Option<Frame>> {
        while self.inbox.len() < 9 {
            if !self.fill()? {
                return Ok(None);
            }
        }
        let length =
            usize::from(self.inbox[0]) << 16 | usize::from(self.inbox[1]) << 8 | usize::from(self.inbox[2]);
        while self.inbox.len() < 9 + length {
            if !self.fill()? {
                return Ok(None);
            }
        }
        let rest = self.inbox.split_off(9 + length);
        let whole = std::mem::replace(&mut self.inbox, rest);
        Ok(Some(Frame {
            kind: whole[3],
            flags: whole[4],
            stream: u32::from_be_bytes(whole[5..9].try_into().unwrap()),
            payload: whole[9..].to_vec(),
        }))
    }

    fn fill(&mut self) -> io::Result<bool> {
        let mut room = [0; 16 * 1024];
        match self.stream.read(&mut room) {
            Ok(read) => {
                self.inbox.extend_from_slice(&room[..read]);
                Ok(read > 0)
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads until the stream's end, or the connection's; acknowledges SETTINGS, and leaves all else unread.
    #[track_caller]
    pub fn outcome(&mut self, stream: u32) -> Outcome {
        let (mut status, mut body, mut away) = (None, Vec::new(), None);
        while let Some(frame) = self.read().unwrap() {
            match frame.kind {
                SETTINGS if frame.flags & ACK == 0 => {
                    let _closed_by_now = self.try_send(super::frames::frame(SETTINGS, ACK, 0, &[]));
                }
                GOAWAY => away = Some(code(&frame.payload[4..])),
                RST_STREAM if frame.stream == stream => return Outcome::Reset(code(&frame.payload), status),
                HEADERS if frame.stream == stream => {
                    // Trailers have none.
                    status = status_of(&frame.payload).or(status);
                }
                DATA if frame.stream == stream => body.extend(&frame.payload),
                _ => continue,
            }
            if frame.stream == stream && matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0
            {
                let body = String::from_utf8_lossy(&body).into_owned();
                return Outcome::Answered(status.unwrap_or(0), body);
            }
        }
        Outcome::Closed(away)
    }

    /// Reads to the connection's end: the code of its GOAWAY.
    #[track_caller]
    pub fn farewell(&mut self) -> Option<u32> {
        let mut away = None;
        while let Some(frame) = self.read().unwrap() {
            if frame.kind == GOAWAY {
                away = Some(code(&frame.payload[4..]));
            }
        }
        away
    }
}

fn code(payload: &[u8]) -> u32 {
    u32::from_be_bytes(payload[..4].try_into().unwrap())
}

/// The status at the start of a head: an index of the static table, or a literal value of three digits.
fn status_of(block: &[u8]) -> Option<u16> {
    let mut block = block;
    while let [first, rest @ ..] = block
        && first & 0xe0 == 0x20
    {
        // The dynamic table's new size: we asked for none.
        block = rest;
    }
    match block {
        [index @ 0x88..=0x8e, ..] => Some([200, 204, 206, 304, 400, 404, 500][usize::from(*index - 0x88)]),
        // Literal with the name of entry 8, in any of the three kinds.
        [0x48 | 0x08 | 0x18, length, rest @ ..] => {
            let value = &rest[..usize::from(length & 0x7f)];
            let digits = if length & 0x80 == 0 {
                value.to_vec()
            } else {
                huffman_digits(value)
            };
            std::str::from_utf8(&digits).ok()?.parse().ok()
        }
        _ => None,
    }
}

/// Three digits in the Huffman code of HPACK: five bits for 0 to 2, six for the others.
fn huffman_digits(value: &[u8]) -> Vec<u8> {
    let bits: Vec<u8> = value
        .iter()
        .flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1))
        .collect();
    let number = |bits: &[u8]| bits.iter().fold(0, |number, bit| number << 1 | bit);
    let (mut at, mut digits) = (0, Vec::new());
    while digits.len() < 3 && at + 5 <= bits.len() {
        match number(&bits[at..at + 5]) {
            short @ 0..=2 => {
                digits.push(b'0' + short);
                at += 5;
            }
            _ => {
                let Some(long) = bits.get(at..at + 6) else { break };
                digits.push(b'0' + number(long).wrapping_sub(0b011001) + 3);
                at += 6;
            }
        }
    }
    digits
}
