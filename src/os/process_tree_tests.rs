use super::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

fn row(pid: i32, parent: i32, start_ticks: u64) -> ProcessRow {
    ProcessRow {
        pid,
        parent,
        start_ticks,
    }
}

fn pids(rows: &[ProcessRow]) -> Vec<i32> {
    rows.iter().map(|row| row.pid).collect()
}

#[test]
fn descendants_are_found_in_any_order() {
    let mut tree = ProcessTree::new(10, 100);
    let found = tree.add(&[
        row(13, 12, 103),
        row(12, 10, 102),
        row(1, 0, 1),
        row(11, 1, 101),
    ]);
    assert_eq!(pids(&found), [12, 13]);
    assert!(tree.knows(1) && tree.knows(11));
}

#[test]
fn a_child_of_the_same_clock_tick_and_a_lower_pid_is_found() {
    let mut tree = ProcessTree::new(10, 100);
    // The pid counter wrapped: the grandchild sorts before its parent.
    let found = tree.add(&[row(3, 32000, 101), row(32000, 10, 101)]);
    assert_eq!(pids(&found), [32000, 3]);
}

#[test]
fn a_reused_parent_pid_adopts_nobody() {
    let mut tree = ProcessTree::new(10, 500);
    assert!(tree.add(&[row(11, 10, 400)]).is_empty());
}

#[test]
fn a_strangers_pid_is_looked_at_again_when_it_was_gone() {
    let mut tree = ProcessTree::new(10, 100);
    tree.add(&[row(20, 1, 50)]);
    assert!(tree.knows(20));
    tree.retain_strangers(|_| false);
    assert!(!tree.knows(20));
    assert_eq!(pids(&tree.add(&[row(20, 10, 200)])), [20]);
}

#[test]
fn a_member_stays_when_its_parent_has_gone() {
    let mut tree = ProcessTree::new(10, 100);
    tree.add(&[row(11, 10, 101), row(12, 11, 102)]);
    tree.remove(11);
    let found = tree.add(&[row(13, 12, 103)]);
    assert_eq!(
        pids(&found),
        [13],
        "a child of a re-parented member belongs to the tree"
    );
}

/// A shell that does one command line at a time and answers each with a line.
struct Shell {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Shell {
    fn start() -> Self {
        let mut child = Command::new("sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    fn ask(&mut self, line: &str) -> i32 {
        let stdin = self.child.stdin.as_mut().unwrap();
        writeln!(stdin, "{line}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim().parse().unwrap()
    }

    fn finish(mut self) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.answers.read_to_string(&mut rest).unwrap();
        self.child.wait().unwrap();
    }
}

fn started(events: &[ProcessEvent]) -> Vec<(i32, i32)> {
    let found = events.iter().filter_map(|event| match *event {
        ProcessEvent::Started { pid, parent, .. } => Some((pid, parent)),
        _ => None,
    });
    found.collect()
}

fn exited(events: &[ProcessEvent]) -> Vec<i32> {
    let found = events.iter().filter_map(|event| match *event {
        ProcessEvent::Exited { pid, .. } => Some(pid),
        _ => None,
    });
    found.collect()
}

#[test]
fn a_live_tree_is_followed() {
    let mut shell = Shell::start();
    let mut watch = ProcessWatch::new(shell.pid()).unwrap();
    let own_pid = i32::try_from(std::process::id()).unwrap();
    assert_eq!(started(&watch.poll()), [(shell.pid(), own_pid)]);
    assert!(started(&watch.poll()).is_empty());

    let child = shell.ask("sleep 1000 & echo $!");
    assert_eq!(started(&watch.poll()), [(child, shell.pid())]);
    assert!(watch.pidfd(child).is_some());

    // A grandchild whose parent is alive at the poll, and ends afterwards.
    let grandchild =
        shell.ask("(sleep 1000 >/dev/null & echo $!; exec sleep 1000 >/dev/null) & middle=$!");
    let events = watch.poll();
    let (_, middle) = *started(&events)
        .iter()
        .find(|(pid, _)| *pid == grandchild)
        .unwrap();
    shell.ask("kill $middle; wait $middle 2>/dev/null; echo 0");
    assert_eq!(exited(&watch.poll()), [middle]);
    assert!(
        watch.members().any(|(pid, _)| pid == grandchild),
        "re-parented, still known"
    );

    for pid in [grandchild, child] {
        let pidfd = watch.pidfd(pid).unwrap();
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL);
        poll(
            &mut [PollFd::new(pidfd, PollFlags::POLLIN)],
            PollTimeout::NONE,
        )
        .unwrap();
        assert_eq!(exited(&watch.poll()), [pid]);
    }
    let root = shell.pid();
    shell.finish();
    assert_eq!(exited(&watch.poll()), [root]);
    assert_eq!(watch.members().count(), 0);
}

#[test]
fn a_pid_without_process_is_not_found() {
    let error = ProcessWatch::new(i32::MAX).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}
