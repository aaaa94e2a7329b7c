//! How many raises a second become durable in a real etcd, one after the other and all at once, in one run:
//! `cargo bench --bench etcd`.

#[path = "../tests/etcd/mod.rs"]
mod etcd;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use etcd::{Etcd, Instance, raise, settings};

fn main() {
    let etcd = Etcd::one();
    let mut long = settings(etcd.endpoints());
    long.owner_ttl = Duration::from_secs(60);
    let (instance, owner) = Instance::owning(long);
    let (alone, together) = (2_000, 50_000);
    let started = Instant::now();
    for n in 0..alone {
        owner.make(raise(&format!("one/{n}"), 1)).unwrap();
    }
    let one_by_one = f64::from(alone) / started.elapsed().as_secs_f64();
    let before = instance.commits.load(Ordering::SeqCst);
    let started = Instant::now();
    owner.insist_on_all((0..together).map(|n| raise(&format!("all/{n}"), 1)));
    let at_once = f64::from(together) / started.elapsed().as_secs_f64();
    let commits = instance.commits.load(Ordering::SeqCst) - before;
    println!("one by one {one_by_one:.0}/s, at once {at_once:.0}/s in {commits} transactions");
}
