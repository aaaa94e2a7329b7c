//! An export is read back as it was written, and nothing else is read.

use super::*;

fn contents() -> Contents {
    let mark = |token, format| Mark {
        token: Token(token),
        format,
        raised_at_ms: 1_700_000_000_123,
    };
    let found = Found {
        clean: false,
        settle_after: Duration::from_millis(61_500),
    };
    let mut contents = Contents {
        found,
        ..Contents::default()
    };
    let highest = u128::from(u64::MAX);
    contents
        .marks
        .insert("a".into(), mark(highest, TokenFormat::Integer));
    contents
        .marks
        .insert("b\n\"\u{1}ß".into(), mark(255, TokenFormat::Hex));
    contents
        .marks
        .insert("c".into(), mark(highest << 64 | 7, TokenFormat::Pair));
    contents.resets.push(AuditEntry {
        sequence: 3,
        name: "a".into(),
        mark: mark(9, TokenFormat::Integer),
        audit: Audit {
            from: "12".into(),
            reason: "größer, \"so\"\n".into(),
            by: "127.0.0.1:9".into(),
        },
    });
    contents
}

fn written(contents: &Contents) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, "file", 1_700_000_000_000, contents).unwrap();
    out
}

/// With a checksum and counts that are right again.
fn sealed(lines: &[&str]) -> Vec<u8> {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let count = |kind: &str| lines.iter().filter(|line| line.contains(kind)).count();
    let mut sum = Context::new(&SHA256);
    sum.update(body.as_bytes());
    let (marks, resets) = (count("\"is\":\"mark\""), count("\"is\":\"reset\""));
    let end = format!(
        "{{\"is\":\"end\",\"marks\":{marks},\"resets\":{resets},\"sha256\":\"{}\"}}\n",
        hex(sum)
    );
    [body, end].concat().into_bytes()
}

const FIRST: &str = r#"{"is":"export","format":1,"version":"9.9.9","kind":"file","clean":true,"settle_after_ms":1,"at":"now"}"#;
const A: &str = r#"{"is":"mark","resource":"a","token":"7","format":"integer","raised_at_ms":1}"#;
const B: &str = r#"{"is":"mark","resource":"b","token":"ff","format":"hex","raised_at_ms":1}"#;
const RESET: &str = r#"{"is":"reset","sequence":0,"resource":"a","token":"1","format":"integer","at_ms":1,"from":"","reason":"r","by":"b"}"#;

#[test]
fn what_is_written_is_read_back() {
    for contents in [contents(), Contents::default()] {
        let export = read(&*written(&contents)).unwrap();
        assert_eq!(export.contents, contents);
        assert_eq!((&*export.kind, &*export.at), ("file", "2023-11-14T22:13:20.000Z"));
    }
}

#[test]
fn an_export_cut_anywhere_is_refused() {
    let whole = written(&contents());
    for len in 0..whole.len() {
        assert!(read(&whole[..len]).is_err(), "length {len}");
    }
}

#[test]
fn an_export_with_any_bit_changed_is_refused() {
    let whole = written(&contents());
    for at in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[at / 8] ^= 1 << (at % 8);
        assert!(read(&*bytes).is_err(), "bit {at}");
    }
}

#[test]
fn lines_added_removed_or_in_another_order_are_refused() {
    let whole = String::from_utf8(written(&contents())).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    let refused = |lines: &[&str]| read((lines.join("\n") + "\n").as_bytes()).is_err();
    assert!(!refused(&lines));
    for at in 0..lines.len() {
        let mut fewer = lines.clone();
        fewer.remove(at);
        assert!(refused(&fewer), "without line {at}");
        let mut more = lines.clone();
        more.insert(at, lines[at]);
        assert!(refused(&more), "line {at} twice");
        if at > 0 {
            let mut other = lines.clone();
            other.swap(at - 1, at);
            assert!(refused(&other), "lines {at} and the one before");
        }
    }
    let (line, wrong) = read((whole.clone() + "\n").as_bytes()).unwrap_err();
    assert_eq!(line, lines.len() + 1);
    assert!(wrong.contains("behind the line that closes"), "{wrong}");
}

#[test]
fn what_is_not_known_is_refused_with_its_line_also_where_the_checksum_is_right() {
    assert!(read(&*sealed(&[FIRST, A, B, RESET])).is_ok());
    let of = |lines: &[&str]| read(&*sealed(lines)).unwrap_err();
    let second = |line: &str| of(&[FIRST, line]);
    let cases = [
        (of(&[A]), 1, "no export"),
        (
            of(&[&FIRST.replace("\"format\":1", "\"format\":2")]),
            1,
            "format 2, this version reads 1",
        ),
        (
            of(&[&FIRST.replace("\"format\":1,", "")]),
            1,
            "missing field `format`",
        ),
        (of(&["x"]), 1, "column 1"),
        (of(&[FIRST, B, A]), 3, "order of their bytes"),
        (of(&[FIRST, A, A]), 3, "each once"),
        (of(&[FIRST, RESET, A]), 3, "marks come first"),
        (of(&[FIRST, RESET, RESET]), 3, "behind a later one"),
        (of(&[FIRST, A, FIRST]), 3, "two exports"),
        (second(&A.replace("\"7\"", "\"07\"")), 2, "\"07\" is not a token"),
        (second(&A.replace("\"7\"", "\" 7\"")), 2, "is not a token"),
        (second(&A.replace("\"7\"", "7")), 2, "invalid type"),
        (second(&B.replace("ff", "FF")), 2, "is not a token"),
        (second(&B.replace("hex", "octal")), 2, "integer, hex or pair"),
        (
            second(&A.replace("}", ",\"owner\":1}")),
            2,
            "unknown field `owner`",
        ),
        (
            second(&A.replace("}", ",\"token\":\"8\"}")),
            2,
            "duplicate field `token`",
        ),
        (
            second(&A.replace("mark\"", "note\"")),
            2,
            "unknown variant `note`",
        ),
        (second(""), 2, "not a line"),
        (second("[]"), 2, "not a line"),
    ];
    for ((line, wrong), expected, words) in cases {
        assert_eq!(line, expected, "{wrong}");
        assert!(wrong.contains(words), "{wrong}");
    }
}

#[test]
fn a_line_without_an_end_is_not_read_into_memory() {
    let endless = io::Read::chain(&b"{\""[..], io::repeat(b'x'));
    let (line, wrong) = read(io::BufReader::new(endless)).unwrap_err();
    assert_eq!(line, 1);
    assert!(wrong.contains("longer than"), "{wrong}");
}
