//! `--region NAME=FILE:FUNCTION`: parsing, and warnings about regions without samples.

use super::failure::Failure;
use super::messages;
use crate::model::category::Phase;
use crate::model::code::{CodeInfo, RegionKind};
use crate::model::profile::Profile;
use crate::model::region::{MAX_FUNCTIONS, Region, RegionError, built_in, region_names};

/// The functions of a file that a hint lists.
const LISTED: usize = 6;

/// The regions of an argument that may be given more than once.
pub(super) fn parse(texts: &[String]) -> Result<Vec<Region>, Failure> {
    let mut regions = Vec::new();
    for text in texts {
        let region = Region::parse(text).map_err(|error| {
            let hint = match &error {
                RegionError::Form => {
                    "give a name, the end of the file's path, and a function: --region loss=train.py:Net.loss"
                }
                RegionError::Name => "such as --region augment=data.py:augment",
                RegionError::Taken(_) => "choose another name",
            };
            Failure::usage(format!("--region {text}: {error}"), hint)
        })?;
        add(&mut regions, std::slice::from_ref(&region));
    }
    let names = regions.iter().map(|region| &region.name);
    let distinct: std::collections::BTreeSet<&String> = names.collect();
    if distinct.len() > Phase::REGIONS.len() || regions.len() > MAX_FUNCTIONS {
        return Err(Failure::usage(
            format!(
                "--region: {} names for {} functions are too many",
                distinct.len(),
                regions.len()
            ),
            format!(
                "at most {} names, and {MAX_FUNCTIONS} functions; several functions may share a name",
                Phase::REGIONS.len()
            ),
        ));
    }
    Ok(regions)
}

/// The blocks that the program named by `torchspy.region` and `torchspy.mark`. Names that no region
/// may have are left out, and so are those for which there is no room: stacks have them all the
/// same.
pub(super) fn marked(codes: &[CodeInfo]) -> Vec<Region> {
    let own = codes
        .iter()
        .filter(|code| code.region() == Some(RegionKind::Own));
    own.filter_map(|code| Region::parse(&format!("{0}={1}:{0}", code.name, code.file)).ok())
        .take(MAX_FUNCTIONS)
        .collect()
}

/// Adds the regions of `more` that are not in `known`.
pub(super) fn add(known: &mut Vec<Region>, more: &[Region]) {
    for region in more {
        if !known.contains(region) {
            known.push(region.clone());
        }
    }
}

/// Warns of regions without a sample.
pub(super) fn warn_of_unseen(profile: &Profile) {
    let names: Vec<&str> = region_names(&profile.run.regions).collect();
    for region in &profile.run.regions {
        if built_in(&region.name).is_none() && !names.contains(&region.name.as_str()) {
            messages::warning(&format!(
                "region {region} is left out: a report has {} at most",
                Phase::REGIONS.len()
            ));
            continue;
        }
        let python = || profile.functions.iter().filter(|each| each.is_python);
        if python().any(|each| region.holds(&each.file, &each.name)) {
            continue;
        }
        messages::warning(&format!("no sample was in region {region}"));
        let mut others: Vec<&str> = python()
            .filter(|each| {
                let other = Region {
                    function: each.name.clone(),
                    ..region.clone()
                };
                other.holds(&each.file, &each.name)
            })
            .map(|each| each.name.as_str())
            .collect();
        others.sort_unstable();
        others.dedup();
        messages::hint(&hint(region, &others));
    }
}

fn hint(region: &Region, others: &[&str]) -> String {
    if others.is_empty() {
        return format!(
            "no function of a file that ends in {} was seen; the part before the colon is the end of a path",
            region.file
        );
    }
    format!(
        "functions that were seen in {}: {}",
        region.file,
        messages::list(others, LISTED)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(texts: &[&str]) -> Result<Vec<Region>, Failure> {
        let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
        parse(&texts)
    }

    #[test]
    fn what_is_no_region_is_an_error_with_a_hint() {
        for (text, expected) in [
            (
                "loss",
                "--region loss: it is not of the form NAME=FILE:FUNCTION",
            ),
            ("region_1=a.py:f", "`region_1` means something else"),
            ("a b=a.py:f", "a region's name has letters"),
        ] {
            let failure = parsed(&[text]).expect_err(text);
            assert!(failure.text().contains(expected), "{}", failure.text());
            assert_eq!(failure.status, 2);
            assert!(failure.hint.is_some());
        }
    }

    #[test]
    fn the_same_twice_is_once_and_too_many_are_refused() {
        let regions = parsed(&["a=x.py:f", "a=x.py:f", "a=x.py:g"]).expect("fine");
        assert_eq!(regions.len(), 2);
        let many: Vec<String> = (0..=Phase::REGIONS.len())
            .map(|at| format!("n{at}=x.py:f"))
            .collect();
        let failure = parse(&many).expect_err("too many");
        assert!(failure.text().contains("too many"), "{}", failure.text());
    }
}
