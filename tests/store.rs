//! `fencegate store`: looking changes nothing, what is written out is taken in whole or not at all, and nothing ever
//! goes down.

mod ledger_common;
mod store_common;

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use fencegate::ledger::Ledger;
use ledger_common::{change, open, open_with, raise, reset};
use store_common::{Place, SETTLE};

#[test]
fn inspect_and_export_leave_a_store_as_they_found_it() {
    for clean in [true, false] {
        let place = Place::new();
        place.fill(SETTLE, clean);
        let before = place.bytes();
        let text = place.fine(&["inspect"]);
        assert!(text.contains("marks    3\nresets   2\n"), "{text}");
        let marker = if clean {
            "clean (settle_after 60s)"
        } else {
            "not clean, settle_after 60s"
        };
        assert!(text.contains(marker), "{text}");
        place.fine(&["export"]);
        place.fine(&["export", "marks.jsonl"]);
        assert_eq!(place.bytes(), before);
        assert_eq!(open(&place.store()).unwrap().found.clean, clean);
    }
}

#[test]
fn a_store_left_by_a_kill_is_read_without_being_repaired() {
    let (running, place) = (Place::new(), Place::new());
    let opened = open_with(&running.store(), SETTLE).unwrap();
    for n in 0..200 {
        change(&opened.ledger, raise(&format!("r/{n}"), 7)).unwrap();
    }
    // As a killed process leaves it: the embedded store was not closed.
    fs::create_dir(place.store()).unwrap();
    for (file, bytes) in running.bytes() {
        fs::write(place.store().join(file.file_name().unwrap()), bytes).unwrap();
    }
    drop(opened);
    let before = place.bytes();
    let contents = place.contents();
    assert_eq!(contents.marks.len(), 200);
    assert!(!contents.found.clean);
    assert_eq!(contents.found.settle_after, SETTLE);
    assert!(place.fine(&["inspect", "--limit", "1"]).contains("marks    200"));
    assert_eq!(place.bytes(), before);
}

#[test]
fn an_export_that_is_killed_leaves_the_store_as_it_was() {
    for clean in [true, false] {
        let place = Place::new();
        place.fill(SETTLE, true);
        let opened = open_with(&place.store(), SETTLE).unwrap();
        let answers: Vec<_> = (0..2000)
            .map(|n| ledger_common::submit(&opened.ledger, raise(&format!("more/{n}"), 1)))
            .collect();
        answers
            .into_iter()
            .for_each(|answer| answer.recv().unwrap().unwrap());
        opened.ledger.close(clean).unwrap();
        drop(opened);
        let before = place.bytes();
        // More than a pipe holds: it stands in the middle once its first byte has come.
        let mut child = place.command(&["export"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut first = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(place.bytes(), before);
        assert_eq!(open(&place.store()).unwrap().found.clean, clean);
    }
}

#[test]
fn a_move_from_file_to_file_keeps_everything() {
    for clean in [true, false] {
        let (from, to) = (Place::new(), Place::new());
        from.fill(SETTLE, clean);
        let export = from.fine(&["export"]);
        to.write("marks.jsonl", &export);
        let text = to.fine(&["import", "marks.jsonl"]);
        assert!(text.contains("marks    3 new, 0 raised"), "{text}");
        assert!(text.contains("resets   2 added, 0 there already"), "{text}");
        assert_eq!(to.contents(), from.contents());
        // What is written out of it is the same but for its time, which the checksum holds as well.
        let lines = |text: &str| -> Vec<String> { text.lines().skip(1).take(5).map(String::from).collect() };
        assert_eq!(lines(&to.fine(&["export"])), lines(&export));
        let opened = open(&to.store()).unwrap();
        assert_eq!(opened.found.clean, clean);
        assert_eq!(opened.marks["b"], 9);
    }
}

#[test]
fn an_export_comes_through_pipes() {
    let (from, to) = (Place::new(), Place::new());
    from.fill(SETTLE, true);
    let export = from.fine(&["export", "-"]);
    let mut child = to
        .command(&["import", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(export.as_bytes()).unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
    assert_eq!(to.contents(), from.contents());
}

#[test]
fn an_import_only_raises_and_says_what_stays() {
    let (from, to) = (Place::new(), Place::new());
    from.fill(SETTLE, true);
    from.fine(&["export", "marks.jsonl"]);
    fs::copy(from.path("marks.jsonl"), to.path("marks.jsonl")).unwrap();
    let opened = open_with(&to.store(), Duration::from_secs(5)).unwrap();
    for each in [raise("a", 6), raise("b", 8), reset("d", 1, "its own")] {
        change(&opened.ledger, each).unwrap();
    }
    opened.ledger.close(true).unwrap();
    drop(opened);
    let before = to.bytes();
    let told = to.fine(&["import", "--dry-run", "marks.jsonl"]);
    assert_eq!(to.bytes(), before);
    let done = to.fine(&["import", "marks.jsonl"]);
    assert_eq!(told.replace("would be done to ", ""), done);
    for words in [
        "raised  b: 8 -> 9",
        "stays   a: 6, which is higher than the export's 5",
        "1 new, 1 raised, 0 there already, 1 higher in the store",
        "2 added, 0 there already",
    ] {
        assert!(done.contains(words), "{done}");
    }
    let after = to.contents();
    let tokens: Vec<(&str, u128)> = after
        .marks
        .iter()
        .map(|(name, mark)| (&**name, mark.token.0))
        .collect();
    assert_eq!(tokens, [("a", 6), ("b", 9), ("c", 7 << 64 | 1), ("d", 1)]);
    let reasons: Vec<&str> = after.resets.iter().map(|entry| &*entry.audit.reason).collect();
    assert_eq!(reasons, ["its own", "a typo", "another\none"]);
    assert!(after.found.clean);
    // Once more: nothing is left to do.
    let again = to.fine(&["import", "marks.jsonl"]);
    assert!(
        again.contains("0 new, 0 raised, 2 there already, 1 higher"),
        "{again}"
    );
    assert!(again.contains("0 added, 2 there already"), "{again}");
    assert_eq!(to.contents(), after);
}

#[test]
fn an_unclean_side_makes_the_target_unclean_with_its_time() {
    let seconds = Duration::from_secs;
    for (from_clean, to_clean, expected) in [
        (true, true, (true, 90)),
        (false, true, (false, 60)),
        (true, false, (false, 90)),
        (false, false, (false, 90)),
    ] {
        let (from, to) = (Place::new(), Place::new());
        from.fill(seconds(60), from_clean);
        to.fill(seconds(90), to_clean);
        from.fine(&["export", "marks.jsonl"]);
        fs::copy(from.path("marks.jsonl"), to.path("marks.jsonl")).unwrap();
        to.fine(&["import", "marks.jsonl"]);
        let found = to.contents().found;
        assert_eq!(
            (found.clean, found.settle_after),
            (expected.0, seconds(expected.1))
        );
        let opened = open_with(&to.store(), seconds(1)).unwrap();
        assert_eq!(opened.found, found);
    }
}

#[test]
fn an_export_that_is_not_whole_changes_nothing() {
    let (from, to) = (Place::new(), Place::new());
    from.fill(SETTLE, true);
    let export = from.fine(&["export"]);
    let cut: String = export.lines().take(4).map(|line| format!("{line}\n")).collect();
    let changed = export.replace("\"token\":\"9\"", "\"token\":\"8\"");
    for (bad, place, words) in [
        (&*cut, "bad.jsonl:5: ", "write it out again"),
        (&*changed, "bad.jsonl:7: ", "the checksum does not match"),
        ("", "bad.jsonl:1: ", "is not whole"),
        ("{\"fences\":[]}\n", "bad.jsonl:1: ", "no export of fencegate"),
    ] {
        to.write("bad.jsonl", bad);
        let (text, code) = to.refused(&["import", "bad.jsonl"]);
        assert!(text.starts_with(place) && text.contains(words), "{text}");
        assert_eq!(code, 1);
        assert!(!to.store().exists());
    }
    to.fill(SETTLE, false);
    let before = to.bytes();
    to.write("bad.jsonl", &cut);
    to.refused(&["import", "bad.jsonl"]);
    assert_eq!(to.bytes(), before);
}

#[test]
fn tokens_of_another_kind_are_refused_whole() {
    let (from, to) = (Place::new(), Place::new());
    from.fill(SETTLE, true);
    from.fine(&["export", "marks.jsonl"]);
    let opened = open(&to.store()).unwrap();
    change(&opened.ledger, raise("c", 1)).unwrap();
    opened.ledger.close(true).unwrap();
    drop(opened);
    let before = to.contents();
    fs::copy(from.path("marks.jsonl"), to.path("marks.jsonl")).unwrap();
    let (text, code) = to.refused(&["import", "marks.jsonl"]);
    assert!(
        text.contains("c: integer in the store, pair in the export"),
        "{text}"
    );
    assert_eq!(code, 1);
    assert_eq!(to.contents(), before);
}

#[test]
fn a_store_that_an_instance_has_open_is_left_alone() {
    let (from, place) = (Place::new(), Place::new());
    from.fill(SETTLE, true);
    from.fine(&["export", "marks.jsonl"]);
    fs::copy(from.path("marks.jsonl"), place.path("marks.jsonl")).unwrap();
    let opened = open(&place.store()).unwrap();
    change(&opened.ledger, raise("a", 1)).unwrap();
    for verb in [
        &["inspect"][..],
        &["export"],
        &["import", "marks.jsonl"],
        &["import", "--dry-run", "marks.jsonl"],
    ] {
        let (text, code) = place.refused(verb);
        assert!(
            text.contains("an instance has this store open; stop it"),
            "{text}"
        );
        assert_eq!(code, 1);
    }
    // Also where the lock file is gone: the marks themselves are locked.
    fs::remove_file(place.store().join("lock")).unwrap();
    let (text, _) = place.refused(&["export"]);
    assert!(text.contains("an instance has this store open"), "{text}");
}

#[test]
fn where_no_store_was_made_none_is_made_by_looking() {
    let place = Place::new();
    for verb in ["inspect", "export"] {
        let (text, code) = place.refused(&[verb]);
        assert!(text.contains("no store was ever made here"), "{text}");
        assert_eq!(code, 1);
    }
    let from = Place::new();
    from.fill(SETTLE, false);
    from.fine(&["export", "marks.jsonl"]);
    fs::copy(from.path("marks.jsonl"), place.path("marks.jsonl")).unwrap();
    let text = place.fine(&["import", "--dry-run", "marks.jsonl"]);
    assert!(text.starts_with("would be done to file "), "{text}");
    assert!(text.contains("marks    3 new"), "{text}");
    assert!(!place.store().exists());
    // Marks that are gone are another thing.
    place.fill(SETTLE, true);
    fs::remove_file(place.store().join("marks")).unwrap();
    for verb in [
        &["inspect"][..],
        &["import", "marks.jsonl"],
        &["import", "--dry-run", "marks.jsonl"],
    ] {
        let (text, _) = place.refused(verb);
        assert!(
            text.contains("the file is missing, but this folder was in use"),
            "{text}"
        );
    }
}

#[test]
fn an_earlier_export_is_never_written_over() {
    let place = Place::new();
    place.fill(SETTLE, true);
    place.fine(&["export", "marks.jsonl"]);
    let before = fs::read(place.path("marks.jsonl")).unwrap();
    let (text, code) = place.refused(&["export", "marks.jsonl"]);
    assert!(text.contains("name a new file"), "{text}");
    assert_eq!(code, 1);
    assert_eq!(fs::read(place.path("marks.jsonl")).unwrap(), before);
    let (text, _) = place.refused(&["export", "nowhere/marks.jsonl"]);
    assert!(text.contains("nowhere/marks.jsonl can't be made"), "{text}");
}

#[test]
fn an_import_that_is_killed_is_found_whole_or_not_at_all() {
    let from = Place::new();
    let opened = open(&from.store()).unwrap();
    let answers: Vec<_> = (0..3000)
        .map(|n| ledger_common::submit(&opened.ledger, raise(&format!("r/{n}"), 7)))
        .collect();
    answers
        .into_iter()
        .for_each(|answer| answer.recv().unwrap().unwrap());
    opened.ledger.close(true).unwrap();
    drop(opened);
    from.fine(&["export", "marks.jsonl"]);
    let rounds: u64 = if ledger_common::long() { 200 } else { 12 };
    let (mut whole, mut none) = (0, 0);
    for round in 0..rounds {
        let to = Place::new();
        to.fill(SETTLE, false);
        let before = to.contents();
        fs::copy(from.path("marks.jsonl"), to.path("marks.jsonl")).unwrap();
        let mut child = to
            .command(&["import", "marks.jsonl"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        kill_later(&mut child, &to.store(), round);
        let after = to.contents();
        if after == before {
            none += 1;
        } else {
            assert_eq!(after.marks.len(), 3003);
            assert_eq!(after.found, before.found);
            whole += 1;
        }
    }
    println!("found whole {whole} times, not at all {none} times");
}

/// Kills it once the store's file has changed so many times, or when it has ended.
fn kill_later(child: &mut std::process::Child, store: &Path, changes: u64) {
    let look = || fs::metadata(store.join("marks")).map(|meta| (meta.len(), meta.modified().unwrap()));
    let (mut last, mut seen) = (look().unwrap(), 0);
    while child.try_wait().unwrap().is_none() && seen < changes {
        let now = look().unwrap();
        if now != last {
            (last, seen) = (now, seen + 1);
        }
    }
    let _ended_already = child.kill();
    child.wait().unwrap();
}

#[test]
fn inspect_shows_what_is_asked_for() {
    let place = Place::new();
    place.fill(SETTLE, true);
    let text = place.fine(&["inspect", "--prefix", "b"]);
    assert!(
        text.contains("b         9     integer  2023-11-14T22:13:20.000Z"),
        "{text}"
    );
    assert!(!text.contains("7.1"), "{text}");
    assert!(text.contains("another\\u{a}one"), "{text}");
    let text = place.fine(&["inspect", "--limit", "1"]);
    assert!(text.contains("there are more marks"), "{text}");
    assert!(text.contains("another") && !text.contains("a typo"), "{text}");
    let value: serde_json::Value = serde_json::from_str(&place.fine(&["inspect", "--json"])).unwrap();
    assert_eq!(value["kind"], "file");
    assert_eq!(value["format"], 1);
    assert_eq!(value["clean"], true);
    assert_eq!(value["settle_after_ms"], 60_000);
    assert_eq!(
        (&value["mark_count"], &value["reset_count"]),
        (&3.into(), &2.into())
    );
    assert_eq!(value["marks"][2]["token"], "7.1");
    assert_eq!(value["resets"][0]["reason"], "another\none");
    assert_eq!(value["more"], false);
}

#[test]
fn a_store_in_memory_has_nothing_to_look_at() {
    let place = Place::new();
    let config = fs::read_to_string(place.path("gate.yaml")).unwrap();
    place.write(
        "gate.yaml",
        config.replace("kind: file, path: ./data", "kind: memory"),
    );
    let (text, code) = place.refused(&["inspect"]);
    assert!(text.contains("fencegate fences list"), "{text}");
    assert_eq!(code, 2);
}

#[test]
fn a_damaged_store_is_not_written_out() {
    let place = Place::new();
    place.fill(SETTLE, true);
    let file = place.store().join("marks");
    let mut bytes = fs::read(&file).unwrap();
    for at in (4096..bytes.len()).step_by(64) {
        bytes[at] ^= 0x55;
    }
    fs::write(&file, &bytes).unwrap();
    let (text, code) = place.refused(&["export", "marks.jsonl"]);
    assert!(text.contains("the store is damaged"), "{text}");
    assert_eq!(code, 1);
    assert!(!place.path("marks.jsonl").exists());
    assert_eq!(fs::read(&file).unwrap(), bytes);
}
