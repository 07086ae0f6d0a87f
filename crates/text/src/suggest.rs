// SPDX-License-Identifier: Apache-2.0
//! What somebody meant who has mistyped a name.

/// Which of these was meant, if one is nearly the same. Case does not count.
pub fn suggest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let measured = known.into_iter().map(|known| (edits(name, known), known));
    let (edits, known) = measured.min()?;
    (edits <= 2 && edits < known.len() / 2).then_some(known)
}

/// How many letters must be put in, taken out, replaced or swapped with the next to make one word of the other.
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
    fn what_is_nearly_right_is_found() {
        let meant = |name| suggest(name, ["Port", "VNI", "Learning", "host-local"]);
        for (name, wanted) in [
            ("Prot", Some("Port")),
            ("leraning", Some("Learning")),
            ("hostlocal", Some("host-local")),
            ("Learnnnning", None),
            ("GBP", None),
            ("", None),
        ] {
            assert_eq!(meant(name), wanted, "{name}");
        }
        assert_eq!(suggest("x", []), None);
    }
}
