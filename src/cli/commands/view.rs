//! `torchspy view FILE|DIR`.

use crate::cli::browser;
use crate::cli::failure::Failure;
use crate::cli::formats::Format;
use crate::cli::messages;
use crate::cli::output_file::create_numbered;
use crate::cli::plan::ViewPlan;
use crate::cli::view::library::Library;
use crate::cli::view::server::{Site, serve};
use crate::os::signals::{self, Signals};
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// How often the end of the server is polled.
const POLL: Duration = Duration::from_secs(1);

pub(crate) fn run(plan: ViewPlan) -> Result<ExitCode, Failure> {
    // First of all, so that every thread made later has them blocked.
    let mut signals = Signals::install().map_err(Failure::new)?;
    let library = Library::open(&plan.path, plan.regions, plan.rules)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, plan.port)).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "another program listens there: leave --port out, and a free one is taken"
            }
            io::ErrorKind::PermissionDenied => "ports below 1024 are root's: leave --port out",
            _ => "leave --port out, and a free one is taken",
        };
        let context = format!("cannot listen on 127.0.0.1:{}", plan.port);
        Failure::new(anyhow::Error::new(error).context(context)).hint(hint)
    })?;
    let port = listener.local_addr().map_err(Failure::new)?.port();
    let site = Site::new(library).map_err(Failure::new)?;
    let address = format!("http://127.0.0.1:{port}{}", site.root());
    signals.listen().map_err(Failure::new)?;
    let server = std::thread::Builder::new()
        .name("torchspy-view".to_owned())
        .spawn(move || serve(listener, site))
        .map_err(Failure::new)?;
    messages::data(|out| writeln!(out, "{address}"))?;
    messages::note(&format!(
        "Ctrl-C ends it; from another machine: ssh -L {port}:127.0.0.1:{port} HOST, then the same address there"
    ));
    let redirect = match plan.open.unwrap_or_else(has_desktop) {
        true => Redirect::open(&address),
        false => None,
    };
    while !server.is_finished() {
        signals::wait_readable(&signals, None, POLL);
        while let Some(received) = signals.next() {
            match received.signal {
                Signal::SIGTSTP => {
                    let _ = signals.stop_self();
                }
                Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT => {
                    drop(redirect);
                    return Ok(ExitCode::SUCCESS);
                }
                _ => {}
            }
        }
    }
    match server.join() {
        Ok(Err(error)) => Err(Failure::new(error)),
        _ => Err(Failure::message("the server has ended")),
    }
}

/// Whether somebody looks at this terminal on a desktop.
fn has_desktop() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && (is_set("DISPLAY") || is_set("WAYLAND_DISPLAY"))
}

/// A file that leads a browser to the address. The address itself is on no command line, where
/// other users of the machine would see its token.
struct Redirect(PathBuf);

impl Redirect {
    fn open(address: &str) -> Option<Self> {
        let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
        let folder = folder.unwrap_or_else(|| std::env::temp_dir().into());
        let mut base: OsString = folder;
        base.push(format!("/torchspy-view-{}", std::process::id()));
        let text = format!(
            "<!doctype html><meta charset=\"utf-8\"><meta name=\"referrer\" content=\"no-referrer\">\
             <meta http-equiv=\"refresh\" content=\"0;url={address}\"><a href=\"{address}\">torchspy view</a>\n"
        );
        // Readable by its owner only, as recordings are.
        let (path, file) = create_numbered(&base.to_string_lossy(), "html", Format::Recording);
        match file.and_then(|mut file| file.write_all(text.as_bytes())) {
            Ok(()) => {
                browser::open(&path);
                Some(Self(path))
            }
            Err(error) => {
                messages::warning(&format!("the browser was not opened: {error}"));
                messages::hint("open the address above");
                None
            }
        }
    }
}

impl Drop for Redirect {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
