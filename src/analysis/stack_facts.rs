//! Names by which reports reach what [`facts`](crate::model::facts) holds.

use crate::model::collective::CollectiveMoment;
pub use crate::model::facts::Line;

/// As [`CollectiveMoment::label`].
pub fn moment_words(moment: CollectiveMoment) -> String {
    moment.label()
}
