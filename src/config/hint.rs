//! What may be meant by a word that is not known: the nearest one, or where it would be right. Called by `reader.rs`.

use super::schema::{Kind, Later, ROOT, Section};

/// What may be meant by a key that `section` does not have, as the end of a sentence.
pub(super) fn of_key(section: &'static Section, name: &str) -> String {
    misplaced(section, name)
        .or_else(|| of_another(section, name))
        .unwrap_or_else(|| near_or_all(section, name))
}

/// Where an unknown key would be known, if that is in a map right below.
fn misplaced(section: &'static Section, name: &str) -> Option<String> {
    let below = section.keys.iter().filter_map(|outer| match outer.kind {
        Kind::Section(inner) => inner.key(name).map(|_| outer.name),
        _ => None,
    });
    let places: Vec<_> = below.collect();
    (!places.is_empty()).then(|| format!("; it belongs under {}", places.join(" or ")))
}

/// Which protocols have the unknown key, where this one's listeners don't.
fn of_another(section: &'static Section, name: &str) -> Option<String> {
    ROOT.keys.iter().find_map(|key| match key.kind {
        Kind::Variants(variants) => {
            let (by, own) = (variants.by, variants.word_of(section)?);
            let words = variants.words_with(section, name);
            let unbuilt = variants.later.iter().find(|later| later.keys.contains(&name));
            match (words.is_empty(), unbuilt) {
                (false, _) => Some(format!(
                    "; it is for {by}: {}, and this listener's is {own}",
                    words.join(" or ")
                )),
                (true, Some(Later { word, .. })) => {
                    Some(format!("; it is for {by}: {word}, which is not supported yet"))
                }
                (true, None) => None,
            }
        }
        _ => None,
    })
}

/// The key that may be meant, else all that can be used.
fn near_or_all(section: &'static Section, name: &str) -> String {
    let usable = || section.keys.iter().map(|k| k.name);
    match suggestion(name, usable()) {
        near if near.is_empty() => {
            format!(
                "; {} has {}",
                section.what,
                usable().collect::<Vec<_>>().join(", ")
            )
        }
        near => near,
    }
}

/// The nearest of some words, as the end of a sentence; empty where none is near.
pub(super) fn suggestion<'w>(word: &str, known: impl Iterator<Item = &'w str>) -> String {
    let nearest = known
        .map(|k| (strsim::damerau_levenshtein(word, k), k))
        .min()
        .filter(|(distance, k)| *distance <= (k.len().max(word.len()) / 3).max(1));
    nearest.map_or_else(String::new, |(_, k)| format!("; did you mean {k:?}?"))
}
