//! The format's own numbers for the model's enumerations. They are in files: never change one, only
//! add.

use super::column::Corrupt;
use crate::model::frame::{Partial, Trust};
use crate::model::sample::{Capture, Gil, ThreadState};

macro_rules! codes {
    ($name:ident $of:ident $type:ty { $($value:path = $code:literal,)+ }) => {
        /// The number of `value` in a file.
        pub(super) fn $name(value: $type) -> u64 {
            match value {
                $($value => $code,)+
            }
        }

        /// The value with the number `code`.
        pub(super) fn $of(code: u64) -> Result<$type, Corrupt> {
            match code {
                $($code => Ok($value),)+
                _ => Err(Corrupt("an unknown code")),
            }
        }
    };
}

codes!(trust trust_of Trust {
    Trust::Unwound = 0,
    Trust::FramePointer = 1,
    Trust::Scanned = 2,
});

codes!(capture capture_of Capture {
    Capture::Stopped = 0,
    Capture::Asleep = 1,
    Capture::Unstopped = 2,
    Capture::Reused = 3,
    Capture::NotCaptured = 4,
    Capture::Sampled = 5,
});

codes!(state state_of ThreadState {
    ThreadState::Running = 0,
    ThreadState::Sleeping = 1,
    ThreadState::Uninterruptible = 2,
    ThreadState::Stopped = 3,
    ThreadState::Unknown = 4,
});

codes!(gil gil_of Gil {
    Gil::Unknown = 0,
    Gil::NotHeld = 1,
    Gil::Held = 2,
});

codes!(partial partial_of Partial {
    Partial::NoUnwindInfo = 0,
    Partial::RegisterUnknown = 1,
    Partial::StackUnreadable = 2,
    Partial::BadReturnAddress = 3,
    Partial::NoProgress = 4,
    Partial::TooDeep = 5,
    Partial::PythonUnreadable = 6,
    Partial::MergeMismatch = 7,
    Partial::Torn = 8,
    Partial::StopTimeout = 9,
    Partial::AlreadyTraced = 10,
    Partial::Uninterruptible = 11,
    Partial::PermissionDenied = 12,
    Partial::Exited = 13,
    Partial::NativeNotRead = 14,
    Partial::UnknownPython = 15,
    Partial::CodeGone = 16,
    Partial::Overflow = 17,
    Partial::OtherStack = 18,
    Partial::Spared = 19,
    Partial::PythonPending = 20,
});
