//! A plain second reader of heads and chunks, after RFC 9112 alone: lines end with CRLF, names are without case. What
//! it can't read it says nothing about; it knows nothing of how the codec works.

/// A head, its names in lower case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plain {
    pub first: Vec<u8>,
    pub fields: Vec<(String, Vec<u8>)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    None,
    Length(u64),
    Chunked,
    UntilClose,
}

/// Reads a head up to its empty line and nothing behind it.
pub fn head(bytes: &[u8]) -> Option<Plain> {
    let mut lines = lines(bytes)?;
    if lines.pop()? != b"" || lines.pop()? != b"" {
        return None;
    }
    let mut lines = lines.into_iter();
    let first = lines.next()?.to_vec();
    let fields = lines.map(field).collect::<Option<_>>()?;
    Some(Plain { first, fields })
}

/// The pieces between CRLFs; `None` where a CR, LF or NUL stands elsewhere.
fn lines(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut found = vec![];
    let mut rest = bytes;
    while let Some(at) = rest.windows(2).position(|two| two == b"\r\n") {
        found.push(&rest[..at]);
        rest = &rest[at + 2..];
    }
    found.push(rest);
    let clean = |line: &&[u8]| !line.iter().any(|b| matches!(b, b'\r' | b'\n' | 0));
    found.iter().all(clean).then_some(found)
}

fn field(line: &[u8]) -> Option<(String, Vec<u8>)> {
    let colon = line.iter().position(|b| *b == b':')?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let is_token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    if name.is_empty() || !name.iter().all(is_token) {
        return None;
    }
    let name = std::str::from_utf8(name).ok()?.to_ascii_lowercase();
    Some((name, without_spaces(value).to_vec()))
}

pub fn without_spaces(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

impl Plain {
    /// The values of a field, in order.
    pub fn all(&self, name: &str) -> Vec<&[u8]> {
        let of_name = self.fields.iter().filter(|(n, _)| n == name);
        of_name.map(|(_, value)| &**value).collect()
    }

    /// The elements of all fields of a name, taken as one list, in lower case.
    pub fn list(&self, name: &str) -> Vec<String> {
        let all = self.all(name).join(&b","[..]);
        all.split(|b| *b == b',')
            .map(|element| String::from_utf8_lossy(without_spaces(element)).to_ascii_lowercase())
            .filter(|element| !element.is_empty())
            .collect()
    }

    /// `METHOD SP TARGET SP VERSION`.
    pub fn request_line(&self) -> Option<(&[u8], &[u8], &[u8])> {
        let words: Vec<&[u8]> = self.first.split(|b| *b == b' ').collect();
        match words[..] {
            [method, target, version] => Some((method, target, version)),
            _ => None,
        }
    }

    /// How a request's body ends: there is one way at most, or none can be told.
    pub fn request_body(&self) -> Option<Body> {
        self.framing(Body::None)
    }

    /// How an answer's body ends.
    pub fn response_body(&self, method: &str, status: u16) -> Option<Body> {
        let framing = self.framing(Body::UntilClose)?;
        let bodiless = method == "HEAD" || status < 200 || status == 204 || status == 304;
        Some(if bodiless { Body::None } else { framing })
    }

    fn framing(&self, without: Body) -> Option<Body> {
        match (
            &self.all("content-length")[..],
            &self.all("transfer-encoding")[..],
        ) {
            ([], []) => Some(without),
            ([length], []) => number(length).map(Body::Length),
            ([], [coding]) => coding.eq_ignore_ascii_case(b"chunked").then_some(Body::Chunked),
            _ => None,
        }
    }

    /// What is of this hop alone: the known fields, and what Connection names; `close` is a word there and no field's
    /// name (RFC 9110, 9.6 reserves it).
    pub fn is_of_the_hop(&self, name: &str) -> bool {
        const KNOWN: [&str; 6] = [
            "connection",
            "keep-alive",
            "proxy-connection",
            "te",
            "upgrade",
            "http2-settings",
        ];
        let names = |named: &String| named == name && named != "close";
        KNOWN.contains(&name) || self.list("connection").iter().any(names)
    }
}

fn number(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(text).ok()?.parse().ok())?
}

/// A chunked body: payload, trailer lines, and how many bytes it took.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunks {
    pub payload: Vec<u8>,
    pub trailers: Vec<u8>,
    pub consumed: usize,
}

/// Reads a whole chunked body; `None` where it is malformed or not all there.
pub fn chunks(bytes: &[u8]) -> Option<Chunks> {
    let (mut payload, mut at) = (vec![], 0);
    loop {
        let line = line_at(bytes, at)?;
        at += line.len() + 2;
        let size = line.split(|b| *b == b';').next()?;
        if size.is_empty() || !size.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let size = usize::from_str_radix(std::str::from_utf8(size).ok()?, 16).ok()?;
        if size == 0 {
            break;
        }
        let end = at.checked_add(size)?;
        payload.extend_from_slice(bytes.get(at..end)?);
        if bytes.get(end..end + 2)? != b"\r\n" {
            return None;
        }
        at = end + 2;
    }
    let start = at;
    loop {
        let line = line_at(bytes, at)?;
        if line.is_empty() {
            break;
        }
        field(line)?;
        at += line.len() + 2;
    }
    Some(Chunks {
        payload,
        trailers: bytes[start..at].to_vec(),
        consumed: at + 2,
    })
}

fn line_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    let end = rest.windows(2).position(|two| two == b"\r\n")?;
    let clean = !rest[..end].iter().any(|b| matches!(b, b'\r' | b'\n' | 0));
    clean.then(|| &rest[..end])
}
