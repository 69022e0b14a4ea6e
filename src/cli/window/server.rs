//! Answers the program's torch, on a thread of its own: an answer must come within 90 ms.

use super::{Shared, lock};
use crate::trace::on_demand::{MOST_MESSAGE, Message, SOCKET};
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// How often the thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(500);
/// How long an answer may wait for a full socket.
const PATIENCE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Server {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers on the socket in `folder` until it is dropped.
    ///
    /// # Errors
    /// The socket cannot be made, or the thread.
    pub(super) fn start(folder: &Path, shared: Arc<Mutex<Shared>>) -> io::Result<Self> {
        // Answers from any other socket than this one abort the program.
        let socket = UnixDatagram::bind(folder.join(SOCKET))?;
        socket.set_read_timeout(Some(LOOK))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let ends = Arc::new(AtomicBool::new(false));
        let (flag, folder) = (ends.clone(), folder.to_owned());
        let thread = Builder::new()
            .name("torchspy-kineto".to_owned())
            .spawn(move || serve(&socket, &folder, &shared, &flag))?;
        Ok(Self {
            ends,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(socket: &UnixDatagram, folder: &Path, shared: &Mutex<Shared>, ends: &AtomicBool) {
    let mut buffer = [0; MOST_MESSAGE];
    while !ends.load(Ordering::Relaxed) {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => {
                let to = from.as_pathname().map(PathBuf::from);
                let message = buffer.get(..length).and_then(Message::parse);
                let (Some(to), Some(message)) = (to, message) else {
                    continue;
                };
                // Nobody else writes to a socket by our name.
                if to.parent() == Some(folder) {
                    answer(socket, &to, &message, shared);
                }
            }
            Err(error) if is_timeout(&error) => {}
            Err(_) => sleep(LOOK),
        }
    }
    // A child that has not called exec yet may have the socket, too.
    let _ = socket.shutdown(Shutdown::Both);
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

fn answer(socket: &UnixDatagram, to: &Path, message: &Message, shared: &Mutex<Shared>) {
    let given = {
        let mut shared = lock(shared);
        let given = shared.configuration_for(message);
        // Before the process may act on it.
        shared.open.extend(given.as_ref().map(|(pid, _)| *pid));
        given
    };
    let text = given.as_ref().map(|(_, text)| text.as_str());
    if socket.send_to(&message.answer(text), to).is_err()
        && let Some((pid, _)) = given
    {
        lock(shared).open.remove(&pid);
    }
}

impl Shared {
    /// The pid of a process that is to have a window and has not been given it, and what it is
    /// given.
    fn configuration_for(&mut self, message: &Message) -> Option<(i32, String)> {
        let Message::Request { pid, is_ready } = message else {
            return None;
        };
        let request = self.asked.as_mut()?;
        let is_given = *is_ready && Instant::now() <= request.until && request.pids.remove(pid);
        is_given.then(|| (*pid, request.configuration.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Request;
    use super::*;
    use std::collections::BTreeSet;

    fn request(pid: i32) -> Vec<u8> {
        let mut message = 20_u64.to_ne_bytes().to_vec();
        message.extend(*b"req");
        message.resize(40, 0);
        for number in [2, 1, 0, 0, pid] {
            message.extend(i32::to_ne_bytes(number));
        }
        message
    }

    #[test]
    fn a_configuration_is_given_once_to_who_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        let shared: Arc<Mutex<Shared>> = Arc::default();
        let server = Server::start(folder.path(), shared.clone()).unwrap();
        let client = UnixDatagram::bind(folder.path().join("client")).unwrap();
        let long = Some(Duration::from_secs(60));
        client.set_read_timeout(long).unwrap();
        let to = folder.path().join(SOCKET);
        let ask = |pid| {
            // What is no message has no answer, and harms nothing.
            for garbage in [&b""[..], &[255; 4096]] {
                client.send_to(garbage, &to).unwrap();
            }
            client.send_to(&request(pid), &to).unwrap();
            let mut answer = [0; MOST_MESSAGE];
            let length = client.recv(&mut answer).unwrap();
            String::from_utf8(answer[40..length].to_vec()).unwrap()
        };
        assert_eq!(ask(7), "");
        let asked = |pid, until| Request {
            pids: BTreeSet::from([pid]),
            configuration: "A=1\n".to_owned(),
            until,
        };
        lock(&shared).asked = Some(asked(7, Instant::now() + Duration::from_secs(1000)));
        assert_eq!(ask(8), "");
        assert!(lock(&shared).open.is_empty());
        assert_eq!(ask(7), "A=1\n");
        assert_eq!(ask(7), "");
        assert!(lock(&shared).open.contains(&7));
        lock(&shared).asked = Some(asked(9, Instant::now()));
        assert_eq!(ask(9), "", "it is too late");
        drop(server);
        assert!(client.send_to(b"", &to).is_err());
    }
}
