//! What is a hang, and what is not.

use super::super::built::{locked, process, thread, waiting};
use super::*;
use crate::model::dump::Progress;

fn rank(number: u32, thread: DumpedThread) -> DumpedProcess {
    DumpedProcess {
        role: Role::Trainer {
            rank: Some(number),
            local_rank: None,
            world_size: Some(3),
        },
        ..process(100 + number as i32, vec![thread])
    }
}

fn in_wait(kind: WaitKind) -> DumpedThread {
    waiting(1, &["f:7"], kind, kind.name())
}

/// Ranks 0 and 1 wait in a collective; rank 2 is given.
fn job(last: DumpedThread) -> Dump {
    let waits = |number| rank(number, in_wait(WaitKind::Collective));
    Dump {
        processes: vec![waits(0), waits(1), rank(2, last)],
        ..Dump::default()
    }
}

fn is_hang(dump: &Dump) -> bool {
    matches!(judge(dump, &Since::default()), Judgement::Hang(_))
}

#[test]
fn a_wait_that_nobody_ends_is_a_hang() {
    use WaitKind::{Collective, GpuSync, Input, Io, Lock, Socket};
    for kind in [Collective, Lock, Input, Io, Socket, GpuSync] {
        assert!(is_hang(&job(in_wait(kind))), "{kind:?}");
    }
    // Without others that wait for it, a read is a read.
    let alone = Dump {
        processes: vec![rank(0, in_wait(Io))],
        ..Dump::default()
    };
    assert!(!is_hang(&alone));
    assert!(!is_hang(&Dump::default()));
}

#[test]
fn what_goes_on_by_itself_is_none() {
    use WaitKind::{Autograd, Barrier, Child, Cpu, Disk, Events, Sleep};
    for kind in [Sleep, Disk, Child, Events, Cpu, Barrier, Autograd] {
        assert!(!is_hang(&job(in_wait(kind))), "{kind:?}");
    }
    assert!(!is_hang(&job(thread(1, &["f:7"]))));
    for state in [ThreadState::Stopped, ThreadState::Uninterruptible] {
        let mut halted = in_wait(WaitKind::Collective);
        halted.state = state;
        assert!(!is_hang(&job(halted)), "{state:?}");
    }
    let mut console = in_wait(WaitKind::Io);
    console.frames[0].file = "/usr/lib/python3.11/pdb.py".to_owned();
    assert!(!is_hang(&job(console)));
}

#[test]
fn nothing_hangs_while_some_thread_works_or_writes() {
    let dump = job(in_wait(WaitKind::Lock));
    let busy = Since {
        busy: std::iter::once((102, 1)).collect(),
        ..Since::default()
    };
    assert!(matches!(judge(&dump, &busy), Judgement::No(_)));
    let writes = Since {
        transfers: std::iter::once(101).collect(),
        ..Since::default()
    };
    assert!(matches!(judge(&dump, &writes), Judgement::No(_)));
    // A wait for the GPU spins.
    let spins = job(in_wait(WaitKind::GpuSync));
    assert!(matches!(judge(&spins, &busy), Judgement::Hang(_)));
}

#[test]
fn the_holder_of_the_lock_decides() {
    let with = |holder: DumpedThread| {
        let mut dump = job(locked(1, 2));
        dump.processes[2].threads.push(DumpedThread {
            tid: 2,
            trains: false,
            ..holder
        });
        dump
    };
    assert!(!is_hang(&with(in_wait(WaitKind::Sleep))));
    assert!(!is_hang(&with(thread(2, &["work:1"]))));
    assert!(is_hang(&with(in_wait(WaitKind::Io))));
    assert!(is_hang(&with(locked(2, 1))));
    let mut timed = job(locked(1, 2));
    let wait = timed.processes[2].threads[0].wait.as_mut().unwrap();
    wait.lock.as_mut().unwrap().is_timed = true;
    assert!(!is_hang(&timed));
}

#[test]
fn the_worker_decides() {
    let with = |thread: DumpedThread| {
        let mut dump = job(in_wait(WaitKind::Input));
        dump.processes.push(DumpedProcess {
            role: Role::DataLoaderWorker {
                number: 0,
                trainer: None,
            },
            trainer_pid: Some(102),
            ..process(200, vec![thread])
        });
        dump
    };
    assert!(is_hang(&with(in_wait(WaitKind::Socket))));
    assert!(!is_hang(&with(in_wait(WaitKind::Sleep))));
    assert!(!is_hang(&with(thread(1, &["decode:1"]))));
}

#[test]
fn who_is_woken_for_its_data_gets_on() {
    let ran = |pid: i32, tid: i32| Since {
        ran: std::iter::once((pid, tid)).collect(),
        ..Since::default()
    };
    let hangs = |dump: &Dump, since: &Since| matches!(judge(dump, since), Judgement::Hang(_));
    let reads = job(in_wait(WaitKind::Socket));
    assert!(!hangs(&reads, &ran(102, 1)) && hangs(&reads, &ran(101, 1)));
    // A lock whose holder is not known, in a process with a thread of native code that sends.
    let mut lock = job(in_wait(WaitKind::Lock));
    lock.processes[2].threads.push(DumpedThread {
        tid: 2,
        trains: false,
        ..waiting(2, &[".send:0"], WaitKind::Socket, "sendmsg")
    });
    assert!(!hangs(&lock, &ran(102, 2)) && hangs(&lock, &ran(102, 1)));
    let mut input = job(in_wait(WaitKind::Input));
    input.processes.push(DumpedProcess {
        trainer_pid: Some(102),
        ..process(200, vec![in_wait(WaitKind::Socket)])
    });
    assert!(!hangs(&input, &ran(200, 1)) && hangs(&input, &ran(102, 1)));
}

#[test]
fn ranks_elsewhere_may_compute_and_ranks_that_ended_do_not() {
    let mut dump = job(in_wait(WaitKind::Collective));
    dump.processes.pop();
    assert!(!is_hang(&dump));
    let seen = Since {
        seen: [0, 1, 2].into_iter().collect(),
        ..Since::default()
    };
    assert!(matches!(judge(&dump, &seen), Judgement::Hang(_)));
}

#[test]
fn a_step_or_another_line_is_a_move() {
    let one = job(thread(1, &["f:7"]));
    assert_eq!(Marks::of(&one), Marks::of(&one.clone()));
    assert_ne!(Marks::of(&one), Marks::of(&job(thread(1, &["f:8"]))));
    let mut two = one.clone();
    two.processes[0].progress.push(Progress {
        what: "step".to_owned(),
        value: 1,
        source: String::new(),
    });
    assert_ne!(Marks::of(&one), Marks::of(&two));
    assert_eq!(steps(&one), None);
}

#[test]
fn who_sets_an_event_is_not_known_while_another_thread_sleeps_or_is_woken_from_outside() {
    use WaitKind::{Child, Collective, Events, Io, Lock, Sleep, Socket};
    let with = |kind| {
        let mut dump = job(in_wait(Lock));
        dump.processes[2].threads.push(DumpedThread {
            trains: false,
            ..waiting(2, &["feed:9"], kind, kind.name())
        });
        dump
    };
    for kind in [Sleep, Child, Events, Io, Socket] {
        let Judgement::No(why) = judge(&with(kind), &Since::default()) else {
            panic!("{kind:?}");
        };
        assert!(
            why.starts_with("rank 2 waits: ") && why.contains("train.py:9 is not known"),
            "{why}"
        );
    }
    assert!(is_hang(&with(Lock)) && is_hang(&with(Collective)));
    let timed = |tid| Since {
        timed: std::iter::once((102, tid)).collect(),
        ..Since::default()
    };
    for tid in [1, 2] {
        assert!(matches!(judge(&with(Lock), &timed(tid)), Judgement::No(_)));
    }
    // The monitor of a progress bar ends nothing.
    let mut bar = with(Sleep);
    bar.processes[2].threads[1].frames[0].file = "/lib/tqdm/_monitor.py".to_owned();
    assert!(is_hang(&bar));
}

#[test]
fn a_holder_that_waits_is_followed_to_the_one_that_goes_on() {
    let with = |last: DumpedThread| {
        let mut dump = job(locked(1, 2));
        let others = [locked(2, 3), last].map(|thread| DumpedThread {
            trains: false,
            ..thread
        });
        dump.processes[2].threads.extend(others);
        dump
    };
    assert!(!is_hang(&with(waiting(
        3,
        &["f:7"],
        WaitKind::Sleep,
        "time.sleep()"
    ))));
    assert!(is_hang(&with(waiting(
        3,
        &["f:7"],
        WaitKind::Collective,
        "all_reduce"
    ))));
    assert!(is_hang(&with(locked(3, 2))));
}

#[test]
fn who_connects_and_what_a_child_writes_is_not_known() {
    let mut accepts = job(in_wait(WaitKind::Socket));
    assert!(is_hang(&accepts));
    accepts.processes[2].threads[0].syscall = Some("accept4".to_owned());
    let Judgement::No(why) = judge(&accepts, &Since::default()) else {
        panic!();
    };
    assert!(
        why.ends_with("whether anybody connects is not known"),
        "{why}"
    );
    let reads = job(in_wait(WaitKind::Io));
    let since = Since {
        from_child: std::iter::once((102, 1)).collect(),
        ..Since::default()
    };
    let Judgement::No(why) = judge(&reads, &since) else {
        panic!();
    };
    assert!(why.contains("the output of a child"), "{why}");
}

/// What is said of ranks that wait in these collectives, at these lines.
fn hang_of(waits: &[(&str, &str)]) -> String {
    let ranks = waits.iter().zip(0..).map(|(&(what, line), number)| {
        let mut rank = rank(number, waiting(1, &[line], WaitKind::Collective, what));
        rank.role = Role::Trainer {
            rank: Some(number),
            local_rank: None,
            world_size: Some(waits.len() as u32),
        };
        rank
    });
    let dump = Dump {
        processes: ranks.collect(),
        ..Dump::default()
    };
    match judge(&dump, &Since::default()) {
        Judgement::Hang(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_rank_in_another_collective_is_named() {
    let reduce = ("all_reduce", "step:7");
    let barrier = ("barrier", "save:142");
    for (waits, said) in [
        (&[reduce, reduce, reduce][..], ""),
        (
            &[reduce, barrier, reduce],
            ", but rank 1 in another one: barrier at train.py:142",
        ),
        (
            &[reduce, reduce, ("all_reduce", "log:9")],
            ", but rank 2 from another line: all_reduce at train.py:9",
        ),
        (
            &[reduce, barrier],
            ", but in different ones: rank 0 in all_reduce at train.py:7, rank 1 in barrier at train.py:142",
        ),
    ] {
        assert_eq!(
            hang_of(waits),
            format!("all ranks wait in collectives{said}")
        );
    }
}
