//! The lines of an export, a format that `docs/store.md` describes: one JSON object a line, the first says what it
//! is, the last closes it with counts and a checksum. Reading believes nothing: what it doesn't know, or what doesn't
//! add up, is refused with its line. Called by `store.rs`.

use std::io::{self, BufRead, Read, Write};
use std::time::Duration;

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::admin::time::rfc3339;
use crate::base::{Token, TokenFormat};
use crate::ledger::{Audit, AuditEntry, Contents, Found, Mark};

/// An export, checked.
#[derive(Debug)]
pub(super) struct Export {
    /// Which kind of store it was written from.
    pub(super) kind: String,
    /// When it was written, for people.
    pub(super) at: String,
    pub(super) contents: Contents,
}

/// What is wrong with an export, and in which line.
pub(super) type Wrong = (usize, String);

#[derive(Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase", deny_unknown_fields)]
enum Line {
    Export {
        format: u32,
        version: String,
        kind: String,
        clean: bool,
        settle_after_ms: u64,
        at: String,
    },
    Mark {
        resource: String,
        token: String,
        format: String,
        raised_at_ms: u64,
    },
    Reset {
        sequence: u64,
        resource: String,
        token: String,
        format: String,
        at_ms: u64,
        from: String,
        reason: String,
        by: String,
    },
    End {
        marks: u64,
        resets: u64,
        sha256: String,
    },
}

/// Writes an export.
pub(super) fn write(out: &mut impl Write, kind: &str, at_ms: u64, contents: &Contents) -> io::Result<()> {
    let mut summed = Summed {
        out,
        sum: Context::new(&SHA256),
    };
    let found = contents.found;
    summed.line(&Line::Export {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").into(),
        kind: kind.into(),
        clean: found.clean,
        settle_after_ms: u64::try_from(found.settle_after.as_millis()).unwrap_or(u64::MAX),
        at: rfc3339(at_ms),
    })?;
    for (name, mark) in &contents.marks {
        summed.line(&Line::of_mark(name, mark))?;
    }
    for entry in &contents.resets {
        summed.line(&Line::of_reset(entry))?;
    }
    let sha256 = hex(summed.sum.clone());
    summed.line(&Line::End {
        marks: contents.marks.len() as u64,
        resets: contents.resets.len() as u64,
        sha256,
    })
}

struct Summed<W> {
    out: W,
    /// Of all lines so far.
    sum: Context,
}

impl<W: Write> Summed<W> {
    fn line(&mut self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.sum.update(&text);
        self.out.write_all(&text)
    }
}

impl Line {
    fn of_mark(name: &str, mark: &Mark) -> Line {
        Line::Mark {
            resource: name.into(),
            token: mark.format.show(mark.token).to_string(),
            format: mark.format.as_str().into(),
            raised_at_ms: mark.raised_at_ms,
        }
    }

    fn of_reset(entry: &AuditEntry) -> Line {
        let AuditEntry {
            sequence,
            name,
            mark,
            audit,
        } = entry;
        Line::Reset {
            sequence: *sequence,
            resource: name.clone(),
            token: mark.format.show(mark.token).to_string(),
            format: mark.format.as_str().into(),
            at_ms: mark.raised_at_ms,
            from: audit.from.clone(),
            reason: audit.reason.clone(),
            by: audit.by.clone(),
        }
    }
}

/// Reads an export to its end.
///
/// # Errors
/// The first line that is wrong, and what is.
pub(super) fn read(mut input: impl BufRead) -> Result<Export, Wrong> {
    let mut reading = None;
    let mut sum = Context::new(&SHA256);
    for number in 1.. {
        let here = |wrong: String| (number, wrong);
        let text = next_line(&mut input).map_err(here)?;
        let Some(text) = text else {
            let missing = "the export is not whole: the line that closes it is missing; write it out again";
            return Err((number, missing.into()));
        };
        let line = match &reading {
            None => first(&text),
            Some(_) => parsed(&text),
        };
        match (line.map_err(here)?, &mut reading) {
            (line, None) => reading = Some(begun(line).map_err(here)?),
            (
                Line::End {
                    marks,
                    resets,
                    sha256,
                },
                Some(export),
            ) => {
                closed(&export.contents, [marks, resets], &sha256, &hex(sum)).map_err(here)?;
                at_end(&mut input).map_err(|wrong| (number + 1, wrong))?;
                break;
            }
            (line, Some(export)) => taken(&mut export.contents, line).map_err(here)?,
        }
        sum.update(&text);
    }
    Ok(reading.expect("the loop ends behind a first line only"))
}

/// A line with its end; `None` behind the last one.
fn next_line(input: &mut impl BufRead) -> Result<Option<Vec<u8>>, String> {
    let mut text = Vec::new();
    let read = input.take(LINE_BYTES_MAX).read_until(b'\n', &mut text);
    read.map_err(|error| format!("it can't be read: {error}"))?;
    match text.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(text)),
        Some(_) if text.len() as u64 == LINE_BYTES_MAX => {
            Err(format!("the line is longer than {LINE_BYTES_MAX} bytes"))
        }
        Some(_) => Err("the line is cut short; write the export out again".into()),
    }
}

/// Says first which format it is: one of another may have other members.
fn first(text: &[u8]) -> Result<Line, String> {
    let value: Value = serde_json::from_slice(text).map_err(|error| not_json(&error))?;
    match (value["is"].as_str(), value["format"].as_u64()) {
        (Some("export"), Some(format)) if format != u64::from(FORMAT) => Err(format!(
            "the export has format {format}, this version reads {FORMAT}; use the version that wrote it"
        )),
        (Some("export"), _) => parsed(text),
        (_, _) => Err("this is no export of fencegate: its first line says {\"is\":\"export\",…}".into()),
    }
}

fn parsed(text: &[u8]) -> Result<Line, String> {
    serde_json::from_slice(text).map_err(|error| not_json(&error))
}

fn not_json(error: &serde_json::Error) -> String {
    let text = error.to_string();
    // Each line is a text of its own to the parser: its line number would mislead.
    let what = text.rsplit_once(" at line ").map_or(&*text, |(what, _)| what);
    match error.column() {
        0 => format!("not a line of an export: {what}"),
        column => format!("not a line of an export: {what}, at column {column}"),
    }
}

fn begun(line: Line) -> Result<Export, String> {
    let Line::Export {
        kind,
        clean,
        settle_after_ms,
        at,
        ..
    } = line
    else {
        return Err("the first line must be the one that says {\"is\":\"export\"}".into());
    };
    let found = Found {
        clean,
        settle_after: Duration::from_millis(settle_after_ms),
    };
    Ok(Export {
        kind,
        at,
        contents: Contents {
            found,
            ..Contents::default()
        },
    })
}

fn taken(contents: &mut Contents, line: Line) -> Result<(), String> {
    match line {
        Line::Mark {
            resource,
            token,
            format,
            raised_at_ms,
        } => {
            if !contents.resets.is_empty() {
                return Err("a mark stands behind the resets; marks come first".into());
            }
            if let Some((last, _)) = contents.marks.last_key_value()
                && *last >= resource
            {
                return Err(format!(
                    "the mark of {resource:?} stands behind that of {last:?}; they come in the order of their bytes, each once"
                ));
            }
            let mark = mark(&token, &format, raised_at_ms)?;
            contents.marks.insert(resource, mark);
        }
        Line::Reset {
            sequence,
            resource,
            token,
            format,
            at_ms,
            from,
            reason,
            by,
        } => {
            if contents
                .resets
                .last()
                .is_some_and(|last| last.sequence >= sequence)
            {
                return Err(format!("the reset {sequence} stands behind a later one"));
            }
            contents.resets.push(AuditEntry {
                sequence,
                name: resource,
                mark: mark(&token, &format, at_ms)?,
                audit: Audit { from, reason, by },
            });
        }
        Line::Export { .. } => {
            return Err("a second first line: these are two exports; import them one by one".into());
        }
        Line::End { .. } => unreachable!("the line that closes an export is taken before"),
    }
    Ok(())
}

fn mark(token: &str, format: &str, raised_at_ms: u64) -> Result<Mark, String> {
    let formats = [TokenFormat::Integer, TokenFormat::Hex, TokenFormat::Pair];
    let Some(format) = formats.into_iter().find(|known| known.as_str() == format) else {
        return Err(format!(
            "the token format {format:?} is not known: it is integer, hex or pair"
        ));
    };
    let read = format.parse(token.as_bytes()).ok();
    // As it was written, or somebody else wrote it and may have meant something else.
    let read: Option<Token> = read.filter(|read| format.show(*read).to_string() == token);
    match read {
        Some(token) => Ok(Mark {
            token,
            format,
            raised_at_ms,
        }),
        None => Err(format!(
            "{token:?} is not a token of the format {}",
            format.as_str()
        )),
    }
}

fn closed(contents: &Contents, noted: [u64; 2], sum: &str, found: &str) -> Result<(), String> {
    let counts = [contents.marks.len() as u64, contents.resets.len() as u64];
    if counts != noted {
        return Err(format!(
            "{} marks and {} resets were written, and {} and {} are here; write the export out again",
            noted[0], noted[1], counts[0], counts[1]
        ));
    }
    if sum != found {
        return Err(
            "the checksum does not match: the export was changed on its way; write it out again".into(),
        );
    }
    Ok(())
}

fn at_end(input: &mut impl BufRead) -> Result<(), String> {
    match input.fill_buf() {
        Ok([]) => Ok(()),
        Ok(_) => Err("something stands behind the line that closes the export".into()),
        Err(error) => Err(format!("it can't be read: {error}")),
    }
}

fn hex(sum: Context) -> String {
    use std::fmt::Write as _;
    sum.finish()
        .as_ref()
        .iter()
        .fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// The format of the lines. Another one is never guessed at.
pub(super) const FORMAT: u32 = 1;
/// A name or a reason is far shorter; without a bound a wrong file would fill the memory.
const LINE_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests;
