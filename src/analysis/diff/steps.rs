//! Steps of a run, as far as they are known.

use super::units::Units;
use crate::model::ids::ProcessId;
use crate::model::profile::Profile;

/// By what a process's time is counted.
pub fn units_of(_profile: &Profile, _process: ProcessId) -> Units {
    Units::Seconds
}
