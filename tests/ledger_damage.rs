//! A damaged store opens with exactly the acknowledged marks or not at all: never a panic, never a lower or a
//! missing mark. With `FENCEGATE_LONG=1` every offset and every length is tried, else a fixed share of them.

mod ledger_common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use fencegate::ledger::Ledger as _;
use fencegate::ledger::file::OpenError;
use ledger_common::{Seeded, all, change, fast_folder, long, open, raise, reset};

/// The files of a store, and what was acknowledged from it.
struct Sample {
    marks_file: Vec<u8>,
    lock_file: Vec<u8>,
    acknowledged: BTreeMap<String, u128>,
}

impl Sample {
    /// As a kill leaves it: copied while it is open, after the last answer.
    fn killed() -> Sample {
        Sample::taken(false)
    }

    /// As a clean stop leaves it.
    fn stopped() -> Sample {
        Sample::taken(true)
    }

    fn taken(stop: bool) -> Sample {
        let folder = fast_folder();
        let opened = open(folder.path()).unwrap();
        for n in 0..40u128 {
            change(&opened.ledger, raise(&format!("bucket/{}", n % 8), 100 + n)).unwrap();
        }
        change(&opened.ledger, reset("bucket/1", 7, "restored")).unwrap();
        change(&opened.ledger, raise("bucket/2", 1_000)).unwrap();
        let acknowledged = all(&opened.ledger);
        if stop {
            opened.ledger.close(true).unwrap();
        }
        Sample {
            marks_file: fs::read(folder.path().join("marks")).unwrap(),
            lock_file: fs::read(folder.path().join("lock")).unwrap(),
            acknowledged,
        }
    }

    /// Opens the store with `marks_file` in its place. True where it opened, with the right marks.
    fn opens_rightly(&self, folder: &Path, marks_file: &[u8], what: &str) -> bool {
        fs::write(folder.join("lock"), &self.lock_file).unwrap();
        fs::write(folder.join("marks"), marks_file).unwrap();
        match open(folder) {
            Ok(opened) => {
                assert_eq!(opened.marks, self.acknowledged, "{what}: wrong marks");
                assert_eq!(all(&opened.ledger), self.acknowledged, "{what}: wrong scan");
                true
            }
            Err(OpenError::Damaged { file, .. } | OpenError::Missing { file, .. }) => {
                assert_eq!(file, folder.join("marks"), "{what}");
                false
            }
            Err(OpenError::Version { .. }) => panic!("{what}: damage is not another version"),
            Err(other) => panic!("{what}: {other}"),
        }
    }
}

/// The offsets to try. Most of a small store is free pages full of zeros, which matter little: the long run
/// tries every offset of the other pages, the short one a fixed share of them.
fn offsets(bytes: &[u8]) -> Vec<usize> {
    let in_use: Vec<bool> = bytes
        .chunks(4096)
        .map(|page| page.iter().any(|b| *b != 0))
        .collect();
    let (share, share_of_free) = if long() { (1, 64) } else { (199, 16_381) };
    (0..bytes.len())
        .filter(|at| match in_use[at / 4096] {
            true => at % share == 0 || *at < 36 || (512..528).contains(at) || bytes[*at] != 0 && at % 61 == 0,
            false => at % share_of_free == 0,
        })
        .collect()
}

fn flips_are_found(sample: &Sample) {
    let folder = fast_folder();
    let (mut right, mut refused) = (0, 0);
    let mut bytes = sample.marks_file.clone();
    let mut seeded = Seeded(41);
    for offset in offsets(&bytes) {
        let bit = 1 << seeded.below(8);
        bytes[offset] ^= bit;
        let what = format!("bit {bit:#x} at {offset}");
        match sample.opens_rightly(folder.path(), &bytes, &what) {
            true => right += 1,
            false => refused += 1,
        }
        bytes[offset] ^= bit;
    }
    println!("{} bytes: {right} flips harmless, {refused} refused", bytes.len());
    assert!(
        refused > 20 && right > 20,
        "the sweep hit both kinds: {right}, {refused}"
    );
}

#[test]
fn a_flipped_bit_after_a_kill_is_harmless_or_refused() {
    flips_are_found(&Sample::killed());
}

#[test]
fn a_flipped_bit_after_a_clean_stop_is_harmless_or_refused() {
    flips_are_found(&Sample::stopped());
}

#[test]
fn a_store_cut_short_at_any_length_is_refused_or_right() {
    for sample in [Sample::killed(), Sample::stopped()] {
        let folder = fast_folder();
        let len = sample.marks_file.len();
        let step = if long() { 64 } else { 4096 };
        let lengths = (0..len)
            .step_by(step)
            .chain([1, 15, 27, 28, 4095, 4097, len - 1, len - 4096]);
        let refused = lengths
            .filter(|len| {
                !sample.opens_rightly(
                    folder.path(),
                    &sample.marks_file[..*len],
                    &format!("cut to {len}"),
                )
            })
            .count();
        assert!(refused > 10, "{refused} refused");
    }
}

#[test]
fn garbage_after_the_end_is_refused_or_harmless() {
    for sample in [Sample::killed(), Sample::stopped()] {
        let folder = fast_folder();
        for len in [1, 7, 4095, 4096, 4097, 1 << 20] {
            let mut bytes = sample.marks_file.clone();
            bytes.extend((0..len).map(|n| (n * 31 + 7) as u8));
            sample.opens_rightly(folder.path(), &bytes, &format!("{len} bytes more"));
        }
    }
}

#[test]
fn zeros_or_other_content_in_its_place_are_refused() {
    let sample = Sample::killed();
    let folder = fast_folder();
    let len = sample.marks_file.len();
    for (what, bytes) in [
        ("zeros", vec![0; len]),
        (
            "our page, then zeros",
            [&sample.marks_file[..4096], &vec![0; len - 4096]].concat(),
        ),
        ("our page alone", sample.marks_file[..4096].to_vec()),
        (
            "zeros, then the rest",
            [&vec![0; 4096], &sample.marks_file[4096..]].concat(),
        ),
        ("text", b"hello\n".repeat(len / 6)),
        ("nothing", Vec::new()),
    ] {
        assert!(
            !sample.opens_rightly(folder.path(), &bytes, what),
            "{what} opened"
        );
    }
}

#[test]
fn pages_that_changed_places_are_refused_or_harmless() {
    let sample = Sample::killed();
    let folder = fast_folder();
    let used: Vec<usize> = (0..sample.marks_file.len() / 4096)
        .filter(|page| {
            sample.marks_file[page * 4096..][..4096]
                .iter()
                .any(|byte| *byte != 0)
        })
        .collect();
    let mut refused = 0;
    for (n, one) in used.iter().enumerate() {
        for other in &used[n + 1..] {
            if !long() && (one * 7 + other) % 5 != 0 {
                continue;
            }
            let mut bytes = sample.marks_file.clone();
            let (left, right) = bytes.split_at_mut(other * 4096);
            left[one * 4096..][..4096].swap_with_slice(&mut right[..4096]);
            if !sample.opens_rightly(folder.path(), &bytes, &format!("pages {one} and {other}")) {
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
}

#[test]
fn a_page_that_went_back_to_an_earlier_state_is_never_a_lower_mark() {
    let folder = fast_folder();
    let opened = open(folder.path()).unwrap();
    change(&opened.ledger, raise("a", 1)).unwrap();
    let earlier = fs::read(folder.path().join("marks")).unwrap();
    for token in 2..6 {
        change(&opened.ledger, raise("a", token)).unwrap();
    }
    let sample = Sample {
        marks_file: fs::read(folder.path().join("marks")).unwrap(),
        lock_file: fs::read(folder.path().join("lock")).unwrap(),
        acknowledged: all(&opened.ledger),
    };
    drop(opened);
    let pages = earlier.len().min(sample.marks_file.len()) / 4096;
    let mut refused = 0;
    for page in 0..pages {
        let mut bytes = sample.marks_file.clone();
        bytes[page * 4096..][..4096].copy_from_slice(&earlier[page * 4096..][..4096]);
        let right = sample.opens_rightly(folder.path(), &bytes, &format!("page {page} of earlier"));
        refused += usize::from(!right);
    }
    assert!(refused > 0, "no page mattered");
}

#[test]
fn a_refused_store_stays_refused() {
    let sample = Sample::killed();
    let folder = fast_folder();
    let mut bytes = sample.marks_file.clone();
    // Every leaf that holds the newest mark: the embedded store then falls back to the commit before.
    let needle = 1_000u128.to_le_bytes();
    let places: Vec<usize> = (0..bytes.len() - 16)
        .filter(|at| bytes[*at..][..16] == needle)
        .collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at] ^= 2;
    }
    assert!(!sample.opens_rightly(folder.path(), &bytes, "the newest mark is damaged"));
    // What the refused start has written must not make the next one believe it.
    for _ in 0..2 {
        let refusal = open(folder.path()).err().expect("still refused");
        assert!(matches!(refusal, OpenError::Damaged { .. }), "{refusal}");
    }
}
