//! Secrets out of files: read once, at the start, and never shown. Called by `build.rs`, and by `cli/` for its own.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::reader::{Map, Reader};
use super::units;
use crate::base::Secret;

/// The secret in the file that a key names. The outer `None` says that a problem was reported, the inner one that
/// the key is not there.
#[allow(clippy::option_option)]
pub(super) fn below(reader: &mut Reader, map: &Map<'_>, name: &str) -> Option<Option<Secret>> {
    if !map.has(name) {
        return Some(None);
    }
    let path = reader.placed(map, name, units::text)?;
    match read_secret(Path::new(&path.value)) {
        Ok(secret) => {
            if secret.bytes() < BYTES_FEW {
                let message = format!(
                    "{}: the secret has less than {BYTES_FEW} characters and can be guessed",
                    map.path_to(name)
                );
                reader.warn(path.at, message);
            }
            Some(Some(secret))
        }
        Err(message) => {
            reader.problem(path.at, format!("{}: {message}", map.path_to(name)));
            None
        }
    }
}

/// A secret that stands in the configuration itself, or in a variable that it takes.
pub(super) fn inline(text: &str) -> Result<Secret, String> {
    Secret::of_file(text.as_bytes())
        .ok_or_else(|| "a secret is visible ASCII characters without spaces".into())
}

/// Reads a secret out of a file.
///
/// # Errors
/// What is wrong with the file; never what is in it.
pub(crate) fn read_secret(path: &Path) -> Result<Secret, String> {
    let shown = path.display();
    let unread = |error: std::io::Error| format!("{shown} can't be read: {error}");
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unread)?;
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(unread)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{shown} is larger than {FILE_BYTES_MAX} bytes"));
    }
    if bytes.trim_ascii().is_empty() {
        return Err(format!("{shown} is empty; it must hold the secret"));
    }
    Secret::of_file(&bytes).ok_or_else(|| {
        format!("{shown} must hold one line of visible ASCII characters, without spaces, and nothing else")
    })
}

const FILE_BYTES_MAX: u64 = 4096;
const BYTES_FEW: usize = 16;
