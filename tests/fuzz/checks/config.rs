//! Configurations: any text. It is taken or refused, the same each time; each problem and each warning stands at a
//! place inside of the text; and what is taken can be shown.

use fencegate::admin::Effective;
use fencegate::config::{self, Problem};

/// Larger texts take long and say nothing new.
const BYTES_MAX: usize = 16 * 1024;

/// Takes the input for the text of a file.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    // An https:// backend without a file reads the system's certificates, which take long and are no part of the text.
    if text.len() > BYTES_MAX || text.to_ascii_lowercase().contains("https:") {
        return;
    }
    let read = || config::parse("gate.yaml", text, &environment);
    match read() {
        Ok((config, warnings)) => {
            check_places(&warnings, text);
            let shown = Effective::of(&config).json().to_string();
            assert!(shown.starts_with("{\"") && shown.contains("\"listeners\""));
            assert!(!config.listeners.is_empty());
        }
        Err(problems) => {
            assert!(!problems.0.is_empty(), "refused without a problem");
            check_places(&problems.0, text);
            assert_eq!(read().expect_err("it was refused before"), problems);
        }
    }
}

fn environment(name: &str) -> Option<String> {
    match name {
        "SET" => Some("store".into()),
        "EMPTY" => Some(String::new()),
        "ODD" => Some("a: [b]\n${SET}".into()),
        _ => None,
    }
}

/// Each stands in a line that is there, and no further than behind its last character.
fn check_places(problems: &[Problem], text: &str) {
    let lines = lines(text);
    for problem in problems {
        assert!(!problem.message.is_empty());
        let at = problem.at.expect("the text was read");
        let line = at.line.checked_sub(1).and_then(|index| lines.get(index));
        let line = line.unwrap_or_else(|| panic!("{} lines: {problem}", lines.len()));
        let columns = line.chars().count() + 1;
        assert!((1..=columns).contains(&at.column), "{columns} columns: {problem}");
    }
}

/// The text's lines as YAML counts them: CRLF, LF and CR end one.
fn lines(text: &str) -> Vec<String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let plain = text.replace("\r\n", "\n").replace('\r', "\n");
    plain.split('\n').map(str::to_owned).collect()
}
