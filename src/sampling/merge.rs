//! Merges the native and the Python stack: each native eval frame is replaced by the Python frames
//! that it runs.

use crate::model::frame::{Frame, Partial};
use crate::native::unwind::NativeFrame;

/// A run of Python frames, and an address within the C stack frame of the function that runs them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run<'a> {
    /// Where the interpreter keeps this run's bookkeeping on the C stack; `None` for versions
    /// without it.
    pub(super) stack_address: Option<u64>,
    /// Frames, leaf first.
    pub(super) frames: &'a [Frame],
}

/// Merges native frames (leaf first, with how they are recorded) and Python runs (leaf first) into
/// `out`, root first.
///
/// `native_partial` is the reason why the native stack ends early, `python_partial` that of the
/// Python stack. No frame that was read is dropped: runs without a native frame are placed nearer
/// the root than all native frames, with the reason between them.
pub(super) fn merge(
    native: &[(NativeFrame, Frame)],
    native_partial: Option<Partial>,
    runs: &[Run<'_>],
    python_partial: Option<Partial>,
    out: &mut Vec<Frame>,
) {
    out.clear();
    // Leaf first while merging; reversed at the end.
    let mut next_run = 0;
    for (index, (frame, recorded)) in native.iter().enumerate() {
        let from = frame.stack_pointer;
        let to = native.get(index + 1).map(|(next, _)| next.stack_pointer);
        let mut replaced = false;
        while let Some(run) = runs.get(next_run)
            && run
                .stack_address
                .is_some_and(|address| address >= from && to.is_some_and(|to| address < to))
        {
            out.extend_from_slice(run.frames);
            next_run += 1;
            // An evaluation that has just begun has no Python frame yet, and stays a native frame.
            replaced |= !run.frames.is_empty();
        }
        if !replaced {
            out.push(*recorded);
        }
    }
    let mut unmatched = false;
    for run in &runs[next_run.min(runs.len())..] {
        out.extend_from_slice(run.frames);
        unmatched |= !run.frames.is_empty();
    }
    let mismatch = (unmatched && !native.is_empty()).then_some(Partial::MergeMismatch);
    if let Some(why) = native_partial.or(python_partial).or(mismatch) {
        out.push(Frame::Truncated(why));
    }
    out.reverse();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::address::CodeAddress;
    use crate::model::frame::Trust;
    use crate::model::ids::{CodeId, ModuleId};

    fn native(frames: &[u64]) -> Vec<(NativeFrame, Frame)> {
        let frame = |&stack_pointer: &u64| {
            let address = CodeAddress::Return(stack_pointer);
            let recorded = Frame::Native {
                module: ModuleId(0),
                address,
                trust: Trust::Unwound,
            };
            (
                NativeFrame {
                    address,
                    stack_pointer,
                    module: None,
                    trust: Trust::Unwound,
                },
                recorded,
            )
        };
        frames.iter().map(frame).collect()
    }

    fn python(code: u32) -> Frame {
        Frame::Python {
            code: CodeId(code),
            instruction: 0,
            line: 1,
        }
    }

    fn show(out: &[Frame]) -> Vec<String> {
        out.iter()
            .map(|frame| match frame {
                Frame::Python { code, .. } => format!("py{}", code.0),
                Frame::Native { address, .. } => format!("c{:#x}", address.raw()),
                Frame::Truncated(why) => why.name().to_owned(),
                Frame::NnModule(id) => format!("nn{}", id.0),
                Frame::Compiles(code) => format!("compiles{}", code.0),
            })
            .collect()
    }

    #[test]
    fn each_eval_frame_gives_way_to_its_run() {
        let (inner, outer) = ([python(3), python(2)], [python(1)]);
        let runs = [
            Run {
                stack_address: Some(0x250),
                frames: &inner,
            },
            Run {
                stack_address: Some(0x410),
                frames: &outer,
            },
        ];
        let mut out = Vec::new();
        merge(
            &native(&[0x100, 0x200, 0x300, 0x400, 0x500]),
            None,
            &runs,
            None,
            &mut out,
        );
        assert_eq!(
            show(&out),
            ["c0x500", "py1", "c0x300", "py2", "py3", "c0x100"]
        );
    }

    #[test]
    fn what_native_unwinding_did_not_reach_stays_below_the_reason() {
        let (inner, outer) = ([python(2)], [python(1)]);
        let runs = [
            Run {
                stack_address: Some(0x150),
                frames: &inner,
            },
            Run {
                stack_address: Some(0x910),
                frames: &outer,
            },
        ];
        let mut out = Vec::new();
        merge(
            &native(&[0x100, 0x200]),
            Some(Partial::NoUnwindInfo),
            &runs,
            None,
            &mut out,
        );
        assert_eq!(show(&out), ["no_unwind_info", "py1", "c0x200", "py2"]);
    }

    #[test]
    fn a_run_that_no_frame_holds_is_a_mismatch() {
        let frames = [python(1)];
        let runs = [Run {
            stack_address: Some(0x10),
            frames: &frames,
        }];
        let mut out = Vec::new();
        merge(&native(&[0x100, 0x200]), None, &runs, None, &mut out);
        assert_eq!(show(&out), ["merge_mismatch", "py1", "c0x200", "c0x100"]);
    }

    #[test]
    fn python_alone_needs_no_native_frames() {
        let frames = [python(2), python(1)];
        let mut out = Vec::new();
        merge(
            &[],
            None,
            &[Run {
                stack_address: None,
                frames: &frames,
            }],
            None,
            &mut out,
        );
        assert_eq!(show(&out), ["py1", "py2"]);
        merge(
            &[],
            None,
            &[Run {
                stack_address: None,
                frames: &frames,
            }],
            Some(Partial::Torn),
            &mut out,
        );
        assert_eq!(show(&out), ["torn", "py1", "py2"]);
    }
}
