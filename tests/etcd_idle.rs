//! What an etcd that is away costs. Alone in its process, since it looks at the process's threads.

mod etcd;

use std::time::{Duration, Instant};

use etcd::{Etcd, Instance, brief, raise, wait_for};

#[test]
fn an_etcd_that_is_away_costs_next_to_nothing() {
    let mut etcd = Etcd::one();
    let (mut instance, owner) = Instance::owning(brief(etcd.endpoints()));
    etcd.kill(0);
    instance.ended_or_lapsed();
    let before = thread_cpu();
    let until = Instant::now() + Duration::from_secs(8);
    wait_for("some seconds", || (Instant::now() > until).then_some(()));
    let used = thread_cpu() - before;
    assert!(used < Duration::from_millis(800), "{used:?} of 8 s");
    etcd.run(0);
    etcd.wait_until_ready();
    wait_for("a commit or an end", || {
        (owner.make(raise("a", 1)).is_ok() || owner.ledger.over().is_some()).then_some(())
    });
}

/// What the thread of the one instance has used.
fn thread_cpu() -> Duration {
    let mut ticks = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(task.path().join("stat")) else {
            continue;
        };
        let Some((head, rest)) = stat.rsplit_once(") ") else {
            continue;
        };
        if head.ends_with("(fencegate-etcd") {
            // The state comes first, utime and stime as the twelfth and thirteenth.
            let times = rest.split(' ').skip(11).take(2);
            ticks += times.map(|field| field.parse::<u64>().unwrap()).sum::<u64>();
        }
    }
    // SAFETY: a question about a constant.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Duration::from_secs_f64(ticks as f64 / per_second as f64)
}
