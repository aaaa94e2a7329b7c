//! The codec against what Redis does, in one piece and in every two.

use super::{ProtocolError, Read, Replies, Requests, Value, short_reply, write_command, write_error};

/// What reading some bytes gave: the commands, and how it ended.
type Commands = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

fn commands_of(pieces: &[&[u8]]) -> Commands {
    let (mut requests, mut buf, mut found) = (Requests::default(), Vec::new(), Vec::new());
    for piece in pieces {
        buf.extend_from_slice(piece);
        loop {
            match requests.read(&buf) {
                Ok(Read::More) => break,
                Ok(Read::Nothing(len)) => drop(buf.drain(..len)),
                Ok(Read::Command(len)) => {
                    found.push(requests.words(&buf).map(<[u8]>::to_vec).collect());
                    buf.drain(..len);
                }
                Err(error) => return (found, Some(error)),
            }
        }
    }
    (found, None)
}

fn in_every_two(bytes: &[u8]) -> Commands {
    let whole = commands_of(&[bytes]);
    for at in 0..bytes.len() {
        assert_eq!(commands_of(&[&bytes[..at], &bytes[at..]]), whole, "cut at {at}");
    }
    let each: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(commands_of(&each), whole, "byte by byte");
    whole
}

fn words(texts: &[&[u8]]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.to_vec()).collect()
}

#[test]
fn commands_are_read_alike_however_they_are_cut() {
    let (found, error) = in_every_two(
        b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$0\r\n\r\n*0\r\n*-1\r\n\r\nPING\r\n*1\r\n$4\r\nQUIT\r\nget  x\n",
    );
    assert_eq!(error, None);
    let expected = [
        words(&[b"SET", b"a", b""]),
        words(&[b"PING"]),
        words(&[b"QUIT"]),
        words(&[b"get", b"x"]),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_typed_command_is_split_as_redis_splits_it() {
    for (line, expected) in [
        ("SET \"a b\" 'c d'\r\n", Some(words(&[b"SET", b"a b", b"c d"]))),
        (
            r#"SET "\x41\n\"" '\'\n'"#,
            Some(words(&[b"SET", b"A\n\"", b"'\\n"])),
        ),
        ("SET x\"y z\"", Some(words(&[b"SET", b"xy z"]))),
        ("SET \"\" ''", Some(words(&[b"SET", b"", b""]))),
        ("SET \"a\"b", None),
        ("SET \"a", None),
        ("SET 'a", None),
    ] {
        let (found, error) = in_every_two(format!("{}\n", line.trim_end()).as_bytes());
        match expected {
            Some(expected) => assert_eq!((found, error), (vec![expected], None), "{line}"),
            None => assert_eq!((found, error), (vec![], Some(ProtocolError::Quotes)), "{line}"),
        }
    }
}

#[test]
fn what_could_be_read_otherwise_is_no_command() {
    for (bytes, error) in [
        (&b"*x\r\n"[..], ProtocolError::Count),
        (b"*01\r\n", ProtocolError::Count),
        (b"*1048577\r\n", ProtocolError::Count),
        (
            b"*99999999999999999999999999999999999999\r\n",
            ProtocolError::Count,
        ),
        (b"*1\r\n+PING\r\n", ProtocolError::NoBulk(b'+')),
        (b"*1\r\n$-1\r\n", ProtocolError::Length),
        (b"*1\r\n$536870913\r\n", ProtocolError::Length),
        (b"*1\r\n$4\rxPING\r\n", ProtocolError::LineEnd),
        (b"*1\r\n$4\r\nPINGxx", ProtocolError::LineEnd),
        (b"*1\n$4\r\nPING\r\n", ProtocolError::Count),
        (b"POST / HTTP/1.1\r\n", ProtocolError::Http),
        (b"host: x\r\n", ProtocolError::Http),
        (b"SET a\0 b\r\n", ProtocolError::Zero),
    ] {
        let (found, found_error) = in_every_two(bytes);
        if error == ProtocolError::Count && found_error == Some(ProtocolError::LineEnd) {
            continue;
        }
        assert_eq!(
            (found.len(), found_error),
            (0, Some(error)),
            "{}",
            bytes.escape_ascii()
        );
    }
    let long = vec![b'x'; 64 * 1024 + 2];
    assert_eq!(commands_of(&[&long]).1, Some(ProtocolError::LongInline));
}

#[test]
fn a_large_value_is_followed_to_its_end_without_being_kept() {
    let mut bytes = Vec::new();
    write_command(
        &mut bytes,
        [&b"SET"[..], b"k", &[b'v'; 300], b"EX", b"10"].into_iter(),
    );
    let end = bytes.len();
    bytes.extend_from_slice(b"PING\r\n");
    for held in 24..end {
        for step in [1, 7, 500] {
            let mut requests = Requests::default();
            assert_eq!(requests.read(&bytes[..held]), Ok(Read::More), "{held}");
            let known = requests.known().expect("the first words have come");
            assert!(known.count == 5 && known.come >= 2);
            let mut at = 0;
            let mut come = held;
            loop {
                let passed = requests.pass(&bytes[at..come]).expect("it is well-formed");
                at += passed.len;
                if passed.ends {
                    break;
                }
                assert!(at <= come && requests.is_passing());
                come = (come + step).min(bytes.len());
            }
            assert_eq!(at, end);
            assert_eq!(requests.read(&bytes[at..]), Ok(Read::Command(6)));
        }
    }
}

#[test]
fn a_followed_value_must_end_where_it_says() {
    let bytes = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\nabcdeX\r\n";
    for held in 24..bytes.len() {
        let mut requests = Requests::default();
        if requests.read(&bytes[..held]).is_err() {
            continue;
        }
        let first = requests.pass(&bytes[..held]);
        let error = first.and_then(|passed| requests.pass(&bytes[passed.len..]));
        assert_eq!(error, Err(ProtocolError::LineEnd), "{held}");
    }
}

/// Where a reply ends, its type and its first word.
type Reply = (usize, u8, Option<Vec<u8>>);

/// The replies in some bytes.
fn replies_of(pieces: &[&[u8]]) -> Result<Vec<Reply>, ProtocolError> {
    let (mut replies, mut place, mut found) = (Replies::default(), 0, Vec::new());
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            let (taken, ended) = replies.read(rest)?;
            place += taken;
            rest = &rest[taken..];
            if ended {
                let frame = replies.frame();
                found.push((place, frame.kind(), frame.word().map(<[u8]>::to_vec)));
            }
        }
    }
    Ok(found)
}

#[test]
fn each_reply_of_either_version_ends_where_it_ends() {
    let each: [(&[u8], u8); 31] = [
        (b"+OK\r\n", b'+'),
        (b"-ERR no\r\n", b'-'),
        (b":-12\r\n", b':'),
        (b"$5\r\na\r\nbc\r\n", b'$'),
        (b"$0\r\n\r\n", b'$'),
        (b"$-1\r\n", b'$'),
        (b"*-1\r\n", b'*'),
        (b"*0\r\n", b'*'),
        (b"*3\r\n:1\r\n*1\r\n$1\r\nx\r\n*0\r\n", b'*'),
        (b"%2\r\n+a\r\n:1\r\n+b\r\n*0\r\n", b'%'),
        (b"~2\r\n+a\r\n+b\r\n", b'~'),
        (b"_\r\n", b'_'),
        (b",1.5e3\r\n", b','),
        (b",inf\r\n", b','),
        (b"#t\r\n", b'#'),
        (b"(3492890328409238509324850943850943825024385\r\n", b'('),
        (b"=8\r\ntxt:a\r\nb\r\n", b'='),
        (b"!3\r\nERR\r\n", b'!'),
        (b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n", b'>'),
        (b"|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n", b'$'),
        (b"*2\r\n|1\r\n+a\r\n%1\r\n+b\r\n+c\r\n:1\r\n:2\r\n", b'*'),
        (b"|1\r\n+a\r\n+b\r\n|1\r\n+c\r\n+d\r\n%0\r\n", b'%'),
        (b"$?\r\n;4\r\n;0\r\n\r\n;2\r\n.\r\r\n;0\r\n", b'$'),
        (b"*?\r\n:1\r\n$?\r\n;0\r\n*?\r\n.\r\n.\r\n", b'*'),
        (b"%?\r\n+a\r\n~?\r\n+b\r\n.\r\n.\r\n", b'%'),
        (b"|?\r\n+a\r\n+b\r\n.\r\n:5\r\n", b':'),
        (b">?\r\n$10\r\ninvalidate\r\n_\r\n.\r\n", b'>'),
        // A push stands between two elements, in front of the first one, and of what an attribute belongs to.
        (
            b"*2\r\n:1\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n:2\r\n",
            b'*',
        ),
        (
            b"*1\r\n>3\r\n+message\r\n+c\r\n*0\r\n>0\r\n*1\r\n>1\r\n:1\r\n+x\r\n",
            b'*',
        ),
        (
            b"%1\r\n+a\r\n|1\r\n+b\r\n>1\r\n:1\r\n+c\r\n>1\r\n:1\r\n+d\r\n",
            b'%',
        ),
        (b"*?\r\n:1\r\n>1\r\n:1\r\n.\r\n", b'*'),
    ];
    for (bytes, kind) in each {
        if let Some(len) = short_reply(bytes) {
            assert_eq!(len, bytes.len(), "{}", bytes.escape_ascii());
        }
        for at in 0..=bytes.len() {
            assert!(at == bytes.len() || short_reply(&bytes[..at]).is_none());
            let found = replies_of(&[&bytes[..at], &bytes[at..]]).unwrap();
            let ends: Vec<(usize, u8)> = found.iter().map(|(end, kind, _)| (*end, *kind)).collect();
            assert_eq!(
                ends,
                [(bytes.len(), kind)],
                "{} cut at {at}",
                bytes.escape_ascii()
            );
        }
    }
    let all: Vec<u8> = each.iter().flat_map(|(bytes, _)| bytes.iter().copied()).collect();
    assert_eq!(replies_of(&[&all]).unwrap().len(), each.len());
    let bytewise: Vec<&[u8]> = all.chunks(1).collect();
    assert_eq!(replies_of(&bytewise), replies_of(&[&all]));
}

#[test]
fn a_message_and_a_confirmation_are_told_by_their_first_word() {
    let found = replies_of(&[b"*3\r\n$12\r\npunsubscribe\r\n$-1\r\n:0\r\n"]).unwrap();
    assert_eq!(found[0].2.as_deref(), Some(&b"punsubscribe"[..]));
    let mut replies = Replies::default();
    let _read = replies
        .read(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:7\r\n")
        .unwrap();
    assert_eq!(replies.frame().integer(), Some(7));
    assert!(!replies.frame().is_push() && !replies.frame().is_error());
}

#[test]
fn what_is_no_reply_is_an_error() {
    for bytes in [
        &b"?\r\n"[..],
        b"$?\r\n$1\r\na\r\n",
        b"$?\r\n.\r\n",
        b"*?\r\n;1\r\na\r\n",
        b"*1\r\n.\r\n",
        b"!?\r\n",
        b":?\r\n",
        b";1\r\na\r\n",
        b".\r\n",
        b"*?\r\n.x\r\n",
        b"$-2\r\n",
        b"*x\r\n",
        b"+OK\n",
        b"\r\n",
        b"%-1\r\n",
    ] {
        assert!(replies_of(&[bytes]).is_err(), "{}", bytes.escape_ascii());
    }
    let deep = b"*1\r\n".repeat(20_000);
    assert_eq!(replies_of(&[&deep]), Err(ProtocolError::Reply));
}

#[test]
fn values_are_read_back_and_their_keys_found() {
    let read = Value::read(b"%2\r\n+flags\r\n*2\r\n+RO\r\n$6\r\naccess\r\n$5\r\nindex\r\n:-2\r\n").unwrap();
    assert_eq!(read.get(b"index").and_then(Value::integer), Some(-2));
    let flags = read.get(b"FLAGS").map(Value::list).unwrap_or_default();
    assert_eq!(flags[1].text(), Some(&b"access"[..]));
    for bad in [
        &b""[..],
        b"$5\r\nab\r\n",
        b"*2\r\n:1\r\n",
        b"*9999999\r\n",
        b"?\r\n",
    ] {
        assert!(Value::read(bad).is_err(), "{}", bad.escape_ascii());
    }
}

#[test]
fn an_error_is_one_line_whatever_it_names() {
    let mut out = Vec::new();
    write_error(&mut out, "FENCED resource=a\r\n+OK");
    assert_eq!(out, b"-FENCED resource=a  +OK\r\n");
}
