//! Reading single values: durations, sizes, numbers, addresses. Each says what would be right. Pure.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::types::Target;

/// `500ms`, `3s`, `2m`, `1h`: a whole number and its unit.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("{text:?} is not a duration; write a whole number and its unit, as 500ms, 3s, 2m or 1h");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number = whole(&text[..digits]).ok_or_else(wrong)?;
    let ms = match &text[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    match number.checked_mul(ms) {
        Some(ms) if ms <= DURATION_MS_MAX => Ok(Duration::from_millis(ms)),
        _ => Err(format!("{text:?} is too long; 720h is the longest")),
    }
}

const DURATION_MS_MAX: u64 = 720 * 3_600_000;

/// A duration that is more than nothing.
pub(crate) fn some_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(format!("{text:?} is no time at all; it must be more than zero")),
        some => Ok(some),
    }
}

/// `64KiB`, `1MiB`, `4096B`, `4096`: bytes.
pub(super) fn size(text: &str) -> Result<usize, String> {
    let wrong = || format!("{text:?} is not a size; write it as 64KiB, 1MiB or 4096");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number = whole(&text[..digits]).ok_or_else(wrong)?;
    let unit = match &text[digits..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => return Err(wrong()),
    };
    number
        .checked_mul(unit)
        .and_then(|n| usize::try_from(n).ok())
        .ok_or_else(wrong)
}

/// The size of a head.
pub(super) fn head_size(text: &str) -> Result<usize, String> {
    match size(text)? {
        n if (1 << 10..=1 << 20).contains(&n) => Ok(n),
        _ => Err(format!("{text:?} is out of bounds; a head may have 1KiB to 1MiB")),
    }
}

/// A whole number from 1 on.
pub(super) fn count(text: &str) -> Result<usize, String> {
    match whole(text) {
        Some(n @ 1..=1_000_000) => usize::try_from(n).map_err(|e| e.to_string()),
        _ => Err(format!("{text:?} is not a whole number from 1 to 1000000")),
    }
}

/// A final status of HTTP.
pub(super) fn status(text: &str) -> Result<u16, String> {
    match whole(text) {
        Some(n @ 200..=599) => u16::try_from(n).map_err(|e| e.to_string()),
        _ => Err(format!("{text:?} is not a final HTTP status, from 200 to 599")),
    }
}

/// `true` or `false`, nothing else.
pub(super) fn flag(text: &str) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

/// An address to listen at.
pub(super) fn bind(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("{text:?} is not an address to listen at; write IP:PORT, as 127.0.0.1:8080 or [::1]:8080")
    })
}

/// A name that goes into metrics and logs.
pub(super) fn name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 64 || text.chars().any(char::is_control) {
        return Err(format!(
            "{text:?} is not a name; it has 1 to 64 bytes and no control characters"
        ));
    }
    Ok(text.to_string())
}

/// A text that is not empty.
pub(super) fn text(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains('\0') {
        return Err("it is empty, or has a NUL".into());
    }
    Ok(text.to_string())
}

/// Where a backend is. Hosts are without brackets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Url {
    Http { host: String, port: u16 },
    Https { host: String, port: u16 },
    Unix(PathBuf),
}

/// A backend.
pub(super) fn url(text: &str) -> Result<Url, String> {
    const RIGHT: &str = "write it as http://HOST:PORT, https://HOST:PORT or unix:/PATH";
    if let Some(path) = text.strip_prefix("unix:") {
        return socket_path(path).map(Url::Unix).ok_or_else(|| {
            format!(
                "{text:?} is not a Unix socket: its path is absolute and has at most {SOCKET_PATH_MAX} bytes; {RIGHT}"
            )
        });
    }
    let (rest, default_port) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
        (Some(rest), _) => (rest, 80),
        (None, Some(rest)) => (rest, 443),
        (None, None) => {
            return Err(format!(
                "the backend's URL must start with a known scheme; {RIGHT}"
            ));
        }
    };
    if rest.contains('@') {
        return Err(format!(
            "the backend's URL can't have a user or a password; {RIGHT}"
        ));
    }
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains(['/', '?', '#']) {
        return Err(format!(
            "{text:?} has a path or a query, and targets reach the backend as they came; {RIGHT}"
        ));
    }
    let (host, port) = split_authority(authority, default_port)
        .ok_or_else(|| format!("{text:?} is not the URL of a backend; {RIGHT}"))?;
    Ok(match default_port {
        80 => Url::Http { host, port },
        _ => Url::Https { host, port },
    })
}

/// A backend of raw TCP.
pub(super) fn stream_url(text: &str) -> Result<Target, String> {
    const RIGHT: &str = "write it as tcp://HOST:PORT or unix:/PATH";
    if let Some(path) = text.strip_prefix("unix:") {
        return socket_path(path).map(|path| Target::Unix { path }).ok_or_else(|| {
            format!(
                "{text:?} is not a Unix socket: its path is absolute and has at most {SOCKET_PATH_MAX} bytes; {RIGHT}"
            )
        });
    }
    let Some(authority) = text.strip_prefix("tcp://") else {
        return Err(format!(
            "the backend's URL must start with a known scheme; {RIGHT}"
        ));
    };
    if authority.contains('@') {
        return Err(format!(
            "the backend's URL can't have a user or a password; {RIGHT}"
        ));
    }
    // Zero is no port, so it stands for a missing one.
    match split_authority(authority, 0) {
        Some((host, port)) if port != 0 => Ok(Target::Tcp { host, port }),
        Some(_) | None => Err(format!("{text:?} is not the URL of a backend; {RIGHT}")),
    }
}

/// The kind of a TLV of a PROXY header.
pub(super) fn tlv(text: &str) -> Result<u8, String> {
    let kind = match text.strip_prefix("0x") {
        Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit()) => {
            u8::from_str_radix(digits, 16).ok()
        }
        Some(_) => None,
        None => whole(text).and_then(|n| u8::try_from(n).ok()),
    };
    match kind {
        Some(3) => Err(format!(
            "{text:?} is the TLV of the header's checksum; own ones are 0xE0 to 0xEF"
        )),
        Some(4) => Err(format!(
            "{text:?} is the TLV that means nothing; own ones are 0xE0 to 0xEF"
        )),
        Some(kind @ 1..) => Ok(kind),
        Some(0) | None => Err(format!(
            "{text:?} is not the kind of a TLV, from 0x01 to 0xFF; own ones are 0xE0 to 0xEF"
        )),
    }
}

/// `true`: the other word is said by leaving the key out.
pub(super) fn only_true(text: &str) -> Result<(), String> {
    match flag(text)? {
        true => Ok(()),
        false => Err("it is true, or left out".into()),
    }
}

/// A name that a rule gives a resource by itself.
pub(super) fn fixed_name(text: &str) -> Result<Box<str>, String> {
    if text.is_empty() || text.len() > NAME_BYTES_MAX || text.chars().any(char::is_control) {
        return Err(format!(
            "{text:?} is not the name of a resource; it has 1 to {NAME_BYTES_MAX} bytes and no control characters"
        ));
    }
    if text.contains(['{', '}']) {
        return Err(format!(
            "{text:?} has braces, and nothing is captured here: write one fixed name, or {{ proxy_tlv: 0xE0 }} or {{ preface: true }} without quotes"
        ));
    }
    Ok(text.into())
}

const NAME_BYTES_MAX: usize = 512;

/// The kernel's bound on the path of a socket, without the NUL at its end.
const SOCKET_PATH_MAX: usize = 107;

/// `/run/store.sock`, also as `///run/store.sock`: a URL with an empty host.
fn socket_path(text: &str) -> Option<PathBuf> {
    let path = text
        .strip_prefix("//")
        .filter(|rest| rest.starts_with('/'))
        .unwrap_or(text);
    let sound = path.starts_with('/')
        && !path.starts_with("//")
        && !path.ends_with('/')
        && path.len() <= SOCKET_PATH_MAX
        && !path.contains('\0');
    sound.then(|| PathBuf::from(path))
}

fn split_authority(authority: &str, default_port: u16) -> Option<(String, u16)> {
    if let Some(inside) = authority.strip_prefix('[') {
        let (host, port) = inside.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        return Some((host.to_string(), read_port(port, default_port)?));
    }
    let at = authority.find(':').unwrap_or(authority.len());
    let (host, port) = authority.split_at(at);
    let sound = !host.is_empty()
        && host
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    sound.then_some((host.to_string(), read_port(port, default_port)?))
}

fn read_port(text: &str, default_port: u16) -> Option<u16> {
    match text {
        "" => Some(default_port),
        port => whole(port.strip_prefix(':')?)
            .and_then(|n| u16::try_from(n).ok())
            .filter(|n| *n != 0),
    }
}

/// The method of a request, as it is written on the wire.
pub(super) fn method(text: &str) -> Result<Box<str>, String> {
    if !crate::rules::is_field_name(text) {
        return Err(format!("{text:?} is not an HTTP method"));
    }
    if text.contains('*') {
        return Err(format!(
            "{text:?} is not a method that clients send, and stands for no other: name each one, or leave methods out of a \
             rule's match to take every write"
        ));
    }
    if text.bytes().any(|b| b.is_ascii_lowercase()) {
        let upper = text.to_ascii_uppercase();
        return Err(format!(
            "{text:?} is not a method that clients send: methods are case-sensitive; did you mean {upper}?"
        ));
    }
    Ok(text.into())
}

/// The name of a field that carries a token.
pub(super) fn token_header(text: &str) -> Result<Box<str>, String> {
    header(text)?;
    if text.eq_ignore_ascii_case("cookie") {
        return Err("a token in a cookie is named by it: write token: { cookie: NAME }".into());
    }
    if OF_THIS_HOP
        .iter()
        .chain(&TAKEN)
        .any(|t| t.eq_ignore_ascii_case(text))
    {
        return Err(format!(
            "{text} has a meaning of its own in HTTP and can't carry a token; Fencing-Token is a good name"
        ));
    }
    Ok(text.into())
}

/// The name of a header field that a rule matches by.
pub(super) fn matched_header(text: &str) -> Result<Box<str>, String> {
    let name = header(text)?;
    if text.eq_ignore_ascii_case("host") {
        return Err("the host is matched by match.host".into());
    }
    if OF_THIS_HOP.iter().any(|t| t.eq_ignore_ascii_case(text)) {
        return Err(format!(
            "{text} is about the connection or the framing, and rules can't match by it"
        ));
    }
    Ok(name)
}

/// The name of a header field that holds a path.
pub(super) fn path_header(text: &str) -> Result<Box<str>, String> {
    match token_header(text) {
        Ok(name) => Ok(name),
        Err(_) => Err(format!(
            "{text:?} is not a header field that can hold a path, as Destination"
        )),
    }
}

fn header(text: &str) -> Result<Box<str>, String> {
    match crate::rules::is_field_name(text) {
        true => Ok(text.into()),
        false => Err(format!("{text:?} is not the name of a header field")),
    }
}

/// The name of a query field.
pub(super) fn query_name(text: &str) -> Result<Box<str>, String> {
    match text.is_empty() || text.chars().any(char::is_control) {
        true => Err(format!(
            "{text:?} is not the name of a query field; write it decoded, as it stands before the ="
        )),
        false => Ok(text.into()),
    }
}

/// The name of a cookie.
pub(super) fn cookie_name(text: &str) -> Result<Box<str>, String> {
    match crate::rules::is_field_name(text) {
        true => Ok(text.into()),
        false => Err(format!("{text:?} is not the name of a cookie")),
    }
}

const OF_THIS_HOP: [&str; 9] = [
    "connection",
    "content-length",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "keep-alive",
    "proxy-connection",
    "expect",
];

/// What can't carry a token either.
const TAKEN: [&str; 5] = [
    "host",
    "authorization",
    "via",
    "x-forwarded-for",
    "x-forwarded-proto",
];

/// A whole number without sign, spaces or leading zeros.
pub(super) fn whole(text: &str) -> Option<u64> {
    let sound = !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'));
    sound.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::{
        Target, Url, bind, duration, flag, head_size, method, size, stream_url, tlv, token_header, url,
    };
    use std::time::Duration;

    #[test]
    fn durations_need_a_unit() {
        for (text, ms) in [
            ("500ms", 500),
            ("3s", 3_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("0s", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in [
            "",
            "3",
            "s",
            "3 s",
            "3 parsecs",
            "03s",
            "-1s",
            "1.5s",
            "3S",
            "3d",
            "99999999999999999999s",
            "721h",
            "１s",
        ] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn sizes_and_flags_are_read_exactly() {
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(head_size("4096"), Ok(4096));
        for bad in ["64kb", "64K", "-1", "", "KiB", "1GiB"] {
            assert!(size(bad).is_err(), "{bad:?}");
        }
        assert!(head_size("1").is_err() && head_size("2MiB").is_err());
        assert_eq!((flag("true"), flag("false")), (Ok(true), Ok(false)));
        assert!(["yes", "no", "True", "1", "on"].iter().all(|t| flag(t).is_err()));
    }

    #[test]
    fn addresses_and_urls_are_read_exactly() {
        assert!(bind("127.0.0.1:8080").is_ok() && bind("[::1]:0").is_ok());
        assert!(
            ["127.0.0.1:notaport", "127.0.0.1", ":80", "localhost:80"]
                .iter()
                .all(|t| bind(t).is_err())
        );
        for (text, host, port) in [
            ("http://127.0.0.1:9000", "127.0.0.1", 9000),
            ("http://store", "store", 80),
            ("http://store.test:81/", "store.test", 81),
            ("http://[::1]:82", "::1", 82),
        ] {
            let host = host.to_string();
            assert_eq!(url(text), Ok(Url::Http { host, port }), "{text}");
        }
        for (text, host, port) in [
            ("https://store", "store", 443),
            ("https://[::1]:19443/", "::1", 19443),
        ] {
            let host = host.to_string();
            assert_eq!(url(text), Ok(Url::Https { host, port }), "{text}");
        }
        for text in ["unix:/run/s.sock", "unix:///run/s.sock"] {
            assert_eq!(url(text), Ok(Url::Unix("/run/s.sock".into())), "{text}");
        }
        for bad in [
            "https://",
            "https://u:p@a",
            "unix:",
            "unix:/",
            "unix:run/s.sock",
            "unix://host/s.sock",
            "unix:////run/s.sock",
            "store:80",
            "http://",
            "http://a/b",
            "http://a?x",
            "http://u:p@a",
            "http://a:0",
            "http://a:99999",
            "http://::1",
            "http://a b",
            "http://[::1",
            "http://a:",
            "tcp://a:1",
        ] {
            assert!(url(bad).is_err(), "{bad:?}");
        }
        assert!(!url("http://u:secret@a").unwrap_err().contains("secret"));
    }

    #[test]
    fn urls_of_tcp_have_a_port_and_tlvs_a_kind() {
        for (text, host, port) in [("tcp://db:5432", "db", 5432), ("tcp://[::1]:82", "::1", 82)] {
            let host = host.to_string();
            assert_eq!(stream_url(text), Ok(Target::Tcp { host, port }), "{text}");
        }
        assert_eq!(
            stream_url("unix:/run/s.sock"),
            Ok(Target::Unix {
                path: "/run/s.sock".into()
            })
        );
        for bad in [
            "tcp://db",
            "tcp://db:0",
            "tcp://db:1/",
            "db:1",
            "http://db:1",
            "tcp://u@db:1",
            "tcp://:1",
            "",
        ] {
            assert!(stream_url(bad).is_err(), "{bad:?}");
        }
        assert_eq!(
            (tlv("0xE0"), tlv("0xef"), tlv("234"), tlv("0x2")),
            (Ok(0xe0), Ok(0xef), Ok(234), Ok(2))
        );
        for bad in ["0xE00", "256", "0", "0x", "E0", "3", "0x04", "-1", "0x+1", ""] {
            assert!(tlv(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn methods_and_headers_that_would_never_match_are_refused() {
        assert!(method("PUT").is_ok() && method("M-SEARCH").is_ok());
        assert!(
            ["put", "", "P T", "PUT,POST", "*", "P*"]
                .iter()
                .all(|t| method(t).is_err())
        );
        assert!(token_header("Fencing-Token").is_ok());
        assert!(
            ["Host", "Fencing Token", "", "connection"]
                .iter()
                .all(|t| token_header(t).is_err())
        );
    }
}
