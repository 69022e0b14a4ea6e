//! Raw frames to functions, raw stacks to stacks of functions.

use super::Names;
use crate::model::compile::CompileMark;
use crate::model::facts::Line;
use crate::model::frame::{Frame, Partial};
use crate::model::ids::{FrameId, FunctionId, ModuleId, StackId};
use crate::model::module::ModuleKind;
use crate::model::profile::{Function, ProfileFrame};
use crate::model::region::region_of;
use crate::model::stack_table::{Stack, StackTable};
use crate::model::text::file_name;
use crate::recording::Recording;
use crate::torch::classify::FunctionClass;
use crate::torch::rules::{FunctionRules, PhaseMark, Special, subject};
use rustc_hash::FxHashMap;
use std::cell::RefCell;

/// Everything with a name.
pub(super) struct Frames {
    /// Functions by id.
    pub(super) functions: Vec<Function>,
    /// The rules for each.
    pub(super) classes: Vec<FunctionClass>,
    /// How many of them a row is for that the user added.
    pub(super) added: usize,
    /// Named frames and stacks, under the recording's ids. Of raw stacks with equal names the first
    /// represents all; the others' rows are not referred to.
    pub(super) stacks: StackTable<ProfileFrame>,
    /// By raw stack, the one that represents it.
    pub(super) first: Vec<StackId>,
}

impl Frames {
    pub(super) fn resolve(input: &Recording, names: Names) -> Self {
        let mut resolver = Resolver {
            input,
            names,
            functions: Vec::new(),
            classes: Vec::new(),
            added: 0,
            known: FxHashMap::default(),
            of_code: FxHashMap::default(),
            of_address: FxHashMap::default(),
        };
        let mut stacks = StackTable::default();
        let raw = &input.tables.stacks;
        let frames: Vec<FrameId> = raw
            .frames()
            .iter()
            .map(|&frame| stacks.push_frame(resolver.frame(frame)))
            .collect();
        let first = name_stacks(raw.stacks(), &frames, &resolver.classes, &mut stacks);
        Self {
            functions: resolver.functions,
            added: resolver.added,
            classes: resolver.classes,
            stacks,
            first,
        }
    }

    pub(super) fn function(&self, frame: FrameId) -> Option<&Function> {
        self.functions
            .get(self.stacks.frame(frame).function.index())
    }

    /// The class of a frame's function, by the rules.
    pub(super) fn class(&self, frame: FrameId) -> Option<&FunctionClass> {
        self.classes.get(self.stacks.frame(frame).function.index())
    }

    pub(super) fn line(&self, frame: FrameId) -> Line {
        let frame = self.stacks.frame(frame);
        (frame.function, frame.line)
    }

    /// The first of the stacks that are equal to a raw one.
    pub(super) fn first(&self, raw: Option<StackId>) -> Option<StackId> {
        raw.map(|raw| self.first[raw.index()])
    }
}

/// Adds a row for every raw stack to `stacks`, with the named `frames`. Parents come before their
/// children, so one pass is enough.
///
/// A forked DataLoader worker has its parent's complete stack below its own loop: the frames of the
/// training script up to the fork, which the worker never returns to. They are removed; a
/// truncation marker at the root stays.
fn name_stacks(
    raw: &[Stack],
    frames: &[FrameId],
    classes: &[FunctionClass],
    stacks: &mut StackTable<ProfileFrame>,
) -> Vec<StackId> {
    let mut first: Vec<StackId> = Vec::with_capacity(raw.len());
    let mut markers: Vec<Option<StackId>> = Vec::with_capacity(raw.len());
    for &(parent, frame) in raw {
        let frame = frames[frame.index()];
        let named = *stacks.frame(frame);
        let mut under = parent.map(|parent| first[parent.index()]);
        let mut marker = parent.and_then(|parent| markers[parent.index()]);
        let class = classes.get(named.function.index());
        if class.is_some_and(|class| class.special == Special::WorkerLoop) {
            under = marker;
        }
        let id = stacks.push_stack(under, frame);
        if parent.is_none() && named.partial.is_some() {
            marker = Some(id);
        }
        markers.push(marker);
        first.push(id);
    }
    first
}

/// Symbols whose functions are kept: those of an hour of one job are a few thousand.
const MAX_KEPT: usize = 1 << 15;
/// Modules of one symbol: torch.compile makes a library with the same symbols for each kernel.
const MAX_MODULES: usize = 8;

/// A function, what the rules say of it, and whether a row that the user added matches it.
type Made = (Function, FunctionClass, bool);

/// Functions by symbol and module, whatever recording they are of: those of a job's ranks have the
/// same, and `agent` and `top` resolve the same ones every few seconds.
#[derive(Default)]
struct KeptFunctions {
    /// Address of the rules that they were made by.
    rules: usize,
    by_symbol: FxHashMap<String, Vec<(ModuleKind, Made)>>,
}

thread_local! {
    static KEPT: RefCell<KeptFunctions> = RefCell::default();
}

/// The function of a symbol.
fn of_symbol(kind: ModuleKind, path: &str, symbol: &str, names: Names) -> Made {
    KEPT.with_borrow_mut(|kept| {
        let rules = std::ptr::from_ref(names.rules).addr();
        if kept.rules != rules || kept.by_symbol.len() >= MAX_KEPT {
            *kept = KeptFunctions {
                rules,
                ..KeptFunctions::default()
            };
        }
        let known = kept.by_symbol.get(symbol).into_iter().flatten();
        let mut known = known.filter(|(of, made)| *of == kind && made.0.file == path);
        if let Some((_, made)) = known.next() {
            return made.clone();
        }
        let name = (names.demangle)(symbol);
        let short = (names.shorten)(&name);
        let rules = names.rules.native(kind, path, Some(&name));
        let made = (named(name, short, path, &rules), rules.class, rules.added);
        let modules = kept.by_symbol.entry(symbol.to_owned()).or_default();
        if modules.len() < MAX_MODULES {
            modules.push((kind, made.clone()));
        }
        made
    })
}

struct Resolver<'a> {
    input: &'a Recording,
    names: Names,
    functions: Vec<Function>,
    classes: Vec<FunctionClass>,
    added: usize,
    known: FxHashMap<Key, FunctionId>,
    /// Functions by code object, and by module and first address of their symbol, or the address
    /// where there is none: most frames are of one that has been named.
    of_code: FxHashMap<usize, FunctionId>,
    of_address: FxHashMap<(ModuleId, u64), FunctionId>,
}

/// What makes two frames the same function.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Python(String, String, u32),
    Native(String, String),
    Marker(Partial),
    NnModule,
    Compiles(String, String, u32),
}

impl Resolver<'_> {
    fn frame(&mut self, frame: Frame) -> ProfileFrame {
        match frame {
            Frame::Python { code, line, .. } => ProfileFrame {
                function: self.python(code.index()),
                line,
                ..ProfileFrame::default()
            },
            Frame::Native {
                module,
                address,
                trust,
            } => ProfileFrame {
                function: self.native(module, address.lookup()),
                trust: Some(trust),
                ..ProfileFrame::default()
            },
            Frame::Truncated(partial) => ProfileFrame {
                function: self.marker(partial),
                partial: Some(partial),
                ..ProfileFrame::default()
            },
            Frame::NnModule(id) => ProfileFrame {
                function: self.nn_module(),
                nn_module: Some(id),
                ..ProfileFrame::default()
            },
            Frame::Compiles(code) => ProfileFrame {
                function: self.compiled(code.index()),
                ..ProfileFrame::default()
            },
        }
    }

    fn add(&mut self, key: Key, make: impl FnOnce() -> Made) -> FunctionId {
        if let Some(&id) = self.known.get(&key) {
            return id;
        }
        let (function, class, is_added) = make();
        self.added += usize::from(is_added);
        let id = FunctionId::from_index(self.functions.len());
        self.functions.push(function);
        self.classes.push(class);
        self.known.insert(key, id);
        id
    }

    fn python(&mut self, code: usize) -> FunctionId {
        if let Some(&known) = self.of_code.get(&code) {
            return known;
        }
        let Some(info) = self.input.tables.codes.get(code) else {
            return self.marker(Partial::CodeGone);
        };
        let regions = &self.input.run.regions;
        let names = self.names;
        let key = Key::Python(info.name.clone(), info.file.clone(), info.first_line);
        let id = self.add(key, || {
            let is_region = info.region().is_some();
            // A block's name says nothing of the functions that rules are for.
            let ruled = if is_region { "" } else { &info.name };
            let mut rules = names.rules.python(&info.file, ruled);
            if let Some(region) = region_of(regions, &info.file, &info.name) {
                rules.class.mark = Some(PhaseMark::Strong(region));
            }
            let name = info.name.clone();
            let function = Function {
                first_line: info.first_line,
                is_python: true,
                is_region,
                ..named(name.clone(), name, &info.file, &rules)
            };
            (function, rules.class, rules.added)
        });
        self.of_code.insert(code, id);
        id
    }

    fn native(&mut self, module: ModuleId, address: u64) -> FunctionId {
        let input = self.input;
        let names = self.names;
        let info = input.tables.modules.get(module.index());
        let (kind, path) = info.map_or((ModuleKind::Anonymous, "[unknown]"), |info| {
            (info.kind, info.path.as_str())
        });
        let symbol = input.symbols.lookup(module, address);
        let place = (module, symbol.map_or(address, |symbol| symbol.start));
        if let Some(&known) = self.of_address.get(&place) {
            return known;
        }
        let made = match symbol {
            Some(symbol) => of_symbol(kind, path, &symbol.name, names),
            None => {
                let name = match kind {
                    // Code made at run time has as many addresses as kernels, and none is
                    // meaningful.
                    ModuleKind::Anonymous => "[anonymous code]".to_owned(),
                    _ => format!("{}+{address:#x}", file_name(path)),
                };
                let rules = names.rules.native(kind, path, None);
                let function = named(name.clone(), name, path, &rules);
                (function, rules.class, rules.added)
            }
        };
        let key = Key::Native(made.0.name.clone(), path.to_owned());
        let id = self.add(key, || made);
        self.of_address.insert(place, id);
        id
    }

    fn marker(&mut self, partial: Partial) -> FunctionId {
        self.add(Key::Marker(partial), || {
            (marker(partial.name(), false), FunctionClass::MARKER, false)
        })
    }

    /// Stands for the compilation of a function, and has its name and place.
    fn compiled(&mut self, code: usize) -> FunctionId {
        let Some(info) = self.input.tables.codes.get(code) else {
            return self.marker(Partial::CodeGone);
        };
        let names = self.names;
        let key = Key::Compiles(info.name.clone(), info.file.clone(), info.first_line);
        self.add(key, || {
            let mark = names.rules.python(&info.file, &info.name).compile;
            let subject = subject(mark, &info.name);
            let name = format!("compile {subject}");
            let function = Function {
                file: info.file.clone(),
                first_line: info.first_line,
                compile: CompileMark::Compiles(subject),
                ..marker(&name, false)
            };
            (function, FunctionClass::MARKER, false)
        })
    }

    /// The same function for all modules: the module is in the frame.
    fn nn_module(&mut self) -> FunctionId {
        self.add(Key::NnModule, || {
            (marker("nn.Module", true), FunctionClass::MARKER, false)
        })
    }
}

/// A native function with these rules.
fn named(name: String, short_name: String, file: &str, rules: &FunctionRules) -> Function {
    Function {
        name,
        short_name,
        file: file.to_owned(),
        kind: rules.class.kind,
        plumbing: rules.class.plumbing,
        operator: rules.operator.clone(),
        compile: rules.compile.clone(),
        wait: rules.wait,
        collective: rules.collective,
        input: rules.input,
        ..Function::default()
    }
}

fn marker(name: &str, plumbing: bool) -> Function {
    Function {
        name: name.to_owned(),
        short_name: name.to_owned(),
        plumbing,
        ..Function::default()
    }
}
