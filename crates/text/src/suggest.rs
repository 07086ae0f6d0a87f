// SPDX-License-Identifier: Apache-2.0
//! Suggestions for mistyped names.

/// Returns the known name that is most similar to a mistyped name, if one is similar enough. Ignores case.
pub fn suggest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (edits, known) = known.into_iter().map(|known| (edits(name, known), known)).min()?;
    (edits <= 2 && edits < known.len() / 2).then_some(known)
}

/// Returns the Damerau-Levenshtein distance (optimal string alignment): the number of letters to insert, remove, replace
/// or swap with the next one.
fn edits(one: &str, other: &str) -> usize {
    let (one, other) = (one.to_ascii_lowercase(), other.to_ascii_lowercase());
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for at in 1..=one.len() {
        let mut row = vec![at];
        for column in 1..=other.len() {
            let is_same = one[at - 1] == other[column - 1];
            let replaced = rows[at - 1][column - 1] + usize::from(!is_same);
            let mut fewest = replaced.min(rows[at - 1][column] + 1).min(row[column - 1] + 1);
            if at > 1 && column > 1 && one[at - 2..at] == [other[column - 1], other[column - 2]] {
                fewest = fewest.min(rows[at - 2][column - 2] + 1);
            }
            row.push(fewest);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_name_gets_a_suggestion() {
        let suggested = |name| suggest(name, ["Port", "VNI", "Learning", "host-local"]);
        for (name, expected) in [
            ("Prot", Some("Port")),
            ("leraning", Some("Learning")),
            ("hostlocal", Some("host-local")),
            ("Learnnnning", None),
            ("GBP", None),
            ("", None),
        ] {
            assert_eq!(suggested(name), expected, "{name}");
        }
        assert_eq!(suggest("x", []), None);
    }
}
