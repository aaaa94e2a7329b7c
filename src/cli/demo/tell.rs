//! What the demo prints: wrapped at 80 columns, with colours only where a person looks at it.
//!
//! It decides nothing. Standard output that is gone stops nobody: the story's end is its exit code.

use std::io::{IsTerminal, Write};

/// Who or what a line is about; it decides the line's margin and colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Voice {
    /// A worker, by its one-letter name.
    Worker(char),
    /// What the demo itself does or explains.
    Stage,
    /// What the store holds.
    Store,
    /// An outcome that nobody wants.
    Bad,
    /// An outcome as it should be.
    Good,
}

/// Prints the story.
pub struct Teller {
    colours: bool,
}

impl Teller {
    /// A teller for standard output; `NO_COLOR` and `TERM=dumb` are obeyed.
    pub fn new() -> Teller {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Teller {
            colours: !unwanted && std::io::stdout().is_terminal(),
        }
    }

    /// A heading, with an empty line before it.
    pub fn heading(&self, text: &str) {
        self.print("");
        for line in wrap(text, COLUMNS) {
            self.print(&self.paint("1", &line));
        }
    }

    /// A paragraph of explanation, at the left edge.
    pub fn explain(&self, text: &str) {
        for line in wrap(text, COLUMNS - 3) {
            self.print(&format!("   {line}"));
        }
    }

    /// One step of the story.
    pub fn step(&self, voice: Voice, text: &str) {
        let (margin, colour) = look(voice);
        let mut margin = margin.as_str();
        for line in wrap(text, COLUMNS - MARGIN) {
            self.print(&format!(
                "{}{}",
                self.paint(colour, margin),
                self.shade(voice, &line)
            ));
            margin = "          ";
        }
    }

    /// A line as it is, for what is to be copied.
    pub fn print(&self, line: &str) {
        // An error here is a reader that has gone, `fencegate demo | head`: the checks go on without it.
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }

    fn shade(&self, voice: Voice, line: &str) -> String {
        match voice {
            Voice::Worker(_) | Voice::Store => line.to_owned(),
            Voice::Stage => self.paint("2", line),
            Voice::Bad => self.paint("1;31", line),
            Voice::Good => self.paint("32", line),
        }
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.colours {
            format!("\x1b[{colour}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// The margin's text, [`MARGIN`] columns wide, and its colour.
fn look(voice: Voice) -> (String, &'static str) {
    match voice {
        Voice::Worker(name) => (format!("   {name:<7}"), if name == 'A' { "1;33" } else { "1;36" }),
        Voice::Stage => ("     --   ".to_owned(), "2"),
        Voice::Store => ("   store  ".to_owned(), "1"),
        Voice::Bad => ("   >>>    ".to_owned(), "1;31"),
        Voice::Good => ("   ok     ".to_owned(), "32"),
    }
}

/// Breaks text at spaces into lines of at most `width` characters; a longer word gets a line of its own.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![];
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

/// The widest line that is readable everywhere.
const COLUMNS: usize = 80;
/// How far a step's text stands from the left edge.
const MARGIN: usize = 10;

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn lines_are_broken_at_spaces_and_never_wider_than_asked() {
        assert_eq!(wrap("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrap("a unbreakable b", 4), ["a", "unbreakable", "b"]);
        assert_eq!(wrap("", 4), [""]);
    }
}
