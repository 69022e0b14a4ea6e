//! The end of a recording: the last segment, the rendered outputs, the summary. On a thread of its
//! own, so that signals still reach the program.

use crate::cli::browser;
use crate::cli::failure::Failure;
use crate::cli::formats::Format;
use crate::cli::objects::sender::Sending;
use crate::cli::open_outputs::OpenOutputs;
use crate::cli::output_file::OpenOutput;
use crate::cli::outputs::{self, RecordingSink};
use crate::cli::plan::Drawing;
use crate::cli::rules::Rules;
use crate::cli::{hints, messages, regions};
use crate::model::profile::{Profile, ProfileProcess};
use crate::os::threads::thread_names;
use crate::python::thread_name::MAIN_THREAD;
use crate::report::text::{Detail, TextOptions};
use crate::sampling::session::Session;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// What is left to do when sampling ends.
pub(crate) struct Finish {
    pub(crate) session: Session,
    pub(crate) sink: RecordingSink,
    pub(crate) outputs: OpenOutputs,
    /// The recording goes to object storage.
    pub(crate) sending: Option<Sending>,
    /// The page is opened at the end.
    pub(crate) open: bool,
    pub(crate) drawing: Drawing,
    pub(crate) rules: Rules,
    /// The key of hashes that replace names in what is rendered.
    pub(crate) confidential: Option<String>,
}

/// The work under way.
pub(crate) struct Finishing {
    saved: Arc<AtomicBool>,
    thread: JoinHandle<Ended>,
}

/// Its result.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ended {
    pub(crate) is_complete: bool,
}

impl Finishing {
    /// Starts the work.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(finish: Finish) -> io::Result<Self> {
        let saved = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&saved);
        let thread = std::thread::Builder::new()
            .name("finish".to_owned())
            .spawn(move || finish.run(&flag))?;
        Ok(Self { saved, thread })
    }

    /// Whether the recording is on the disk under a name.
    pub(crate) fn is_saved(&self) -> bool {
        self.saved.load(Ordering::Acquire)
    }

    /// Whether all is done.
    pub(crate) fn is_done(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end.
    pub(crate) fn join(self) -> Ended {
        self.thread.join().unwrap_or_default()
    }
}

impl Finish {
    /// Ends a recording that has not begun; nothing of it stays.
    pub(crate) fn discard(self) {
        let _ = self.session.stop();
        self.outputs.discard();
        if let Some(sending) = self.sending {
            sending.discard();
        }
    }

    fn run(mut self, saved: &AtomicBool) -> Ended {
        let mut ended = Ended::default();
        let mut failures = 0_usize;
        let mut failed = |failure: &Failure| {
            failures += 1;
            messages::failed(failure);
        };
        match self.session.stop() {
            Ok(end) => {
                if let Some(error) = end.error {
                    failed(&hints::writing_failure(error));
                }
            }
            Err(error) => failed(&hints::session_failure(error)),
        }
        if let Err(error) = self.sink.finish() {
            failed(&hints::writing_failure(error));
        }
        if let Err(failure) = self.outputs.check_recording_name() {
            failed(&failure);
        }
        if let Some(sending) = &self.sending {
            sending.end();
        }
        let path = self.outputs.recording_path();
        let named = self.outputs.named_recording();
        saved.store(named.is_some(), Ordering::Release);
        let shown = named.map_or_else(
            || "the recording".into(),
            |output| output.path.display().to_string(),
        );
        match outputs::read_profile(&path, &shown, &[], self.rules.set) {
            Ok(mut profile) => {
                regions::warn_of_unseen(&profile);
                self.rules.warn_of_unmatched(&profile);
                if let Some(failure) = no_thread_matched(&profile) {
                    failed(&failure);
                }
                outputs::hide(self.confidential.as_deref(), [&mut profile]);
                self.outputs
                    .begin_pages_again()
                    .iter()
                    .for_each(&mut failed);
                for output in self.outputs.rendered() {
                    if let Err(failure) = write_output(output, &profile, &self.drawing) {
                        failed(&failure);
                    }
                }
                if let Err(error) = print_summary(&profile) {
                    failed(&Failure::new(error));
                }
            }
            Err(error) => {
                let hint = hints::of_input_error(&error);
                failed(&Failure::new(error).maybe_hint(hint));
                self.outputs.remove_placeholders();
            }
        }
        if let Some(sending) = self.sending.take()
            && let Err(failure) = sending.report()
        {
            failed(&failure);
        }
        for path in self.outputs.written() {
            messages::note(&format!("wrote {}", path.display()));
            if self.open
                && path
                    .extension()
                    .is_some_and(|end| end == Format::Page.extension())
            {
                browser::open(path);
            }
        }
        ended.is_complete = failures == 0;
        ended
    }
}

/// Names of threads that a hint lists.
const LISTED: usize = 8;

/// A `--thread-name` pattern that matches no thread is likely a typing error.
fn no_thread_matched(profile: &Profile) -> Option<Failure> {
    let pattern = profile.run.threads.as_ref()?;
    if !profile.samples.is_empty() {
        return None;
    }
    // A recording holds only threads that were sampled; the kernel lists those that exist.
    let threads = thread_names(profile.run.pid);
    let mut names: Vec<&str> = threads.iter().map(String::as_str).collect();
    let is_python = |process: &ProfileProcess| !process.info.python.is_empty();
    if profile.processes.iter().any(is_python) {
        names.push(MAIN_THREAD);
    }
    names.sort_unstable();
    names.dedup();
    let failure = Failure::message(format!(
        "nothing was sampled: no thread's name matches --thread-name {pattern}"
    ));
    Some(failure.hint(match threads.is_empty() {
        true => "the kernel's names of threads and Python's own match".to_owned(),
        false => format!(
            "there were {}; Python's own names match, too",
            messages::list(&names, LISTED)
        ),
    }))
}

fn write_output(output: &OpenOutput, profile: &Profile, drawing: &Drawing) -> Result<(), Failure> {
    let mut out = BufWriter::new(&output.file);
    let result = output.format.render(profile, drawing, &mut out);
    let result = result.and_then(|()| Ok(out.flush()?));
    result.map_err(|error| {
        output.remove_if_created();
        hints::writing_failure(error.context(format!("cannot write {}", output.path.display())))
    })?;
    output.keep()
}

fn print_summary(profile: &Profile) -> anyhow::Result<()> {
    let mut text = Vec::new();
    let options = TextOptions {
        detail: Detail::VerdictLast,
        ..TextOptions::default()
    };
    outputs::summary(profile, options, &mut text)?;
    messages::block(&String::from_utf8_lossy(&text));
    Ok(())
}
