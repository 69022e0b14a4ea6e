//! Asks NCCL of the captured processes how far each rank of each communicator is.

use crate::model::dump::{Dump, DumpedProcess};
use crate::model::nccl_ras::{Member, Ras, RasAnswer};
use crate::os::nccl_ras::{DEFAULT_ADDRESS, ask, is_own};
use crate::os::process_info::read_process_info;
use crate::os::redaction::Redaction;
use crate::os::threads::{ThreadFiles, thread_names};
use crate::torch::nccl_ras::parse_ras;
use rustc_hash::FxHashMap;
use std::net::IpAddr;
use std::time::Duration;

/// How long an answer may take: NCCL waits for ranks that do not respond.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most sockets that are asked: jobs on one machine must have one each.
const MAX_SOCKETS: usize = 4;

/// What the RAS sockets of a dump's processes answer; empty where no process uses NCCL.
pub(super) fn ask_nccl(dump: &Dump) -> Vec<RasAnswer> {
    let users: Vec<&DumpedProcess> = dump
        .processes
        .iter()
        .filter(|each| uses_nccl(each))
        .collect();
    let pids: Vec<i32> = users.iter().map(|process| process.pid).collect();
    ask_sockets(&pids, |_| true)
}

/// What the RAS sockets of these processes answer, as far as their addresses may be asked.
pub(super) fn ask_sockets(users: &[i32], mut may_ask: impl FnMut(&str) -> bool) -> Vec<RasAnswer> {
    // Pids by what the processes themselves take for theirs.
    let inner: FxHashMap<i32, i32> = users
        .iter()
        .map(|&pid| {
            let own = ThreadFiles::open(pid, pid).inner_tid();
            (own.unwrap_or(pid), pid)
        })
        .collect();
    let mut sockets: Vec<Result<String, &'static str>> = Vec::new();
    for &pid in users {
        let socket = socket_of(pid);
        if !sockets.contains(&socket) && sockets.len() < MAX_SOCKETS {
            sockets.push(socket);
        }
    }
    let answers = sockets.into_iter().map(|socket| match socket {
        Err(why) => RasAnswer {
            address: DEFAULT_ADDRESS.to_owned(),
            ras: Err(why.to_owned()),
        },
        Ok(address) if !may_ask(&address) => RasAnswer {
            address,
            ras: Err(
                "another recorder of this machine asks: its recording has the answer".to_owned(),
            ),
        },
        Ok(address) => {
            let ras = ask(&address, PATIENCE)
                .and_then(|text| parse_ras(&text))
                .and_then(|ras| of_here(ras, &inner));
            RasAnswer { address, ras }
        }
    });
    answers.collect()
}

/// Whether a process uses NCCL: torch loads the library without using it. A thread of NCCL's own
/// has a frame in it, and torch's watchdog a name (`pt_nccl_watchdg`, ProcessGroupNCCL.cpp).
fn uses_nccl(process: &DumpedProcess) -> bool {
    process.threads.iter().any(|thread| {
        let is_nccl = |file: &str| {
            let name = file.rsplit('/').next().unwrap_or(file);
            name.starts_with("libnccl.so")
        };
        is_thread_of_nccl(&thread.name)
            || thread
                .frames
                .iter()
                .any(|frame| !frame.is_python && is_nccl(&frame.file))
    })
}

/// The same of a process, by the names of its threads alone.
pub(super) fn has_threads_of_nccl(pid: i32) -> bool {
    thread_names(pid).iter().any(|name| is_thread_of_nccl(name))
}

fn is_thread_of_nccl(name: &str) -> bool {
    name.starts_with("pt_nccl") || name.starts_with("NCCL ")
}

/// Where the RAS of a process listens, by its environment; or why it does not.
fn socket_of(pid: i32) -> Result<String, &'static str> {
    let info = read_process_info(pid, Redaction::On).unwrap_or_default();
    let value = |name: &str| {
        let found = info.environment.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.trim())
    };
    if value("NCCL_RAS_ENABLE") == Some("0") {
        return Err("it is off (NCCL_RAS_ENABLE=0)");
    }
    let address = value("NCCL_RAS_ADDR").filter(|address| !address.is_empty());
    Ok(address.unwrap_or(DEFAULT_ADDRESS).to_owned())
}

/// Marks the processes of this dump. The socket of another job may have the same address.
fn of_here(mut ras: Ras, inner: &FxHashMap<i32, i32>) -> Result<Ras, String> {
    let mut own_hosts: FxHashMap<String, bool> = FxHashMap::default();
    let mut mark = |member: &mut Member| {
        let is_own_host = match own_hosts.get(&member.host) {
            Some(&known) => known,
            None => {
                let address: Option<IpAddr> = member.host.parse().ok();
                let is = address.is_some_and(is_own);
                own_hosts.insert(member.host.clone(), is);
                is
            }
        };
        if is_own_host && let Some(&pid) = inner.get(&member.pid) {
            member.pid = pid;
            member.is_here = true;
        }
        member.is_here
    };
    let mut is_known = ras.communicators.is_empty() && !ras.may_be_others;
    for communicator in &mut ras.communicators {
        for rank in &mut communicator.ranks {
            is_known |= mark(&mut rank.member);
        }
        for rank in &mut communicator.missing {
            is_known |= mark(&mut rank.member);
        }
    }
    ras.may_be_others &= !is_known;
    match is_known || ras.may_be_others {
        true => Ok(ras),
        false => Err(
            "another job answers there: none of its processes is among those that are read here"
                .to_owned(),
        ),
    }
}
