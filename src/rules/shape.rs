//! Which names a rule can give its resources, whatever protocol it is for: texts, and holes that a client fills. Two
//! rules that could give one name share a mark, and so must agree on its tokens. Pure; asked by `config/` and by
//! `kinds.rs`, never for a request.

use super::fold::folded;

/// The names that a rule can give.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    /// As the configuration writes it, for people.
    text: Box<str>,
    parts: Box<[ShapePart]>,
}

/// One part of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ShapePart {
    /// This text.
    Text(Box<str>),
    /// One or more characters without a slash.
    Segment,
    /// One or more characters.
    Any,
}

impl Shape {
    /// The shape that is written as `text` and made of `parts`.
    #[must_use]
    pub fn new(text: &str, parts: impl IntoIterator<Item = ShapePart>) -> Shape {
        Shape {
            text: text.into(),
            parts: parts.into_iter().collect(),
        }
    }

    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether some resource could be named by both, each folded if its rule folds case.
    #[must_use]
    pub fn overlaps(&self, other: &Shape, fold_case: bool) -> bool {
        overlap(&self.atoms(fold_case), &other.atoms(fold_case))
    }

    /// Whether a resource could get this name from it. True where that can't be told for sure.
    #[must_use]
    pub fn could_name(&self, name: &str, fold_case: bool) -> bool {
        fits(&self.atoms(fold_case), name)
    }

    fn atoms(&self, fold_case: bool) -> Vec<Atom> {
        let mut atoms = Vec::new();
        for part in &self.parts {
            match part {
                ShapePart::Text(text) if fold_case => atoms.extend(folded(text).map(Atom::One)),
                ShapePart::Text(text) => atoms.extend(text.chars().map(Atom::One)),
                ShapePart::Segment => atoms.push(Atom::Segment),
                ShapePart::Any => atoms.push(Atom::Any),
            }
        }
        atoms
    }
}

/// One element of a shape, for finding out whether two could give one name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Atom {
    One(char),
    /// One or more characters without a slash.
    Segment,
    /// One or more characters.
    Any,
}

/// Whether the text fits. `reached[i]` says that the elements before `i` have taken all that was read, each of
/// them something.
fn fits(atoms: &[Atom], text: &str) -> bool {
    let mut reached = vec![false; atoms.len() + 1];
    reached[0] = true;
    for c in text.chars() {
        for (i, atom) in atoms.iter().enumerate().rev() {
            reached[i + 1] = match atom {
                Atom::One(wanted) => reached[i] && *wanted == c,
                hole => (reached[i] || reached[i + 1]) && takes(*hole, c),
            };
        }
        reached[0] = false;
    }
    reached[atoms.len()]
}

/// Whether some text fits both. `ahead[i][j]` says so for the elements from `i` and from `j` on.
fn overlap(a: &[Atom], b: &[Atom]) -> bool {
    let mut ahead = vec![vec![[false; 4]; b.len() + 1]; a.len() + 1];
    // The four states say whether the element of a, and that of b, has taken a character already.
    for i in (0..=a.len()).rev() {
        for j in (0..=b.len()).rev() {
            for state in (0..4).rev() {
                ahead[i][j][state] = step(a, b, i, j, state, &ahead);
            }
        }
    }
    ahead[0][0][0]
}

fn step(a: &[Atom], b: &[Atom], i: usize, j: usize, state: usize, ahead: &[Vec<[bool; 4]>]) -> bool {
    let (a_begun, b_begun) = (state & 1 != 0, state & 2 != 0);
    if i == a.len() && j == b.len() {
        return true;
    }
    // An element that has taken something may end here.
    if a_begun && i < a.len() && ahead[i + 1][j][state & 2]
        || b_begun && j < b.len() && ahead[i][j + 1][state & 1]
    {
        return true;
    }
    let (Some(x), Some(y)) = (a.get(i), b.get(j)) else {
        return false;
    };
    // Both take one character more. A begun hole may stay; taking more with both begun leads nowhere new.
    match (x, y) {
        (Atom::One(x), Atom::One(y)) => x == y && ahead[i + 1][j + 1][0],
        (Atom::One(c), hole) => takes(*hole, *c) && ahead[i + 1][j][2],
        (hole, Atom::One(c)) => takes(*hole, *c) && ahead[i][j + 1][1],
        (_, _) => state != 3 && ahead[i][j][3],
    }
}

fn takes(hole: Atom, c: char) -> bool {
    hole == Atom::Any || c != '/'
}
