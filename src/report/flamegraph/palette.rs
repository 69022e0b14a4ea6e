//! One colour per kind of code.

use crate::model::category::FrameKind;

/// Red, green, blue.
pub(super) type Rgb = (u8, u8, u8);

/// The colour of a kind.
///
/// Light enough for black text. Related kinds are near each other (Python warm yellows, host computation reds, waits
/// and machinery greys); what must be told apart at a glance differs in lightness or on the blue-yellow axis, which
/// red-green colour blindness leaves. In grey, legend and tooltips name the kind.
pub(super) fn colour(kind: FrameKind) -> Rgb {
    match kind {
        FrameKind::PythonUser => (255, 203, 5),
        FrameKind::PythonTorch => (255, 229, 138),
        FrameKind::PythonLibrary => (245, 238, 205),
        FrameKind::Aten => (240, 130, 80),
        FrameKind::Gemm => (214, 92, 92),
        FrameKind::Autograd => (184, 150, 226),
        FrameKind::Communication => (70, 150, 220),
        FrameKind::Cuda => (120, 190, 60),
        FrameKind::DataLoader => (60, 190, 170),
        FrameKind::Optimizer => (232, 160, 200),
        FrameKind::OpenMp => (196, 164, 110),
        FrameKind::Wait => (150, 165, 180),
        FrameKind::Interpreter => (214, 224, 190),
        FrameKind::Plumbing => (250, 205, 185),
        FrameKind::Native => (200, 212, 224),
        FrameKind::Marker => (236, 236, 236),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance, WCAG 2.2.
    fn luminance((red, green, blue): Rgb) -> f64 {
        let linear = |byte: u8| {
            let value = f64::from(byte) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
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
    fn no_two_kinds_share_a_colour() {
        for (index, &kind) in FrameKind::ALL.iter().enumerate() {
            for &other in &FrameKind::ALL[index + 1..] {
                assert_ne!(colour(kind), colour(other), "{} and {}", kind.name(), other.name());
            }
        }
    }
}
