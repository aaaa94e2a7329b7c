//! Ctrl-C and friends: a thread that ends the children, removes the folder, and ends the demo.
//!
//! The main thread can't do it: it is in the middle of the story, and it has to live as long as the children,
//! which the kernel kills with the thread that started them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::DemoError;
use super::process::{Folder, Processes};

/// What the interrupt thread and the main thread know of each other.
pub struct Interrupt {
    /// The story is over and all was kept running for the user: an interrupt is then the proper end.
    kept: AtomicBool,
    came: AtomicBool,
}

impl Interrupt {
    /// Starts listening; when it returns, an interrupt no longer just kills the process.
    ///
    /// # Errors
    /// When the thread or its runtime can't be had.
    pub fn listen(processes: Arc<Processes>, folder: Arc<Folder>) -> Result<Arc<Interrupt>, DemoError> {
        let interrupt = Arc::new(Interrupt {
            kept: AtomicBool::new(false),
            came: AtomicBool::new(false),
        });
        let start_error = |source| DemoError::Start {
            what: "listening for Ctrl-C".to_owned(),
            source,
        };
        let (send, listening) = channel();
        let theirs = Arc::clone(&interrupt);
        std::thread::Builder::new()
            .name("interrupt".to_owned())
            .spawn(move || match wait_for_signal(&send) {
                Ok(()) => theirs.end(&processes, &folder),
                Err(error) => drop(send.send(Err(error))),
            })
            .map_err(start_error)?;
        let word = listening
            .recv()
            .unwrap_or_else(|_| Err(std::io::ErrorKind::BrokenPipe.into()));
        word.map_err(start_error)?;
        Ok(interrupt)
    }

    /// From now on an interrupt ends the demo well.
    pub fn keep(&self) {
        self.kept.store(true, Ordering::SeqCst);
    }

    /// If an interrupt came, what failed since has failed because of it: this doesn't return then, and the
    /// interrupt thread ends the process.
    pub fn stand_back(&self) {
        while self.came.load(Ordering::SeqCst) {
            std::thread::park();
        }
    }

    fn end(&self, processes: &Processes, folder: &Folder) -> ! {
        // Before the first child is ended, so that the main thread can tell why it ended.
        self.came.store(true, Ordering::SeqCst);
        processes.end_all();
        folder.remove();
        if self.kept.load(Ordering::SeqCst) {
            std::process::exit(0);
        }
        eprintln!("fencegate demo: interrupted; everything that it had started is ended");
        std::process::exit(1);
    }
}

type Listening = std::sync::mpsc::Sender<Result<(), std::io::Error>>;

/// Says that it listens, and returns when a signal has come.
fn wait_for_signal(listening: &Listening) -> Result<(), std::io::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        // The one who waits for this word can't be gone.
        let _ = listening.send(Ok(()));
        first_of(&mut interrupt, &mut terminate, &mut hang_up).await;
        Ok(())
    })
}

async fn first_of(one: &mut Signal, two: &mut Signal, three: &mut Signal) {
    // Whichever comes: the process ends, and nothing is lost with the others.
    tokio::select! {
        _ = one.recv() => {}
        _ = two.recv() => {}
        _ = three.recv() => {}
    }
}
