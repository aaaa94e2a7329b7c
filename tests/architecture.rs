//! The shape of the code, checked on its text: imports go down the floors of `src/lib.rs`'s picture, pure modules
//! stay pure, files stay readable. The last tests feed each check what it must catch.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const LINES_MAX: usize = 500;

/// Modules that take the time as an argument and return what is to be done.
const PURE: [&str; 4] = ["fence", "owner", "rules", "wire"];

#[test]
fn modules_import_only_from_lower_floors() {
    let floors = Floors::of_the_picture(&read(&src().join("lib.rs")));
    let found: Vec<String> = sources()
        .iter()
        .flat_map(|source| upward_imports(&source.path, &source.code, &floors))
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_picture_shows_every_module_and_no_other() {
    let lib = read(&src().join("lib.rs"));
    let floors = Floors::of_the_picture(&lib);
    let mut declared: Vec<&str> = lib
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .collect();
    declared.push("main");
    declared.sort_unstable();
    assert_eq!(floors.0.keys().collect::<Vec<_>>(), declared);
}

#[test]
fn pure_modules_neither_wait_nor_log_nor_count_nor_serialize() {
    let found: Vec<String> = sources()
        .iter()
        .filter(|source| PURE.contains(&top_module(&source.path)))
        .flat_map(|source| impurities(&source.path, &source.code))
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn no_file_is_longer_than_can_be_read() {
    let mut found = vec![];
    for source in sources().iter().filter(|source| !is_test_file(&source.path)) {
        let lines = lines_without_tests(&source.text);
        if lines > LINES_MAX {
            found.push(format!(
                "{} has {lines} lines, {LINES_MAX} are allowed",
                source.path
            ));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn nothing_is_left_unfinished() {
    let found: Vec<String> = sources()
        .iter()
        .flat_map(|source| unfinished(&source.path, &source.code))
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_file_says_what_it_holds() {
    for folder in ["src", "tests", "benches"] {
        for path in rust_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)) {
            assert!(
                read(&path).starts_with("//! "),
                "{} has no //! docs",
                path.display()
            );
        }
    }
}

/// The floor of each module at the top.
struct Floors(BTreeMap<String, u8>);

impl Floors {
    /// Reads lines like `//! 6 http/ admin/   what they do`; without a number it is the line above's floor.
    fn of_the_picture(lib: &str) -> Floors {
        let mut floors = BTreeMap::new();
        let mut floor = None;
        let picture = lib.lines().skip_while(|line| *line != "//! ```text").skip(1);
        for line in picture.take_while(|line| *line != "//! ```") {
            let line = line.trim_start_matches("//!").trim_start();
            let names = line.split_once("  ").map_or(line, |(names, _)| names);
            for word in names.split([' ', '·']).filter(|word| !word.is_empty()) {
                if let Ok(number) = word.parse() {
                    floor = Some(number);
                } else {
                    let name = word.trim_end_matches('/').trim_end_matches(".rs");
                    floors.insert(name.to_owned(), floor.expect("the first line has a number"));
                }
            }
        }
        assert!(!floors.is_empty(), "src/lib.rs has no picture of the floors");
        Floors(floors)
    }
}

/// `path` is relative to `src/`, `code` is without comments and strings.
fn upward_imports(path: &str, code: &str, floors: &Floors) -> Vec<String> {
    let here = top_module(path);
    // `lib.rs` declares the modules, and stands on no floor.
    let Some(own) = floors.0.get(here) else {
        return vec![];
    };
    let mut found = vec![];
    for module in mentioned_modules(path, code) {
        match floors.0.get(&module) {
            Some(floor) if module != here && floor >= own => {
                found.push(format!(
                    "{path} (floor {own}) imports from {module} (floor {floor})"
                ));
            }
            Some(_) | None => {}
        }
    }
    found
}

/// The names that follow `crate::`, and `super::` where it reaches as far.
fn mentioned_modules(path: &str, code: &str) -> Vec<String> {
    let code: String = code.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut found = vec![];
    for (root, _) in code
        .match_indices("crate::")
        .chain(code.match_indices("fencegate::"))
    {
        found.extend(first_names(after_path_separator(&code[root..])));
    }
    let to_the_root = "super::".repeat(depth(path));
    for (root, _) in code.match_indices(&to_the_root) {
        found.extend(first_names(&code[root + to_the_root.len()..]));
    }
    found
}

fn after_path_separator(text: &str) -> &str {
    text.split_once("::").map_or("", |(_, rest)| rest)
}

/// `a::b` names `a`; `{a::b, c::{d, e}}` names `a` and `c`.
fn first_names(text: &str) -> Vec<String> {
    let Some(group) = text.trim_start().strip_prefix('{') else {
        return vec![identifier(text)];
    };
    let mut names = vec![];
    let (mut depth, mut item) = (0, String::new());
    for c in group.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => names.push(identifier(&std::mem::take(&mut item))),
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => item.push(c),
        }
    }
    names.push(identifier(&item));
    names
}

fn identifier(text: &str) -> String {
    let is_part = |c: &char| c.is_alphanumeric() || *c == '_';
    text.trim_start().chars().take_while(is_part).collect()
}

/// How many `super::` lead from the module in this file to the crate's root.
fn depth(path: &str) -> usize {
    let below = path.trim_end_matches("/mod.rs").matches('/').count();
    below + 1
}

fn top_module(path: &str) -> &str {
    path.split('/').next().unwrap_or(path).trim_end_matches(".rs")
}

fn impurities(path: &str, code: &str) -> Vec<String> {
    [
        ".await",
        "async ",
        "tokio::",
        "tracing::",
        "serde::",
        "prometheus_client::",
    ]
    .into_iter()
    .filter(|word| code.contains(word))
    .map(|word| format!("{path} is pure and says `{word}`"))
    .collect()
}

fn unfinished(path: &str, code: &str) -> Vec<String> {
    ["todo!", "unimplemented!", "dbg!"]
        .into_iter()
        .filter(|word| code.contains(word))
        .map(|word| format!("{path} says `{word}`"))
        .collect()
}

/// Tests stand last in their file.
fn lines_without_tests(text: &str) -> usize {
    text.split("#[cfg(test)]\nmod tests {")
        .next()
        .map_or(0, |code| code.lines().count())
}

fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// The text with comments, strings and characters blanked out, so that only code is left.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = token_length(rest).max(c.len_utf8());
        if length > c.len_utf8() || c == '"' {
            code.push(' ');
        } else {
            code.push(c);
        }
        rest = &rest[length..];
    }
    code
}

/// How long the comment, string or character is that stands here; 0 if there is none.
fn token_length(rest: &str) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return rest.find("*/").map_or(rest.len(), |end| end + 2);
    }
    if rest.starts_with("r\"") || rest.starts_with("r#") {
        let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
        let close = format!("\"{}", "#".repeat(hashes));
        let open = 2 + hashes;
        // `r#name` is an identifier.
        return match rest.as_bytes().get(open - 1) {
            Some(b'"') => rest[open..]
                .find(&close)
                .map_or(rest.len(), |end| open + end + close.len()),
            _ => 0,
        };
    }
    if rest.starts_with('"') {
        return quoted_length(rest, '"').unwrap_or(rest.len());
    }
    if rest.starts_with('\'') {
        // A lifetime has no closing quote after one character.
        return quoted_length(rest, '\'')
            .filter(|_| is_character(rest))
            .unwrap_or(0);
    }
    0
}

fn is_character(rest: &str) -> bool {
    rest.starts_with("'\\") || rest.chars().nth(2) == Some('\'')
}

fn quoted_length(rest: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        if !escaped && c == quote {
            return Some(at + 1);
        }
        escaped = !escaped && c == '\\';
    }
    None
}

struct Source {
    /// Relative to `src/`.
    path: String,
    text: String,
    code: String,
}

fn sources() -> Vec<Source> {
    let root = src();
    let sources: Vec<Source> = rust_files(&root)
        .into_iter()
        .map(|path| {
            let text = read(&path);
            let path = path.strip_prefix(&root).expect("it was found there");
            Source {
                path: path.display().to_string(),
                code: code_of(&text),
                text,
            }
        })
        .collect();
    assert!(
        sources.len() > 20,
        "the sources are not where they are looked for"
    );
    sources
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

mod a_check_catches {
    use super::*;

    const PICTURE: &str = "//! ```text\n//! 8 main.rs · cli/     verbs\n//! 6 http/ admin/       gates\n\
        //! 1 fence/             pure\n//!   rules/             pure: also\n//! 0 base/              words\n//! ```\n";

    fn caught(path: &str, text: &str) -> Vec<String> {
        upward_imports(path, &code_of(text), &Floors::of_the_picture(PICTURE))
    }

    #[test]
    fn the_floors_of_the_picture() {
        let floors = Floors::of_the_picture(PICTURE).0;
        let expected = [
            ("admin", 6),
            ("base", 0),
            ("cli", 8),
            ("fence", 1),
            ("http", 6),
            ("main", 8),
            ("rules", 1),
        ];
        let floors: Vec<(&str, u8)> = floors.iter().map(|(name, floor)| (&**name, *floor)).collect();
        assert_eq!(floors, expected);
    }

    #[test]
    fn an_upward_import() {
        let expected = ["fence/core.rs (floor 1) imports from http (floor 6)"];
        assert_eq!(caught("fence/core.rs", "use crate::http::Gate;"), expected);
        assert_eq!(
            caught("fence/core.rs", "fn a() { crate::http::serve() }"),
            expected
        );
        assert_eq!(
            caught(
                "fence/core.rs",
                "use crate::{\n    base::{Token, Reason},\n    http::Gate,\n};"
            ),
            expected
        );
        assert_eq!(caught("fence/core.rs", "use super::super::http;"), expected);
    }

    #[test]
    fn an_import_from_the_same_floor() {
        assert_eq!(caught("http/mod.rs", "use crate::admin;").len(), 1);
        assert_eq!(caught("http/mod.rs", "use super::admin;").len(), 1);
        assert_eq!(caught("rules/mod.rs", "use crate::{base, fence::Core};").len(), 1);
    }

    #[test]
    fn no_import_that_is_allowed() {
        assert_eq!(
            caught(
                "http/client.rs",
                "use crate::{base::Token, fence, rules::{http, Rule}};"
            )
            .len(),
            0
        );
        assert_eq!(
            caught("http/client.rs", "use super::admin;\nuse crate::http::Gate;").len(),
            0
        );
        assert_eq!(caught("main.rs", "fencegate::http::serve()").len(), 0);
        assert_eq!(caught("lib.rs", "use crate::cli;").len(), 0);
    }

    #[test]
    fn nothing_in_comments_and_strings() {
        let quiet = "// crate::http\n/* crate::http */ let a = \"crate::http \\\" crate::http\"; let b = r#\"\"crate::http\"#; '\"' \
            'x: loop {}";
        assert_eq!(caught("fence/core.rs", quiet).len(), 0);
        assert_eq!(caught("fence/core.rs", &format!("{quiet} crate::http")).len(), 1);
    }

    #[test]
    fn what_is_unfinished_or_impure() {
        assert_eq!(unfinished("a.rs", &code_of("fn a() { todo!() }")).len(), 1);
        assert_eq!(
            unfinished("a.rs", &code_of("fn a() { dbg!(unimplemented!()) }")).len(),
            2
        );
        assert_eq!(unfinished("a.rs", &code_of("// todo!()")).len(), 0);
        assert_eq!(
            impurities(
                "fence/a.rs",
                &code_of("async fn a() { tokio::time::sleep(x).await }")
            )
            .len(),
            3
        );
    }

    #[test]
    fn only_the_lines_before_the_tests() {
        assert_eq!(
            lines_without_tests("a\nb\n#[cfg(test)]\nmod tests {\nc\nd\n}\n"),
            2
        );
        assert_eq!(lines_without_tests("a\n#[cfg(test)]\nmod tests;\nb\n"), 4);
    }
}
