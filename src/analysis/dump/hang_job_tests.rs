//! What is a hang of a job on several machines, and what is not.

use super::super::built::{process, thread, waiting};
use super::*;
use crate::model::dump::{DumpedProcess, Progress};
use crate::model::profile::Role;

/// A thread that has been put on a CPU so often.
fn ran(slices: u64, thread: DumpedThread) -> DumpedThread {
    DumpedThread {
        slices: Some(slices),
        ..thread
    }
}

fn in_wait(kind: WaitKind) -> DumpedThread {
    ran(7, waiting(1, &["f:7"], kind, kind.name()))
}

/// A machine with one rank of three. All have the same pids.
fn machine(rank: u32, thread: DumpedThread) -> HostAnswer {
    let process = DumpedProcess {
        role: Role::Trainer {
            rank: Some(rank),
            local_rank: None,
            world_size: Some(3),
        },
        ..process(100, vec![thread])
    };
    HostAnswer {
        host: format!("node{rank}"),
        dump: Dump {
            processes: vec![process],
            ..Dump::default()
        },
    }
}

/// Ranks 0 and 1 wait in a collective; rank 2 is given.
fn job(last: DumpedThread) -> Vec<HostAnswer> {
    let waits = |rank| machine(rank, in_wait(WaitKind::Collective));
    vec![waits(0), waits(1), machine(2, last)]
}

fn judged(before: &[HostAnswer], now: &[HostAnswer]) -> Judgement {
    judge_job(before, now, &[], &FxHashSet::default())
}

fn why_not(before: &[HostAnswer], now: &[HostAnswer]) -> String {
    match judged(before, now) {
        Judgement::No(why) => why,
        hang => panic!("{hang:?}"),
    }
}

#[test]
fn a_wait_on_another_machine_that_nobody_ends_is_a_hang() {
    use WaitKind::{Collective, Input, Io, Lock, Socket};
    for kind in [Collective, Input, Io, Lock, Socket] {
        let looks = job(in_wait(kind));
        let judged = judged(&looks, &looks);
        assert!(matches!(&judged, Judgement::Hang(_)), "{kind:?} {judged:?}");
    }
    let looks = job(in_wait(WaitKind::Lock));
    let Judgement::Hang(why) = judged(&looks, &looks) else {
        panic!();
    };
    assert!(why.starts_with("rank 2: "), "{why}");
}

#[test]
fn who_works_moves_or_is_woken_on_another_machine_goes_on() {
    let sleeps = job(in_wait(WaitKind::Sleep));
    assert!(why_not(&sleeps, &sleeps).starts_with("rank 2 "));
    let computes = job(DumpedThread {
        state: ThreadState::Running,
        ..ran(7, thread(1, &["f:7"]))
    });
    assert!(why_not(&computes, &computes).starts_with("rank 2 "));
    let lock = job(in_wait(WaitKind::Lock));
    let other_line = job(ran(7, waiting(1, &["f:8"], WaitKind::Lock, "lock")));
    assert_eq!(why_not(&lock, &other_line), "ranks on node2 move");
    let mut stepped = lock.clone();
    stepped[1].dump.processes[0].progress.push(Progress {
        what: "step".to_owned(),
        value: 3,
        source: String::new(),
    });
    assert_eq!(why_not(&lock, &stepped), "ranks on node1 move");
    // Woken in between: a lock with a timeout in a loop, and data that come.
    for kind in [WaitKind::Lock, WaitKind::Socket, WaitKind::Io] {
        let (before, now) = (job(in_wait(kind)), job(ran(8, in_wait(kind))));
        assert!(why_not(&before, &now).starts_with("rank 2 "), "{kind:?}");
        // An answer without the counts.
        let silent = DumpedThread {
            slices: None,
            ..in_wait(kind)
        };
        let silent = job(silent);
        assert!(why_not(&silent, &silent).starts_with("rank 2 "), "{kind:?}");
    }
}

#[test]
fn a_read_of_a_childs_output_may_end() {
    let mut reads = in_wait(WaitKind::Io);
    reads.frames[0].file = "/usr/lib/python3.11/subprocess.py".to_owned();
    let looks = job(reads);
    assert!(why_not(&looks, &looks).contains("the output of a child"));
}

#[test]
fn what_a_machine_without_an_answer_does_is_not_known() {
    let mut looks = job(in_wait(WaitKind::Collective));
    looks.pop();
    let silent = [Unanswered {
        host: "node2".to_owned(),
        why: "no answer within 10 s".to_owned(),
    }];
    let judge = |looks: &[HostAnswer], seen: &[u32]| {
        judge_job(looks, looks, &silent, &seen.iter().copied().collect())
    };
    let Judgement::No(why) = judge(&looks, &[0, 1]) else {
        panic!();
    };
    assert!(why.starts_with("node2 did not answer"), "{why}");
    // A wait here that others cannot end is a hang all the same.
    looks[0] = machine(0, in_wait(WaitKind::Lock));
    assert!(matches!(judge(&looks, &[]), Judgement::Hang(_)));
}

#[test]
fn a_rank_that_was_seen_and_is_on_no_machine_has_ended() {
    let mut looks = job(in_wait(WaitKind::Collective));
    looks.pop();
    assert!(matches!(judged(&looks, &looks), Judgement::Elsewhere(_)));
    let seen = [0, 1, 2].into_iter().collect();
    let Judgement::Hang(why) = judge_job(&looks, &looks, &[], &seen) else {
        panic!();
    };
    assert!(why.ends_with("rank 2 has ended"), "{why}");
}
