//! Writing commands and errors.

use std::io::Write as _;

/// Appends a command, as an array of bulk strings.
pub fn write_command<'w>(out: &mut Vec<u8>, words: impl ExactSizeIterator<Item = &'w [u8]>) {
    write_line(out, b'*', words.len());
    for word in words {
        write_line(out, b'$', word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends an error. Line ends and other control characters in it become spaces: it is one line.
pub fn write_error(out: &mut Vec<u8>, text: &str) {
    out.push(b'-');
    out.extend(
        text.bytes()
            .map(|byte| if byte.is_ascii_control() { b' ' } else { byte }),
    );
    out.extend_from_slice(b"\r\n");
}

fn write_line(out: &mut Vec<u8>, kind: u8, number: usize) {
    write!(out, "{}{number}\r\n", kind as char).expect("writing to a Vec can't fail");
}
