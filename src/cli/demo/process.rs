//! The demo's child processes and its folder: started here, and ended here whatever happens.
//!
//! Each child asks the kernel to be killed when the demo dies ([`dies_with_its_parent`]), so that not even
//! `kill -9` leaves one behind. Children are only ever signalled by the id of a child that has not been waited
//! for, which can't belong to another process. The stage owns both; the interrupt thread ends them too.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::DemoError;

/// All children that run. Once closed, none can be started.
#[derive(Default)]
pub struct Processes {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    closed: bool,
    running: Vec<Child>,
}

/// A child as the one who started it sees it.
pub struct Started {
    pub id: u32,
    pub stdin: ChildStdin,
    pub stdout: ChildStdout,
}

type Launched = (u32, Option<ChildStdin>, Option<ChildStdout>);

impl Processes {
    /// Starts this binary again with other arguments, to be talked with over its standard input and output.
    /// What it says on standard error, the user sees.
    ///
    /// # Errors
    /// When the process can't be started, or the demo is being ended.
    pub fn start(&self, arguments: &[String]) -> Result<Started, DemoError> {
        let mut command = again(arguments)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let (id, stdin, stdout) = self.launch(&mut command)?;
        Ok(Started {
            id,
            stdin: stdin.expect("it was asked to be a pipe"),
            stdout: stdout.expect("it was asked to be a pipe"),
        })
    }

    /// Starts this binary again with other arguments, and all that it says going to a file. Gives its id.
    ///
    /// # Errors
    /// When the process can't be started, or the demo is being ended.
    pub fn start_logged(&self, arguments: &[String], log: &Path) -> Result<u32, DemoError> {
        let file_error = |source| DemoError::File {
            path: log.to_owned(),
            source,
        };
        let out = std::fs::File::create(log).map_err(file_error)?;
        let err = out.try_clone().map_err(file_error)?;
        let mut command = again(arguments)?;
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        Ok(self.launch(&mut command)?.0)
    }

    fn launch(&self, command: &mut Command) -> Result<Launched, DemoError> {
        // A group of its own, so that the terminal's Ctrl-C doesn't reach it: the demo ends its children itself.
        command.process_group(0);
        dies_with_its_parent(command);
        let mut state = self.state.lock();
        if state.closed {
            return Err(DemoError::Interrupted);
        }
        let mut child = command.spawn().map_err(|source| DemoError::Start {
            what: format!("{command:?}"),
            source,
        })?;
        let launched = (child.id(), child.stdin.take(), child.stdout.take());
        state.running.push(child);
        Ok(launched)
    }

    /// Stops a child as it stands, and returns when the kernel says that it has stopped.
    ///
    /// # Errors
    /// When it has ended instead, or doesn't stop in time.
    pub fn freeze(&self, id: u32) -> Result<(), DemoError> {
        self.signal(id, libc::SIGSTOP)?;
        let deadline = Instant::now() + PATIENCE;
        while !has_stopped(id) {
            if Instant::now() > deadline {
                return Err(DemoError::Silent {
                    what: format!("process {id} was sent SIGSTOP and has not stopped"),
                });
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Lets a stopped child go on.
    ///
    /// # Errors
    /// When it has ended.
    pub fn thaw(&self, id: u32) -> Result<(), DemoError> {
        self.signal(id, libc::SIGCONT)
    }

    /// How the child ended, if it has.
    pub fn ended(&self, id: u32) -> Option<ExitStatus> {
        let mut state = self.state.lock();
        let child = state.running.iter_mut().find(|child| child.id() == id)?;
        let status = child.try_wait().ok().flatten()?;
        // It has been waited for: from here on its id may be another process's.
        state.running.retain(|child| child.id() != id);
        Some(status)
    }

    /// Waits until the child has ended by itself.
    ///
    /// # Errors
    /// When it doesn't in time, or ends with a failure.
    pub fn wait(&self, id: u32) -> Result<(), DemoError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.ended(id) {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    let what = format!("process {id} failed with {}", show(status));
                    return Err(DemoError::Ended { what });
                }
                None if Instant::now() > deadline => {
                    let what = format!("process {id} has not ended");
                    return Err(DemoError::Silent { what });
                }
                None => std::thread::sleep(LOOK_AGAIN),
            }
        }
    }

    /// Kills one child and waits for it.
    pub fn end(&self, id: u32) {
        let mut state = self.state.lock();
        if let Some(at) = state.running.iter().position(|child| child.id() == id) {
            put_down(state.running.swap_remove(at));
        }
    }

    /// Kills all children, also stopped ones, waits for each, and lets no new one start.
    pub fn end_all(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.running.drain(..).for_each(put_down);
    }

    fn signal(&self, id: u32, signal: libc::c_int) -> Result<(), DemoError> {
        let state = self.state.lock();
        let gone = || DemoError::Ended {
            what: format!("process {id} is gone"),
        };
        let child = state
            .running
            .iter()
            .find(|child| child.id() == id)
            .ok_or_else(gone)?;
        // SAFETY: no memory is involved. The id is a child's that was not waited for: the lock is held.
        match unsafe { libc::kill(pid(child.id()), signal) } {
            0 => Ok(()),
            _ => Err(gone()),
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.end_all();
    }
}

/// How a process ended, in words.
pub fn show(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// A folder of the demo's own under the system's temporary one.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes a new one that only this user can read.
    ///
    /// # Errors
    /// When the temporary folder can't be written.
    pub fn create() -> Result<Folder, DemoError> {
        use std::os::unix::fs::DirBuilderExt;
        let mut tries = 0;
        loop {
            let path = std::env::temp_dir().join(format!("fencegate-demo-{}-{tries}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Folder { path }),
                // One with this name is another's, left by a process that had our id: never used, never removed.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && tries < 100 => tries += 1,
                Err(source) => return Err(DemoError::File { path, source }),
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it with all that is in it; nothing happens when it is gone.
    pub fn remove(&self) {
        // What can't be removed is left for the system's own cleaning of its temporary folder.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.remove();
    }
}

/// This very binary, to be run with other arguments.
fn again(arguments: &[String]) -> Result<Command, DemoError> {
    let binary = std::env::current_exe().map_err(|source| DemoError::Start {
        what: "this program once more".to_owned(),
        source,
    })?;
    let mut command = Command::new(binary);
    command.args(arguments);
    Ok(command)
}

fn put_down(mut child: Child) {
    // An error here means that it has ended already, and then the wait returns at once.
    let _ = child.kill();
    let _ = child.wait();
}

fn pid(id: u32) -> libc::pid_t {
    libc::pid_t::try_from(id).expect("the system's process ids are pid_t")
}

/// Whether the child stands still by a signal. Its end, if it has ended, is left for the one who waits for it.
fn has_stopped(id: u32) -> bool {
    // SAFETY: all zeros is a valid siginfo_t, and the call writes nothing else.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` lives through the call.
    let answer = unsafe { libc::waitid(libc::P_PID, id, &raw mut info, flags) };
    answer == 0 && info.si_signo == libc::SIGCHLD
}

/// Has the kernel kill the child when the thread that started it ends: the demo's main thread.
fn dies_with_its_parent(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: between fork and exec only these two system calls are made, and nothing is allocated.
    unsafe {
        command.pre_exec(move || {
            #[cfg(target_os = "linux")]
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // The parent may have died before the line above: then nobody would tell us.
            if libc::getppid() != pid(parent) {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
    }
}

/// How long anything in the demo may take before it counts as failed.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// How often something is looked at for which the system has no event.
pub const LOOK_AGAIN: Duration = Duration::from_millis(5);
