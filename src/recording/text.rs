//! The `inspect` form: what a recording holds, as text. The same recording gives the same text, on
//! any machine.

mod progress;
mod tracks;

use super::reader::Recording;
use crate::model::address::CodeAddress;
use crate::model::frame::{Frame, Trust};
use crate::model::ids::{ModuleId, ProcessId, StackId, ThreadId};
use crate::model::process::ThreadInfo;
use crate::model::sample::{Gil, Sample};
use crate::model::seconds;
use crate::model::text::{file_name, printable};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// What is printed besides the header, processes, threads and modules.
pub struct InspectOptions<'a> {
    /// Each thread's stacks, with their samples summed up.
    pub stacks: bool,
    /// Each sample, one a line, and each reading of a counter.
    pub samples: bool,
    /// The readable form of a symbol's name; `None` leaves it mangled.
    pub demangle: Option<&'a dyn Fn(&str) -> String>,
}

impl Default for InspectOptions<'_> {
    fn default() -> Self {
        Self {
            stacks: true,
            samples: false,
            demangle: None,
        }
    }
}

impl fmt::Debug for InspectOptions<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("InspectOptions")
            .field("stacks", &self.stacks)
            .field("samples", &self.samples)
            .field("demangle", &self.demangle.is_some())
            .finish()
    }
}

/// `recording` as text. Times are seconds since its start.
pub fn render_text(recording: &Recording, options: &InspectOptions<'_>) -> String {
    let mut text = Text {
        out: String::new(),
        recording,
        options,
    };
    // Writing to a String does not fail.
    let _ = text.render();
    text.out
}

struct Text<'a> {
    out: String,
    recording: &'a Recording,
    options: &'a InspectOptions<'a>,
}

impl Text<'_> {
    fn render(&mut self) -> fmt::Result {
        self.header()?;
        self.missing()?;
        self.quality()?;
        self.processes()?;
        self.modules()?;
        self.nn_modules()?;
        self.progress()?;
        self.tracks()?;
        self.threads()
    }

    fn since_start(&self, time_ns: u64) -> f64 {
        (i128::from(time_ns) - i128::from(self.recording.start_ns)) as f64 / 1e9
    }

    fn header(&mut self) -> fmt::Result {
        let run = &self.recording.run;
        writeln!(
            self.out,
            "recording by torchspy {} on {} ({} {}, {} CPUs)",
            printable(&run.torchspy),
            printable(&run.host),
            printable(&run.kernel),
            printable(&run.architecture),
            run.cpus
        )?;
        let how = if run.launched {
            "launched"
        } else {
            "attached to"
        };
        writeln!(self.out, "{how} pid {}: {}", run.pid, words(&run.command))?;
        write!(self.out, "rate {} Hz", run.rate_hz)?;
        for (is_set, what) in [
            (run.native, "native"),
            (run.nonblocking, "nonblocking"),
            (run.gil_only, "GIL holders only"),
        ] {
            if is_set {
                write!(self.out, ", {what}")?;
            }
        }
        if let Some(threads) = &run.threads {
            write!(self.out, ", threads {}", printable(threads))?;
        }
        writeln!(self.out, ", stops at most {} %", run.max_stopped * 100.0)?;
        writeln!(
            self.out,
            "from {:.6} s (monotonic; {:.3} s since 1970), for {:.6} s",
            seconds::of(self.recording.start_ns),
            seconds::of(run.started_wall_ns),
            self.since_start(self.recording.end_ns)
        )?;
        for note in &run.notes {
            writeln!(self.out, "note: {}", printable(note))?;
        }
        for region in &run.regions {
            writeln!(self.out, "region: {}", printable(&region.to_string()))?;
        }
        Ok(())
    }

    fn missing(&mut self) -> fmt::Result {
        for sentence in &self.recording.missing {
            writeln!(self.out, "missing: {}", printable(sentence))?;
        }
        for loss in &self.recording.sideband.losses {
            writeln!(
                self.out,
                "lost at {:.3} s: {} samples: {}",
                self.since_start(loss.time_ns),
                loss.samples,
                printable(&loss.reason)
            )?;
        }
        Ok(())
    }

    fn quality(&mut self) -> fmt::Result {
        let quality = &self.recording.sideband.quality;
        writeln!(
            self.out,
            "{} samples in {} ticks ({} late, {} missed), {} stops of {:.1} us at most",
            self.recording.samples.len(),
            quality.ticks,
            quality.late_ticks,
            quality.missed_ticks,
            quality.stops.count(),
            quality.stops.max_ns() as f64 / 1e3
        )?;
        writeln!(
            self.out,
            "{} stop timeouts, {} torn reads, {} passed over for the budget, {} clock pairs",
            quality.stop_timeouts,
            quality.torn_retries,
            quality.skipped_for_budget,
            self.recording.sideband.clocks.len()
        )?;
        if quality.calls_cut_short + quality.calls_left_running == 0 {
            return Ok(());
        }
        writeln!(
            self.out,
            "{} calls cut short, {} threads left running for theirs",
            quality.calls_cut_short, quality.calls_left_running
        )
    }

    fn processes(&mut self) -> fmt::Result {
        writeln!(self.out, "\nprocesses")?;
        for (index, process) in self.recording.tables.processes.iter().enumerate() {
            writeln!(
                self.out,
                "  P{index} pid {} of {}: {} [{}] seen {:.3} to {:.3} s, CPU {:.3} s{}",
                process.pid,
                process.parent_pid,
                words(&process.command),
                printable(&process.exe),
                self.since_start(process.first_seen_ns),
                self.since_start(process.last_seen_ns),
                seconds::of(process.cpu_ns),
                if process.exited { ", ended" } else { "" }
            )?;
            let facts = [
                ("python", process.python.as_str()),
                ("torch", process.torch.as_str()),
                ("has", if process.has_torch { "torch" } else { "" }),
                ("has", if process.has_cuda { "cuda" } else { "" }),
                ("note", process.note.as_str()),
            ];
            for (name, fact) in facts {
                if !fact.is_empty() {
                    writeln!(self.out, "     {name} {}", printable(fact))?;
                }
            }
            for (name, value) in &process.environment {
                writeln!(self.out, "     {}={}", printable(name), printable(value))?;
            }
        }
        Ok(())
    }

    fn modules(&mut self) -> fmt::Result {
        writeln!(self.out, "\nmodules")?;
        for (index, module) in self.recording.tables.modules.iter().enumerate() {
            write!(
                self.out,
                "  M{index} {:?} {}",
                module.kind,
                printable(&module.path)
            )?;
            if !module.build_id.is_empty() {
                write!(self.out, " build-id ")?;
                for byte in &module.build_id {
                    write!(self.out, "{byte:02x}")?;
                }
            }
            writeln!(self.out)?;
        }
        Ok(())
    }

    /// Nothing where none was seen.
    fn nn_modules(&mut self) -> fmt::Result {
        if !self.recording.tables.nn_modules.is_empty() {
            writeln!(self.out, "\nnn.Modules")?;
        }
        for (index, module) in self.recording.tables.nn_modules.iter().enumerate() {
            let mode = match module.training {
                Some(true) => "train",
                Some(false) => "eval",
                None => "training not read",
            };
            writeln!(
                self.out,
                "  N{index} {} #{} \"{}\" {}, {mode}",
                printable(&module.root),
                module.number,
                printable(&module.path),
                printable(&module.class)
            )?;
        }
        Ok(())
    }

    fn threads(&mut self) -> fmt::Result {
        let recording = self.recording;
        let mut order: Vec<_> = recording.tables.threads.iter().collect();
        order.sort_by_key(|&(id, thread)| (thread.process, *id));
        for (&id, thread) in order {
            self.thread(id, thread)?;
        }
        Ok(())
    }

    fn thread(&mut self, id: ThreadId, thread: &ThreadInfo) -> fmt::Result {
        let ProcessId(process) = thread.process;
        // Samples are sorted by thread.
        let all = &self.recording.samples;
        let from = all.partition_point(|sample| sample.thread < id);
        let samples = all[from..].partition_point(|sample| sample.thread == id);
        let samples = &all[from..from + samples];
        writeln!(
            self.out,
            "\nthread T{} of P{process}: tid {} \"{}\"{}, seen {:.3} to {:.3} s, {} samples",
            id.0,
            thread.tid,
            printable(&thread.name),
            if thread.is_python { ", python" } else { "" },
            self.since_start(thread.first_seen_ns),
            self.since_start(thread.last_seen_ns),
            samples.len()
        )?;
        if self.options.stacks {
            self.stacks(samples)?;
        }
        if self.options.samples {
            for sample in samples {
                self.sample(sample)?;
            }
        }
        Ok(())
    }

    /// The thread's stacks, those of the longest time first.
    fn stacks(&mut self, samples: &[Sample]) -> fmt::Result {
        let mut by_stack: BTreeMap<Option<StackId>, Vec<&Sample>> = BTreeMap::new();
        for sample in samples {
            by_stack.entry(sample.stack).or_default().push(sample);
        }
        let weight = |of: &[&Sample]| of.iter().map(|sample| sample.weight_ns).sum::<u64>();
        let mut stacks: Vec<_> = by_stack.into_iter().collect();
        stacks.sort_by_key(|(stack, of)| (std::cmp::Reverse(weight(of)), *stack));
        for (stack, of) in stacks {
            let ticks: u64 = of.iter().map(|sample| u64::from(sample.ticks)).sum();
            let mut kinds: BTreeMap<(&str, &str), u64> = BTreeMap::new();
            for sample in &of {
                *kinds
                    .entry((sample.state.name(), sample.capture.name()))
                    .or_default() += 1;
            }
            write!(
                self.out,
                "  {} {:.6} s, {} samples, {ticks} ticks:",
                stack_name(stack),
                seconds::of(weight(&of)),
                of.len()
            )?;
            for ((state, capture), count) in kinds {
                write!(self.out, " {count} {state}/{capture}")?;
            }
            writeln!(self.out)?;
            self.frames(stack)?;
        }
        Ok(())
    }

    /// One frame a line, root first.
    fn frames(&mut self, stack: Option<StackId>) -> fmt::Result {
        for frame in self.recording.tables.stacks.root_to_leaf(stack) {
            match *self.recording.tables.stacks.frame(frame) {
                Frame::Python {
                    code,
                    instruction,
                    line,
                } => {
                    let code = &self.recording.tables.codes[code.index()];
                    write!(
                        self.out,
                        "    py {} ({}:{line})",
                        printable(&code.name),
                        printable(&code.file)
                    )?;
                    match instruction {
                        Frame::NO_INSTRUCTION => writeln!(self.out, " not started")?,
                        started => writeln!(self.out, " +{started}")?,
                    }
                }
                Frame::Native {
                    module,
                    address,
                    trust,
                } => self.native_frame(module, address, trust)?,
                Frame::Truncated(reason) => writeln!(self.out, "    ?? {}", reason.name())?,
                Frame::NnModule(id) => {
                    let module = &self.recording.tables.nn_modules[id.index()];
                    writeln!(self.out, "    nn N{} {}", id.0, printable(&module.label()))?;
                }
                Frame::Compiles(code) => {
                    let code = &self.recording.tables.codes[code.index()];
                    let (name, file) = (printable(&code.name), printable(&code.file));
                    writeln!(self.out, "    compiles {name} ({file}:{})", code.first_line)?;
                }
            }
        }
        Ok(())
    }

    fn native_frame(
        &mut self,
        module: ModuleId,
        address: CodeAddress,
        trust: Trust,
    ) -> fmt::Result {
        let info = &self.recording.tables.modules[module.index()];
        let guess = match trust {
            Trust::Unwound => "",
            Trust::FramePointer => " (guess: frame pointer)",
            Trust::Scanned => " (guess: scanned)",
        };
        let role = match address {
            CodeAddress::Ip(_) => "ip",
            CodeAddress::Return(_) => "return",
        };
        let file = printable(file_name(&info.path));
        match self.recording.symbols.lookup(module, address.lookup()) {
            Some(symbol) => {
                let name = match self.options.demangle {
                    Some(demangle) => Cow::Owned(demangle(&symbol.name)),
                    None => Cow::Borrowed(symbol.name.as_str()),
                };
                let offset = address.raw().saturating_sub(symbol.start);
                writeln!(
                    self.out,
                    "    na {}+{offset:#x} ({file} {role} {:#x}){guess}",
                    printable(&name),
                    address.raw()
                )
            }
            None => writeln!(self.out, "    na {file} {role} {:#x}{guess}", address.raw()),
        }
    }

    fn sample(&mut self, sample: &Sample) -> fmt::Result {
        write!(
            self.out,
            "  at {:.6} s for {:.6} s, {} ticks, {}, {}/{}",
            self.since_start(sample.start_ns),
            seconds::of(sample.weight_ns),
            sample.ticks,
            stack_name(sample.stack),
            sample.state.name(),
            sample.capture.name()
        )?;
        if let Some(syscall) = sample.syscall {
            write!(self.out, ", syscall {syscall}")?;
        }
        match sample.gil {
            Gil::Held => write!(self.out, ", GIL held")?,
            Gil::NotHeld => write!(self.out, ", GIL not held")?,
            Gil::Unknown => {}
        }
        if let Some(ThreadId(holder)) = sample.gil_holder {
            write!(self.out, " (by T{holder})")?;
        }
        writeln!(
            self.out,
            ", ran {:.6} s, queued {:.6} s",
            seconds::of(sample.run_ns),
            seconds::of(sample.queue_ns)
        )
    }
}

fn words(command: &[String]) -> String {
    let words: Vec<_> = command.iter().map(|word| printable(word)).collect();
    words.join(" ")
}

fn stack_name(stack: Option<StackId>) -> String {
    stack.map_or("no stack".to_owned(), |StackId(stack)| format!("S{stack}"))
}
