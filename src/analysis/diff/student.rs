//! Student's distribution for any degrees of freedom: the probability of a difference by chance,
//! and the width of an interval.
//!
//! Hundreds of rows are compared, so probabilities far out in the tails matter, which tables do not
//! have.

/// Coefficients of Lanczos' approximation of the gamma function for g = 7 (Godfrey 2001); right to
/// 15 digits.
const LANCZOS: [f64; 9] = [
    0.999_999_999_999_809_9,
    676.520_368_121_885_1,
    -1_259.139_216_722_402_8,
    771.323_428_777_653_1,
    -176.615_029_162_140_6,
    12.507_343_278_686_905,
    -0.138_571_095_265_720_12,
    9.984_369_578_019_572e-6,
    1.505_632_735_149_311_6e-7,
];

/// Terms of the continued fraction: it converges in far fewer, for up to some 10,000 degrees of
/// freedom.
const MAX_TERMS: u32 = 500;

/// Above this many degrees of freedom the normal distribution is used.
const MOST_FREEDOM: f64 = 1000.0;

/// ln Γ(x) for positive x.
fn ln_gamma(x: f64) -> f64 {
    let x = x - 1.0;
    let shifted = x + 7.5;
    let mut sum = LANCZOS[0];
    for (index, coefficient) in LANCZOS.iter().enumerate().skip(1) {
        sum += coefficient / (x + index as f64);
    }
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * shifted.ln() - shifted + sum.ln()
}

/// The continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method.
fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let away_from_zero = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = d;
    for term in 1..=MAX_TERMS {
        let m = f64::from(term);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / away_from_zero(1.0 + even * d);
        c = away_from_zero(1.0 + even / c);
        fraction *= c * d;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / away_from_zero(1.0 + odd * d);
        c = away_from_zero(1.0 + odd / c);
        let step = c * d;
        fraction *= step;
        if (step - 1.0).abs() < 1e-14 {
            break;
        }
    }
    fraction
}

/// The regularized incomplete beta function.
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    let front =
        (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp();
    // The fraction converges fast on this side of the mean only; the function is symmetric.
    if x < (a + 1.0) / (a + b + 2.0) {
        front * beta_fraction(a, b, x) / a
    } else {
        1.0 - front * beta_fraction(b, a, 1.0 - x) / b
    }
}

/// The probability, by chance alone, of a value at least as far from zero as `t`, in either
/// direction. `freedom` is at least 1.
pub(crate) fn two_sided(t: f64, freedom: f64) -> f64 {
    if t.is_nan() {
        return 1.0;
    }
    let freedom = freedom.clamp(1.0, MOST_FREEDOM);
    incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t)).clamp(0.0, 1.0)
}

/// Half the width of a 95 % interval, in standard errors.
pub(crate) fn t95(freedom: f64) -> f64 {
    // With one degree of freedom it is 12.7.
    let (mut low, mut high) = (0.0, 13.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if two_sided(middle, freedom) > 0.05 {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The probability, by chance alone, of a ratio of two variances of at least `ratio`: Fisher's
/// distribution (DLMF 8.17; Abramowitz and Stegun 26.6.2).
pub(crate) fn ratio_above(ratio: f64, freedom: f64, of: f64) -> f64 {
    if ratio.is_nan() {
        return 1.0;
    }
    let (freedom, of) = (
        freedom.clamp(1.0, MOST_FREEDOM),
        of.clamp(1.0, MOST_FREEDOM),
    );
    incomplete_beta(
        of / 2.0,
        freedom / 2.0,
        of / (of + freedom * ratio.max(0.0)),
    )
    .clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source: any table of the distribution, 95 % quantiles.
    #[test]
    fn ratios_of_variances_are_those_of_the_tables() {
        for (ratio, freedom, of) in [
            (161.4476, 1.0, 1.0),
            (4.9646, 1.0, 10.0),
            (2.9782, 10.0, 10.0),
        ] {
            let chance = ratio_above(ratio, freedom, of);
            assert!((chance - 0.05).abs() < 1e-5, "{ratio}: {chance}");
        }
        assert_eq!(ratio_above(0.0, 3.0, 3.0), 1.0);
    }

    /// Source: any table of the distribution, 97.5 % quantiles.
    #[test]
    fn intervals_are_those_of_the_tables() {
        for (freedom, expected) in [
            (1.0, 12.706_205),
            (2.0, 4.302_653),
            (5.0, 2.570_582),
            (10.0, 2.228_139),
            (29.0, 2.045_230),
            (120.0, 1.979_930),
        ] {
            assert!((t95(freedom) - expected).abs() < 1e-5, "{freedom}");
        }
        assert!((t95(1e9) - 1.962_339).abs() < 1e-5);
    }

    #[test]
    fn tails_are_right_far_out() {
        // With two degrees of freedom there is a closed form: 1 - t / sqrt(2 + t^2).
        for t in [0.0_f64, 0.5, 3.0, 40.0, 1000.0] {
            let exact = 1.0 - t / (2.0 + t * t).sqrt();
            assert!((two_sided(t, 2.0) - exact).abs() <= 1e-9 * exact.max(1e-3));
        }
        // With one it is Cauchy's: 1 - 2 atan(t) / pi.
        let exact = 1.0 - 2.0 * 7.0_f64.atan() / std::f64::consts::PI;
        assert!((two_sided(7.0, 1.0) - exact).abs() < 1e-12);
        // Nearly normal: 2 (1 - Phi(5)) is 5.73e-7; with 1,000 degrees of freedom somewhat more.
        let far = two_sided(5.0, 1e9);
        assert!((5.7e-7..7.5e-7).contains(&far), "{far}");
        assert_eq!(two_sided(-3.0, 9.0), two_sided(3.0, 9.0));
        assert_eq!(two_sided(f64::NAN, 9.0), 1.0);
        assert!(two_sided(f64::INFINITY, 9.0) < 1e-12);
    }
}
