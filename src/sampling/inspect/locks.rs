//! Which lock a thread sleeps on, and which thread holds it.
//!
//! Everything is read while the target runs. The result is valid because the thread slept
//! throughout: its scheduling statistics and its system call are read first and compared at the
//! end.

use crate::memory::Memory;
use crate::model::dump::{Lock, Owner, THREAD_END};
use crate::os::threads::{FUTEX, SchedStat, ThreadFiles, Whereabouts};
use crate::os::vm_read::ProcessMemory;
use crate::python::discover::Interpreter;
use crate::python::locks::LockObject;
use crate::python::threads::read_threads;
use crate::sampling::snapshot::{SnapshotProcess, SnapshotThread};
use rustc_hash::FxHashMap;

/// FUTEX_WAIT without its flags, and the value of a glibc lock that others wait for (nptl,
/// lowlevellock.c).
const FUTEX_COMMAND: u64 = 0x7f;
const FUTEX_WAIT: u64 = 0;
const CONTENDED: u64 = 2;
/// Of a `pthread_mutex_t` (glibc 2.26 and later, sysdeps/nptl/bits/struct_mutex.h): `__owner`,
/// `__nusers`, `__kind`.
const MUTEX_OWNER: u64 = 8;
const MUTEX_USERS: u64 = 12;
const MUTEX_KIND: u64 = 16;
/// Above these values it is not a mutex: no machine has as many threads, and `__kind` has no other
/// flags.
const MAX_USERS: i32 = 1 << 22;
const MAX_KIND: i32 = 0x1ff;

/// A thread that slept in a futex when it was captured, and still does.
#[derive(Clone, Copy)]
struct Sleep {
    futex: Futex,
    whereabouts: Whereabouts,
    scheduled: SchedStat,
}

/// Threads that sleep in futexes.
pub(super) struct Sleeps {
    pid: i32,
    of: FxHashMap<i32, Sleep>,
}

impl Sleeps {
    /// The threads of a process that are still in the sleep in which they were captured. Called
    /// before anything else is read.
    pub(super) fn of(pid: i32, threads: &[SnapshotThread]) -> Self {
        let sleeps = threads.iter().filter_map(|thread| {
            let files = ThreadFiles::open(pid, thread.tid);
            let scheduled = files.schedstat().ok()?;
            let now = files.whereabouts().ok()?;
            thread.asleep?.is_same_sleep(now).then_some(())?;
            let sleep = Sleep {
                futex: futex(thread.asleep?)?,
                whereabouts: now,
                scheduled,
            };
            Some((thread.tid, sleep))
        });
        Self {
            pid,
            of: sleeps.collect(),
        }
    }

    /// The address that a thread sleeps at.
    pub(super) fn address(&self, tid: i32) -> Option<u64> {
        self.of.get(&tid).map(|sleep| sleep.futex.address)
    }

    /// Whether a thread was not scheduled since the beginning. Called after everything was read.
    fn slept_on(&self, tid: i32) -> bool {
        let files = ThreadFiles::open(self.pid, tid);
        let now = (files.schedstat().ok(), files.whereabouts().ok());
        self.of
            .get(&tid)
            .is_some_and(|sleep| now == (Some(sleep.scheduled), Some(sleep.whereabouts)))
    }
}

/// A futex wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Futex {
    address: u64,
    /// A contended glibc lock.
    is_contended_lock: bool,
    /// It ends after a time (futex(2): the fourth argument points to it).
    is_timed: bool,
}

fn futex(whereabouts: Whereabouts) -> Option<Futex> {
    match whereabouts {
        Whereabouts::InSyscall {
            number: FUTEX,
            arguments: [address, operation, value, timeout, ..],
            ..
        } => Some(Futex {
            address,
            is_contended_lock: operation & FUTEX_COMMAND == FUTEX_WAIT && value == CONTENDED,
            is_timed: timeout != 0,
        }),
        _ => None,
    }
}

/// Locks found in frames.
#[derive(Default)]
pub(super) struct Sightings {
    /// Locks of `with` blocks, by the address that their waiters sleep at, with the one thread that
    /// is inside the block.
    blocks: FxHashMap<u64, (LockObject, Option<i32>)>,
    /// By thread: the lock that it sleeps on, and the name that its frames have for it.
    names: FxHashMap<i32, (LockObject, String)>,
    /// By thread: the thread whose end it waits for.
    joins: FxHashMap<i32, Joined>,
}

/// A `threading.Thread` that another thread joins.
#[derive(Clone, Debug, Default)]
pub(super) struct Joined {
    /// Address of the object.
    pub(super) object: u64,
    /// `Thread.name`; `None` where it could not be read.
    pub(super) name: Option<String>,
    /// Its tid in the pid namespace of the process.
    pub(super) inner_tid: Option<i32>,
}

impl Sightings {
    /// A thread holds the lock, by a `with` block.
    pub(super) fn in_block(&mut self, tid: i32, lock: LockObject) {
        let known = self.blocks.entry(lock.semaphore);
        known
            // Two threads cannot hold it: one of them was read while it released or acquired it.
            .and_modify(|(_, holder)| *holder = holder.filter(|&holder| holder == tid))
            .or_insert((lock, Some(tid)));
    }

    /// A thread sleeps on a lock that has this name in its frames.
    pub(super) fn named(&mut self, tid: i32, lock: LockObject, name: String) {
        self.names.insert(tid, (lock, name));
    }

    /// A thread sleeps in `Thread.join()`.
    pub(super) fn joining(&mut self, tid: i32, joined: Joined) {
        self.joins.insert(tid, joined);
    }
}

/// Finds the owners of locks.
pub(super) struct Owners<'a> {
    pub(super) process: &'a SnapshotProcess,
    pub(super) memory: &'a ProcessMemory,
    pub(super) sightings: Sightings,
}

/// A lock and its owner, where the owner could be determined.
pub(super) type OwnedLock = (Lock, Option<Owner>);

impl Owners<'_> {
    /// The lock of each thread that slept on one throughout, where the lock could be identified.
    pub(super) fn locks(&self, sleeps: &Sleeps) -> Vec<(i32, OwnedLock)> {
        let mut found: Vec<(i32, OwnedLock)> = sleeps
            .of
            .iter()
            .filter_map(|(&tid, sleep)| {
                let Futex {
                    address,
                    is_contended_lock,
                    is_timed,
                } = sleep.futex;
                let (lock, owner) = match (self.sightings.joins.get(&tid), is_contended_lock) {
                    (Some(joined), _) => self.thread_end(joined),
                    (None, true) => self.mutex(address)?,
                    (None, false) => self.python_lock(tid, address)?,
                };
                Some((tid, (Lock { is_timed, ..lock }, owner)))
            })
            .collect();
        found.retain(|(tid, _)| sleeps.slept_on(*tid));
        found.sort_unstable_by_key(|(tid, _)| *tid);
        found
    }

    fn thread_end(&self, joined: &Joined) -> OwnedLock {
        let lock = Lock {
            kind: THREAD_END,
            address: joined.object,
            name: joined.name.clone(),
            is_timed: false,
        };
        let tid = joined.inner_tid.and_then(|inner| self.tid_of(inner));
        let by = "Thread.join()";
        (lock, tid.map(|tid| Owner { tid, by }))
    }

    fn mutex(&self, address: u64) -> Option<OwnedLock> {
        let word = |offset: u64| self.memory.read_i32(address.wrapping_add(offset)).ok();
        // Other glibc locks sleep in the same way and have no such fields: only the tid of a thread
        // of the process is accepted as the owner.
        let owner = word(MUTEX_OWNER)?;
        let users = word(MUTEX_USERS)?;
        let kind = word(MUTEX_KIND)?;
        if !(1..MAX_USERS).contains(&users) || !(0..=MAX_KIND).contains(&kind) {
            return None;
        }
        let owner = self.tid_of(owner)?;
        let lock = Lock {
            kind: "pthread mutex",
            address,
            name: None,
            is_timed: false,
        };
        let owner = Owner {
            tid: owner,
            by: "the mutex",
        };
        Some((lock, Some(owner)))
    }

    /// The thread whose tid in the pid namespace of the process is `inner`, which may differ from
    /// the tid that torchspy sees.
    fn tid_of(&self, inner: i32) -> Option<i32> {
        let pid = self.process.pid;
        let own = |tid: i32| ThreadFiles::open(pid, tid).inner_tid().unwrap_or(tid);
        // Nearly always both tids are the same.
        let threads = || self.process.threads.iter().map(|thread| thread.tid);
        threads()
            .find(|&tid| tid == inner && own(tid) == inner)
            .or_else(|| threads().find(|&tid| own(tid) == inner))
    }

    fn python_lock(&self, tid: i32, address: u64) -> Option<OwnedLock> {
        let named = self.sightings.names.get(&tid);
        let named = named.filter(|(lock, _)| lock.semaphore == address);
        let block = self.sightings.blocks.get(&address);
        let object = named
            .map(|(lock, _)| lock)
            .or(block.map(|(lock, _)| lock))?;
        let owner = match object.kind {
            // An RLock records its owner, and `Condition.wait` releases it inside its `with` block.
            "threading.RLock" => self.owner_of(object),
            _ => block.and_then(|(_, holder)| *holder).map(|tid| Owner {
                tid,
                by: "its `with` block",
            }),
        };
        let lock = Lock {
            kind: object.kind,
            address: object.address,
            name: named.map(|(_, name)| name.clone()),
            is_timed: false,
        };
        Some((lock, owner.filter(|owner| owner.tid != tid)))
    }

    /// The owner that an RLock records itself.
    fn owner_of(&self, object: &LockObject) -> Option<Owner> {
        let pthread = object.owner?;
        let interpreter: &Interpreter = self.process.interpreter.as_ref()?;
        let states = read_threads(interpreter, self.memory).ok()?;
        let state = states.iter().find(|state| state.pthread == pthread)?;
        let mut threads = self.process.threads.iter();
        let owner = threads.find(|each| each.python_state == Some(state.state_address))?;
        Some(Owner {
            tid: owner.tid,
            by: "the RLock",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::threads::RESTART_SYSCALL;

    const LOCK: LockObject = LockObject {
        address: 0x100,
        kind: "threading.Lock",
        semaphore: 0x200,
        owner: None,
    };

    fn in_futex(number: u32, operation: u64, value: u64) -> Whereabouts {
        Whereabouts::InSyscall {
            number,
            arguments: [0x200, operation, value, 0, 0, 0],
            stack_pointer: 0x7000,
            instruction_pointer: 0x4000,
        }
    }

    #[test]
    fn a_lock_that_two_seem_to_have_has_no_known_holder() {
        let mut sightings = Sightings::default();
        sightings.in_block(1, LOCK);
        assert_eq!(sightings.blocks[&0x200].1, Some(1));
        sightings.in_block(1, LOCK);
        assert_eq!(sightings.blocks[&0x200].1, Some(1));
        sightings.in_block(2, LOCK);
        assert_eq!(sightings.blocks[&0x200].1, None);
        sightings.in_block(1, LOCK);
        assert_eq!(sightings.blocks[&0x200].1, None);
    }

    #[test]
    fn a_restarted_call_is_the_same_sleep() {
        let then = in_futex(FUTEX, 0x80, 2);
        let wait = |is_contended_lock| Futex {
            address: 0x200,
            is_contended_lock,
            is_timed: false,
        };
        assert_eq!(futex(then), Some(wait(true)));
        assert_eq!(futex(in_futex(FUTEX, 0x189, 0)), Some(wait(false)));
        assert!(then.is_same_sleep(then));
        assert!(then.is_same_sleep(in_futex(RESTART_SYSCALL, 0, 0)));
        assert!(!then.is_same_sleep(in_futex(FUTEX, 0x80, 1)));
        assert!(!then.is_same_sleep(Whereabouts::Running));
    }
}
