//! Requests: any bytes, in any pieces, read once and written to the backend. What is let through has one reading: the
//! codec's own, read again from what it wrote, and that of a plain second reader.

use fencegate::wire::http1::{
    Forwarded, Framing, HeaderStorage, RequestHead, Upgrade, Version, find_head_end, parse_request,
    write_request_head,
};

use super::body::{self, End};
use super::plain::{self, Body, Plain};
use super::{Draw, shown};

/// Requests of one connection that are looked at.
const REQUESTS_MAX: usize = 4;

/// Takes the input for what one connection sends.
pub fn check(data: &[u8]) {
    let mut draw = Draw::of(data);
    let mut rest = data;
    for _ in 0..REQUESTS_MAX {
        let end = find_head_end(rest, 0);
        assert_eq!(
            end,
            found_in_pieces(rest, &mut draw),
            "in pieces {} ends elsewhere",
            shown(rest)
        );
        let Some(end) = end else { return };
        assert!(end <= rest.len());
        let (head, tail) = rest.split_at(end);
        let Some(framing) = check_head(head) else { return };
        let body = body::check(framing, tail, &mut draw);
        if body.end != End::Whole {
            return;
        }
        rest = &tail[body.consumed..];
    }
}

/// As the gate looks for it: each time from where it was before.
pub fn found_in_pieces(bytes: &[u8], draw: &mut Draw) -> Option<usize> {
    let mut seen = 0;
    while seen < bytes.len() {
        let more = seen + 1 + draw.below((bytes.len() - seen).min(40));
        if let Some(end) = find_head_end(&bytes[..more], seen) {
            return Some(end);
        }
        seen = more;
    }
    None
}

/// Checks all that must hold of a head that is let through, and says how its body ends.
fn check_head(raw: &[u8]) -> Option<Framing> {
    let mut storage = HeaderStorage::new();
    let head = match parse_request(raw, &mut storage) {
        Ok(head) => head,
        Err(error) => {
            assert!(matches!(error.status(), 400 | 417 | 431 | 501 | 505));
            return None;
        }
    };
    let came = read_plainly(skip_blank_lines(raw));
    check_meaning(&head, &came);
    let forwarded = Forwarded {
        client_ip: "192.0.2.7",
        proto: "https",
        via: "1.1",
    };
    for pass_upgrade in [false, true] {
        for forwarded in [None, Some(&forwarded)] {
            check_written(&head, &came, forwarded, pass_upgrade);
        }
    }
    Some(head.framing)
}

fn skip_blank_lines(mut raw: &[u8]) -> &[u8] {
    while let Some(rest) = raw.strip_prefix(b"\r\n") {
        raw = rest;
    }
    raw
}

fn read_plainly(head: &[u8]) -> Plain {
    plain::head(head).unwrap_or_else(|| panic!("a plain reader can't read {}", shown(head)))
}

/// The codec and a plain reader see one request in what came.
fn check_meaning(head: &RequestHead<'_, '_>, came: &Plain) {
    let (method, target, version) = came.request_line().expect("a request line has three words");
    assert_eq!(method, head.method.as_bytes());
    assert!(target.ends_with(head.target.as_bytes()) || matches!(head.target, "/" | "*"));
    assert!(head.target.starts_with('/') || (head.target == "*" && head.method == "OPTIONS"));
    assert!(!head.method.eq_ignore_ascii_case("connect") && !head.method.eq_ignore_ascii_case("trace"));
    match head.version {
        Version::V10 => assert_eq!(version, b"HTTP/1.0"),
        Version::V11 => assert_eq!(version, b"HTTP/1.1"),
    }
    assert_eq!(came.all("host"), [head.host.as_bytes()]);
    assert_eq!(came.request_body(), Some(framing(head.framing)));
    let fields = head.fields.iter();
    let fields: Vec<_> = fields
        .map(|f| {
            (
                f.name.to_ascii_lowercase(),
                plain::without_spaces(f.value).to_vec(),
            )
        })
        .collect();
    assert_eq!(fields, came.fields);
    let closes = came.list("connection").iter().any(|word| word == "close");
    let keeps = came.list("connection").iter().any(|word| word == "keep-alive");
    assert_eq!(
        head.keep_alive,
        !closes && (keeps || head.version == Version::V11)
    );
}

fn framing(framing: Framing) -> Body {
    match framing {
        Framing::None => Body::None,
        Framing::Length(length) => Body::Length(length),
        Framing::Chunked => Body::Chunked,
        Framing::UntilClose => panic!("no request ends by closing"),
    }
}

/// What goes to the backend is the same request, and reads again to the same.
fn check_written(
    head: &RequestHead<'_, '_>,
    came: &Plain,
    forwarded: Option<&Forwarded<'_>>,
    pass_upgrade: bool,
) {
    let mut out = vec![];
    write_request_head(&mut out, head, forwarded, pass_upgrade);
    assert_eq!(
        find_head_end(&out, 0),
        Some(out.len()),
        "{} is not one head",
        shown(&out)
    );
    let went = read_plainly(&out);
    let line = went
        .request_line()
        .expect("a written request line has three words");
    assert_eq!(
        line,
        (head.method.as_bytes(), head.target.as_bytes(), &b"HTTP/1.1"[..])
    );
    let upgrades = pass_upgrade && head.upgrade == Upgrade::Other;
    assert_eq!(
        went.fields,
        wanted(head, came, forwarded, upgrades),
        "{}",
        shown(&out)
    );
    assert_eq!(went.request_body(), came.request_body());
    let mut storage = HeaderStorage::with_limit(usize::MAX);
    let again = parse_request(&out, &mut storage)
        .unwrap_or_else(|error| panic!("the own head is refused, {error}: {}", shown(&out)));
    assert_eq!(
        (
            again.method,
            again.target,
            again.host,
            again.framing,
            again.expect_continue
        ),
        (
            head.method,
            head.target,
            head.host,
            head.framing,
            head.expect_continue
        )
    );
    assert_eq!((again.version, again.keep_alive), (Version::V11, true));
    assert_eq!(
        again.connection_auth,
        head.connection_auth && !came.is_of_the_hop("authorization")
    );
    assert_eq!(again.upgrade == Upgrade::Other, upgrades);
    let mut twice = vec![];
    write_request_head(&mut twice, &again, None, pass_upgrade);
    let mut once = vec![];
    write_request_head(&mut once, head, None, pass_upgrade);
    if forwarded.is_none() {
        assert_eq!(twice, once, "written again it is another one");
    }
}

/// The fields that must go out, made from what came by a plain reader.
fn wanted(
    head: &RequestHead<'_, '_>,
    came: &Plain,
    forwarded: Option<&Forwarded<'_>>,
    upgrades: bool,
) -> Vec<(String, Vec<u8>)> {
    let goes = |name: &str| !(came.is_of_the_hop(name) || name == "expect" && head.version == Version::V10);
    let mut fields: Vec<_> = came
        .fields
        .iter()
        .filter(|(name, _)| goes(name))
        .cloned()
        .collect();
    if let Some(forwarded) = forwarded {
        let has_proto = fields.iter().any(|(name, _)| name == "x-forwarded-proto");
        fields.push(("x-forwarded-for".into(), forwarded.client_ip.into()));
        if !has_proto {
            fields.push(("x-forwarded-proto".into(), forwarded.proto.into()));
        }
        fields.push(("via".into(), format!("{} fencegate", forwarded.via).into()));
    }
    if upgrades {
        fields.extend(upgrade_fields(came));
    }
    fields
}

/// The wish for another protocol: each of its words but `h2c`, and the Connection that goes with them.
pub fn upgrade_fields(came: &Plain) -> Vec<(String, Vec<u8>)> {
    let all = came.all("upgrade").join(&b","[..]);
    let words = all.split(|b| *b == b',').map(plain::without_spaces);
    let mut fields: Vec<_> = words
        .filter(|word| !word.is_empty() && !word.eq_ignore_ascii_case(b"h2c"))
        .map(|word| ("upgrade".to_owned(), word.to_vec()))
        .collect();
    fields.push(("connection".into(), b"Upgrade".into()));
    fields
}
