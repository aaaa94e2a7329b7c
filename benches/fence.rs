//! The way that nearly every request takes: look the fence up, compare, commit, settle. And the hash before it.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fencegate::base::Token;
use fencegate::fence::{Claim, Key, Table};

const TOKEN: Token = Token(34);

/// A table with this many marks, and its keys in an order that no cache foresees.
fn table(resources: usize) -> (Table<()>, Vec<Key>) {
    let table = Table::default();
    let mut keys: Vec<Key> = (0..resources)
        .map(|n| table.key(&format!("bucket/{n:08}")))
        .collect();
    for key in &keys {
        table.load(*key, TOKEN);
    }
    keys.sort_unstable(); // keys are hashes: sorted, they stand in no relation to the order of loading
    (table, keys)
}

fn fast_way(c: &mut Criterion) {
    let mut group = c.benchmark_group("fast_way");
    let claim = Claim::Token(TOKEN);
    for resources in [1_000, 1_000_000] {
        let (table, keys) = table(resources);
        let mut next = keys.iter().cycle();
        group.bench_function(BenchmarkId::from_parameter(resources), |b| {
            b.iter(|| {
                let key = *next.next().expect("a cycle has no end");
                let entry = table.get(black_box(key)).expect("every key was loaded");
                assert!(entry.door.admits(claim) && entry.door.commit(claim));
                black_box(entry.door.settle())
            });
        });
    }
    group.finish();
}

/// A stale token is refused by the door alone.
fn refusal(c: &mut Criterion) {
    let (table, keys) = table(1_000);
    let mut next = keys.iter().cycle();
    c.bench_function("refusal", |b| {
        b.iter(|| {
            let key = *next.next().expect("a cycle has no end");
            let entry = table.get(black_box(key)).expect("every key was loaded");
            black_box(entry.door.admits(Claim::Token(Token(33))))
        });
    });
}

fn key(c: &mut Criterion) {
    let table: Table<()> = Table::default();
    let mut group = c.benchmark_group("key");
    for length in [16, 64, 256] {
        let name = "r".repeat(length);
        group.bench_function(BenchmarkId::from_parameter(length), |b| {
            b.iter(|| table.key(black_box(&name)));
        });
    }
    group.finish();
}

criterion_group!(benches, fast_way, refusal, key);
criterion_main!(benches);
