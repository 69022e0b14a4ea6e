//! Regions: functions that the user marks as a phase of their own, `--region NAME=FILE:FUNCTION`.

use super::category::Phase;
use serde::{Deserialize, Serialize};

/// The most characters of a region's name: it heads a row of a table.
const MAX_NAME: usize = 16;
/// The most bytes of a file or function.
const MAX_PART: usize = 1024;
/// The most functions that one recording names.
pub const MAX_FUNCTIONS: usize = 256;

/// A function that is a phase, or a part of one: several functions may share a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Region {
    pub name: String,
    /// The end of the file's path: `train.py`, `data/augment.py`.
    pub file: String,
    /// The function's name, or the end of its qualified name: `augment`, `Trainer.log`.
    pub function: String,
}

/// Why a text is not a region.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// A part is missing, empty or too long.
    #[error("it is not of the form NAME=FILE:FUNCTION")]
    Form,
    #[error(
        "a region's name has letters, digits, `_`, `-` and `.`, 16 characters at most, and begins with a letter"
    )]
    Name,
    #[error("`{0}` means something else in tables of phases")]
    Taken(String),
}

impl Region {
    /// Reads `NAME=FILE:FUNCTION`.
    ///
    /// # Errors
    /// [`RegionError`] with the reason.
    pub fn parse(text: &str) -> Result<Self, RegionError> {
        let (name, place) = text.split_once('=').ok_or(RegionError::Form)?;
        let (file, function) = place.rsplit_once(':').ok_or(RegionError::Form)?;
        let is_part = |part: &str| {
            (1..=MAX_PART).contains(&part.len()) && !part.chars().any(char::is_control)
        };
        // `file.py:88` is a line, and lines move with every edit.
        let is_name = function
            .chars()
            .next()
            .is_some_and(|first| !first.is_ascii_digit());
        if !is_part(file) || !is_part(function) || !is_name {
            return Err(RegionError::Form);
        }
        let is_word = |letter: char| letter.is_alphanumeric() || "_-.".contains(letter);
        if !name.starts_with(char::is_alphabetic)
            || !name.chars().all(is_word)
            || name.chars().count() > MAX_NAME
        {
            return Err(RegionError::Name);
        }
        // Tables of phases have rows and keys with these names, too. The name of a built-in phase
        // means that phase.
        if Phase::REGIONS.iter().any(|phase| phase.name() == name) || name == "all" {
            return Err(RegionError::Taken(name.to_owned()));
        }
        Ok(Self {
            name: name.to_owned(),
            file: file.strip_prefix("./").unwrap_or(file).to_owned(),
            function: function.to_owned(),
        })
    }

    /// Whether a function of this file and (from Python 3.11 on: qualified) name belongs to the
    /// region.
    pub fn holds(&self, file: &str, function: &str) -> bool {
        ends_with_parts(file, &self.file, '/') && ends_with_parts(function, &self.function, '.')
    }
}

impl std::fmt::Display for Region {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}={}:{}", self.name, self.file, self.function)
    }
}

/// Whether the last parts of `whole`, between separators, are `end`.
fn ends_with_parts(whole: &str, end: &str, separator: char) -> bool {
    whole
        .strip_suffix(end)
        .is_some_and(|before| before.is_empty() || before.ends_with(separator))
}

/// The phase of torchspy's own with a region's name: `input=train.py:get_batch` marks where batches
/// are made.
pub fn built_in(name: &str) -> Option<Phase> {
    let mut phases = Phase::BUILT_IN.iter().copied();
    phases.find(|phase| phase.name() == name)
}

/// The names of regions that are phases of their own, each once, in the order in which they were
/// given; limited to the number of such phases.
pub fn region_names(regions: &[Region]) -> impl Iterator<Item = &str> {
    regions
        .iter()
        .enumerate()
        .filter(move |&(at, region)| {
            let before = regions.get(..at).unwrap_or_default();
            built_in(&region.name).is_none() && before.iter().all(|other| other.name != region.name)
        })
        .map(|(_, region)| region.name.as_str())
        .take(Phase::REGIONS.len())
}

/// The phase of a function that belongs to a region; of several the first.
pub fn region_of(regions: &[Region], file: &str, function: &str) -> Option<Phase> {
    let region = regions.iter().find(|region| region.holds(file, function))?;
    if let Some(phase) = built_in(&region.name) {
        return Some(phase);
    }
    let at = region_names(regions).position(|name| name == region.name)?;
    Phase::REGIONS.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(text: &str) -> Region {
        Region::parse(text).expect(text)
    }

    #[test]
    fn a_region_is_a_name_a_file_and_a_function() {
        let loss = region("loss=models/vit.py:Net.loss");
        assert_eq!(loss.to_string(), "loss=models/vit.py:Net.loss");
        assert!(loss.holds("/home/u/models/vit.py", "Net.loss"));
        assert!(loss.holds("models/vit.py", "main.<locals>.Net.loss"));
        assert!(!loss.holds("/home/u/mymodels/vit.py", "Net.loss"));
        assert!(!loss.holds("/home/u/models/vit.py", "MyNet.loss"));
        assert!(!loss.holds("/home/u/models/vit.py", "Net.loss.<locals>.inner"));
        assert!(region("a=C:\\x.py:f").holds("C:\\x.py", "f"));
        assert_eq!(region("a=./x.py:f").file, "x.py");
    }

    #[test]
    fn what_is_no_region_is_said() {
        for text in [
            "",
            "loss",
            "loss=x.py",
            "loss=:f",
            "loss=x.py:",
            "loss=x.py:88",
            "a=x.py:f\n",
        ] {
            assert_eq!(Region::parse(text), Err(RegionError::Form), "{text:?}");
        }
        for text in ["=x.py:f", "1st=x.py:f", "my loss=x.py:f", "a\u{7}=x.py:f"] {
            assert_eq!(Region::parse(text), Err(RegionError::Name), "{text:?}");
        }
        for name in ["region_1", "all"] {
            let wanted = Err(RegionError::Taken(name.to_owned()));
            assert_eq!(Region::parse(&format!("{name}=x.py:f")), wanted);
        }
    }

    #[test]
    fn a_phase_of_torchspy_s_own_is_meant_as_such() {
        let regions: Vec<Region> = ["input=x.py:more", "a=x.py:f"].map(region).into();
        assert_eq!(region_names(&regions).collect::<Vec<_>>(), ["a"]);
        assert_eq!(region_of(&regions, "/x.py", "more"), Some(Phase::Input));
        assert_eq!(region_of(&regions, "/x.py", "f"), Some(Phase::Region1));
    }

    #[test]
    fn functions_share_a_name_and_places_are_bounded() {
        let regions: Vec<Region> = ["a=x.py:f", "b=x.py:g", "a=y.py:h"].map(region).into();
        assert_eq!(region_names(&regions).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(region_of(&regions, "/y.py", "h"), Some(Phase::Region1));
        assert_eq!(region_of(&regions, "/x.py", "C.g"), Some(Phase::Region2));
        assert_eq!(region_of(&regions, "/x.py", "h"), None);
        let many: Vec<Region> = (0..99)
            .map(|at| region(&format!("n{at}=x.py:f{at}")))
            .collect();
        assert_eq!(region_names(&many).count(), Phase::REGIONS.len());
        assert_eq!(region_of(&many, "x.py", "f98"), None);
        assert_eq!(
            Phase::REGIONS.len() + Phase::BUILT_IN.len(),
            Phase::ALL.len()
        );
        assert_eq!(Phase::REGIONS.first(), Some(&Phase::Region1));
        assert_eq!(
            (Phase::User.region(), Phase::Region2.region()),
            (None, Some(1))
        );
    }
}
