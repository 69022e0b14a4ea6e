//! Matches Python thread states to OS threads.

use crate::python::threads::PythonThread;
use rustc_hash::FxHashMap;

/// An OS thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OsThread {
    /// Its tid in torchspy's pid namespace.
    pub(super) tid: i32,
    /// Its tid in its own, the innermost pid namespace.
    pub(super) inner_tid: i32,
    /// Its stack pointer at the last capture; 0 while unknown.
    pub(super) stack_pointer: u64,
}

/// Largest stack, bytes. A thread's control block (`pthread_self`) lies at the top of the stack
/// that glibc maps for it, so it is the first block above the stack pointer.
const MAX_STACK_BYTES: u64 = 1 << 30;

/// Thread state addresses by tid: by `native_thread_id` where it is known, else by the stack
/// addresses. A single unmatched state belongs to the main thread, whose control block is not on
/// its stack.
///
/// A thread has a state in each interpreter that it runs code of. A second state of the same
/// interpreter belongs to a thread that this one is just starting: until the new thread runs, its
/// state has the id of its creator (3.10 and 3.11: new_threadstate and init_threadstate in
/// Python/pystate.c).
pub(super) fn match_threads(
    python: &[PythonThread],
    os: &[OsThread],
    pid: i32,
) -> FxHashMap<i32, Vec<u64>> {
    let by_inner: FxHashMap<u64, i32> = os
        .iter()
        .map(|thread| (thread.inner_tid as u64, thread.tid))
        .collect();
    let mut matched: FxHashMap<i32, Vec<u64>> = FxHashMap::default();
    let mut left: Vec<(u64, Vec<u64>)> = Vec::new();
    for thread in python {
        match thread.native_thread_id {
            Some(id) => {
                let Some(&tid) = by_inner.get(&id) else {
                    continue;
                };
                matched.entry(tid).or_default().push(thread.state_address);
            }
            None => match left
                .iter_mut()
                .find(|(pthread, _)| *pthread == thread.pthread)
            {
                Some((_, states)) => states.push(thread.state_address),
                None => left.push((thread.pthread, vec![thread.state_address])),
            },
        }
    }
    left.retain(|(pthread, states)| {
        let nearest = os
            .iter()
            .filter(|os| os.tid != pid && os.stack_pointer != 0 && !matched.contains_key(&os.tid))
            .filter_map(|os| Some((pthread.checked_sub(os.stack_pointer)?, os.tid)))
            .filter(|&(distance, _)| distance < MAX_STACK_BYTES)
            .min();
        // With another thread's block in between, the stack belongs to that thread.
        let own = nearest.filter(|&(distance, _)| {
            let between = |other: u64| other < *pthread && other > pthread - distance;
            !python.iter().any(|other| between(other.pthread))
        });
        if let Some((_, tid)) = own {
            matched.insert(tid, states.clone());
        }
        own.is_none()
    });
    if let [(_, states)] = &left[..]
        && os.iter().any(|thread| thread.tid == pid)
    {
        matched.entry(pid).or_insert_with(|| states.clone());
    }
    matched
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(state_address: u64, native_thread_id: Option<u64>, pthread: u64) -> PythonThread {
        PythonThread {
            state_address,
            native_thread_id,
            pthread,
            interpreter: 1,
        }
    }

    fn os(tid: i32, inner_tid: i32, stack_pointer: u64) -> OsThread {
        OsThread {
            tid,
            inner_tid,
            stack_pointer,
        }
    }

    #[test]
    fn by_the_id_that_the_target_sees() {
        let python = [state(10, Some(1), 0), state(20, Some(9), 0)];
        let matched = match_threads(
            &python,
            &[os(500, 1, 0), os(509, 9, 0), os(510, 10, 0)],
            500,
        );
        assert_eq!(matched.get(&500), Some(&vec![10]));
        assert_eq!(matched.get(&509), Some(&vec![20]));
        assert_eq!(matched.len(), 2);
    }

    #[test]
    fn a_thread_has_all_states_that_bear_its_id() {
        let python = [state(20, Some(9), 0), state(10, Some(9), 0)];
        let matched = match_threads(&python, &[os(509, 9, 0)], 500);
        assert_eq!(matched.get(&509), Some(&vec![20, 10]));
    }

    #[test]
    fn a_main_thread_with_states_in_two_interpreters_is_the_one_that_is_left() {
        let (main, other) = (0x7000_0000, 0x9000_0000);
        let python = [
            state(30, None, main),
            state(10, None, main),
            state(20, None, other),
        ];
        let threads = [os(1, 1, 0xfff0_0000), os(2, 2, 0x8fff_0000), os(3, 3, 0)];
        let matched = match_threads(&python, &threads, 1);
        assert_eq!(matched.get(&1), Some(&vec![30, 10]));
        assert_eq!(matched.get(&2), Some(&vec![20]));
    }

    #[test]
    fn by_stacks_and_the_rest_is_the_main_thread() {
        let python = [
            state(10, None, 0x7000_0000),
            state(20, None, 0x9000_0000),
            state(30, None, 0xa000_0000),
        ];
        let threads = [
            os(1, 1, 0xfff0_0000),
            os(2, 2, 0x8fff_0000),
            os(3, 3, 0x9fff_0000),
        ];
        let matched = match_threads(&python, &threads, 1);
        assert_eq!(matched.get(&2), Some(&vec![20]));
        assert_eq!(matched.get(&3), Some(&vec![30]));
        assert_eq!(matched.get(&1), Some(&vec![10]));
    }
}
