// SPDX-License-Identifier: Apache-2.0
//! Summary statistics.

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Summary {
    pub(crate) n: usize,
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) p95: f64,
}

/// Summary of the samples; `None` if there are none.
pub(crate) fn summary(samples: &[f64]) -> Option<Summary> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(Summary {
        n: sorted.len(),
        min: *sorted.first()?,
        median: median(&sorted)?,
        p95: percentile(&sorted, 95)?,
    })
}

/// For an even number of samples, the mean of the two in the middle.
fn median(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get(sorted.len().saturating_sub(1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// Nearest-rank percentile.
fn percentile(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_samples_does_not_matter() {
        let expected = Summary { n: 4, min: 1.0, median: 2.5, p95: 4.0 };
        assert_eq!(summary(&[4.0, 1.0, 3.0, 2.0]), Some(expected));
        assert_eq!(summary(&[]), None);
        let one = Summary { n: 1, min: 7.0, median: 7.0, p95: 7.0 };
        assert_eq!(summary(&[7.0]), Some(one));
    }

    #[test]
    fn p95_is_the_nearest_rank() {
        let samples: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&samples, 95), Some(95.0));
        assert_eq!(percentile(&samples[..20], 95), Some(19.0));
    }
}
