//! Asks NCCL's RAS subsystem over TCP. The protocol is lines of text: NCCL 2.24.3 to 2.30.7,
//! src/ras/client.cc and src/ras/client_support.cc.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::{self, net::UnixListener};
use std::time::{Duration, Instant};

/// Where RAS listens without `NCCL_RAS_ADDR` ("Environment Variables" in NCCL's user guide).
pub const DEFAULT_ADDRESS: &str = "localhost:28028";

/// How long a connection and each line may take.
const LINE: Duration = Duration::from_secs(1);
/// Seconds for which the process that is asked waits for each of the others; NCCL's own default is
/// 5.
const OTHERS: u32 = 2;
/// The longest answer: one of 16,384 ranks in 8 communicators each, bytes.
const MAX_ANSWER: u64 = 64 << 20;
/// The longest line before it, bytes.
const MAX_LINE: usize = 256;

/// The state of a job from the RAS socket at `address` (`HOST:PORT`), within `patience`: as JSON,
/// or before NCCL 2.28.7 as text. Only an address of this machine is asked: the process that names
/// it may be another user's.
///
/// # Errors
/// Why there is no answer, in a few words.
pub fn ask(address: &str, patience: Duration) -> Result<Vec<u8>, String> {
    let deadline = Instant::now() + patience;
    let mut stream = connect(address)?;
    let greeting = say(&mut stream, "CLIENT PROTOCOL 2\n", deadline)?;
    if !greeting
        .to_ascii_uppercase()
        .starts_with("SERVER PROTOCOL ")
    {
        return Err("it is not NCCL that listens there".to_owned());
    }
    let timeout = format!("TIMEOUT {OTHERS}");
    if !is_accepted(&mut stream, &timeout, deadline)? {
        return Err(format!("it does not know `{timeout}`"));
    }
    // Without JSON the connection stays as it was. The text names the most ranks if it is verbose.
    let status = match is_accepted(&mut stream, "SET FORMAT json", deadline)? {
        true => "STATUS\n",
        false => "VERBOSE STATUS\n",
    };
    write(&mut stream, status)?;
    // NCCL closes the connection behind its answer.
    read_to_end(&mut stream, deadline)
}

fn connect(address: &str) -> Result<TcpStream, String> {
    let found = address
        .to_socket_addrs()
        .map_err(|error| format!("its address is not understood: {error}"))?;
    let mut why = "its address is not one of this machine".to_owned();
    for address in found.filter(|address| is_own(address.ip())) {
        match TcpStream::connect_timeout(&address, LINE) {
            Ok(stream) => return Ok(stream),
            Err(error) => why = in_words(&error),
        }
    }
    Err(why)
}

/// Whether an address is one of this machine's: only then can a socket have it.
pub fn is_own(address: IpAddr) -> bool {
    address.is_loopback() || UdpSocket::bind(SocketAddr::new(address, 0)).is_ok()
}

/// The right of this process to ask an address, as long as it lasts.
#[derive(Debug)]
pub struct Claim {
    address: String,
    /// Its name is the kernel's alone, in the network namespace of the address: it is free again
    /// when the process ends (unix(7), abstract sockets).
    _socket: Option<UnixListener>,
}

impl Claim {
    /// Adds the claim to an address; `false` if another process has it.
    pub fn add(claims: &mut Vec<Self>, address: &str) -> bool {
        if claims.iter().any(|each| each.address == address) {
            return true;
        }
        let name = format!("torchspy-nccl-ras-{address}");
        let named = unix::net::SocketAddr::from_abstract_name(name);
        let socket = match named.and_then(|name| UnixListener::bind_addr(&name)) {
            Ok(socket) => Some(socket),
            Err(error) if error.kind() == ErrorKind::AddrInUse => return false,
            // A name that is too long.
            Err(_) => None,
        };
        claims.push(Self {
            address: address.to_owned(),
            _socket: socket,
        });
        true
    }
}

fn in_words(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "nothing listens there".to_owned(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "it does not answer in time".to_owned(),
        _ => error.to_string(),
    }
}

fn write(stream: &mut TcpStream, line: &str) -> Result<(), String> {
    stream
        .set_write_timeout(Some(LINE))
        .and_then(|()| stream.write_all(line.as_bytes()))
        .map_err(|error| in_words(&error))
}

/// Sends a line and reads the line that answers it.
fn say(stream: &mut TcpStream, line: &str, deadline: Instant) -> Result<String, String> {
    write(stream, line)?;
    let deadline = deadline.min(Instant::now() + LINE);
    let mut reply = Vec::new();
    // The answers are short, and nothing follows before the next line is sent.
    let mut byte = [0; 1];
    while reply.len() < MAX_LINE {
        match read(stream, &mut byte, deadline)? {
            0 => return Err("it closes the connection".to_owned()),
            _ if byte == *b"\n" => {
                return Ok(String::from_utf8_lossy(&reply).trim_end().to_owned());
            }
            _ => reply.extend(byte),
        }
    }
    Err("it is not NCCL that listens there".to_owned())
}

/// Sends a command; `false` if it is not known.
fn is_accepted(stream: &mut TcpStream, command: &str, deadline: Instant) -> Result<bool, String> {
    let reply = say(stream, &format!("{command}\n"), deadline)?;
    match reply.get(..5) {
        _ if reply.eq_ignore_ascii_case("OK") => Ok(true),
        Some(start) if start.eq_ignore_ascii_case("ERROR") => Ok(false),
        _ => Err("it is not NCCL that listens there".to_owned()),
    }
}

fn read(stream: &mut TcpStream, into: &mut [u8], deadline: Instant) -> Result<usize, String> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("it does not answer in time".to_owned());
        }
        let read = stream
            .set_read_timeout(Some(left))
            .and_then(|()| stream.read(into));
        match read {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(in_words(&error)),
            Ok(count) => return Ok(count),
        }
    }
}

fn read_to_end(stream: &mut TcpStream, deadline: Instant) -> Result<Vec<u8>, String> {
    let mut answer = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    loop {
        match read(stream, &mut chunk, deadline)? {
            0 => return Ok(answer),
            count => answer.extend_from_slice(chunk.get(..count).unwrap_or_default()),
        }
        if answer.len() as u64 > MAX_ANSWER {
            return Err("its answer is too long".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    /// A server that answers each line with what `reply` says, and closes behind the one that it
    /// answers with `None`: as NCCL does behind a status. Returns its address and what it was told.
    fn server(
        reply: impl Fn(&str) -> Option<String> + Send + 'static,
    ) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = Vec::new();
            for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                let Ok(line) = line else { break };
                let said = reply(&line);
                lines.push(line);
                match said {
                    Some(said) if said.ends_with('\n') => {
                        let _ = stream.write_all(said.as_bytes());
                    }
                    Some(last) => {
                        let _ = stream.write_all(last.as_bytes());
                        break;
                    }
                    None => break,
                }
            }
            lines
        });
        (address, serving)
    }

    /// Answers as NCCL does.
    fn nccl(line: &str) -> Option<String> {
        Some(match line {
            "CLIENT PROTOCOL 2" => "SERVER PROTOCOL 2\n".to_owned(),
            "TIMEOUT 2" | "SET FORMAT json" => "OK\n".to_owned(),
            "STATUS" => "{\"communicators\": []}".to_owned(),
            other => format!("ERROR: Unknown command {other}\n"),
        })
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn the_status_is_what_follows_the_handshake() {
        let (address, serving) = server(nccl);
        assert_eq!(ask(&address, LONG).unwrap(), b"{\"communicators\": []}");
        let told = [
            "CLIENT PROTOCOL 2",
            "TIMEOUT 2",
            "SET FORMAT json",
            "STATUS",
        ];
        assert_eq!(serving.join().unwrap(), told);
    }

    #[test]
    fn without_json_the_text_is_asked_for() {
        let (address, serving) = server(|line| match line {
            // NCCL 2.24.3 to 2.28.3.
            "SET FORMAT json" => Some(format!("ERROR: Unknown command {line}\n")),
            "VERBOSE STATUS" => Some("NCCL version 2.24.3".to_owned()),
            other => nccl(other),
        });
        assert_eq!(ask(&address, LONG).unwrap(), b"NCCL version 2.24.3");
        let told = [
            "CLIENT PROTOCOL 2",
            "TIMEOUT 2",
            "SET FORMAT json",
            "VERBOSE STATUS",
        ];
        assert_eq!(serving.join().unwrap(), told);
    }

    #[test]
    fn why_there_is_no_answer() {
        let said = |reply: fn(&str) -> Option<String>| {
            let (address, _serving) = server(reply);
            ask(&address, LONG).unwrap_err()
        };
        let old = said(|line| match line {
            "TIMEOUT 2" => Some("ERROR: Unknown command\n".to_owned()),
            other => nccl(other),
        });
        assert!(old.contains("does not know `TIMEOUT 2`"), "{old}");
        let odd = said(|line| match line {
            "SET FORMAT json" => Some("Sure!\n".to_owned()),
            other => nccl(other),
        });
        assert!(odd.contains("not NCCL"), "{odd}");
        let http = said(|_| Some("HTTP/1.1 400 Bad Request\n".to_owned()));
        assert!(http.contains("not NCCL"), "{http}");
        let long = said(|_| Some(format!("{}\n", "x".repeat(100_000))));
        assert!(long.contains("not NCCL"), "{long}");
        assert!(said(|_| None).contains("closes"));
        let free = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        assert_eq!(
            ask(&free.to_string(), LONG).unwrap_err(),
            "nothing listens there"
        );
        assert!(
            ask("192.0.2.1:28028", LONG)
                .unwrap_err()
                .contains("this machine")
        );
        assert!(ask("nonsense", LONG).is_err());
    }

    #[test]
    fn an_address_is_claimed_once() {
        let address = format!("127.0.0.1:{}", std::process::id());
        let (mut first, mut second) = (Vec::new(), Vec::new());
        assert!(Claim::add(&mut first, &address) && Claim::add(&mut first, &address));
        assert!(!Claim::add(&mut second, &address));
        drop(first);
        assert!(Claim::add(&mut second, &address));
    }

    #[test]
    fn one_that_says_nothing_costs_no_more_than_its_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let why = ask(&address, Duration::from_millis(20)).unwrap_err();
        assert_eq!(why, "it does not answer in time");
    }
}
