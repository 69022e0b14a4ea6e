//! What the worker knows about each process: programs, interpreter, libraries.

use super::Worker;
use crate::model::ids::ProcessId;
use crate::model::process::ProcessInfo;
use crate::model::progress::facts;
use crate::native::modules::Module;
use crate::os::clock::{monotonic_ns, process_cpu_ns};
use crate::os::host::{CpuGroups, affinity_cpus};
use crate::python::discover::DiscoverError;
use crate::sampling::allocator_readings::AllocatorReadings;
use crate::sampling::fallback::{Finding, Order};
use crate::sampling::held_reader::Watch;
use crate::sampling::image::{ProcessImage, Python, torch_versions};
use crate::sampling::keeper::{KeeperEvent, has_same_image};
use crate::sampling::raw::RawSample;
use crate::torch::probe::allocator;

impl Worker {
    pub(super) fn take_process(&mut self, id: ProcessId, info: ProcessInfo) {
        self.changed.insert(id);
        if id.index() == self.tables.processes.len() {
            self.tables.processes.push(info);
            if self.throttled.is_none() {
                // Throttling before the process was sampled is not reported.
                self.throttled_ns();
            }
            self.new_image(id);
            self.inherit_interpreter(id);
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

    /// A forked child is a copy of its parent until it calls exec, so the interpreter is at the
    /// same address. Searching for it again would take longer than a short-lived child lives.
    fn inherit_interpreter(&mut self, id: ProcessId) {
        let Some(child) = self.tables.processes.get(id.index()) else {
            return;
        };
        let interpreter = self.images.iter().find_map(|(parent_id, image)| {
            let parent = self.tables.processes.get(parent_id.index())?;
            // The same program may have been started again (torchrun's ranks), with other
            // addresses.
            let is_parent = parent.pid == child.parent_pid
                && parent.exe == child.exe
                && has_same_image(parent.pid, child.pid);
            match &image.python {
                Python::Found(interpreter) if is_parent => Some(interpreter.clone()),
                _ => None,
            }
        });
        if let (Some(interpreter), Some(image)) = (interpreter, self.images.get_mut(&id)) {
            image.set_interpreter(interpreter);
            self.publish_interpreter(id);
        }
    }

    /// `id` has called exec: facts about its previous interpreter are invalid.
    pub(super) fn take_exec(&mut self, id: ProcessId) {
        if let Some(process) = self.tables.processes.get_mut(id.index()) {
            process.python.clear();
            process.note.clear();
        }
        self.new_image(id);
    }

    /// `id` is not sampled any more.
    pub(super) fn take_left_out(&mut self, id: ProcessId, note: String) {
        self.images.remove(&id);
        let _ = self.fallback.orders.send(Order::Forget(id));
        let _ = self.inbox.held.watch.send(Watch::End(id));
        if let Some(process) = self.tables.processes.get_mut(id.index()) {
            process.note = note;
            process.last_seen_ns = monotonic_ns();
            self.changed.insert(id);
        }
    }

    /// Has processes left out whose ranks are known only now: a program may set its own.
    fn leave_out_ranks(&self) {
        let (Some(ranks), Some(first)) = (&self.ranks, self.tables.processes.first()) else {
            return;
        };
        for id in self.images.keys().filter(|id| id.index() != 0) {
            let process = self.tables.processes.get(id.index());
            let found = process.and_then(|process| {
                let rank = ranks.leaves_out(&process.environment, &first.environment)?;
                Some((process.pid, ProcessInfo::note_of_left_out(rank)))
            });
            if let Some((pid, note)) = found {
                let _ = self.events.send(KeeperEvent::LeftOut { pid, note });
            }
        }
    }

    fn new_image(&mut self, id: ProcessId) {
        if let Some(process) = self.tables.processes.get(id.index()) {
            let image = ProcessImage::new(process.pid, self.store.clone());
            self.images.insert(id, image);
            let _ = self.inbox.held.watch.send(Watch::End(id));
            // The receiver is gone once the session ends.
            let _ = self.fallback.orders.send(Order::Forget(id));
        }
    }

    pub(super) fn discover_interpreters(&mut self) {
        let now_ns = monotonic_ns();
        let due: Vec<ProcessId> = self
            .images
            .iter()
            .filter(|(_, image)| image.discovery_due(now_ns))
            .map(|(&id, _)| id)
            .collect();
        for id in due {
            self.discover_interpreter(id, now_ns);
        }
    }

    fn discover_interpreter(&mut self, id: ProcessId, now_ns: u64) {
        if let Some(image) = self.images.get_mut(&id) {
            if image.discover(now_ns) {
                self.publish_interpreter(id);
            }
            self.note_libraries(id);
        }
    }

    /// Whether a sample may lack Python frames because the interpreter was not known when it was
    /// captured. Python may also not have started then; another search decides that.
    pub(super) fn lacks_interpreter(&mut self, raw: &RawSample) -> bool {
        let seen_ns = raw.python_pending_ns;
        let image = |worker: &Self| {
            worker
                .images
                .get(&raw.process)
                .map(|image| image.was_absent(seen_ns))
        };
        match seen_ns {
            0 => false,
            _ => {
                if image(self) == Some(None) {
                    self.discover_interpreter(raw.process, monotonic_ns());
                }
                image(self) != Some(Some(true))
            }
        }
    }

    /// Publishes the result of the search to the tracer and the recording.
    fn publish_interpreter(&mut self, id: ProcessId) {
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
                let watch = Watch::Begin(id, pid, interpreter.clone());
                // Its thread may not have started.
                let _ = self.inbox.held.watch.send(watch);
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
            Python::None(error) => {
                process.note = error.to_string();
                let _ = self.events.send(KeeperEvent::NoInterpreter { pid });
            }
            Python::Pending => {}
        }
    }

    /// Handles the result of the fallback for a process.
    pub(super) fn take_finding(&mut self, finding: Finding) {
        let process = self.tables.processes.get_mut(finding.process.index());
        let Some(process) = process.filter(|process| !process.exited) else {
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

    pub(super) fn note_libraries(&mut self, id: ProcessId) {
        let (Some(image), Some(process)) = (
            self.images.get_mut(&id),
            self.tables.processes.get_mut(id.index()),
        ) else {
            return;
        };
        if image.allocator.is_none() {
            let variable = image
                .modules
                .address_of(allocator::LIBRARY, allocator::VARIABLE);
            image.allocator = variable.map(|at| AllocatorReadings::new(at.unwrap_or(0)));
        }
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
        let mut found = None;
        if process.torch.is_empty()
            && let Some(path) = image.module_path(named("libtorch_cpu.so"))
        {
            process.has_torch = true;
            let versions = torch_versions(process.pid, &path).unwrap_or_default();
            process.torch = versions.torch.unwrap_or_default();
            self.changed.insert(id);
            found = Some((process.pid, versions.cuda));
        }
        if !process.has_cuda && image.module_path(named("libcuda.so")).is_some() {
            process.has_cuda = true;
            self.changed.insert(id);
        }
        if let Some((pid, cuda)) = found {
            self.note_conditions(id, pid, cuda);
        }
    }

    /// Records the conditions under which a process with torch runs, from the kernel and torch's
    /// files.
    fn note_conditions(&mut self, id: ProcessId, pid: i32, cuda: Option<String>) {
        let mut note = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                self.progress.condition(id, name, value);
            }
        };
        note(facts::TORCH_CUDA, cuda);
        let quota = CpuGroups::of(pid).quota();
        note(facts::CPU_QUOTA, quota.map(|cpus| format!("{cpus:.2}")));
        note(
            facts::AFFINITY,
            affinity_cpus(pid).map(|cpus| cpus.to_string()),
        );
    }

    /// For how long the cgroup of the first process was throttled since the last call.
    pub(super) fn throttled_ns(&mut self) -> u64 {
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

    pub(super) fn update_processes(&mut self) {
        let now_ns = monotonic_ns();
        for (&id, image) in &mut self.images {
            let Some(process) = self.tables.processes.get_mut(id.index()) else {
                continue;
            };
            if let Some(environment) = image.changed_environment() {
                process.environment = environment;
            }
            process.last_seen_ns = now_ns;
            let lost = image.module_path(|module| {
                self.module_ids.contains_key(&module.id()) && module.lost_its_file()
            });
            if let Some(path) = lost {
                let note = format!(
                    "{path}: its file was replaced, cut short or rewritten, or cannot be read; functions of it may lack their names"
                );
                if process.note.is_empty() {
                    process.note = note;
                } else if !process.note.contains(&note) {
                    process.note = format!("{}; {note}", process.note);
                }
                // A new program may have been loaded at the same address.
                if image.refresh(now_ns) {
                    image.modules_changed();
                }
            }
            if let Some(cpu_ns) = process_cpu_ns(process.pid) {
                process.cpu_ns = cpu_ns;
            }
            self.changed.insert(id);
        }
        self.leave_out_ranks();
    }
}
