//! Names of collectives.

use super::RuleSet;

impl RuleSet {
    /// The collective that a function of this name runs.
    pub(super) fn collective_name(&self, function: &str) -> Option<&'static str> {
        let plain: String = function
            .chars()
            .filter(|&each| each != '_')
            .map(|each| each.to_ascii_lowercase())
            .collect();
        let mut rows = self.collectives.iter();
        rows.find(|row| {
            row.start
                .iter()
                .any(|start| plain.starts_with(start.as_str()))
        })
        .map(|row| row.name.0)
    }
}
