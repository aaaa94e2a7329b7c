//! The race on a real backend: Apache's mod_dav, started here on a folder and a port of its own.
//!
//! A write that is on its way when a newer holder takes over must not come last: neither a slow upload nor a
//! request that the backend has in its buffers while the gate is killed. `FENCEGATE_LONG=1` makes fifty trials of
//! each; `FENCEGATE_SKIP_DAV=1` does without, for machines that have no Apache.

mod backends;
mod gate;

use std::time::{Duration, Instant};

use backends::Apache;
use gate::{Conn, Setup, ask, head};

/// `None` where the environment says to do without.
fn apache() -> Option<Apache> {
    if std::env::var_os("FENCEGATE_SKIP_DAV").is_some_and(|value| value == "1") {
        eprintln!("FENCEGATE_SKIP_DAV=1: the race on Apache is not tried");
        return None;
    }
    Some(Apache::start())
}

fn trials() -> u64 {
    if gate::is_long_run() { 50 } else { 5 }
}

fn body(owner: u8, len: usize) -> Vec<u8> {
    vec![owner; len]
}

#[track_caller]
fn is_written(reply: &gate::Reply) {
    assert!(matches!(reply.status, 201 | 204), "{reply:?}");
}

#[test]
fn a_slow_upload_of_an_old_holder_never_replaces_the_new_holders_file() {
    let Some(apache) = apache() else { return };
    let gate = Setup::default().settle_after("60s").start(apache.port);
    for trial in 0..trials() {
        let target = format!("/orders/{trial}");
        let (old, new) = (2 * trial + 1, 2 * trial + 2);
        let mut upload = Conn::open(gate.port);
        upload
            .send(head("PUT", &target, Some(old), Some(200_000), &[]))
            .send(body(b'1', 150_000));
        apache.wait_for_upload();
        is_written(&gate.send(ask("PUT", &target).token(new).body(body(b'2', 1000))));
        upload.reply().is(412, "stale-token");
        let _closed_by_now = upload.try_send(body(b'1', 50_000));
        assert_eq!(apache.owner(&target), Some(b'2'), "trial {trial}");
    }
    for trial in 0..trials() {
        assert_eq!(
            apache.owner(&format!("/orders/{trial}")),
            Some(b'2'),
            "trial {trial}, in the end"
        );
    }
    eprintln!("{} slow uploads, none came last", trials());
}

#[test]
fn a_write_that_the_backend_had_not_read_when_the_gate_was_killed_never_comes_last() {
    let Some(apache) = apache() else { return };
    let mut gate = Setup::default().settle_after("800ms").start(apache.port);
    let mut applied = 0;
    for trial in 0..trials() {
        let target = format!("/orders/{trial}");
        let (old, new) = (2 * trial + 1, 2 * trial + 2);
        is_written(&gate.send(ask("PUT", &target).token(old).body("0")));
        apache.stop();
        let late = ask("PUT", &target)
            .token(old)
            .body(body(b'1', 2000))
            .spawn(gate.port);
        apache.wait_for_unread(2000);
        gate.kill();
        assert!(late.join().unwrap().is_err());
        gate.start();
        let next = ask("PUT", &target)
            .token(new)
            .body(body(b'2', 1000))
            .spawn(gate.port);
        // The backend goes on within settle_after of the gate's end: that is what it stands for (A4).
        gate::sleep_until(Instant::now() + Duration::from_millis(200));
        apache.signal(libc::SIGCONT);
        while !next.is_finished() {
            if apache.owner(&target) == Some(b'1') {
                applied += 1;
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        is_written(&next.join().unwrap().unwrap());
        assert_eq!(apache.owner(&target), Some(b'2'), "trial {trial}");
    }
    for trial in 0..trials() {
        assert_eq!(
            apache.owner(&format!("/orders/{trial}")),
            Some(b'2'),
            "trial {trial}, in the end"
        );
    }
    eprintln!(
        "{} killed gates: the old write took effect afterwards in {applied} of them, and came last in none",
        trials()
    );
}
