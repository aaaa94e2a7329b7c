//! Answers: any bytes, in any pieces, read for one method and written to a client of either version. What a client
//! makes of it after RFC 9112 alone is what the codec says that it wrote.

use fencegate::wire::http1::{
    Framing, HeaderStorage, ResponseHead, ResponseOptions, Version, find_head_end, parse_response,
    write_response_head,
};

use super::body::{self, End};
use super::codec_request::{found_in_pieces, upgrade_fields};
use super::plain::{self, Body, Plain};
use super::{Draw, shown};

/// Answers of one connection that are looked at: interim ones come before the last.
const ANSWERS_MAX: usize = 4;

/// Takes the input for what a backend sends, as answers to each of these methods.
pub fn check(data: &[u8]) {
    for method in ["GET", "HEAD", "PUT"] {
        let mut draw = Draw::of(data);
        let mut rest = data;
        for _ in 0..ANSWERS_MAX {
            let end = find_head_end(rest, 0);
            assert_eq!(
                end,
                found_in_pieces(rest, &mut draw),
                "in pieces {} ends elsewhere",
                shown(rest)
            );
            let Some(end) = end else { break };
            let (head, tail) = rest.split_at(end);
            let Some(framing) = check_head(head, method) else {
                break;
            };
            let body = body::check(framing, tail, &mut draw);
            if body.end != End::Whole {
                break;
            }
            rest = &tail[body.consumed..];
        }
    }
}

fn check_head(raw: &[u8], method: &str) -> Option<Framing> {
    let mut storage = HeaderStorage::new();
    let head = parse_response(raw, method, &mut storage).ok()?;
    let came = plain::head(raw).unwrap_or_else(|| panic!("a plain reader can't read {}", shown(raw)));
    assert_eq!(status(&came), Some((head.status, head.reason)), "{}", shown(raw));
    assert_eq!(
        came.response_body(method, head.status),
        Some(framing(head.framing)),
        "{}",
        shown(raw)
    );
    for client in [Version::V10, Version::V11] {
        for close in [false, true] {
            let body = head.framing_for(client);
            let options = ResponseOptions {
                client,
                close: close || body == Framing::UntilClose,
                body,
            };
            // No interim answer is for a client of HTTP/1.0.
            if client == Version::V11 || !head.is_interim() {
                check_written(&head, &came, method, options);
            }
        }
    }
    Some(head.framing)
}

fn status(head: &Plain) -> Option<(u16, &[u8])> {
    let rest = head.first.strip_prefix(b"HTTP/1.")?;
    let [b'0' | b'1', b' ', digits @ ..] = rest else {
        return None;
    };
    let (digits, reason) = digits.split_at_checked(3)?;
    let reason = match reason {
        [] => reason,
        [b' ', reason @ ..] => reason,
        _ => return None,
    };
    let digits = std::str::from_utf8(digits).ok()?;
    Some((digits.parse().ok()?, reason))
}

fn framing(framing: Framing) -> Body {
    match framing {
        Framing::None => Body::None,
        Framing::Length(length) => Body::Length(length),
        Framing::Chunked => Body::Chunked,
        Framing::UntilClose => Body::UntilClose,
    }
}

/// What goes to the client is the same answer with a body that ends as it is told, and reads again to the same.
fn check_written(head: &ResponseHead<'_, '_>, came: &Plain, method: &str, options: ResponseOptions) {
    let mut out = vec![];
    write_response_head(&mut out, head, options);
    assert_eq!(
        find_head_end(&out, 0),
        Some(out.len()),
        "{} is not one head",
        shown(&out)
    );
    let went = plain::head(&out).unwrap_or_else(|| panic!("a plain reader can't read {}", shown(&out)));
    assert!(went.first.starts_with(b"HTTP/1.1 "));
    assert_eq!(status(&went), Some((head.status, head.reason)));
    assert_eq!(
        went.response_body(method, head.status),
        Some(framing(options.body)),
        "{}",
        shown(&out)
    );
    if options.client == Version::V10 {
        assert!(
            went.all("transfer-encoding").is_empty(),
            "HTTP/1.0 knows no chunks: {}",
            shown(&out)
        );
    }
    assert_eq!(went.fields, wanted(&went, head, came, options), "{}", shown(&out));
    let mut storage = HeaderStorage::with_limit(usize::MAX);
    let again =
        parse_response(&out, method, &mut storage).unwrap_or_else(|error| panic!("{error}: {}", shown(&out)));
    assert_eq!(
        (again.status, again.reason, again.framing),
        (head.status, head.reason, options.body)
    );
    if !again.is_interim() && head.status != 101 {
        let open = !options.close && options.body != Framing::UntilClose;
        assert_eq!(again.keep_alive, open, "{}", shown(&out));
    }
    let mut twice = vec![];
    write_response_head(&mut twice, &again, options);
    assert_eq!(twice, out, "written again it is another one");
}

/// The fields that must go out. Of the coding only that it frames right is asked, which `check_written` does.
fn wanted(
    went: &Plain,
    head: &ResponseHead<'_, '_>,
    came: &Plain,
    options: ResponseOptions,
) -> Vec<(String, Vec<u8>)> {
    let is_coding = |name: &str| name == "transfer-encoding";
    let kept = came
        .fields
        .iter()
        .filter(|(name, _)| !came.is_of_the_hop(name) && !is_coding(name));
    let mut fields: Vec<_> = kept.cloned().collect();
    if let Some(at) = went.fields.iter().position(|(name, _)| is_coding(name)) {
        fields.insert(
            at.min(fields.len()),
            ("transfer-encoding".into(), b"chunked".into()),
        );
        fields[at].1.clone_from(&went.fields[at].1);
    }
    if head.status == 101 {
        fields.extend(upgrade_fields(came));
    } else if !head.is_interim() && (options.close || options.client == Version::V10) {
        let word: &[u8] = if options.close { b"close" } else { b"keep-alive" };
        fields.push(("connection".into(), word.into()));
    }
    fields
}
