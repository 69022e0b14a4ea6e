//! `--confidential`: names of the user's own become hashes, in the profile and so in all that is
//! made of it.
//!
//! What stays is listed, what is not listed goes: names of functions of torch, installed packages,
//! Python's own library and the system's libraries; operators and nodes that these functions name;
//! torch's classes; torchspy's own words. Structures are taken apart without `..`: one that gets a
//! field does not compile here until somebody decides about it.
//!
//! Equal names become equal hashes and different names different ones, so that whatever is grouped
//! by name keeps its groups.

mod paths;
mod public;
#[cfg(test)]
mod tests;

use crate::model::category::FrameKind;
use crate::model::collective::CollectivePart;
use crate::model::compile::{CompileMark, GraphBreak, Subject};
use crate::model::facts::Facts;
use crate::model::nccl_ras::KeptRas;
use crate::model::nn_module::NnModuleInfo;
use crate::model::operator::OperatorMark;
use crate::model::parallel::{parse_dimensions, text_of};
use crate::model::process::{ProcessInfo, ThreadInfo};
use crate::model::profile::{Function, Profile, ProfileProcess};
use crate::model::progress::{Condition, CounterInfo, facts};
use crate::model::region::{Region, built_in};
use crate::model::run::{Loss, RunInfo};
use crate::model::sideband::Sideband;
use crate::model::text::file_name;
use crate::model::track::{CounterTracks, GpuClock, GpuInfo, TrackGap, TrackInfo};
use crate::model::wait::WaitPart;
use crate::torch::rules::{RuleSet, library_call};
use public::{is_own_note, is_program, is_rule_call, is_rule_collective};
use rustc_hash::{FxHashMap, FxHashSet};
use sha2::{Digest, Sha256};

/// Digits of a hash; a name whose digits another name has gets more.
const DIGITS: usize = 6;
/// What a report says where names are hashed.
const NOTE: &str = "names of the user's own are hashes (--confidential)";

/// Which names stay, and the hashes that were given out.
#[derive(Clone, Debug, Default)]
pub struct Confidential {
    key: String,
    /// Folders of the interpreters: `/opt/conda/envs/train`.
    environments: FxHashSet<String>,
    /// Names that functions of torch, packages and the system have or give.
    public: FxHashSet<String>,
    /// Classes of their methods.
    classes: FxHashSet<String>,
    /// Names of the user's functions, and what they became.
    hidden: FxHashMap<String, String>,
    /// The name of each hash that was given out.
    taken: FxHashMap<String, String>,
}

impl Confidential {
    /// Hashes are of the key and the name. With an empty key anyone can hash a name that they
    /// guess, and compare.
    pub fn new(key: &str) -> Self {
        Self {
            key: key.to_owned(),
            ..Self::default()
        }
    }

    /// Hides names in profiles that are reported on together.
    pub fn hide<'p>(&mut self, profiles: impl IntoIterator<Item = &'p mut Profile>) {
        let mut profiles: Vec<&mut Profile> = profiles.into_iter().collect();
        for profile in &profiles {
            self.learn(profile);
        }
        for profile in &mut profiles {
            self.profile(profile);
        }
    }

    /// The name of a file.
    pub fn file(&mut self, path: &str) -> String {
        self.path(path).0
    }

    fn learn(&mut self, profile: &Profile) {
        for process in &profile.processes {
            self.environments
                .extend(paths::environment(&process.info.exe));
        }
        for function in &profile.functions {
            if self.is_public(function) {
                self.learn_function(function);
            }
        }
        let calls = profile.facts.system_calls.values();
        self.public.extend(calls.map(|&name| name.to_owned()));
    }

    fn is_public(&mut self, function: &Function) -> bool {
        match function.is_python {
            true => self.python_path(&function.file).1,
            false if function.file.is_empty() => function.kind == FrameKind::Marker,
            false => self.native_path(&function.file).1,
        }
    }

    fn learn_function(&mut self, function: &Function) {
        let Function {
            name,
            short_name,
            file,
            is_python,
            operator,
            ..
        } = function;
        self.public.extend([name.clone(), short_name.clone()]);
        if let OperatorMark::Operator(mark)
        | OperatorMark::Node(mark)
        | OperatorMark::LibraryKernel(Some(mark)) = operator
        {
            self.public.insert(mark.clone());
            let call = RuleSet::built_in().operator_call(mark);
            self.public.insert(call.to_owned());
        }
        if *is_python {
            self.public.extend(library_call(file, name));
            let mut parts: Vec<&str> = name.split('.').collect();
            parts.pop();
            self.classes.extend(parts.into_iter().map(str::to_owned));
            if let Some(class) = name.strip_suffix(".backward") {
                let class = class.rsplit('.').next().unwrap_or(class);
                self.public.insert(format!("{class}Backward"));
            }
        } else {
            // As the label of a wait has it.
            let call = name.trim_start_matches('_');
            self.public.insert(call.to_owned());
            if let Some((_, method)) = name.split_once("torch::autograd::THPVariable_") {
                let method = method.split('(').next().unwrap_or(method);
                self.public.insert(format!(".{method}()"));
            }
        }
    }

    fn profile(&mut self, profile: &mut Profile) {
        let Profile {
            run,
            start_ns: _,
            end_ns: _,
            gaps: _,
            whole_ns: _,
            left_out_steps: _,
            step_changes: _,
            profiled: _,
            growing_until_ns: _,
            is_confidential,
            missing,
            processes,
            threads,
            thread_cpu_ns: _,
            functions,
            nn_modules,
            counters,
            stacks: _,
            facts,
            samples: _,
            sideband,
            added_rules: _,
        } = profile;
        *is_confidential = true;
        for function in functions {
            self.function(function);
        }
        self.facts(facts);
        for process in processes {
            let ProfileProcess {
                info,
                role: _,
                job,
                training_thread: _,
            } = process;
            // It has the name of a host, and tables do not.
            *job = None;
            self.process(info, &sideband.tracks.gpus);
        }
        for thread in threads {
            let ThreadInfo {
                process: _,
                tid: _,
                start_ticks: _,
                name,
                is_python: _,
                first_seen_ns: _,
                last_seen_ns: _,
            } = thread;
            *name = self.thread("thread", name);
        }
        for module in nn_modules {
            let NnModuleInfo {
                root,
                number: _,
                path,
                class,
                training: _,
            } = module;
            *root = self.class(root);
            *class = self.class(class);
            *path = self.module_path(path);
        }
        for counter in counters {
            self.counter(counter);
        }
        self.sideband(sideband);
        for sentence in missing {
            *sentence = self.sentence(sentence);
        }
        self.run(run);
    }

    fn function(&mut self, function: &mut Function) {
        let is_public = self.is_public(function);
        let Function {
            name,
            short_name,
            file,
            first_line: _,
            kind: _,
            plumbing: _,
            is_python,
            is_region: _,
            operator,
            compile,
            wait,
            collective,
            input: _,
        } = function;
        let old_file = std::mem::take(file);
        *file = match (*is_python, &compile) {
            (true, _) | (false, CompileMark::Compiles(_)) => self.python_path(&old_file).0,
            _ => self.native_path(&old_file).0,
        };
        if let WaitPart::Gpu(call) | WaitPart::GpuWhole(call) = wait
            && !is_rule_call(call)
        {
            // The label of a wait has it, which is hidden there.
            *call = "";
        }
        let CollectivePart {
            name: collective,
            backend: _,
            issuer: _,
            imports: _,
            watches: _,
        } = collective;
        *collective = collective.map(|name| self.collective(name));
        match compile {
            CompileMark::Compiles(subject) if !is_public => {
                match subject {
                    Subject::Function(name) => *name = self.qualified(name),
                    Subject::Rest(place) => self.graph_break(place),
                    Subject::Wrapper => {}
                }
                *name = format!("compile {subject}");
                short_name.clone_from(name);
                return;
            }
            CompileMark::Compiles(_) => return,
            CompileMark::Resumed(place) if !is_public => self.graph_break(place),
            _ => {}
        }
        if is_public {
            return;
        }
        for each in [&mut *name, short_name] {
            let new = match is_python {
                true => self.qualified(each),
                false => self.symbol(each),
            };
            self.hidden.insert(each.clone(), new.clone());
            *each = new;
        }
        if let OperatorMark::Operator(mark)
        | OperatorMark::Node(mark)
        | OperatorMark::LibraryKernel(Some(mark)) = operator
        {
            *mark = self.label(mark);
        }
    }

    fn graph_break(&mut self, place: &mut GraphBreak) {
        let GraphBreak { function, line: _ } = place;
        *function = self.qualified(function);
    }

    /// Names of collectives are static, as those of the rules.
    fn collective(&mut self, name: &'static str) -> &'static str {
        match is_rule_collective(name) {
            true => name,
            false => String::leak(self.hash("collective", name)),
        }
    }

    fn facts(&mut self, facts: &mut Facts) {
        let Facts {
            stacks: _,
            names,
            operator_chains: _,
            node_chains: _,
            module_chains: _,
            collectives,
            backends: _,
            system_calls: _,
        } = facts;
        names.replace(|name| self.label(name));
        for call in collectives.values_mut() {
            call.name = call.name.map(|name| self.collective(name));
        }
    }

    fn process(&mut self, info: &mut ProcessInfo, gpus: &[GpuInfo]) {
        let ProcessInfo {
            pid: _,
            start_ticks: _,
            parent_pid: _,
            exe,
            command,
            environment,
            python: _,
            torch: _,
            has_torch: _,
            has_cuda: _,
            note,
            first_seen_ns: _,
            last_seen_ns: _,
            cpu_ns: _,
            exited: _,
        } = info;
        *exe = self.program(exe);
        *command = self.command(command);
        for (name, value) in environment {
            *value = match name.ends_with("VISIBLE_DEVICES") {
                true => self.devices(value, gpus),
                false if name.contains("_ID") => self.hash("id", value),
                false => self.value(value),
            };
        }
        let notes: Vec<String> = note.split("; ").map(|note| self.note(note)).collect();
        *note = notes.join("; ");
    }

    /// Devices by number, or by the beginning of a UUID.
    fn devices(&mut self, value: &str, gpus: &[GpuInfo]) -> String {
        let words = value.split(',').map(|word| {
            let word = word.trim();
            let mut known = gpus.iter().filter(|gpu| gpu.uuid.starts_with(word));
            match known.next() {
                Some(gpu) if word.len() > "GPU-".len() => self.uuid(&gpu.uuid),
                _ => self.value(word),
            }
        });
        words.collect::<Vec<_>>().join(",")
    }

    fn uuid(&mut self, uuid: &str) -> String {
        let kind = uuid.split('-').next().unwrap_or_default();
        let hash = self.hash("", uuid);
        match kind {
            "GPU" | "MIG" => format!("{kind}-{hash}"),
            _ => hash,
        }
    }

    /// A value that says something of speed: a number, or one of few words.
    fn value(&mut self, value: &str) -> String {
        let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
        match is_number || public::VALUES.contains(&value) {
            true => value.to_owned(),
            false => self.hash("value", value),
        }
    }

    fn counter(&mut self, counter: &mut CounterInfo) {
        let CounterInfo {
            process: _,
            number: _,
            kind: _,
            class,
            file,
            line: _,
            facts: said,
        } = counter;
        *class = self.class(class);
        let (new, is_public) = self.python_path(file);
        *file = new;
        for (name, value) in said {
            *value = match name.as_str() {
                facts::FUNCTION if is_public => continue,
                facts::FUNCTION => self.qualified(value),
                facts::DATASET => self.class(value),
                _ => self.value(value),
            };
            *name = self.fact(name);
        }
    }

    fn fact(&mut self, name: &str) -> String {
        match public::FACTS.contains(&name) {
            true => name.to_owned(),
            false => self.hash("fact", name),
        }
    }

    /// The groups of a rank, with names of dimensions that are not usual ones replaced.
    fn mesh(&mut self, text: &str) -> String {
        let Some(mut dimensions) = parse_dimensions(text) else {
            return String::new();
        };
        for dimension in &mut dimensions {
            let name = dimension.name.as_str();
            if !public::DIMENSIONS.contains(&name) {
                dimension.name = self.hash("dimension", name);
            }
        }
        text_of(&dimensions)
    }

    fn sideband(&mut self, sideband: &mut Sideband) {
        let Sideband {
            points: _,
            conditions,
            tracks,
            quality: _,
            clocks: _,
            losses,
        } = sideband;
        for condition in conditions {
            let Condition {
                process: _,
                name,
                value,
            } = condition;
            if name == facts::DEVICE_MESH || name == facts::PARALLEL_GROUPS {
                *value = self.mesh(value);
            } else if name == facts::NCCL_RAS {
                let mut kept = KeptRas::parse(value).unwrap_or_default();
                kept.replace_hosts(|host| self.hash("host", host));
                *value = kept.text();
            } else if !public::VERSIONS.contains(&name.as_str()) {
                *value = self.value(value);
            }
            *name = self.fact(name);
        }
        for loss in losses {
            let Loss {
                time_ns: _,
                samples: _,
                reason,
            } = loss;
            *reason = self.sentence(reason);
        }
        let CounterTracks {
            gpus,
            clocks,
            tracks,
            points: _,
            gaps,
        } = tracks;
        for gpu in gpus {
            let GpuInfo {
                uuid,
                index: _,
                mig: _,
                name: _,
                driver: _,
                pci: _,
                memory_bytes: _,
                power_limit_mw: _,
                recorded: _,
            } = gpu;
            *uuid = self.uuid(uuid);
        }
        for clock in clocks {
            let GpuClock {
                gpu: _,
                monotonic_ns: _,
                driver_ns: _,
                error_ns: _,
                clock: _,
            } = clock;
        }
        for track in tracks.values_mut() {
            let TrackInfo {
                kind: _,
                gpu: _,
                pid: _,
                process,
            } = track;
            *process = self.program(process);
        }
        for gap in gaps {
            let TrackGap {
                gpu: _,
                kind: _,
                start_ns: _,
                end_ns: _,
                reason,
            } = gap;
            *reason = self.sentence(reason);
        }
    }

    /// The name of a job.
    pub fn job(&mut self, name: &str) -> String {
        self.hash("id", name)
    }

    /// Hides what the head of a recording says.
    pub fn run(&mut self, run: &mut RunInfo) {
        let RunInfo {
            torchspy: _,
            host,
            kernel: _,
            architecture: _,
            cpus: _,
            command,
            pid: _,
            launched: _,
            rate_hz: _,
            native: _,
            nonblocking: _,
            gil_only: _,
            threads,
            max_stopped: _,
            started_ns: _,
            started_wall_ns: _,
            notes,
            regions,
            session: _,
        } = run;
        *host = self.hash("host", host);
        *command = self.command(command);
        if let Some(pattern) = threads {
            *pattern = self.hash("pattern", pattern);
        }
        for note in &mut *notes {
            *note = self.note(note);
        }
        notes.push(NOTE.to_owned());
        for region in regions {
            let Region {
                name,
                file,
                function,
            } = region;
            if built_in(name).is_none() {
                *name = self.hash("region", name);
            }
            *file = self.file(file);
            *function = self.qualified(function);
        }
    }

    /// A program and its arguments. Of these the interpreter's one-letter options, torch's launcher
    /// and files of packages stay.
    fn command(&mut self, words: &[String]) -> Vec<String> {
        let mut hidden = Vec::with_capacity(words.len());
        for (at, word) in words.iter().enumerate() {
            let is_file = word.contains('/') || word.ends_with(".py");
            hidden.push(match word.as_bytes() {
                _ if at == 0 => self.program(word),
                [b'-', b'a'..=b'z' | b'A'..=b'Z'] => word.clone(),
                _ if public::LAUNCHERS.contains(&word.as_str()) => word.clone(),
                [first, ..] if *first != b'-' && is_file => self.argument_file(word),
                _ => self.hash("arg", word),
            });
        }
        hidden
    }

    fn argument_file(&mut self, word: &str) -> String {
        match is_program(file_name(word)) {
            true => self.program(word),
            // A script of a package; what else looks installed is data.
            false if word.ends_with(".py") && !word.contains("/../") => self.file(word),
            false => self.own(word),
        }
    }

    /// The name of a thread, or of a program or `kind` that has the name of one. The beginning that
    /// says what a thread is stays.
    pub(super) fn thread(&mut self, kind: &str, name: &str) -> String {
        if is_program(name) {
            return name.to_owned();
        }
        let starts = public::THREADS.iter().copied();
        let known = starts.filter(|start| name.starts_with(start));
        let Some(start) = known.max_by_key(|start| start.len()) else {
            return self.hash(kind, name);
        };
        let rest = name.get(start.len()..).unwrap_or_default();
        match rest.bytes().all(|byte| byte.is_ascii_digit()) {
            true => name.to_owned(),
            false => self.hash(start, rest),
        }
    }

    fn class(&mut self, name: &str) -> String {
        let is_known = self.classes.contains(name) || public::torch_classes().contains(name);
        match is_known || name.is_empty() {
            true => name.to_owned(),
            false => self.hash("class", name),
        }
    }

    /// `layer1.0.conv`: numbers in lists of modules stay.
    fn module_path(&mut self, path: &str) -> String {
        let parts =
            path.split('.').map(
                |part| match part.bytes().all(|byte| byte.is_ascii_digit()) {
                    true => part.to_owned(),
                    false => self.hash("m", part),
                },
            );
        parts.collect::<Vec<_>>().join(".")
    }

    /// A qualified name of a Python function: `class_3fa9c1.forward`.
    fn qualified(&mut self, name: &str) -> String {
        let parts: Vec<&str> = name.split('.').collect();
        let mut hidden = Vec::with_capacity(parts.len());
        for (at, part) in parts.iter().enumerate() {
            let is_function = matches!(parts.get(at + 1), None | Some(&"<locals>"));
            hidden.push(match is_function {
                _ if *part == "<locals>" => (*part).to_owned(),
                true => self.function_name(part),
                false => self.class(part),
            });
        }
        hidden.join(".")
    }

    /// The last part of a qualified name. That of the rest of a function after a graph break has
    /// the function's name in it.
    fn function_name(&mut self, name: &str) -> String {
        const RESUMED: &str = "torch_dynamo_resume_in_";
        if let Some(rest) = name.strip_prefix(RESUMED)
            && let Some((inner, line)) = rest.rsplit_once("_at_")
            && line.bytes().all(|byte| byte.is_ascii_digit())
        {
            return format!("{RESUMED}{}_at_{line}", self.function_name(inner));
        }
        match public::FUNCTIONS.contains(&name) {
            true => name.to_owned(),
            false => self.hash("f", name),
        }
    }

    /// A native function's name.
    fn symbol(&mut self, name: &str) -> String {
        if name.is_empty() || public::MARKERS.contains(&name) {
            return name.to_owned();
        }
        match name.rsplit_once("+0x") {
            Some((module, address)) => {
                let module = self.native_path(module).0;
                format!("{module}+0x{address}")
            }
            None => self.hash("f", name),
        }
    }

    /// The name of an operator, a node, a class, or what a wait is called.
    fn label(&mut self, text: &str) -> String {
        let is_known = public::LABELS.contains(&text) || is_rule_call(text);
        if is_known || self.public.contains(text) {
            return text.to_owned();
        }
        if let Some(hidden) = self.hidden.get(text) {
            return hidden.clone();
        }
        for start in ["lock in ", "OpenMP barrier in "] {
            if let Some(inside) = text.strip_prefix(start) {
                return format!("{start}{}", self.label(inside));
            }
        }
        if let Some((call, about)) = text
            .strip_suffix(')')
            .and_then(|text| text.split_once(" ("))
        {
            let about: Vec<String> = about.split(", ").map(|word| self.label(word)).collect();
            return format!("{} ({})", self.label(call), about.join(", "));
        }
        // A node is called after its operator or function, which `forward` relies on.
        let stem = text.trim_end_matches(|digit: char| digit.is_ascii_digit());
        if let Some(class) = stem.strip_suffix("Backward")
            && !class.is_empty()
        {
            let end = text.get(class.len()..).unwrap_or_default();
            return format!("{}{end}", self.class(class));
        }
        if text.contains("::") {
            let parts = text.split("::").map(|part| self.hash("op", part));
            return parts.collect::<Vec<_>>().join("::");
        }
        self.class(text)
    }

    /// A fact in a sentence of torchspy's.
    fn note(&mut self, note: &str) -> String {
        if note.is_empty() || is_own_note(note) {
            return note.to_owned();
        }
        match note.split_once(": ") {
            Some((path, rest)) if path.starts_with('/') && is_own_note(rest) => {
                format!("{}: {rest}", self.native_path(path).0)
            }
            _ => self.hash("note", note),
        }
    }

    /// A sentence of torchspy's or of the driver's: paths go.
    fn sentence(&mut self, text: &str) -> String {
        let words = text.split(' ').map(|word| match word.contains('/') {
            true => self.hash("path", word),
            false => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// `f_3fa9c1`.
    fn hash(&mut self, kind: &str, name: &str) -> String {
        if name.is_empty() {
            return String::new();
        }
        let digest = Sha256::new()
            .chain_update(&self.key)
            .chain_update([0])
            .chain_update(name)
            .finalize();
        let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut end = DIGITS;
        while let Some(digits) = digits.get(..end) {
            let known = self.taken.entry(digits.to_owned());
            if known.or_insert_with(|| name.to_owned()) == name {
                break;
            }
            end += 1;
        }
        let digits = digits.get(..end).unwrap_or(&digits);
        match kind {
            "" => digits.to_owned(),
            kind => format!("{}_{digits}", kind.trim_end_matches('_')),
        }
    }
}
