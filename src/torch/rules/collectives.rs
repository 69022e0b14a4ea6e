//! Names of collectives.

use super::RuleSet;
use super::matching::Matching;

/// The form in which names of collectives are compared: lower case, without underscores.
pub(super) fn plain(name: &str) -> String {
    let letters = name.chars().filter(|&each| each != '_');
    letters.map(|each| each.to_ascii_lowercase()).collect()
}

impl RuleSet {
    /// The collective of a function with this name, which matches `rows`.
    pub(super) fn collective_name<R>(
        &self,
        function: &str,
        rows: &Matching<'_, R>,
    ) -> Option<&'static str> {
        let function = plain(function);
        let is = |start: &String| function.starts_with(start.as_str());
        let mut all = self.collectives.iter().enumerate();
        let (at, row) = all.find(|(_, row)| row.start.iter().any(is))?;
        rows.decided("name", "collective", at);
        Some(row.name.0)
    }
}
