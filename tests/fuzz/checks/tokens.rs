//! Tokens: any text in each format against a reader made of the standard library's numbers, two of them in order, and
//! tokens taken out of headers, queries, cookies and longer values.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use fencegate::base::{Token, TokenFormat};
use fencegate::rules::{Carrier, Request, Sender, Sent, TokenPattern, TokenSource};
use fencegate::wire::http1::Header;

const FORMATS: [TokenFormat; 3] = [TokenFormat::Integer, TokenFormat::Hex, TokenFormat::Pair];

/// Takes the input for two texts and an expression, a line each.
pub fn check(data: &[u8]) {
    let mut lines = data.splitn(3, |b| *b == b'\n');
    let first = lines.next().unwrap_or_default();
    let second = lines.next().unwrap_or_default();
    let expression = lines.next().unwrap_or_default();
    for format in FORMATS {
        let (a, b) = (check_text(format, first), check_text(format, second));
        if let (Some((a, a_known)), Some((b, b_known))) = (a, b) {
            assert_eq!(a.cmp(&b), a_known.cmp(&b_known), "{format:?}: {a:?} {b:?}");
        }
    }
    check_expression(expression, first);
    check_user_agent(first);
    if let Ok(query) = std::str::from_utf8(first) {
        check_query(query);
    }
    check_cookies(first, second);
}

/// A token as the standard library reads it: an epoch, which is 0 where there is none, and a number.
type Known = (u64, u64);

fn check_text(format: TokenFormat, text: &[u8]) -> Option<(Token, Known)> {
    let read = format.parse(text).ok();
    let known = std::str::from_utf8(text)
        .ok()
        .and_then(|text| known(format, text.trim_matches([' ', '\t'])));
    assert_eq!(
        read.map(|token| token.0),
        known.map(|(epoch, number)| (u128::from(epoch) << 64) + u128::from(number)),
        "{format:?}: {:?}",
        text.escape_ascii().to_string()
    );
    let token = read?;
    let shown = format.show(token).to_string();
    assert_eq!(
        format.parse(shown.as_bytes()),
        Ok(token),
        "{format:?} shows {shown}"
    );
    let padded = format!(" \t{shown}\t ");
    assert_eq!(format.parse(padded.as_bytes()), Ok(token));
    for tail in ["0x", ",", " 1", "\n", "\0", "."] {
        assert!(
            format.parse(format!("{shown}{tail}").as_bytes()).is_err(),
            "{format:?}: {shown}{tail:?}"
        );
    }
    Some((token, known?))
}

fn known(format: TokenFormat, text: &str) -> Option<Known> {
    match format {
        TokenFormat::Integer => Some((0, integer(text)?)),
        TokenFormat::Hex => {
            let digits = text
                .strip_prefix("0x")
                .or_else(|| text.strip_prefix("0X"))
                .unwrap_or(text);
            let sound = (1..=16).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
            sound.then(|| Some((0, u64::from_str_radix(digits, 16).ok()?)))?
        }
        TokenFormat::Pair => {
            let parts: Vec<&str> = text.split(['.', '-', ':']).collect();
            let [epoch, counter] = parts[..] else { return None };
            Some((integer(epoch)?, integer(counter)?))
        }
    }
}

/// The text that the number is written as, and no other.
fn integer(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// Whatever the expression, what it takes is a part of the value.
fn check_expression(expression: &[u8], value: &[u8]) {
    let Ok(expression) = std::str::from_utf8(expression) else {
        return;
    };
    let Ok(pattern) = TokenPattern::parse(expression) else {
        return;
    };
    assert_eq!(pattern.as_str(), expression);
    if let Sent::One(taken) = look(header("User-Agent", Some(pattern)), "/", &[("User-Agent", value)]) {
        let is_part = taken.is_empty() || value.windows(taken.len()).any(|part| *part == *taken);
        assert!(is_part, "{expression:?} takes {taken:?} out of {value:?}");
    }
}

static USER_AGENT: LazyLock<TokenPattern> =
    LazyLock::new(|| TokenPattern::parse(r"app/fencing-token\.(\d+)").unwrap());

/// The README's expression, against a search by hand.
fn check_user_agent(value: &[u8]) {
    let text = match std::str::from_utf8(value) {
        Ok(text) if text.is_ascii() => text,
        // Digits of other scripts count to the expression, and are no token.
        _ => return,
    };
    let digits = |rest: &str| rest.bytes().take_while(u8::is_ascii_digit).count();
    let found: Vec<&str> = text
        .match_indices("app/fencing-token.")
        .map(|(at, word)| &text[at + word.len()..])
        .filter(|rest| digits(rest) > 0)
        .map(|rest| &rest[..digits(rest)])
        .collect();
    let pattern = Some(USER_AGENT.clone());
    let sent = look(header("User-Agent", pattern), "/", &[("User-Agent", value)]);
    match (&found[..], sent) {
        ([], Sent::Nothing) | ([_, _, ..], Sent::Odd(_)) => {}
        ([one], Sent::One(taken)) => assert_eq!(one.as_bytes(), &*taken),
        (found, sent) => panic!("{found:?} stands in {text:?}, and it takes {sent:?}"),
    }
}

/// A token that is read is the only one that could be meant.
fn check_query(query: &str) {
    let target = format!("/?{query}");
    let source = TokenSource {
        carrier: Carrier::Query("token".into()),
        pattern: None,
    };
    let sent = look(source, &target, &[]);
    let fields = query.split(['&', ';']);
    let own: Vec<&str> = fields
        .filter(|field| field.split('=').next() == Some("token"))
        .collect();
    match (&own[..], sent) {
        ([], Sent::Nothing) | (_, Sent::Odd(_)) => {}
        // Its name is spelt with an escape.
        ([], Sent::One(_)) => assert!(query.contains('%'), "{query:?}"),
        ([one], Sent::One(taken)) => {
            let value = one
                .strip_prefix("token")
                .and_then(|rest| rest.strip_prefix('='))
                .unwrap_or("");
            assert!(value.contains('%') || value.as_bytes() == &*taken, "{query:?}");
        }
        (own, sent) => panic!("{own:?} stand in {query:?}, and {sent:?} is taken"),
    }
}

/// Cookies in one field or in two are one list.
fn check_cookies(first: &[u8], second: &[u8]) {
    let source = || TokenSource {
        carrier: Carrier::Cookie("token".into()),
        pattern: None,
    };
    let joined = [first, second].join(&b"; "[..]);
    let in_two = look(source(), "/", &[("Cookie", first), ("cookie", second)]);
    let in_one = look(source(), "/", &[("Cookie", &joined)]);
    let meaning = |sent: &Sent<'_>| match sent {
        Sent::Nothing => "nothing".into(),
        Sent::Odd(detail) => (*detail).to_owned(),
        Sent::One(value) => value.trim_ascii().escape_ascii().to_string(),
    };
    assert_eq!(meaning(&in_two), meaning(&in_one));
}

fn header(name: &str, pattern: Option<TokenPattern>) -> TokenSource {
    TokenSource {
        pattern,
        ..TokenSource::header(name)
    }
}

fn look(source: TokenSource, target: &str, fields: &[(&str, &[u8])]) -> Sent<'static> {
    let fields: Vec<Header<'_>> = fields
        .iter()
        .map(|(name, value)| Header { name, value })
        .collect();
    let request = Request {
        method: "PUT",
        target,
        host: "store.test",
        fields: &fields,
        from: Sender {
            ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
            cert: None,
        },
    };
    match source.look(&request) {
        Sent::Nothing => Sent::Nothing,
        Sent::Odd(detail) => Sent::Odd(detail),
        Sent::One(value) => Sent::One(value.into_owned().into()),
    }
}
