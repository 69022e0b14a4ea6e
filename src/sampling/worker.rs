//! From copies of memory to recorded samples: unwinding, code objects, merging, interning; and a segment every second.

use super::fallback::{FallbackLink, Finding, Order};
use super::image::{ProcessImage, Python, torch_version};
use super::keeper::KeeperEvent;
use super::merge::{Run, merge};
use super::raw::{DEEPER, FlushFacts, Message, NamedStack, RawSample, Stretch};
use super::symbol_loader::SymbolLoader;
use crate::model::code::CodeInfo;
use crate::model::frame::{Frame, Partial};
use crate::model::ids::{CodeId, ModuleId, ProcessId, StackId, ThreadId};
use crate::model::module::{ModuleInfo, SymbolInfo};
use crate::model::process::ProcessInfo;
use crate::model::sample::Sample;
use crate::model::segment::Segment;
use crate::native::modules::{Module, ModuleStore};
use crate::native::unwind::{NativeFrame, UnwindEnd};
use crate::os::clock::{clock_pair, monotonic_ns, process_cpu_ns};
use crate::os::host::CpuGroups;
use crate::python::discover::DiscoverError;
use crate::recording::compact::{SegmentFacts, SessionTables, segment_of};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Stacks that are kept before those that no thread needs are forgotten: about 20 MB.
const MAX_STACKS: usize = 200_000;
/// How long to wait for symbol tables at the end of a session.
const SYMBOL_PATIENCE: Duration = Duration::from_secs(10);

/// The worker's state.
pub(super) struct Worker {
    messages: Receiver<Message>,
    recycle: Sender<Box<RawSample>>,
    events: Sender<KeeperEvent>,
    segments: Sender<Segment>,
    fallback: FallbackLink,
    tables: SessionTables,
    images: FxHashMap<ProcessId, ProcessImage>,
    store: Arc<ModuleStore>,
    module_ids: FxHashMap<u32, ModuleId>,
    code_ids: FxHashMap<CodeInfo, CodeId>,
    symbols: SymbolLoader,
    last_stacks: FxHashMap<ThreadId, Option<StackId>>,
    samples: Vec<Sample>,
    changed: FxHashSet<ProcessId>,
    /// Native frames that were written before their module's symbols were loaded.
    unnamed: FxHashSet<(ModuleId, u64)>,
    next_segment: u64,
    /// The target's cgroups, and how long they had been throttled when they were last looked at.
    throttled: Option<(CpuGroups, u64)>,
    scratch: Scratch,
}

#[derive(Default)]
struct Scratch {
    native: Vec<NativeFrame>,
    recorded: Vec<(NativeFrame, Frame)>,
    python: Vec<Frame>,
    addresses: Vec<u64>,
    merged: Vec<Frame>,
}

impl Worker {
    pub(super) fn new(
        messages: Receiver<Message>,
        recycle: Sender<Box<RawSample>>,
        events: Sender<KeeperEvent>,
        segments: Sender<Segment>,
        fallback: FallbackLink,
    ) -> Self {
        Self {
            messages,
            recycle,
            events,
            segments,
            fallback,
            tables: SessionTables::default(),
            images: FxHashMap::default(),
            store: Arc::default(),
            module_ids: FxHashMap::default(),
            code_ids: FxHashMap::default(),
            symbols: SymbolLoader::start(),
            last_stacks: FxHashMap::default(),
            samples: Vec::new(),
            changed: FxHashSet::default(),
            unnamed: FxHashSet::default(),
            next_segment: 0,
            throttled: None,
            scratch: Scratch::default(),
        }
    }

    /// Works until the tracer has sent its last flush.
    pub(super) fn run(mut self) {
        loop {
            let starting = self.images.values().any(ProcessImage::is_starting);
            let patience = Duration::from_millis(if starting { 3 } else { 200 });
            match self.messages.recv_timeout(patience) {
                Ok(Message::Flush(facts)) => {
                    let last = facts.last;
                    self.flush(*facts);
                    if last {
                        return;
                    }
                }
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.discover_interpreters();
            while let Ok(finding) = self.fallback.findings.try_recv() {
                self.take_finding(finding);
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Process(id, info) => self.take_process(id, *info),
            Message::Image(id, interpreter) => {
                if interpreter.is_none() {
                    self.new_image(id);
                }
            }
            Message::Thread(id, info) => {
                if id.index() == self.tables.threads.len() {
                    self.tables.threads.push(*info);
                } else if let Some(known) = self.tables.threads.get_mut(id.index()) {
                    known.name = info.name;
                }
            }
            Message::Sample(sample) => {
                self.take_sample(&sample);
                // The tracer may have ended.
                let _ = self.recycle.try_send(sample);
            }
            Message::Named(stretch, stack) => self.take_named(stretch, &stack),
            Message::Span(stretch, why) => {
                let stack = match why {
                    Some(why) => self.tables.stacks.intern([Frame::Truncated(why)]),
                    None => self.last_stacks.get(&stretch.thread).copied().flatten(),
                };
                self.push(stretch, stack);
            }
            Message::ThreadGone(id) => {
                self.last_stacks.remove(&id);
            }
            Message::ProcessGone(id) => {
                self.images.remove(&id);
                let _ = self.fallback.orders.send(Order::Forget(id));
                if let Some(process) = self.tables.processes.get_mut(id.index()) {
                    process.exited = true;
                    process.last_seen_ns = monotonic_ns();
                    self.changed.insert(id);
                }
            }
            Message::Flush(_) => {}
        }
    }

    fn take_process(&mut self, id: ProcessId, info: ProcessInfo) {
        self.changed.insert(id);
        if id.index() == self.tables.processes.len() {
            self.tables.processes.push(info);
            if self.throttled.is_none() {
                // What it was before is not ours to report.
                self.throttled_ns();
            }
            self.new_image(id);
        } else if let Some(known) = self.tables.processes.get_mut(id.index()) {
            let facts = ProcessInfo {
                python: std::mem::take(&mut known.python),
                torch: std::mem::take(&mut known.torch),
                has_torch: known.has_torch,
                has_cuda: known.has_cuda,
                note: std::mem::take(&mut known.note),
                first_seen_ns: known.first_seen_ns,
                ..info
            };
            *known = facts;
        }
    }

    fn new_image(&mut self, id: ProcessId) {
        if let Some(process) = self.tables.processes.get(id.index()) {
            let image = ProcessImage::new(process.pid, self.store.clone());
            self.images.insert(id, image);
            // Nobody listens once the session ends.
            let _ = self.fallback.orders.send(Order::Forget(id));
        }
    }

    fn discover_interpreters(&mut self) {
        let now_ns = monotonic_ns();
        let due: Vec<ProcessId> = self
            .images
            .iter()
            .filter(|(_, image)| image.discovery_due(now_ns))
            .map(|(&id, _)| id)
            .collect();
        for id in due {
            let Some(image) = self.images.get_mut(&id) else {
                continue;
            };
            if image.discover(now_ns) {
                self.tell_interpreter(id);
            }
            self.note_libraries(id);
        }
    }

    /// Tells the tracer, and the recording, what became of the search.
    fn tell_interpreter(&mut self, id: ProcessId) {
        let (Some(image), Some(process)) = (
            self.images.get(&id),
            self.tables.processes.get_mut(id.index()),
        ) else {
            return;
        };
        self.changed.insert(id);
        let pid = process.pid;
        match &image.python {
            Python::Found(interpreter) => {
                process.python.clone_from(&interpreter.version_text);
                process.note.clear();
                let interpreter = Some(interpreter.clone());
                let _ = self.events.send(KeeperEvent::Image {
                    pid,
                    interpreter,
                    exec: false,
                });
            }
            Python::None(DiscoverError::OlderVersion(version)) => {
                process.python.clone_from(version);
                let order = Order::Watch { process: id, pid };
                let _ = self.fallback.orders.send(order);
            }
            Python::None(error) => process.note = error.to_string(),
            Python::Pending => {}
        }
    }

    /// What the fallback came to at a process.
    fn take_finding(&mut self, finding: Finding) {
        let Some(process) = self.tables.processes.get_mut(finding.process.index()) else {
            return;
        };
        self.changed.insert(finding.process);
        match finding.result {
            Ok(version) => {
                process.python = version;
                process.note =
                    "older than 3.10: Python frames only, read without a stop".to_owned();
            }
            Err(why) => {
                process.note = format!(
                    "Python {} is older than 3.10, and cannot be read: native frames only ({why})",
                    process.python
                );
            }
        }
    }

    fn note_libraries(&mut self, id: ProcessId) {
        let (Some(image), Some(process)) = (
            self.images.get(&id),
            self.tables.processes.get_mut(id.index()),
        ) else {
            return;
        };
        let named = |name: &'static str| {
            move |module: &Module| {
                module
                    .info
                    .path
                    .rsplit('/')
                    .next()
                    .is_some_and(|file| file.starts_with(name))
            }
        };
        if process.torch.is_empty()
            && let Some(path) = image.module_path(named("libtorch_cpu.so"))
        {
            process.has_torch = true;
            process.torch = torch_version(process.pid, &path).unwrap_or_default();
            self.changed.insert(id);
        }
        if !process.has_cuda && image.module_path(named("libcuda.so")).is_some() {
            process.has_cuda = true;
            self.changed.insert(id);
        }
    }

    fn take_sample(&mut self, raw: &RawSample) {
        if let Some(why) = raw.failure {
            let stack = self.tables.stacks.intern([Frame::Truncated(why)]);
            self.push(raw.stretch, stack);
            return;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let (native_end, refreshed) = self.unwind(raw, &mut scratch);
        if refreshed {
            self.note_libraries(raw.process);
        }
        let native_partial = match native_end {
            Some(UnwindEnd::Partial(why)) => Some(why),
            Some(UnwindEnd::Root) | None => None,
        };
        let lacked_register = self
            .images
            .get(&raw.process)
            .is_some_and(|image| image.unwinder.lacked_register());
        teach(raw, &scratch.native, native_end, lacked_register);
        let lost_code = self.name_python(raw, &mut scratch);
        let python_partial = raw
            .python_partial
            .or(lost_code.then_some(Partial::CodeGone));
        let mut runs = Vec::with_capacity(raw.python.runs.len());
        for run in &raw.python.runs {
            let frames = scratch.python.get(run.range()).unwrap_or(&[]);
            runs.push(Run {
                stack_address: run.stack_address,
                frames,
            });
        }
        merge(
            &scratch.recorded,
            native_partial,
            &runs,
            python_partial,
            &mut scratch.merged,
        );
        let stack = self.tables.stacks.intern(
            scratch
                .merged
                .iter()
                .copied()
                .filter(|frame| *frame != SHIM),
        );
        self.scratch = scratch;
        if !raw.python.frames.is_empty()
            && let Some(thread) = self.tables.threads.get_mut(raw.stretch.thread.index())
        {
            thread.is_python = true;
        }
        self.last_stacks.insert(raw.stretch.thread, stack);
        self.push(raw.stretch, stack);
    }

    /// Native frames of a sample into the scratch; `None` where none were to be read. Also whether modules changed.
    fn unwind(&mut self, raw: &RawSample, scratch: &mut Scratch) -> (Option<UnwindEnd>, bool) {
        scratch.native.clear();
        scratch.recorded.clear();
        let (Some(registers), Some(image)) = (&raw.registers, self.images.get_mut(&raw.process))
        else {
            return (None, false);
        };
        let mut end = image.unwinder.unwind(
            &image.modules,
            registers,
            &raw.snapshot,
            &mut scratch.native,
        );
        let mut changed = false;
        if image.unwinder.left_known_code() {
            // Code that was mapped since: look again, if that has not just been done in vain.
            changed = image.refresh(monotonic_ns());
            if changed {
                image.modules_changed();
                end = image.unwinder.unwind(
                    &image.modules,
                    registers,
                    &raw.snapshot,
                    &mut scratch.native,
                );
            }
        }
        for frame in &scratch.native {
            let known = frame.module.and_then(|index| image.modules.module(index));
            let (id, bias) = match known {
                Some((module, bias)) => (
                    module_id(
                        &mut self.module_ids,
                        &mut self.tables,
                        &mut self.symbols,
                        module,
                    ),
                    bias,
                ),
                None => (unknown_module(&mut self.module_ids, &mut self.tables), 0),
            };
            let address = frame
                .address
                .with_raw(frame.address.raw().wrapping_sub(bias));
            scratch.recorded.push((
                *frame,
                Frame::Native {
                    module: id,
                    address,
                    trust: frame.trust,
                },
            ));
        }
        (Some(end), changed)
    }

    /// Python frames of a sample into the scratch, leaf first. Tells whether any code object was gone.
    fn name_python(&mut self, raw: &RawSample, scratch: &mut Scratch) -> bool {
        scratch.python.clear();
        if raw.python.frames.is_empty() {
            return false;
        }
        let Some(image) = self.images.get_mut(&raw.process) else {
            return true;
        };
        let Some(codes) = image.codes.as_mut() else {
            return true;
        };
        scratch.addresses.clear();
        scratch
            .addresses
            .extend(raw.python.frames.iter().map(|frame| frame.code_address));
        let (tables, code_ids) = (&mut self.tables, &mut self.code_ids);
        codes.resolve(&scratch.addresses, &image.memory, |info| {
            code_id(code_ids, tables, info)
        });
        let mut lost = false;
        for frame in &raw.python.frames {
            scratch.python.push(match codes.get(frame.code_address) {
                Ok(code) if code.is_shim => SHIM,
                Ok(code) => Frame::Python {
                    code: code.id,
                    instruction: frame.instruction,
                    line: code.line(frame.instruction),
                },
                Err(_) => {
                    lost = true;
                    SHIM
                }
            });
        }
        lost
    }

    fn take_named(&mut self, stretch: Stretch, stack: &NamedStack) {
        let mut frames = Vec::with_capacity(stack.frames.len());
        for (name, file, line) in stack.frames.iter().rev() {
            let info = CodeInfo {
                name: name.clone(),
                file: file.clone(),
                first_line: 0,
                version: stack.version,
                content_hash: 0,
            };
            let code = code_id(&mut self.code_ids, &mut self.tables, &info);
            frames.push(Frame::Python {
                code,
                instruction: Frame::NO_INSTRUCTION,
                line: *line,
            });
        }
        if let Some(thread) = self.tables.threads.get_mut(stretch.thread.index()) {
            thread.is_python = true;
        }
        let stack = self.tables.stacks.intern(frames);
        self.push(stretch, stack);
    }

    fn push(&mut self, stretch: Stretch, stack: Option<StackId>) {
        if let Some(thread) = self.tables.threads.get_mut(stretch.thread.index()) {
            thread.last_seen_ns = thread
                .last_seen_ns
                .max(stretch.start_ns + stretch.weight_ns);
        }
        self.samples.push(Sample {
            thread: stretch.thread,
            stack,
            start_ns: stretch.start_ns,
            weight_ns: stretch.weight_ns,
            ticks: stretch.ticks,
            capture: stretch.capture,
            state: stretch.state,
            syscall: stretch.syscall,
            gil: stretch.gil,
            gil_holder: stretch.gil_holder,
            run_ns: stretch.run_ns,
            queue_ns: stretch.queue_ns,
        });
    }

    fn flush(&mut self, mut facts: FlushFacts) {
        self.update_processes();
        facts.quality.throttled_ns = self.throttled_ns();
        if facts.last {
            self.symbols.wait(SYMBOL_PATIENCE);
        }
        let segment_facts = SegmentFacts {
            index: self.next_segment,
            start_ns: facts.start_ns,
            end_ns: facts.end_ns,
            changed_processes: self.changed.drain().collect(),
            quality: facts.quality,
            clocks: vec![clock_pair()],
            losses: facts.losses,
            last: facts.last,
        };
        self.next_segment += 1;
        let symbols = &self.symbols;
        let mut segment = segment_of(&self.tables, &self.samples, segment_facts, |id, address| {
            symbols.lookup(id, address)
        });
        self.remember_unnamed(&segment);
        self.name_late(&mut segment);
        self.samples.clear();
        // The writer is behind only if the disk stands still; the tracer's queue then fills, and says so.
        let _ = self.segments.send(segment);
        if self.tables.stacks.stacks().len() > MAX_STACKS {
            self.tables
                .forget_stacks_except(self.last_stacks.values_mut());
        }
    }

    /// For how long the cgroup of the first process was throttled since the last call.
    fn throttled_ns(&mut self) -> u64 {
        let Some(root) = self.tables.processes.first() else {
            return 0;
        };
        let (groups, before) = self.throttled.get_or_insert_with(|| {
            let groups = CpuGroups::of(root.pid);
            let so_far = groups.throttled_ns().unwrap_or(0);
            (groups, so_far)
        });
        let now = groups.throttled_ns().unwrap_or(*before);
        now.saturating_sub(std::mem::replace(before, now))
    }

    fn update_processes(&mut self) {
        let now_ns = monotonic_ns();
        for (&id, image) in &mut self.images {
            let Some(process) = self.tables.processes.get_mut(id.index()) else {
                continue;
            };
            if let Some(environment) = image.changed_environment() {
                process.environment = environment;
            }
            process.last_seen_ns = now_ns;
            if let Some(cpu_ns) = process_cpu_ns(process.pid) {
                process.cpu_ns = cpu_ns;
            }
            self.changed.insert(id);
        }
    }

    /// Native frames of `segment` whose module's symbols are still being loaded: a later segment brings their names.
    fn remember_unnamed(&mut self, segment: &Segment) {
        let ids: Vec<Option<ModuleId>> = segment
            .modules
            .iter()
            .map(|info| {
                self.tables
                    .modules
                    .iter()
                    .position(|known| known == info)
                    .map(ModuleId::from_index)
            })
            .collect();
        for frame in &segment.frames {
            if let Frame::Native {
                module, address, ..
            } = frame
                && let Some(Some(id)) = ids.get(module.index())
                && self.symbols.is_awaited(*id)
            {
                self.unnamed.insert((*id, address.lookup()));
            }
        }
    }

    /// Adds to `segment` the names that earlier ones lacked.
    fn name_late(&mut self, segment: &mut Segment) {
        let ready: Vec<(ModuleId, u64)> = self
            .unnamed
            .iter()
            .copied()
            .filter(|(id, _)| !self.symbols.is_awaited(*id))
            .collect();
        for (id, address) in ready {
            self.unnamed.remove(&(id, address));
            let Some((start, end, name)) = self.symbols.lookup(id, address) else {
                continue;
            };
            let Some(info) = self.tables.modules.get(id.index()) else {
                continue;
            };
            let local = match segment.modules.iter().position(|known| known == info) {
                Some(position) => position,
                None => {
                    segment.modules.push(info.clone());
                    segment.modules.len() - 1
                }
            };
            let symbol = SymbolInfo {
                module: ModuleId::from_index(local),
                start,
                end,
                name,
            };
            if !segment.symbols.contains(&symbol) {
                segment.symbols.push(symbol);
            }
        }
    }
}

/// Stands for a frame that is not shown, so that runs keep their places; left out when the stack is interned.
const SHIM: Frame = Frame::Python {
    code: CodeId(u32::MAX),
    instruction: 0,
    line: 0,
};

/// Tells the tracer where the stack's root is, and whether the sleeper's registers were missed.
fn teach(raw: &RawSample, native: &[NativeFrame], end: Option<UnwindEnd>, lacked_register: bool) {
    if end.is_some() && lacked_register {
        raw.shared
            .registers_wanted
            .store(raw.slices, Ordering::Relaxed);
    }
    match end {
        Some(UnwindEnd::Root) => {
            if let Some(root) = native.last() {
                // The root's own frame, and the little that its unwind row may read above it.
                let needed = root.stack_pointer.saturating_add(256);
                let known = raw.shared.root_stack_pointer.load(Ordering::Relaxed);
                if known == DEEPER || known < needed {
                    raw.shared
                        .root_stack_pointer
                        .store(needed, Ordering::Relaxed);
                }
            }
        }
        Some(UnwindEnd::Partial(Partial::StackUnreadable)) => {
            // More stack than was copied: the next read takes all that it may. A sleeper is read again for it, once.
            let known = raw
                .shared
                .root_stack_pointer
                .swap(DEEPER, Ordering::Relaxed);
            if known != DEEPER {
                raw.shared.stack_wanted.store(raw.slices, Ordering::Relaxed);
            }
        }
        _ => {}
    }
}

fn module_id(
    ids: &mut FxHashMap<u32, ModuleId>,
    tables: &mut SessionTables,
    symbols: &mut SymbolLoader,
    module: &Arc<Module>,
) -> ModuleId {
    if let Some(&id) = ids.get(&module.id()) {
        return id;
    }
    // Two processes may hold the same file in two forms (one that could be opened, one that could not).
    let id = match tables
        .modules
        .iter()
        .position(|known| *known == module.info)
    {
        Some(position) => ModuleId::from_index(position),
        None => {
            tables.modules.push(module.info.clone());
            ModuleId::from_index(tables.modules.len() - 1)
        }
    };
    ids.insert(module.id(), id);
    symbols.request(id, module);
    id
}

/// The module of code that lies in no executable memory that is known.
fn unknown_module(ids: &mut FxHashMap<u32, ModuleId>, tables: &mut SessionTables) -> ModuleId {
    *ids.entry(u32::MAX).or_insert_with(|| {
        tables.modules.push(ModuleInfo {
            kind: crate::model::module::ModuleKind::Anonymous,
            path: "[unknown]".to_owned(),
            build_id: Vec::new(),
        });
        ModuleId::from_index(tables.modules.len() - 1)
    })
}

fn code_id(
    ids: &mut FxHashMap<CodeInfo, CodeId>,
    tables: &mut SessionTables,
    info: &CodeInfo,
) -> CodeId {
    if let Some(&id) = ids.get(info) {
        return id;
    }
    let id = CodeId::from_index(tables.codes.len());
    tables.codes.push(info.clone());
    ids.insert(info.clone(), id);
    id
}
