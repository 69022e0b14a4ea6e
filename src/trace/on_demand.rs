//! How a program's torch is asked, from outside, to run its profiler for a moment.
//!
//! A process with `KINETO_USE_DAEMON` in its environment asks a daemon for a configuration, again
//! and again: datagrams over a UNIX socket, as Meta's dynolog answers them (pytorch/kineto,
//! `libkineto/src/IpcFabricConfigClient.cpp` and `dynolog/src/ipcfabric`; checked with torch 2.15).
//! A message is a header (`u64` size of the body, `[u8; 32]` type, padded by zeros) and a body, in
//! the byte order of the machine.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// Longest path of the folder with the sockets, bytes: the names of clients' sockets in it must fit
/// into `sockaddr_un`.
pub const MOST_FOLDER: usize = 54;
/// Name of the daemon's socket in that folder.
pub const SOCKET: &str = "dynolog";
/// Name of the file in that folder which replaces the user's configuration of libkineto.
pub const CONFIGURATION: &str = "libkineto.conf";
/// Variables by which another daemon may already serve the program.
pub const VARIABLES: [&str; 2] = ["KINETO_USE_DAEMON", "KINETO_IPC_SOCKET_DIR"];
/// The variable with the path of the user's configuration of libkineto.
pub const USER_CONFIGURATION: &str = "KINETO_CONFIG";
/// The configuration of libkineto where that variable is not set.
pub const DEFAULT_CONFIGURATION: &str = "/etc/libkineto.conf";

/// How often a process asks.
pub const POLL: Duration = Duration::from_secs(1);
/// Time for preparations in the process before the window.
pub const WARM_UP: Duration = Duration::from_secs(3);
/// Time between the request's arrival and its warm-up: shorter ones lose a race in 1 of 25.
const ARRIVAL: Duration = Duration::from_millis(2500);
/// Time from a request to the start of its window at least. After an answer that came too late, on
/// a busy machine, torch finds with each question the answer to the one before: two polls.
pub const LEAD: Duration = Duration::from_millis(2 * 1000 + 3000 + 2500);

const HEADER: usize = 8 + 32;
/// Maximum length of a message, bytes: a process has few ancestors.
pub const MOST_MESSAGE: usize = 4096;
/// A process that may be given a configuration; 0 is one whose profiler is busy.
const READY: i32 = 2;

/// What a process sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// It asks for a configuration. `pid` is as it sees itself.
    Request { pid: i32, is_ready: bool },
    /// It registers, as torch before 2.1 does.
    Register { pid: i32 },
}

impl Message {
    /// `None` for what is neither.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (header, body) = bytes.split_at_checked(HEADER)?;
        let (size, kind) = header.split_at_checked(8)?;
        let size = usize::try_from(u64::from_ne_bytes(size.try_into().ok()?)).ok()?;
        let body = body.get(..size)?;
        let number = |at: usize| {
            let bytes = body.get(at..at.checked_add(4)?)?;
            Some(i32::from_ne_bytes(bytes.try_into().ok()?))
        };
        match kind.split(|&byte| byte == 0).next()? {
            // int type; int n; int64_t jobid; int pids[n], the process itself first.
            b"req" => (number(4)? > 0).then_some(Self::Request {
                pid: number(16)?,
                is_ready: number(0)? == READY,
            }),
            // int gpu; int pid; int64_t jobid
            b"ctxt" => Some(Self::Register { pid: number(4)? }),
            _ => None,
        }
    }

    /// The answer; `configuration` is given to a request, and `None` is nothing to do.
    pub fn answer(&self, configuration: Option<&str>) -> Vec<u8> {
        match self {
            Self::Request { .. } => message(b"req", configuration.unwrap_or_default().as_bytes()),
            // The number of processes that have registered for the device.
            Self::Register { .. } => message(b"ctxt", &1_i32.to_ne_bytes()),
        }
    }
}

fn message(kind: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as u64).to_ne_bytes().to_vec();
    bytes.extend_from_slice(kind);
    bytes.resize(HEADER, 0);
    bytes.extend_from_slice(body);
    bytes
}

/// One run of torch.profiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Milliseconds since 1970.
    pub start_ms: u64,
    pub length: Duration,
}

impl Window {
    /// What a process is given. It writes `trace_<pid>.json` into `folder`.
    pub fn configuration(self, folder: &Path) -> String {
        let mut text = String::new();
        let warm_up = WARM_UP.as_secs();
        // Never PROFILE_MEMORY: it leaves a thread that spins.
        for (key, value) in [
            (
                "ACTIVITIES_LOG_FILE",
                folder.join("trace.json").display().to_string(),
            ),
            ("PROFILE_START_TIME", self.start_ms.to_string()),
            (
                "ACTIVITIES_DURATION_MSECS",
                self.length.as_millis().to_string(),
            ),
            ("ACTIVITIES_WARMUP_PERIOD_SECS", warm_up.to_string()),
            ("PROFILE_REPORT_INPUT_SHAPES", "true".to_owned()),
            ("PROFILE_WITH_STACK", "false".to_owned()),
        ] {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{key}={value}");
        }
        text
    }
}

/// Name of the file that a process writes.
pub fn trace_name(pid: i32) -> String {
    format!("trace_{pid}.json")
}

/// The configuration of libkineto that makes a process ask each [`POLL`], with all that the user's
/// own has.
pub fn with_poll(users: &str) -> String {
    let seconds = POLL.as_secs();
    format!("{users}\nON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS={seconds}\n")
}

/// The variables by which a program's processes ask in `folder`.
pub fn environment(folder: &Path) -> Vec<(OsString, OsString)> {
    [
        ("KINETO_USE_DAEMON", OsString::from("1")),
        ("KINETO_IPC_SOCKET_DIR", folder.into()),
        ("KINETO_ONDEMAND_TRACE_DIR", folder.into()),
        (USER_CONFIGURATION, folder.join(CONFIGURATION).into()),
    ]
    .map(|(name, value)| (name.into(), value))
    .into()
}

const _: () = assert!(
    LEAD.as_millis() == 2 * POLL.as_millis() + WARM_UP.as_millis() + ARRIVAL.as_millis(),
    "the lead is the sum of its parts"
);

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: i32, pids: &[i32]) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(kind.to_ne_bytes());
        body.extend((pids.len() as i32).to_ne_bytes());
        body.extend(0_i64.to_ne_bytes());
        pids.iter().for_each(|pid| body.extend(pid.to_ne_bytes()));
        message(b"req", &body)
    }

    #[test]
    fn a_request_names_its_process_first() {
        let ready = Message::parse(&request(2, &[7, 5, 1])).unwrap();
        let expected = Message::Request {
            pid: 7,
            is_ready: true,
        };
        assert_eq!(ready, expected);
        let busy = Message::parse(&request(0, &[7])).unwrap();
        assert!(matches!(
            busy,
            Message::Request {
                is_ready: false,
                ..
            }
        ));
    }

    #[test]
    fn what_is_no_message_is_nothing() {
        for bytes in [&b""[..], &[0; 40], &[255; 64], b"req"] {
            assert_eq!(Message::parse(bytes), None);
        }
        assert_eq!(Message::parse(&request(2, &[])), None);
        let whole = request(2, &[7, 5]);
        for length in 0..whole.len() {
            assert_eq!(Message::parse(&whole[..length]), None, "{length}");
        }
    }

    #[test]
    fn an_answer_has_the_configuration_or_nothing() {
        let request = Message::Request {
            pid: 7,
            is_ready: true,
        };
        let nothing = request.answer(None);
        assert_eq!(nothing.len(), 40);
        assert_eq!(nothing[..8], [0; 8]);
        let window = Window {
            start_ms: 1234,
            length: Duration::from_secs(2),
        };
        let text = window.configuration(Path::new("/tmp/x"));
        let answer = request.answer(Some(&text));
        assert_eq!(answer[..8], (text.len() as u64).to_ne_bytes());
        assert_eq!(answer[8..12], *b"req\0");
        assert_eq!(answer[40..], *text.as_bytes());
        assert!(text.contains("PROFILE_START_TIME=1234\n"), "{text}");
        assert!(text.contains("ACTIVITIES_DURATION_MSECS=2000\n"), "{text}");
        assert!(text.contains("ACTIVITIES_LOG_FILE=/tmp/x/trace.json\n"));
    }
}
