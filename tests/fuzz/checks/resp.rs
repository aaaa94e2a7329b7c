//! RESP: commands and replies read the same whole and in pieces; a command that is read is read again from what is
//! written of it, one that is followed ends where one that is kept does, and a value ends where its reply does.

use fencegate::wire::resp::{ProtocolError, Read, Replies, Requests, Value, write_command};

use super::{Draw, shown};

/// The check.
pub fn check(data: &[u8]) {
    let mut draw = Draw::of(data);
    commands(data, &mut draw);
    replies(data, &mut draw);
}

/// The commands at the start of some bytes, the place behind the last, and why there is no further one.
type Commands = (Vec<Vec<Vec<u8>>>, usize, Option<ProtocolError>);

fn commands(data: &[u8], draw: &mut Draw) {
    let whole = read_commands(data, &mut |left| left);
    let pieces = read_commands(data, &mut |left| 1 + draw.below(left.min(9)));
    assert_eq!(whole, pieces, "in pieces {} reads otherwise", shown(data));
    for command in &whole.0 {
        let mut written = Vec::new();
        write_command(&mut written, command.iter().map(Vec::as_slice));
        let again = read_commands(&written, &mut |left| left);
        assert_eq!(again, (vec![command.clone()], written.len(), None));
        follow(&written, draw);
    }
}

fn read_commands(data: &[u8], piece: &mut dyn FnMut(usize) -> usize) -> Commands {
    let (mut requests, mut found, mut start, mut fed) = (Requests::default(), vec![], 0, 0);
    loop {
        match requests.read(&data[start..fed]) {
            Ok(Read::Command(len)) => {
                let words = requests.words(&data[start..fed]);
                found.push(words.map(<[u8]>::to_vec).collect());
                start += len;
            }
            Ok(Read::Nothing(len)) => start += len,
            Ok(Read::More) if fed < data.len() => fed += piece(data.len() - fed),
            Ok(Read::More) => return (found, start, None),
            Err(error) => return (found, start, Some(error)),
        }
    }
}

/// From any place on, a command can be followed instead of kept.
fn follow(written: &[u8], draw: &mut Draw) {
    let mut requests = Requests::default();
    let mut come = 1 + draw.below(written.len());
    if requests.read(&written[..come]) != Ok(Read::More) || requests.known().is_none() {
        return;
    }
    let mut at = 0;
    loop {
        let passed = requests.pass(&written[at..come]).expect("it was read before");
        at += passed.len;
        if passed.ends {
            break;
        }
        assert!(come < written.len(), "the end was missed");
        come += 1 + draw.below((written.len() - come).min(9));
    }
    assert_eq!(at, written.len());
}

/// Where each reply ends and what kind it is, and why there is no further one.
type Ends = (Vec<(usize, u8, Option<i64>)>, bool);

fn replies(data: &[u8], draw: &mut Draw) {
    let whole = read_replies(data, &mut |left| left);
    let pieces = read_replies(data, &mut |left| 1 + draw.below(left.min(9)));
    assert_eq!(whole, pieces, "in pieces {} reads otherwise", shown(data));
    let mut start = 0;
    for (end, _, _) in whole.0 {
        if Value::read(&data[start..end]).is_ok() {
            // It needs all of it.
            for cut in start..end {
                assert!(
                    Value::read(&data[start..cut]).is_err(),
                    "{}",
                    shown(&data[start..end])
                );
            }
        }
        start = end;
    }
}

fn read_replies(data: &[u8], piece: &mut dyn FnMut(usize) -> usize) -> Ends {
    let (mut replies, mut found, mut at) = (Replies::default(), vec![], 0);
    while at < data.len() {
        let end = at + piece(data.len() - at);
        while at < end {
            match replies.read(&data[at..end]) {
                Ok((taken, ended)) => {
                    at += taken;
                    if ended {
                        found.push((at, replies.frame().kind(), replies.frame().integer()));
                    }
                }
                Err(_) => return (found, false),
            }
        }
    }
    (found, true)
}
