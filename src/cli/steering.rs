//! What a signal means to a recording: the rules, apart from the work.
//!
//! | signal | launched, recording | launched, recording ended | attached, recording | writing, target aside |
//! |---|---|---|---|---|
//! | INT | noted (the program has it from the terminal); the second ends the recording | torchspy ends | ends the recording | gives up writing |
//! | QUIT, HUP, TERM, USR1, USR2 from a process | forwarded | forwarded | QUIT, HUP, TERM end the recording | as INT |
//! | QUIT, HUP from the terminal | passed over: the program has it | passed over | end the recording | as INT |
//! | TSTP | everything is released, torchspy stops | torchspy stops | as launched | torchspy stops |
//!
//! After the second INT the program goes on, and torchspy waits for it and ends with its status; a
//! third leaves it alone.

use crate::os::signals::Received;
use nix::sys::signal::Signal;

/// Interrupts after which torchspy gives up even though nothing that lasts has been written: a
/// stalled disk.
const PATIENCE: u32 = 3;

/// What to do about a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Ignore,
    /// Notify the user that the recording ends with the program, and how to end the recording
    /// alone.
    NotifyInterrupt,
    /// Notify the user that the recording is still being written, and how many more interrupts give
    /// it up.
    NotifyWriting(u32),
    /// End the recording; a launched program goes on.
    EndRecording,
    /// Send the signal on to the launched program.
    Forward(Signal),
    /// Release everything, stop, and go on when continued.
    Suspend,
    /// Wait no longer for the launched program, which goes on.
    Leave,
    /// Leave the outputs that are not written yet.
    GiveUp,
}

/// The state of a recording when a signal comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Situation {
    /// A launched program runs.
    pub(crate) program_runs: bool,
    /// Sampling goes on.
    pub(crate) sampling: bool,
    /// The recording is on the disk under a name: no sample can be lost.
    pub(crate) saved: bool,
}

/// Counts interrupts and applies the rules.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Steering {
    interrupts: u32,
    impatience: u32,
}

impl Steering {
    /// What to do about a signal in this situation.
    pub(crate) fn react(&mut self, received: Received, now: Situation) -> Action {
        match received.signal {
            Signal::SIGTSTP => Action::Suspend,
            Signal::SIGINT => self.interrupt(now),
            signal if now.program_runs => {
                if received.from_terminal {
                    Action::Ignore
                } else {
                    Action::Forward(signal)
                }
            }
            Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT if now.sampling => {
                Action::EndRecording
            }
            Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT => self.impatient(now),
            _ => Action::Ignore,
        }
    }

    fn interrupt(&mut self, now: Situation) -> Action {
        match (now.program_runs, now.sampling) {
            (true, true) => {
                self.interrupts += 1;
                if self.interrupts == 1 {
                    Action::NotifyInterrupt
                } else {
                    Action::EndRecording
                }
            }
            (true, false) => Action::Leave,
            (false, true) => Action::EndRecording,
            (false, false) => self.impatient(now),
        }
    }

    /// A signal while the outputs are being written.
    fn impatient(&mut self, now: Situation) -> Action {
        self.impatience += 1;
        if now.saved || self.impatience >= PATIENCE {
            Action::GiveUp
        } else {
            Action::NotifyWriting(PATIENCE - self.impatience)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAUNCHED: Situation = Situation {
        program_runs: true,
        sampling: true,
        saved: false,
    };
    const ATTACHED: Situation = Situation {
        program_runs: false,
        sampling: true,
        saved: false,
    };
    const WRITING: Situation = Situation {
        program_runs: false,
        sampling: false,
        saved: false,
    };

    fn from_process(signal: Signal) -> Received {
        Received {
            signal,
            from_terminal: false,
        }
    }

    fn from_terminal(signal: Signal) -> Received {
        Received {
            signal,
            from_terminal: true,
        }
    }

    #[test]
    fn the_second_interrupt_ends_the_recording_and_the_third_leaves_the_program() {
        let mut steering = Steering::default();
        let key = from_terminal(Signal::SIGINT);
        assert_eq!(steering.react(key, LAUNCHED), Action::NotifyInterrupt);
        assert_eq!(steering.react(key, LAUNCHED), Action::EndRecording);
        let ended = Situation {
            sampling: false,
            ..LAUNCHED
        };
        assert_eq!(steering.react(key, ended), Action::Leave);
    }

    #[test]
    fn signals_of_processes_are_forwarded_and_those_of_the_terminal_are_not() {
        let mut steering = Steering::default();
        use Signal::{SIGHUP, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
        for signal in [SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2] {
            assert_eq!(
                steering.react(from_process(signal), LAUNCHED),
                Action::Forward(signal)
            );
        }
        for signal in [SIGHUP, SIGQUIT] {
            assert_eq!(
                steering.react(from_terminal(signal), LAUNCHED),
                Action::Ignore
            );
            assert_eq!(
                steering.react(from_terminal(signal), ATTACHED),
                Action::EndRecording
            );
        }
        assert_eq!(
            steering.react(from_process(SIGTERM), ATTACHED),
            Action::EndRecording
        );
        assert_eq!(
            steering.react(from_process(SIGUSR1), ATTACHED),
            Action::Ignore
        );
        assert_eq!(
            steering.react(from_process(SIGTERM), WRITING),
            Action::NotifyWriting(PATIENCE - 1)
        );
    }

    #[test]
    fn attached_the_first_interrupt_ends_the_recording() {
        let key = from_terminal(Signal::SIGINT);
        assert_eq!(
            Steering::default().react(key, ATTACHED),
            Action::EndRecording
        );
    }

    #[test]
    fn writing_is_given_up_at_once_only_where_the_recording_is_safe() {
        let key = from_terminal(Signal::SIGINT);
        let saved = Situation {
            saved: true,
            ..WRITING
        };
        assert_eq!(Steering::default().react(key, saved), Action::GiveUp);
        let mut steering = Steering::default();
        let reactions = [(); 3].map(|()| steering.react(key, WRITING));
        assert_eq!(
            reactions,
            [
                Action::NotifyWriting(2),
                Action::NotifyWriting(1),
                Action::GiveUp
            ]
        );
    }

    #[test]
    fn ctrl_z_always_suspends() {
        for now in [LAUNCHED, ATTACHED, WRITING] {
            assert_eq!(
                Steering::default().react(from_terminal(Signal::SIGTSTP), now),
                Action::Suspend
            );
        }
    }
}
