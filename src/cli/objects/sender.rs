//! The thread that sends a recording while it is made.

use super::address::Address;
use super::block_on;
use super::delivery::deliver;
use super::spool::{Entry, Spool};
use crate::cli::failure::Failure;
use crate::cli::messages;
use crate::cli::open_outputs::OpenOutputs;
use crate::cli::output_names::OutputFile;
use crate::cli::outputs::{NameParts, RecordingSink, base_name};
use crate::os::priority;
use crate::report::text::tracks::bytes;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tokio::sync::watch;

/// How far behind the trainer's nice value.
const NICE: i32 = 19;
/// Least time between two parts that are sent.
const PAUSE: Duration = Duration::from_secs(10);

/// A recording that has a place in the spool.
#[derive(Debug)]
pub(crate) struct Spooled {
    spool: Spool,
    entry: Entry,
}

impl Spooled {
    /// Gives the recording among the outputs a place in the spool, if it goes to object storage.
    ///
    /// # Errors
    /// The spool cannot be used, or the environment's settings of the store are not valid.
    pub(crate) fn divert(
        wanted: &mut [OutputFile],
        folder: Option<&Path>,
        force: bool,
        parts: &NameParts<'_>,
    ) -> Result<Option<Self>, Failure> {
        let mut wanted = wanted.iter_mut();
        let Some(output) = wanted.find(|output| Address::is_meant_by(&output.path)) else {
            return Ok(None);
        };
        Address::parse(&output.path)?.bucket()?;
        let spool = Spool::new(folder)?;
        let entry = spool.add(&base_name(parts), &output.path, force)?;
        *output = OutputFile::new(entry.recording.clone(), output.format);
        Ok(Some(Self { spool, entry }))
    }

    /// Removes a recording that never began.
    pub(crate) fn discard(self) {
        self.entry.remove();
    }

    /// Prepares to send what is written.
    pub(crate) fn prepare(
        self,
        outputs: &OpenOutputs,
        sink: &RecordingSink,
    ) -> io::Result<Sending> {
        Ok(Sending {
            recording: self.entry.recording.clone(),
            to: self.entry.to().to_owned(),
            state: State::Prepared(Box::new(Work {
                file: outputs.recording()?,
                length: sink.length(),
                spool: self.spool,
                entry: self.entry,
            })),
        })
    }
}

/// A recording that is being sent.
#[derive(Debug)]
pub(crate) struct Sending {
    recording: PathBuf,
    to: PathBuf,
    state: State,
}

#[derive(Debug)]
enum State {
    Prepared(Box<Work>),
    Running {
        has_ended: watch::Sender<bool>,
        trouble: mpsc::Receiver<Failure>,
        thread: JoinHandle<Sent>,
    },
    Failed(io::Error),
}

/// What came of it.
#[derive(Debug)]
struct Sent {
    /// Where the recording is.
    recording: Result<Address, Failure>,
    /// Bytes of it that are there, at least.
    there: u64,
    earlier: Earlier,
}

/// Recordings of earlier runs that were in the spool.
#[derive(Debug, Default)]
struct Earlier {
    sent: Vec<Address>,
    /// How many stay there.
    left: usize,
}

impl Sent {
    fn not(failure: Failure) -> Self {
        Self {
            recording: Err(failure),
            there: 0,
            earlier: Earlier::default(),
        }
    }
}

impl Sending {
    /// Starts the thread.
    pub(crate) fn begin(&mut self) {
        let prepared =
            std::mem::replace(&mut self.state, State::Failed(io::ErrorKind::Other.into()));
        self.state = match prepared {
            State::Prepared(work) => {
                let (has_ended, end) = watch::channel(false);
                let (report, trouble) = mpsc::sync_channel(1);
                let thread = Builder::new()
                    .name("torchspy-send".to_owned())
                    .spawn(move || work.run(end, &report));
                match thread {
                    Ok(thread) => State::Running {
                        has_ended,
                        trouble,
                        thread,
                    },
                    Err(error) => State::Failed(error),
                }
            }
            state => state,
        };
    }

    /// Removes a recording that never began from the spool.
    pub(crate) fn discard(self) {
        if let State::Prepared(work) = self.state {
            work.entry.remove();
        }
    }

    /// The first failure while the recording goes on, once.
    pub(crate) fn trouble(&self) -> Option<Failure> {
        match &self.state {
            State::Running { trouble, .. } => trouble.try_recv().ok(),
            _ => None,
        }
    }

    /// The recording is complete: the rest is sent.
    pub(crate) fn end(&self) {
        if let State::Running { has_ended, .. } = &self.state {
            has_ended.send_replace(true);
        }
    }

    /// Waits for the end, and prints what was sent.
    ///
    /// # Errors
    /// The recording was not sent, and is in the spool.
    pub(crate) fn report(self) -> Result<(), Failure> {
        let to = self.to.display();
        let sent = match self.state {
            State::Running { thread, .. } => {
                if !thread.is_finished() {
                    messages::note(&format!(
                        "sending to {to}; Ctrl-C leaves it to torchspy send"
                    ));
                }
                let ended = || Failure::message("the thread that sends has ended");
                thread.join().unwrap_or_else(|_| Sent::not(ended()))
            }
            State::Failed(error) => Sent::not(Failure::new(error)),
            State::Prepared(_) => return Ok(()),
        };
        for address in &sent.earlier.sent {
            messages::note(&format!("sent {address}, which an earlier run had left"));
        }
        if sent.earlier.left > 0 {
            messages::note(&format!(
                "{} more of earlier runs could not be sent, and stay in the spool: torchspy send",
                sent.earlier.left
            ));
        }
        let address = sent
            .recording
            .map_err(|failure| not_sent(failure, &self.to, &self.recording, sent.there))?;
        if Path::new(&address.to_string()) != self.to {
            messages::note(&format!("{to} is there already"));
        }
        messages::note(&format!("sent {address}"));
        Ok(())
    }
}

/// A recording that stays in the spool: where, how much of it is missing, and how to send it on.
fn not_sent(failure: Failure, to: &Path, recording: &Path, there: u64) -> Failure {
    let length = std::fs::metadata(recording).map_or(0, |data| data.len());
    let part = match there {
        0 => String::new(),
        _ => format!(", {} of it are", bytes(there as f64)),
    };
    let context = format!(
        "{} was not sent{part}: all {} are in {}",
        to.display(),
        bytes(length as f64),
        recording.display()
    );
    let folder = recording.parent().unwrap_or(Path::new(""));
    let cause = failure.hint.map(|hint| format!("\n{hint}"));
    Failure::new(failure.error.context(context)).hint(format!(
        "torchspy send --spool {} sends it{}",
        folder.display(),
        cause.unwrap_or_default()
    ))
}

#[derive(Debug)]
struct Work {
    spool: Spool,
    entry: Entry,
    /// The recording, opened for reading.
    file: File,
    /// Bytes of complete segments in it.
    length: Arc<AtomicU64>,
}

impl Work {
    fn run(mut self, end: watch::Receiver<bool>, trouble: &mpsc::SyncSender<Failure>) -> Sent {
        priority::run_behind(NICE);
        let (mut there, mut earlier) = (0, Earlier::default());
        let work = self.send(end, trouble, &mut there, &mut earlier);
        let recording = block_on(work).and_then(std::convert::identity);
        if recording.is_ok() {
            self.entry.remove();
        }
        Sent {
            recording,
            there,
            earlier,
        }
    }

    async fn send(
        &mut self,
        mut end: watch::Receiver<bool>,
        trouble: &mpsc::SyncSender<Failure>,
        there: &mut u64,
        earlier: &mut Earlier,
    ) -> Result<Address, Failure> {
        tokio::select! {
            // A sender that is gone has ended as well.
            _ = end.wait_for(|&has_ended| has_ended) => {}
            () = self.send_growing(trouble, there, earlier) => {}
        }
        let length = self.length.load(Ordering::Acquire);
        deliver(&mut self.entry, &self.file, length).await
    }

    /// Sends what there is whenever it has doubled: in all at most twice what the recording has at
    /// its end, and what is sent is at least half of what there is.
    async fn send_growing(
        &mut self,
        trouble: &mpsc::SyncSender<Failure>,
        there: &mut u64,
        earlier: &mut Earlier,
    ) {
        let mut is_first = true;
        loop {
            let length = self.length.load(Ordering::Acquire);
            if length >= (2 * *there).max(1) {
                match deliver(&mut self.entry, &self.file, length).await {
                    Ok(_) => *there = length,
                    // One is enough: the next is likely the same, and the last one is reported.
                    Err(failure) => drop(trouble.try_send(failure)),
                }
            }
            if is_first && *there > 0 {
                is_first = false;
                send_earlier(&self.spool, earlier).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Sends what earlier runs left. Why something fails again, `torchspy send` reports.
async fn send_earlier(spool: &Spool, earlier: &mut Earlier) {
    let Ok(left) = spool.left() else {
        return;
    };
    earlier.left = left.entries.len();
    for entry in left.entries {
        if let Ok(address) = send_on(entry).await {
            earlier.sent.extend(address);
            earlier.left -= 1;
        }
    }
}

/// Sends a recording that is complete, and removes it from the spool. `None` if nothing was
/// recorded, or all was sent before.
pub(crate) async fn send_on(mut entry: Entry) -> Result<Option<Address>, Failure> {
    let file = match File::open(&entry.recording) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            entry.remove();
            return Ok(None);
        }
        file => file.map_err(Failure::new)?,
    };
    let length = file.metadata().map_err(Failure::new)?.len();
    if length == 0 {
        entry.remove();
        return Ok(None);
    }
    let address = deliver(&mut entry, &file, length).await?;
    entry.remove();
    Ok(Some(address))
}
