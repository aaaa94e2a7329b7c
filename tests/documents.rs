//! What the documents show holds: the example configurations are right, and so are the README's file and answers.

use std::fs;
use std::path::{Path, PathBuf};

use fencegate::base::Reason;
use fencegate::config::{self, Config};
use fencegate::http::Answer;

#[test]
fn every_example_is_a_configuration_without_a_warning() {
    let mut seen = 0;
    for entry in fs::read_dir(at("config")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|kind| kind != "yaml") {
            continue;
        }
        checked(&path.display().to_string(), &fs::read_to_string(&path).unwrap());
        seen += 1;
    }
    assert!(seen > 0, "config/ holds no example");
}

#[test]
fn keys_that_the_example_leaves_out_stand_there_with_their_defaults() {
    let text = fs::read_to_string(at("config/fencegate.yaml")).unwrap();
    let all_keys: Vec<String> = text.lines().map(with_its_key).collect();
    let all_keys = all_keys.join("\n");
    assert!(all_keys.lines().zip(text.lines()).filter(|(a, b)| a != b).count() > 8);
    let (short, long) = (checked("short", &text), checked("long", &all_keys));
    assert_eq!(format!("{short:#?}"), format!("{long:#?}"));
}

#[test]
fn the_configurations_of_the_readme_are_right() {
    let readme = readme();
    let blocks: Vec<&str> = readme
        .split("```yaml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert!(!blocks.is_empty(), "the README shows no configuration");
    for block in blocks {
        checked("README.md", block);
    }
}

#[test]
fn the_readme_names_every_answer_with_its_status() {
    let readme = readme();
    let mut reason = Some(Reason::StaleToken);
    while let Some(this) = reason {
        let (word, status) = (this.as_str(), Answer::new(this, "").status());
        let row = readme
            .lines()
            .find_map(|line| line.strip_prefix(&format!("| `{word}` | ")))
            .map(|row| row.starts_with(&status.to_string()));
        let aside = readme.contains(&format!("`{word}` ({status})"));
        assert!(row == Some(true) || aside, "{word} with {status} is missing");
        reason = next(this);
    }
}

/// All reasons, one after the other: without a catch-all, so that a new one can't be forgotten.
fn next(reason: Reason) -> Option<Reason> {
    Some(match reason {
        Reason::StaleToken => Reason::MissingToken,
        Reason::MissingToken => Reason::MalformedToken,
        Reason::MalformedToken => Reason::AmbiguousPath,
        Reason::AmbiguousPath => Reason::MethodOverride,
        Reason::MethodOverride => Reason::BadRequest,
        Reason::BadRequest => Reason::StepTooLarge,
        Reason::StepTooLarge => Reason::UnmatchedWrite,
        Reason::UnmatchedWrite => Reason::NotAllowed,
        Reason::NotAllowed => Reason::UpgradeRefused,
        Reason::UpgradeRefused => Reason::Draining,
        Reason::Draining => Reason::StoreUnavailable,
        Reason::StoreUnavailable => Reason::NotOwner,
        Reason::NotOwner => Reason::Overloaded,
        Reason::Overloaded => Reason::UpstreamUnreachable,
        Reason::UpstreamUnreachable => Reason::UpstreamFailed,
        Reason::UpstreamFailed => Reason::UpstreamTimeout,
        Reason::UpstreamTimeout => return None,
    })
}

/// `# key: value` with the `#` taken off; any other line as it is.
fn with_its_key(line: &str) -> String {
    let indent = line.len() - line.trim_start().len();
    let key = line[indent..]
        .strip_prefix("# ")
        .filter(|key| key.split_once(": ").is_some_and(|(name, _)| is_key(name)));
    key.map_or_else(|| line.to_owned(), |key| format!("{}{key}", &line[..indent]))
}

fn is_key(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

fn checked(file: &str, text: &str) -> Config {
    let (config, warnings) =
        config::parse(file, text, &|_| None).unwrap_or_else(|problems| panic!("{problems}"));
    assert!(warnings.is_empty(), "{warnings:?}");
    config
}

fn readme() -> String {
    fs::read_to_string(at("README.md")).unwrap()
}

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
