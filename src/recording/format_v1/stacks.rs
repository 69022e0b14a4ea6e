//! Columns of frames and of stacks.

use super::codes::{partial, partial_of, trust, trust_of};
use super::column::{ColumnReader, ColumnWriter, Corrupt, row_count};
use super::tables::{MAX_ROWS, count_of};
use crate::model::address::CodeAddress;
use crate::model::code::CodeInfo;
use crate::model::frame::Frame;
use crate::model::ids::{CodeId, FrameId, ModuleId, NnModuleId, StackId};
use crate::model::module::SymbolInfo;
use rustc_hash::{FxBuildHasher, FxHashMap};
use serde::{Deserialize, Serialize};

/// Most stacks of a segment.
const MAX_STACKS: usize = 4 << 20;

const PYTHON: u64 = 0;
const TRUNCATED: u64 = 1;
/// From here on: native, twice the trust, plus one for a return address.
const NATIVE: u64 = 2;
/// From version 2 on: the module whose call comes next.
const NN_MODULE: u64 = 64;
/// From version 2 on: the code that is compiled.
const COMPILES: u64 = 65;

/// [`Frame`]s in a file: smallest where they are sorted, and the symbols too.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct FrameColumns<C> {
    count: u32,
    kind: C,
    code: C,
    instruction: C,
    line: C,
    /// How many symbols further on the frame's symbol is, plus one; 0 where it is none of them.
    symbol: C,
    /// From the start of the symbol.
    offset: C,
    /// Of frames without symbol.
    module: C,
    /// Of frames without symbol.
    address: C,
    /// Of truncated stacks the reason; of modules the module; of compilation the code.
    detail: C,
}

/// What frames are written as differences to. Frames with a wrong id are found by validation.
#[derive(Clone, Copy)]
pub(super) struct Named<'t> {
    pub(super) codes: &'t [CodeInfo],
    pub(super) symbols: &'t [SymbolInfo],
}

impl Named<'_> {
    fn first_line(self, code: CodeId) -> u64 {
        let code = self.codes.get(code.index());
        code.map_or(0, |code| u64::from(code.first_line))
    }

    /// The symbol around `address`, not before the symbol at `from`.
    fn symbol(self, from: usize, module: ModuleId, address: u64) -> Option<usize> {
        let rest = self.symbols.get(from..)?;
        // A return address may be the first byte after its function.
        let skip = rest
            .iter()
            .take_while(|symbol| (symbol.module, symbol.end) < (module, address))
            .count();
        let symbol = rest.get(skip)?;
        (symbol.module == module && symbol.start <= address).then_some(from + skip)
    }
}

impl FrameColumns<ColumnWriter> {
    pub(super) fn encode(frames: &[Frame], named: Named<'_>) -> Result<Self, Corrupt> {
        let mut columns = Self {
            count: count_of(frames.len(), MAX_ROWS)?,
            ..Self::default()
        };
        let mut symbol = 0;
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
                        .put_difference(u64::from(line), named.first_line(code));
                }
                Frame::Native {
                    module,
                    address,
                    trust: found,
                } => {
                    let is_return = u64::from(matches!(address, CodeAddress::Return(_)));
                    columns.kind.put(NATIVE + 2 * trust(found) + is_return);
                    columns.put_address(module, address.raw(), &mut symbol, named);
                }
                Frame::Truncated(reason) => {
                    columns.kind.put(TRUNCATED);
                    columns.detail.put(partial(reason));
                }
                Frame::NnModule(id) => {
                    columns.kind.put(NN_MODULE);
                    columns.detail.put(u64::from(id.0));
                }
                Frame::Compiles(code) => {
                    columns.kind.put(COMPILES);
                    columns.detail.put(u64::from(code.0));
                }
            }
        }
        Ok(columns)
    }

    fn put_address(
        &mut self,
        module: ModuleId,
        address: u64,
        symbol: &mut usize,
        named: Named<'_>,
    ) {
        match named.symbol(*symbol, module, address) {
            Some(found) => {
                self.symbol.put((found - *symbol + 1) as u64);
                self.offset.put(address - named.symbols[found].start);
                *symbol = found;
            }
            None => {
                self.symbol.put(0);
                self.module.put_delta(u64::from(module.0));
                self.address.put_delta(address);
            }
        }
    }
}

impl FrameColumns<ColumnReader<'_>> {
    pub(super) fn decode(mut self, named: Named<'_>) -> Result<Vec<Frame>, Corrupt> {
        let count = row_count(self.count, MAX_ROWS, &[&self.kind])?;
        let mut frames = Vec::with_capacity(count);
        let mut symbol = 0;
        for _ in 0..count {
            frames.push(match self.kind.get()? {
                PYTHON => {
                    let code = CodeId(self.code.get_delta_as()?);
                    let line = self.line.get_difference(named.first_line(code))?;
                    Frame::Python {
                        code,
                        instruction: self.instruction.get_as::<u32>()?.wrapping_sub(1),
                        line: u32::try_from(line)
                            .map_err(|_| Corrupt("a line number is out of range"))?,
                    }
                }
                TRUNCATED => Frame::Truncated(partial_of(self.detail.get()?)?),
                NN_MODULE => Frame::NnModule(NnModuleId(self.detail.get_as()?)),
                COMPILES => Frame::Compiles(CodeId(self.detail.get_as()?)),
                native => {
                    let (module, address) = self.get_address(&mut symbol, named)?;
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

    fn get_address(
        &mut self,
        symbol: &mut usize,
        named: Named<'_>,
    ) -> Result<(ModuleId, u64), Corrupt> {
        let further: usize = self.symbol.get_as()?;
        if further == 0 {
            return Ok((
                ModuleId(self.module.get_delta_as()?),
                self.address.get_delta()?,
            ));
        }
        *symbol = symbol.saturating_add(further - 1);
        let found = named
            .symbols
            .get(*symbol)
            .ok_or(Corrupt("a frame's symbol does not exist"))?;
        Ok((found.module, found.start.wrapping_add(self.offset.get()?)))
    }
}

/// Guesses the frame above others. Programs call the same things again, so most guesses are right,
/// and a right guess takes a fraction of a byte.
struct Prediction {
    /// The frame that was last seen above two others.
    by_two: FxHashMap<(u32, u32), u32>,
    /// The frames that were seen above one, the latest first; by the one's id, roots last.
    by_one: Vec<Vec<u32>>,
}

/// Stands for a frame that is not there.
const NO_FRAME: u32 = u32::MAX;

/// How many frames above one are remembered.
const REMEMBERED: usize = 30;

/// The first guess, by the two frames below. From 1 on: the place among the frames that were seen
/// above the one below.
const BY_TWO: u64 = 0;
/// No guess was right.
const NO_GUESS: u64 = 1 + REMEMBERED as u64;

impl Prediction {
    fn new(frames: usize, stacks: usize) -> Self {
        Self {
            by_two: FxHashMap::with_capacity_and_hasher(stacks, FxBuildHasher),
            by_one: vec![Vec::new(); frames + 1],
        }
    }

    fn place(&self, below: u32) -> usize {
        (below as usize).min(self.by_one.len() - 1)
    }

    /// How `frame` above `below` is written.
    fn code(&self, below: (u32, u32), frame: u32) -> u64 {
        if self.by_two.get(&below) == Some(&frame) {
            return BY_TWO;
        }
        let seen = &self.by_one[self.place(below.0)];
        seen.iter()
            .position(|&other| other == frame)
            .map_or(NO_GUESS, |place| 1 + place as u64)
    }

    /// The frame above `below` that is written as `code`, unless it is [`NO_GUESS`].
    fn frame(&self, below: (u32, u32), code: u64) -> Option<u32> {
        if code == BY_TWO {
            return self.by_two.get(&below).copied();
        }
        let place = usize::try_from(code - 1).ok()?;
        self.by_one[self.place(below.0)].get(place).copied()
    }

    fn learn(&mut self, below: (u32, u32), frame: u32) {
        self.by_two.insert(below, frame);
        let place = self.place(below.0);
        let seen = &mut self.by_one[place];
        match seen.iter().position(|&other| other == frame) {
            Some(place) => seen[..=place].rotate_right(1),
            None => {
                seen.truncate(REMEMBERED - 1);
                seen.insert(0, frame);
            }
        }
    }
}

/// The frames of the two stacks below: parent and its parent.
fn frames_below(stacks: &[(Option<StackId>, FrameId)], parent: Option<StackId>) -> (u32, u32) {
    let get = |stack: Option<StackId>| stack.and_then(|stack| stacks.get(stack.index()));
    match get(parent) {
        None => (NO_FRAME, NO_FRAME),
        Some(&(grandparent, frame)) => {
            let further = get(grandparent).map_or(NO_FRAME, |&(_, frame)| frame.0);
            (frame.0, further)
        }
    }
}

/// Stacks in a file: smallest where each stack comes right after its parent or its sibling's last
/// descendant.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct StackColumns<C> {
    count: u32,
    /// How far back the parent is; 0 for a root.
    parent: C,
    guess: C,
    /// Of frames that were not guessed: the low byte, and the rest.
    frame_low: C,
    frame_high: C,
}

impl StackColumns<ColumnWriter> {
    /// `stacks` have been validated: parents come before their children, frames are fewer than
    /// `frames`.
    pub(super) fn encode(
        stacks: &[(Option<StackId>, FrameId)],
        frames: usize,
    ) -> Result<Self, Corrupt> {
        let mut columns = Self {
            count: count_of(stacks.len(), MAX_STACKS)?,
            ..Self::default()
        };
        let mut prediction = Prediction::new(frames, stacks.len());
        for (index, &(parent, frame)) in stacks.iter().enumerate() {
            let back = parent.map_or(0, |parent| index.saturating_sub(parent.index()));
            columns.parent.put(back as u64);
            let below = frames_below(stacks, parent);
            let code = prediction.code(below, frame.0);
            columns.guess.put(code);
            if code == NO_GUESS {
                columns.frame_low.put_byte(frame.0 as u8);
                columns.frame_high.put(u64::from(frame.0 >> 8));
            }
            prediction.learn(below, frame.0);
        }
        Ok(columns)
    }
}

impl StackColumns<ColumnReader<'_>> {
    pub(super) fn decode(
        mut self,
        frames: usize,
    ) -> Result<Vec<(Option<StackId>, FrameId)>, Corrupt> {
        let count = row_count(self.count, MAX_STACKS, &[&self.parent, &self.guess])?;
        let mut prediction = Prediction::new(frames, count);
        let mut stacks: Vec<(Option<StackId>, FrameId)> = Vec::with_capacity(count);
        for index in 0..count {
            let back: usize = self.parent.get_as()?;
            let parent = match back {
                0 => None,
                _ => Some(StackId::from_index(
                    index
                        .checked_sub(back)
                        .ok_or(Corrupt("a stack's parent does not exist"))?,
                )),
            };
            let below = frames_below(&stacks, parent);
            let frame = match self.guess.get()? {
                NO_GUESS => {
                    let low = u32::from(self.frame_low.get_byte()?);
                    let high: u32 = self.frame_high.get_as()?;
                    high.saturating_mul(256).saturating_add(low)
                }
                code => prediction
                    .frame(below, code)
                    .ok_or(Corrupt("a stack's frame does not exist"))?,
            };
            if frame as usize >= frames {
                return Err(Corrupt("a stack's frame does not exist"));
            }
            prediction.learn(below, frame);
            stacks.push((parent, FrameId(frame)));
        }
        Ok(stacks)
    }
}
