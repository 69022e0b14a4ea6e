//! The slopes between all pairs of points, whose median outliers do not move (Theil 1950, Sen
//! 1968).

/// Slopes between all pairs of points that are not at the same place, in order.
pub(super) fn slopes(points: &[(f64, f64)]) -> Vec<f64> {
    let mut all = Vec::new();
    for (index, a) in points.iter().enumerate() {
        for b in points.iter().skip(index + 1).filter(|b| b.0 != a.0) {
            all.push((b.1 - a.1) / (b.0 - a.0));
        }
    }
    all.sort_by(f64::total_cmp);
    all
}

/// The median of values in order; 0 without any.
pub(super) fn middle(ordered: &[f64]) -> f64 {
    ordered.get(ordered.len() / 2).copied().unwrap_or(0.0)
}
