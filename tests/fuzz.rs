//! Inputs that nobody thought of, the part that takes seconds: each check of `fuzz/checks` on its seeds (inputs that
//! once failed are among them), and on some thousand mutations of them, the same at each run. `.ci/fuzz` goes on from
//! here under libFuzzer.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

#[path = "fuzz/checks/mod.rs"]
mod checks;

use checks::Draw;

const MUTATIONS: usize = 20_000;
const BYTES_MAX: usize = 4096;

#[test]
fn a_request_that_is_let_through_has_one_reading() {
    run("codec_request", checks::codec_request::check, 10 * MUTATIONS);
}

#[test]
fn an_answer_that_is_let_through_has_one_reading() {
    run("codec_response", checks::codec_response::check, 4 * MUTATIONS);
}

#[test]
fn no_spelling_of_a_path_leads_round_its_fence() {
    run("paths", checks::paths::check, MUTATIONS);
}

#[test]
fn tokens_are_the_numbers_that_they_show() {
    run("tokens", checks::tokens::check, MUTATIONS / 10);
}

#[test]
fn commands_and_replies_end_where_they_end() {
    run("resp", checks::resp::check, MUTATIONS);
}

#[test]
fn any_configuration_is_taken_or_refused_at_a_place_in_it() {
    run("config", checks::config::check, MUTATIONS);
}

#[test]
fn what_stands_in_front_of_a_session_is_read_the_same_at_every_split() {
    run("opening", checks::opening::check, 4 * MUTATIONS);
}

/// Runs the check on the seeds, then on mutations of them.
fn run(target: &str, check: fn(&[u8]), mutations: usize) {
    let seeds = seeds(target);
    let words = words(target);
    for (name, seed) in &seeds {
        tell(check, seed, name);
    }
    let mut draw = Draw::of(target.as_bytes());
    for round in 0..mutations {
        let mut input = seeds[draw.below(seeds.len())].1.clone();
        for _ in 0..=draw.below(6) {
            mutate(&mut input, &seeds, &words, &mut draw);
        }
        input.truncate(BYTES_MAX);
        tell(check, &input, &format!("mutation {round}"));
    }
}

/// A failure says which input it was.
fn tell(check: fn(&[u8]), input: &[u8], name: &str) {
    if let Err(failure) = catch_unwind(AssertUnwindSafe(|| check(input))) {
        eprintln!("with {name}: \"{}\"", input.escape_ascii());
        resume_unwind(failure);
    }
}

fn mutate(input: &mut Vec<u8>, seeds: &[(String, Vec<u8>)], words: &[Vec<u8>], draw: &mut Draw) {
    let at = draw.below(input.len() + 1);
    let end = at + draw.below(input.len() - at + 1).min(32);
    match draw.below(7) {
        0 if at < input.len() => input[at] ^= 1 << draw.below(8),
        1 if at < input.len() => input[at] = draw.below(256) as u8,
        2 => drop(input.drain(at..end)),
        3 => {
            let again = input[at..end].to_vec();
            let to = draw.below(input.len() + 1);
            input.splice(to..to, again);
        }
        4 => {
            let other = &seeds[draw.below(seeds.len())].1;
            let from = draw.below(other.len() + 1);
            let to = from + draw.below(other.len() - from + 1).min(64);
            input.splice(at..end, other[from..to].iter().copied());
        }
        5 => input.insert(at, draw.below(256) as u8),
        _ => {
            let word = &words[draw.below(words.len())];
            let end = if draw.one_in(2) { at } else { end };
            input.splice(at..end, word.iter().copied());
        }
    }
}

/// The seeds of a target in the order of their names. Those of the configuration are also the examples.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let mut folders = vec![at(&format!("tests/fuzz/seeds/{target}"))];
    if target == "config" {
        folders.push(at("config"));
    }
    let mut files: Vec<PathBuf> = vec![];
    for folder in folders {
        files.extend(fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
    }
    files.retain(|path| path.is_file());
    files.sort();
    assert!(files.len() > 10, "the seeds are not where they are looked for");
    let read = |path: PathBuf| (path.display().to_string(), fs::read(&path).unwrap());
    files.into_iter().map(read).collect()
}

/// The dictionary that libFuzzer reads too: `"word"` with `\xNN` in it, one a line.
fn words(target: &str) -> Vec<Vec<u8>> {
    let text = fs::read_to_string(at(&format!("tests/fuzz/words/{target}.dict"))).unwrap();
    let word = |line: &str| {
        let mut parts = line.trim_matches('"').split("\\x");
        let mut word = parts.next().unwrap().as_bytes().to_vec();
        for part in parts {
            word.push(u8::from_str_radix(&part[..2], 16).unwrap());
            word.extend_from_slice(&part.as_bytes()[2..]);
        }
        word
    };
    text.lines().map(word).collect()
}

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
