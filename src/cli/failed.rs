//! Why a verb was not done, for the user and for the exit code; and standard output. Called by the verbs.

use std::io::Write;
use std::process::ExitCode;

/// Why it was not done, and the exit code.
pub(super) struct Failed {
    code: u8,
    message: String,
}

impl Failed {
    /// It failed while it ran.
    pub(super) fn now(message: impl Into<String>) -> Failed {
        Failed {
            code: super::FAILED,
            message: message.into(),
        }
    }

    /// The configuration or the arguments are wrong.
    pub(super) fn wrong(message: impl Into<String>) -> Failed {
        Failed {
            code: super::WRONG,
            message: message.into(),
        }
    }

    /// With something else that went wrong because of it.
    pub(super) fn and(mut self, more: &str) -> Failed {
        self.message = format!("{}\n{more}", self.message);
        self
    }

    pub(super) fn tell(&self) -> ExitCode {
        eprintln!("{}", self.message);
        ExitCode::from(self.code)
    }
}

/// To standard output; a reader that has gone is no failure.
pub(super) fn print(text: &str) -> Result<(), Failed> {
    match writeln!(std::io::stdout(), "{}", text.trim_end()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failed::now(format!("standard output can't be written: {error}")))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
