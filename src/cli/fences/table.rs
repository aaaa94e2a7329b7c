//! Fences as text for people. Names come from requests: control characters are escaped, so that none of them
//! speaks to the terminal.

use serde_json::Value;

const HEAD: [&str; 7] = [
    "RESOURCE",
    "HIGHEST",
    "IN FLIGHT",
    "IN DOUBT",
    "WAITING",
    "REFUSED",
    "RAISED AT",
];
const MEMBERS: [&str; 7] = [
    "resource",
    "highest",
    "in_flight",
    "in_doubt",
    "waiting",
    "refused",
    "raised_at",
];
const AUDIT_HEAD: [&str; 6] = ["AT", "RESOURCE", "FROM", "TO", "BY", "REASON"];
const AUDIT_MEMBERS: [&str; 6] = ["at", "resource", "from", "to", "by", "reason"];

/// The cells of one fence.
pub(super) fn row(fence: &Value) -> [String; 7] {
    MEMBERS.map(|member| cell(&fence[member]))
}

/// A table of fences.
pub(super) fn fences(rows: Vec<[String; 7]>) -> String {
    aligned(HEAD, rows)
}

/// A table of resets.
pub(super) fn audit(lines: &[Value]) -> String {
    let rows = lines
        .iter()
        .map(|line| AUDIT_MEMBERS.map(|member| cell(&line[member])));
    aligned(AUDIT_HEAD, rows.collect())
}

/// One fence, a line a member.
pub(super) fn fence(fence: &Value) -> String {
    let members = [
        "resource",
        "highest",
        "mark",
        "format",
        "in_flight",
        "in_doubt",
        "waiting",
        "refused",
        "raised_at",
    ];
    let lines = members.map(|member| format!("{member:<10} {}", cell(&fence[member])));
    lines.join("\n")
}

/// The text without what a terminal would act on.
pub(in crate::cli) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_invisible(c) {
            plain.extend(c.escape_unicode());
        } else {
            plain.push(c);
        }
    }
    plain
}

/// Marks that turn or hide the text around them.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// One value; `-` where there is none.
pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => plain(text),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

/// A table whose columns stand under their heads.
pub(in crate::cli) fn aligned<const N: usize>(head: [&str; N], rows: Vec<[String; N]>) -> String {
    let mut lines = vec![head.map(String::from)];
    lines.extend(rows);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let written = lines.iter().map(|line| {
        let cells: Vec<String> = line
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        cells.join("  ").trim_end().to_owned()
    });
    written.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::{aligned, plain};

    #[test]
    fn columns_stand_under_their_heads() {
        let rows = vec![
            ["a".into(), "18446744073709551614".into(), "x".into()],
            ["é".into(), "-".into(), "yy".into()],
        ];
        let table = aligned(["NAME", "N", "LAST"], rows);
        let expected =
            "NAME  N                     LAST\na     18446744073709551614  x\né     -                     yy";
        assert_eq!(table, expected);
    }

    #[test]
    fn a_name_says_nothing_to_the_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\u{a}c");
    }
}
