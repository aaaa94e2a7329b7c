//! Letter case, for rules with `fold_case`. Names are folded so that all that a case-blind backend could take for
//! one name becomes one: each character is lower-cased, upper-cased and lower-cased again, without looking at its
//! neighbours. One way alone would leave some apart that the other brings together: the capital sharp s is lower-cased to
//! the small one, and only that has an upper case that others share.
//! Where languages disagree (dotless i, final sigma, sharp s) this merges more than some backends do: two
//! resources then share a fence, which refuses too much and never too little.

/// Folds `name` from byte `from` on, in place.
pub(super) fn fold(name: &mut String, from: usize) {
    if name.as_bytes()[from..].is_ascii() {
        name[from..].make_ascii_lowercase();
        return;
    }
    let folded: String = folded(&name[from..]).collect();
    name.truncate(from);
    name.push_str(&folded);
}

/// Whether two texts fold to the same one.
pub(super) fn folds_to_same(a: &str, b: &str) -> bool {
    folded(a).eq(folded(b))
}

/// The characters of `text`, folded.
pub(super) fn folded(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars()
        .flat_map(char::to_lowercase)
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::{fold, folds_to_same};

    #[test]
    fn only_the_tail_is_folded() {
        let mut name = String::from("ABcÄ");
        fold(&mut name, 1);
        assert_eq!(name, "Abcä");
    }

    #[test]
    fn spellings_that_a_case_blind_store_takes_for_one_are_one() {
        for (a, b) in [
            ("Orders", "oRDERS"),
            ("ΟΔΟΣ", "οδος"),
            ("ΟΔΟΣ", "οδοσ"),
            ("Straße", "STRASSE"),
            ("STRAẞE", "straße"),
            ("\u{212a}", "k"),
        ] {
            assert!(folds_to_same(a, b), "{a} {b}");
        }
        assert!(!folds_to_same("a", "b"));
    }

    #[test]
    fn no_character_is_another_in_upper_or_lower_case() {
        for c in '\0'..=char::MAX {
            let text = c.to_string();
            for other in [text.to_lowercase(), text.to_uppercase()] {
                assert!(folds_to_same(&text, &other), "{text} {other}");
            }
        }
    }
}
