//! What the system allows in files. How many may be open: each connection is one, and one more towards the backend. A
//! long stream over plain TCP has four more, but no more than 256 such ways are open at once. And how large one may be.

use std::io;
use std::mem::MaybeUninit;

/// Raises the bound as far as the system lets this process, and says how far that is. Many systems start processes
/// with 1024, which is for programs that use select(2).
pub fn raise_limit() -> io::Result<u64> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: the call writes the whole of `limit`, or fails.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above has not failed.
    let mut limit = unsafe { limit.assume_init() };
    if limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: `limit` outlives the call.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(limit.rlim_cur)
}

/// From now on a write beyond the bound on the size of a file (`ulimit -f`, systemd's `LimitFSIZE`) fails as on a full
/// disk. Without it the system ends the process in the middle of that write, with all that is in flight.
pub fn outlive_size_limit() {
    // SAFETY: it installs no handler, and touches no memory of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
