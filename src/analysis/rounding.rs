//! Percentages that add up.

/// The shares of `parts` in tenths of a percent. They sum to exactly 1,000, or are all 0 if `parts`
/// are: the remainder of rounding down goes to the largest fractions.
pub fn per_mille(parts: &[u64]) -> Vec<u32> {
    let total: u128 = parts.iter().map(|&part| u128::from(part)).sum();
    if total == 0 {
        return vec![0; parts.len()];
    }
    let mut rounded: Vec<u32> = Vec::with_capacity(parts.len());
    let mut remainders: Vec<(u128, usize)> = Vec::with_capacity(parts.len());
    for (index, &part) in parts.iter().enumerate() {
        let scaled = u128::from(part) * 1000;
        rounded.push(u32::try_from(scaled / total).unwrap_or(1000));
        remainders.push((scaled % total, index));
    }
    let given: u32 = rounded.iter().sum();
    remainders.sort_by_key(|&(remainder, index)| (std::cmp::Reverse(remainder), index));
    for &(_, index) in remainders
        .iter()
        .take(1000_u32.saturating_sub(given) as usize)
    {
        if let Some(share) = rounded.get_mut(index) {
            *share += 1;
        }
    }
    rounded
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn thirds_add_up() {
        assert_eq!(per_mille(&[1, 1, 1]), [334, 333, 333]);
        assert_eq!(per_mille(&[0, 5]), [0, 1000]);
        assert_eq!(per_mille(&[0, 0]), [0, 0]);
        assert_eq!(per_mille(&[]), Vec::<u32>::new());
    }

    proptest! {
        #[test]
        fn sums_to_the_whole(parts in proptest::collection::vec(0_u64..u64::MAX / 2, 1..200)) {
            let sum: u32 = per_mille(&parts).iter().sum();
            let wanted = if parts.iter().all(|&part| part == 0) { 0 } else { 1000 };
            prop_assert_eq!(sum, wanted);
        }

        #[test]
        fn no_share_is_off_by_more_than_its_unit(parts in proptest::collection::vec(0_u64..1_000_000, 1..50)) {
            let total: u64 = parts.iter().sum();
            prop_assume!(total > 0);
            for (&part, &share) in parts.iter().zip(&per_mille(&parts)) {
                let exact = part as f64 * 1000.0 / total as f64;
                prop_assert!((exact - f64::from(share)).abs() < 1.0);
            }
        }
    }
}
