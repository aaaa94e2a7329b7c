//! The start of a request's first line, for those who ask who was refused: by then its head may have gone.
//! Never the query, which can hold a token or a signature. Every request is noted here: it is one copy into room that
//! each connection has, and nothing is allocated.

/// The method and the path of the request under way, or as much of them as has room.
#[derive(Clone, Debug)]
pub(super) struct Line {
    text: [u8; METHOD_BYTES_MAX + PATH_BYTES_MAX],
    method: usize,
    path: usize,
}

const METHOD_BYTES_MAX: usize = 24;
const PATH_BYTES_MAX: usize = 168;
/// How a text ends that was cut.
const ELLIPSIS: &str = "…";

impl Default for Line {
    fn default() -> Self {
        Line {
            text: [0; METHOD_BYTES_MAX + PATH_BYTES_MAX],
            method: 0,
            path: 0,
        }
    }
}

impl Line {
    /// Notes those of a request.
    pub(super) fn note(&mut self, method: &str, target: &str) {
        let end = memchr::memchr(b'?', target.as_bytes()).unwrap_or(target.len());
        let (of_method, of_path) = self.text.split_at_mut(METHOD_BYTES_MAX);
        self.method = put(of_method, method);
        self.path = put(of_path, &target[..end]);
    }

    /// Nothing is known of the next request yet.
    pub(super) fn clear(&mut self) {
        (self.method, self.path) = (0, 0);
    }

    /// The method; `None` where no head was read.
    pub(super) fn method(&self) -> Option<&str> {
        text(&self.text[..self.method])
    }

    /// The path, without its query; `None` where no head was read.
    pub(super) fn path(&self) -> Option<&str> {
        text(&self.text[METHOD_BYTES_MAX..][..self.path])
    }
}

/// Copies what has room, and gives its length.
fn put(room: &mut [u8], text: &str) -> usize {
    if text.len() <= room.len() {
        room[..text.len()].copy_from_slice(text.as_bytes());
        return text.len();
    }
    let end = text.floor_char_boundary(room.len() - ELLIPSIS.len());
    room[..end].copy_from_slice(&text.as_bytes()[..end]);
    room[end..end + ELLIPSIS.len()].copy_from_slice(ELLIPSIS.as_bytes());
    end + ELLIPSIS.len()
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{Line, METHOD_BYTES_MAX, PATH_BYTES_MAX};

    #[test]
    fn what_has_no_room_is_cut_between_two_characters_and_says_so() {
        let mut line = Line::default();
        assert_eq!((line.method(), line.path()), (None, None));
        line.note("PUT", "/a/b?secret=1");
        assert_eq!((line.method(), line.path()), (Some("PUT"), Some("/a/b")));
        for shift in 0..4 {
            let long = "/".repeat(shift) + &"é€".repeat(100);
            line.note(&"M".repeat(99), &long);
            let (method, path) = (line.method().unwrap(), line.path().unwrap());
            assert!(method.len() <= METHOD_BYTES_MAX && path.len() <= PATH_BYTES_MAX);
            let kept = path.strip_suffix('…').unwrap();
            assert!(
                long.starts_with(kept) && kept.len() > PATH_BYTES_MAX - 8,
                "{path}"
            );
            assert!(method.ends_with('…'));
        }
        line.clear();
        assert_eq!((line.method(), line.path()), (None, None));
    }
}
