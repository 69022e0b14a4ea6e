//! A recording as `torchspy inspect` prints it, parsed.

use crate::faults::{How, Recorder, run, wait_until};
use std::path::Path;
use std::process::Command;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InspectedFrame {
    Python {
        name: String,
        file: String,
        line: u32,
    },
    Native {
        /// Without the offset; `None` where no symbol covers the address.
        name: Option<String>,
        /// The module's file name.
        file: String,
        address: u64,
    },
    Partial(String),
}

/// One stack of a thread, root first.
#[derive(Clone, Debug)]
pub struct InspectedStack {
    pub frames: Vec<InspectedFrame>,
    /// Whether it was read, and how many times, and not only that its time was known.
    pub fresh: usize,
    /// Whether a guess led to one of its frames.
    pub guessed: bool,
}

impl InspectedStack {
    /// Its Python frames: name, file, line.
    pub fn python(&self) -> impl Iterator<Item = (String, String, u32)> {
        self.frames.iter().filter_map(|frame| match frame {
            InspectedFrame::Python { name, file, line } => {
                Some((name.clone(), file.clone(), *line))
            }
            _ => None,
        })
    }
}

/// A recording's threads and their stacks.
#[derive(Debug)]
pub struct Inspected {
    /// Pid, tid, stacks.
    threads: Vec<(i32, i32, Vec<InspectedStack>)>,
    pub text: String,
}

impl Inspected {
    /// Records a process until so many threads have Python frames, and inspects the recording: on a
    /// busy machine it takes seconds to find the interpreter.
    pub fn record(pid: i32, python_threads: usize, engine: &str) -> Self {
        let how = How {
            options: &["--engine", engine],
            fault: None,
        };
        let recorder = Recorder::attach(pid, how);
        let has_python = |thread: &&str| thread.contains("\n    py ");
        wait_until("all threads have Python frames", || {
            recorder.wait_for_segment();
            let text = run(&["inspect", &recorder.path().to_string_lossy()]).stdout;
            let threads = text.split("\nthread T").skip(1);
            threads.filter(has_python).count() >= python_threads
        });
        Self::of_file(&recorder.interrupt().expect_success().path())
    }

    fn of_file(file: &Path) -> Self {
        let output = Command::new(env!("CARGO_BIN_EXE_torchspy"))
            .arg("inspect")
            .arg(file)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        Self::parse(String::from_utf8(output.stdout).unwrap())
    }

    fn parse(text: String) -> Self {
        let mut pids: Vec<i32> = Vec::new();
        let mut threads: Vec<(i32, i32, Vec<InspectedStack>)> = Vec::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("  P")
                && let Some((number, rest)) = rest.split_once(" pid ")
            {
                assert_eq!(number.parse(), Ok(pids.len()));
                pids.push(rest.split(' ').next().unwrap().parse().unwrap());
            } else if let Some(rest) = line.strip_prefix("thread T") {
                let (_, rest) = rest.split_once(" of P").unwrap();
                let (process, rest) = rest.split_once(": tid ").unwrap();
                let tid = rest.split(' ').next().unwrap().parse().unwrap();
                let process: usize = process.parse().unwrap();
                threads.push((pids[process], tid, Vec::new()));
            } else if let (Some((.., stacks)), Some(rest)) =
                (threads.last_mut(), line.strip_prefix("    "))
            {
                // Which module the next frame is the call of: no frame.
                if rest.starts_with("nn ") {
                    continue;
                }
                let stack: &mut InspectedStack = stacks.last_mut().unwrap();
                stack.frames.push(parse_frame(rest));
                stack.guessed |= rest.contains(" (guess: ");
            } else if let (Some((.., stacks)), Some(rest)) =
                (threads.last_mut(), line.strip_prefix("  "))
            {
                stacks.push(InspectedStack {
                    frames: Vec::new(),
                    fresh: fresh(rest),
                    guessed: false,
                });
            }
        }
        Self { threads, text }
    }

    /// Tid and stacks of a process's threads that were read.
    pub fn stacks_of(&self, pid: i32) -> Vec<(i32, &InspectedStack)> {
        let threads = self.threads.iter().filter(|(owner, ..)| *owner == pid);
        threads
            .flat_map(|(_, tid, stacks)| stacks.iter().map(|stack| (*tid, stack)))
            .filter(|(_, stack)| stack.fresh > 0)
            .collect()
    }

    /// All processes' pids.
    pub fn pids(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = self.threads.iter().map(|(pid, ..)| *pid).collect();
        pids.dedup();
        pids
    }
}

/// Fresh captures in `S5 0.5 s, 3 samples, 3 ticks: 1 running/stopped 2 sleeping/reused`.
fn fresh(line: &str) -> usize {
    let (_, kinds) = line.split_once("ticks:").unwrap();
    let words: Vec<&str> = kinds.split_whitespace().collect();
    let fresh = words.chunks(2).filter(|pair| {
        let how = pair[1].rsplit('/').next();
        matches!(how, Some("stopped" | "asleep" | "sampled" | "unstopped"))
    });
    fresh.map(|pair| pair[0].parse::<usize>().unwrap()).sum()
}

fn parse_frame(line: &str) -> InspectedFrame {
    if let Some(reason) = line.strip_prefix("?? ") {
        return InspectedFrame::Partial(reason.to_owned());
    }
    if let Some(rest) = line.strip_prefix("py ") {
        let (rest, _) = rest.rsplit_once(')').unwrap();
        let (name, place) = rest.rsplit_once(" (").unwrap();
        let (file, line) = place.rsplit_once(':').unwrap();
        return InspectedFrame::Python {
            name: name.to_owned(),
            file: file.to_owned(),
            line: line.parse().unwrap(),
        };
    }
    let rest = line.strip_prefix("na ").unwrap();
    let rest = rest.split(" (guess: ").next().unwrap();
    let (name, place) = match rest.strip_suffix(')') {
        Some(rest) => {
            let (name, place) = rest.rsplit_once(" (").unwrap();
            (Some(name.rsplit_once("+0x").unwrap().0), place)
        }
        None => (None, rest),
    };
    let words: Vec<&str> = place.rsplitn(3, ' ').collect();
    InspectedFrame::Native {
        name: name.map(str::to_owned),
        file: words[2].to_owned(),
        address: u64::from_str_radix(words[0].trim_start_matches("0x"), 16).unwrap(),
    }
}
