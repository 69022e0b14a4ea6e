//! One colour per kind of code.

use crate::model::category::FrameKind;

/// Red, green, blue.
pub(super) type Rgb = (u8, u8, u8);

/// The colour of a kind.
///
/// Light enough for black text; Python in yellows and browns, host computation in reds. Chosen by a
/// search that kept every pair at least 19 CIELAB units apart in red-green colour blindness, and
/// apart from the colour of search matches. In greyscale, the legend and tooltips name the kind.
pub(super) fn colour(kind: FrameKind) -> Rgb {
    match kind {
        FrameKind::PythonUser => (255, 203, 5),
        FrameKind::PythonTorch => (255, 255, 113),
        FrameKind::PythonLibrary => (217, 187, 146),
        FrameKind::Aten => (209, 80, 54),
        FrameKind::Gemm => (252, 122, 43),
        FrameKind::Autograd => (216, 167, 255),
        FrameKind::Communication => (28, 143, 255),
        FrameKind::Cuda => (92, 216, 91),
        FrameKind::DataLoader => (60, 152, 189),
        FrameKind::Optimizer => (214, 166, 178),
        FrameKind::OpenMp => (157, 125, 106),
        FrameKind::Wait => (109, 123, 134),
        FrameKind::Interpreter => (245, 255, 207),
        FrameKind::Plumbing => (219, 255, 157),
        FrameKind::Native => (230, 210, 255),
        FrameKind::Marker => (236, 236, 236),
    }
}

/// How idle the GPU was while the host executed some code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idle {
    /// 80 % and more.
    Most,
    /// 60 % and more.
    Much,
    /// 40 % and more.
    Half,
    /// 20 % and more.
    Little,
    /// Below 20 %.
    Least,
    /// The windows are too long.
    NotResolved,
    /// No GPU is known.
    Unknown,
}

impl Idle {
    /// All of them, in the order of the legend.
    #[cfg(test)]
    const ALL: [Self; 7] = [
        Self::Most,
        Self::Much,
        Self::Half,
        Self::Little,
        Self::Least,
        Self::NotResolved,
        Self::Unknown,
    ];

    /// From a share of time: the inner `None` if it is not resolved, the outer one without a GPU.
    pub(super) fn of(share: Option<Option<f64>>) -> Self {
        match share {
            None => Self::Unknown,
            Some(None) => Self::NotResolved,
            Some(Some(share)) if share >= 0.8 => Self::Most,
            Some(Some(share)) if share >= 0.6 => Self::Much,
            Some(Some(share)) if share >= 0.4 => Self::Half,
            Some(Some(share)) if share >= 0.2 => Self::Little,
            Some(Some(_)) => Self::Least,
        }
    }

    /// For the legend.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Most => "GPU idle for 80 % and more",
            Self::Much => "60 to 80 %",
            Self::Half => "40 to 60 %",
            Self::Little => "20 to 40 %",
            Self::Least => "GPU busy: idle for less than 20 %",
            Self::NotResolved => "not resolved: shorter than 2 windows",
            Self::Unknown => "no GPU known",
        }
    }

    /// From dark orange to pale yellow: a scale of lightness, which does not depend on colour
    /// vision; unknown is bluish or grey. Chosen by the same search as [`colour`].
    pub(super) fn colour(self) -> Rgb {
        match self {
            Self::Most => (208, 79, 0),
            Self::Much => (255, 132, 0),
            Self::Half => (255, 217, 100),
            Self::Little => (228, 224, 145),
            Self::Least => (255, 255, 213),
            Self::NotResolved => (152, 193, 236),
            Self::Unknown => (230, 228, 231),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linear(byte: u8) -> f64 {
        let value = f64::from(byte) / 255.0;
        if value <= 0.04045 {
            value / 12.92
        } else {
            ((value + 0.055) / 1.055).powf(2.4)
        }
    }

    /// Relative luminance, WCAG 2.2.
    fn luminance((red, green, blue): Rgb) -> f64 {
        0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
    }

    #[test]
    fn black_text_is_readable_on_every_colour() {
        for &kind in FrameKind::ALL {
            let contrast = (luminance(colour(kind)) + 0.05) / 0.05;
            assert!(contrast >= 4.5, "{}: contrast {contrast:.1}", kind.name());
        }
    }

    #[test]
    fn black_text_is_readable_on_every_idleness() {
        for idle in Idle::ALL {
            let contrast = (luminance(idle.colour()) + 0.05) / 0.05;
            assert!(contrast >= 4.5, "{}: contrast {contrast:.1}", idle.name());
        }
    }

    #[test]
    fn shares_have_their_colours() {
        assert_eq!(Idle::of(None), Idle::Unknown);
        assert_eq!(Idle::of(Some(None)), Idle::NotResolved);
        for (share, idle) in [(0.0, Idle::Least), (0.5, Idle::Half), (1.0, Idle::Most)] {
            assert_eq!(Idle::of(Some(Some(share))), idle);
        }
    }

    /// Perception of a colour: unchanged, and without green or red cones, in linear RGB (Machado
    /// and others 2009, "A Physiologically-based Model for Simulation of Color Vision Deficiency",
    /// severity 1.0).
    const EYES: [(&str, [[f64; 3]; 3]); 3] = [
        (
            "full colour vision",
            [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        ),
        (
            "deuteranopia",
            [
                [0.367322, 0.860646, -0.227968],
                [0.280085, 0.672501, 0.047413],
                [-0.011820, 0.042940, 0.968881],
            ],
        ),
        (
            "protanopia",
            [
                [0.152286, 1.052583, -0.204868],
                [0.114503, 0.786281, 0.099216],
                [-0.003882, -0.048116, 1.051998],
            ],
        ),
    ];

    /// CIELAB under D65.
    fn lab(rgb: Rgb, eye: &[[f64; 3]; 3]) -> [f64; 3] {
        let light = [linear(rgb.0), linear(rgb.1), linear(rgb.2)];
        let seen = eye.map(|row| {
            row.iter()
                .zip(light)
                .map(|(a, b)| a * b)
                .sum::<f64>()
                .clamp(0.0, 1.0)
        });
        let sum = |weights: [f64; 3]| weights.iter().zip(seen).map(|(a, b)| a * b).sum::<f64>();
        let root = |t: f64| {
            if t > 0.008856 {
                t.cbrt()
            } else {
                7.787 * t + 16.0 / 116.0
            }
        };
        let x = root(sum([0.4124, 0.3576, 0.1805]) / 0.9505);
        let y = root(sum([0.2126, 0.7152, 0.0722]));
        let z = root(sum([0.0193, 0.1192, 0.9505]) / 1.089);
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    fn assert_told_apart(colours: &[(&str, Rgb)], least: f64) {
        for (eye, matrix) in EYES {
            for (index, (name, one)) in colours.iter().enumerate() {
                for (other_name, other) in &colours[index + 1..] {
                    let (one, two) = (lab(*one, &matrix), lab(*other, &matrix));
                    let squares = one.iter().zip(two).map(|(a, b)| (a - b).powi(2));
                    let distance = squares.sum::<f64>().sqrt();
                    assert!(
                        distance > least,
                        "{eye}: {name} and {other_name}: {distance:.1}"
                    );
                }
            }
        }
    }

    #[test]
    fn kinds_are_told_apart_with_red_green_blindness_too() {
        let kinds = FrameKind::ALL.iter();
        let colours: Vec<_> = kinds.map(|&kind| (kind.name(), colour(kind))).collect();
        assert_told_apart(&colours, 15.0);
    }

    #[test]
    fn idleness_is_told_apart_with_red_green_blindness_too() {
        let colours = Idle::ALL.map(|idle| (idle.name(), idle.colour()));
        assert_told_apart(&colours, 15.0);
    }
}
