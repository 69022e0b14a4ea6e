//! Columns of frames and of stacks.

use super::codes::{partial, partial_of, trust, trust_of};
use super::column::{ColumnReader, ColumnWriter, Corrupt, row_count};
use super::tables::{MAX_ROWS, count_of};
use crate::model::address::CodeAddress;
use crate::model::code::CodeInfo;
use crate::model::frame::Frame;
use crate::model::ids::{CodeId, FrameId, ModuleId, StackId};
use serde::{Deserialize, Serialize};

/// Most stacks of a segment.
const MAX_STACKS: usize = 4 << 20;

const PYTHON: u64 = 0;
const TRUNCATED: u64 = 1;
/// From here on: native, twice the trust, plus one for a return address.
const NATIVE: u64 = 2;

/// [`Frame`]s in a file: smallest where they are sorted.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct FrameColumns<C> {
    count: u32,
    kind: C,
    code: C,
    instruction: C,
    line: C,
    module: C,
    address: C,
    partial: C,
}

/// The line that a frame's line is written as a difference to. Frames with a wrong id are found by validation.
fn base_line(codes: &[CodeInfo], code: CodeId) -> u64 {
    codes.get(code.index()).map_or(0, |code| u64::from(code.first_line))
}

impl FrameColumns<ColumnWriter> {
    pub(super) fn encode(frames: &[Frame], codes: &[CodeInfo]) -> Result<Self, Corrupt> {
        let mut columns = Self {
            count: count_of(frames, MAX_ROWS)?,
            ..Self::default()
        };
        for frame in frames {
            match *frame {
                Frame::Python {
                    code,
                    instruction,
                    line,
                } => {
                    columns.kind.put(PYTHON);
                    columns.code.put_delta(u64::from(code.0));
                    // `NO_INSTRUCTION` becomes 0.
                    columns
                        .instruction
                        .put(u64::from(instruction.wrapping_add(1)));
                    columns
                        .line
                        .put_difference(u64::from(line), base_line(codes, code));
                }
                Frame::Native {
                    module,
                    address,
                    trust: found,
                } => {
                    let is_return = u64::from(matches!(address, CodeAddress::Return(_)));
                    columns.kind.put(NATIVE + 2 * trust(found) + is_return);
                    columns.module.put_delta(u64::from(module.0));
                    columns.address.put_delta(address.raw());
                }
                Frame::Truncated(reason) => {
                    columns.kind.put(TRUNCATED);
                    columns.partial.put(partial(reason));
                }
            }
        }
        Ok(columns)
    }
}

impl FrameColumns<ColumnReader<'_>> {
    pub(super) fn decode(mut self, codes: &[CodeInfo]) -> Result<Vec<Frame>, Corrupt> {
        let count = row_count(self.count, MAX_ROWS, &[&self.kind])?;
        let mut frames = Vec::with_capacity(count);
        for _ in 0..count {
            frames.push(match self.kind.get()? {
                PYTHON => {
                    let code = CodeId(self.code.get_delta_as()?);
                    let line = self.line.get_difference(base_line(codes, code))?;
                    Frame::Python {
                        code,
                        instruction: self.instruction.get_as::<u32>()?.wrapping_sub(1),
                        line: u32::try_from(line)
                            .map_err(|_| Corrupt("a line number is out of range"))?,
                    }
                }
                TRUNCATED => Frame::Truncated(partial_of(self.partial.get()?)?),
                native => {
                    let module = ModuleId(self.module.get_delta_as()?);
                    let address = self.address.get_delta()?;
                    Frame::Native {
                        module,
                        address: if native & 1 == 0 {
                            CodeAddress::Ip(address)
                        } else {
                            CodeAddress::Return(address)
                        },
                        trust: trust_of((native - NATIVE) / 2)?,
                    }
                }
            });
        }
        Ok(frames)
    }
}

/// Guesses the frame above another: the one that was there the last time. Programs call the same things again, so most
/// guesses are right, and a right guess is a zero.
struct Prediction {
    /// By the id of the frame below; the last entry is for roots.
    last: Vec<u32>,
}

impl Prediction {
    fn new(frames: usize) -> Self {
        Self {
            last: vec![u32::MAX; frames + 1],
        }
    }

    /// The guess for the frame above `below`, to be replaced by what turns out right.
    fn above(&mut self, below: Option<FrameId>) -> &mut u32 {
        let roots = self.last.len() - 1;
        let slot = below.map_or(roots, |frame| frame.index().min(roots));
        &mut self.last[slot]
    }
}

/// Stacks in a file: smallest where each stack comes right after its parent or its sibling's last descendant.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct StackColumns<C> {
    count: u32,
    parent: C,
    frame: C,
}

impl StackColumns<ColumnWriter> {
    /// `stacks` have been validated: parents come before their children, frames are below `frames`.
    pub(super) fn encode(
        stacks: &[(Option<StackId>, FrameId)],
        frames: usize,
    ) -> Result<Self, Corrupt> {
        let mut columns = Self {
            count: count_of(stacks, MAX_STACKS)?,
            ..Self::default()
        };
        let mut prediction = Prediction::new(frames);
        for (index, &(parent, frame)) in stacks.iter().enumerate() {
            let back = parent.map_or(0, |parent| index.saturating_sub(parent.index()));
            columns.parent.put(back as u64);
            let below = parent.and_then(|parent| stacks.get(parent.index())).map(|s| s.1);
            let guess = prediction.above(below);
            let code = if *guess == frame.0 {
                0
            } else {
                u64::from(frame.0) + 1
            };
            *guess = frame.0;
            columns.frame.put(code);
        }
        Ok(columns)
    }
}

impl StackColumns<ColumnReader<'_>> {
    pub(super) fn decode(
        mut self,
        frames: usize,
    ) -> Result<Vec<(Option<StackId>, FrameId)>, Corrupt> {
        let count = row_count(self.count, MAX_STACKS, &[&self.parent, &self.frame])?;
        let mut prediction = Prediction::new(frames);
        let mut stacks: Vec<(Option<StackId>, FrameId)> = Vec::with_capacity(count);
        for index in 0..count {
            let back: usize = self.parent.get_as()?;
            let parent = match back {
                0 => None,
                _ => Some(
                    index
                        .checked_sub(back)
                        .ok_or(Corrupt("a stack's parent does not exist"))?,
                ),
            };
            let below = parent.map(|parent| stacks[parent].1);
            let guess = prediction.above(below);
            let frame = match self.frame.get()? {
                0 => *guess,
                code => u32::try_from(code - 1)
                    .map_err(|_| Corrupt("a stack's frame does not exist"))?,
            };
            if frame as usize >= frames {
                return Err(Corrupt("a stack's frame does not exist"));
            }
            *guess = frame;
            stacks.push((parent.map(StackId::from_index), FrameId(frame)));
        }
        Ok(stacks)
    }
}
