//! The process is killed at any moment: every acknowledged mark is found, and none is lower. With
//! `FENCEGATE_LONG=1` many more rounds are run.

mod ledger_common;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::time::{Duration, Instant};

use fencegate::ledger::Ledger as _;
use ledger_common::{Seeded, child, fast_folder, folder_of_child, long, open, raise};

const NAMES: u128 = 5;

#[test]
fn every_acknowledged_mark_survives_kill_at_any_moment() {
    let rounds = if long() { 2_000 } else { 40 };
    let folder = fast_folder();
    let mut seeded = Seeded(0x5eed);
    let mut acknowledged: BTreeMap<String, u128> = BTreeMap::new();
    let mut total = 0;
    for round in 0..rounds {
        // A fresh folder now and then, so that kills also hit the first start.
        if round % 10 == 9 {
            std::fs::remove_dir_all(folder.path()).unwrap();
            acknowledged.clear();
        }
        // Every third is killed while it opens, at a moment within the first milliseconds.
        let kill_after = if round % 3 == 1 { 0 } else { seeded.below(60) };
        let mut raising = child("raises_until_it_is_killed", folder.path(), &[]);
        let mut lines = BufReader::new(raising.stdout.take().unwrap()).lines();
        let mut heard = 0;
        let mut hear = |line: String| {
            if let Some((name, token)) = line.strip_prefix("ack ").and_then(|ack| ack.split_once(' ')) {
                acknowledged.insert(name.to_owned(), token.parse().unwrap());
                return 1;
            }
            0
        };
        while heard < kill_after {
            let line = lines.next().expect("it raises until it is killed").unwrap();
            heard += hear(line);
        }
        if kill_after == 0 {
            let begun = |line: &Result<String, _>| line.as_ref().is_ok_and(|line| line == "begin");
            assert!(lines.by_ref().any(|line| begun(&line)));
            let moment = Instant::now() + Duration::from_micros(seeded.below(12_000));
            while Instant::now() < moment {
                std::hint::spin_loop();
            }
        }
        raising.kill().unwrap();
        raising.wait().unwrap();
        for line in lines {
            // The last line may be cut; a whole one is an answer that was given.
            heard += line.map_or(0, &mut hear);
        }
        total += heard;
        let opened = open(folder.path()).unwrap_or_else(|e| panic!("round {round}: {e}"));
        for (name, token) in &acknowledged {
            let found = opened.marks.get(name);
            assert!(
                found >= Some(token),
                "round {round}: {name} acknowledged {token}, found {found:?}"
            );
        }
        // What is found now is acknowledged as well: it was told to this process.
        acknowledged = opened.marks.clone();
        if round % 3 == 0 {
            opened.ledger.close(true).unwrap();
        }
    }
    println!("{rounds} kills, {total} acknowledged raises");
    assert!(total > rounds);
}

#[test]
#[ignore = "the child of every_acknowledged_mark_survives_kill_at_any_moment"]
fn raises_until_it_is_killed() {
    println!("begin");
    let opened = open(&folder_of_child()).unwrap();
    let highest = opened.marks.values().max().copied().unwrap_or(0);
    // Twenty at a time: the sender waits where as many are unanswered.
    let (start, end) = std::sync::mpsc::sync_channel(20);
    let end = std::sync::Arc::new(std::sync::Mutex::new(end));
    for token in highest + 1.. {
        start.send(()).unwrap();
        let (name, end) = (format!("r/{}", token % NAMES), end.clone());
        opened.ledger.submit(
            raise(&name.clone(), token),
            Box::new(move |result| {
                result.unwrap();
                writeln!(std::io::stdout().lock(), "ack {name} {token}").unwrap();
                end.lock().unwrap().recv().unwrap();
            }),
        );
    }
}

#[test]
fn a_killed_run_is_found_as_unclean_with_its_settle_after() {
    let folder = fast_folder();
    let mut raising = child("raises_until_it_is_killed", folder.path(), &[]);
    let mut lines = BufReader::new(raising.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("ack ")));
    // Held by the kernel for a living process, and for no other.
    assert!(open(folder.path()).is_err());
    raising.kill().unwrap();
    raising.wait().unwrap();
    let opened = open(folder.path()).unwrap();
    assert!(!opened.found.clean);
    assert_eq!(opened.found.settle_after, ledger_common::SETTLE);
}
