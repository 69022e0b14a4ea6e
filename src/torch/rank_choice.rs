//! Which ranks of a job are recorded: `0,8,16`, `every:64`, `random:1%`.

use super::job::{JobPlace, rank_variable};
use sha2::{Digest, Sha256};

/// Ranks of which a random share is counted out exactly. More than any job has; what an environment
/// says may be anything.
const MAX_WORLD: u32 = 1 << 20;

/// A choice of ranks. Every rank makes it for itself, and all agree.
#[derive(Clone, Debug, PartialEq)]
pub struct RankChoice {
    terms: Vec<Term>,
    /// As it was typed.
    text: String,
}

#[derive(Clone, Debug, PartialEq)]
enum Term {
    /// First and last rank.
    Range(u32, u32),
    /// Ranks that are multiples of it.
    Every(u32),
    /// A share of the ranks, 0 to 1, drawn by the hash of the seed (without one, of the job's name)
    /// and the rank.
    Random { share: f64, seed: Option<u64> },
}

impl RankChoice {
    /// Parses a list of ranks, ranges (`0-7`), `every:N`, `random:SHARE%` and `random:SHARE%:SEED`:
    /// a rank is chosen if one of them chooses it.
    ///
    /// # Errors
    /// The word that is none of these.
    pub fn parse(text: &str) -> Result<Self, String> {
        let terms = text.split(',').map(|word| {
            let word = word.trim();
            Term::parse(word).ok_or_else(|| word.to_owned())
        });
        Ok(Self {
            terms: terms.collect::<Result<_, _>>()?,
            text: text.to_owned(),
        })
    }

    /// As it was typed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a rank is chosen; `None` if the place has no rank.
    pub fn has(&self, place: &JobPlace) -> Option<bool> {
        let rank = place.rank?;
        Some(self.terms.iter().any(|term| term.has(rank, place)))
    }

    /// The rank of a process that is not chosen, by its environment. A rank that its recording's
    /// first process has from the same variable is not its own: a launcher that a batch system
    /// started.
    pub fn leaves_out(
        &self,
        environment: &[(String, String)],
        first: &[(String, String)],
    ) -> Option<u32> {
        let own = rank_variable(environment)?;
        if rank_variable(first) == Some(own) {
            return None;
        }
        let place = JobPlace::of(environment, &[]);
        (self.has(&place) == Some(false)).then_some(own.1)
    }
}

impl Term {
    fn parse(word: &str) -> Option<Self> {
        if let Some(step) = word.strip_prefix("every:") {
            let step = step.parse().ok().filter(|&step| step > 0)?;
            return Some(Term::Every(step));
        }
        if let Some(rest) = word.strip_prefix("random:") {
            let (share, seed) = match rest.split_once(':') {
                Some((share, seed)) => (share, Some(seed.parse().ok()?)),
                None => (rest, None),
            };
            let percent: f64 = share.strip_suffix('%')?.parse().ok()?;
            let is_share = percent > 0.0 && percent <= 100.0;
            return is_share.then_some(Term::Random {
                share: percent / 100.0,
                seed,
            });
        }
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last).then_some(Term::Range(first, last))
    }

    fn has(&self, rank: u32, place: &JobPlace) -> bool {
        match self {
            Term::Range(first, last) => (*first..=*last).contains(&rank),
            Term::Every(step) => rank.is_multiple_of(*step),
            Term::Random { share, seed } => {
                let seed = seed.map(|seed| seed.to_string());
                let seed = seed.as_deref().or(place.job.as_deref());
                is_drawn(rank, *share, seed.unwrap_or_default(), place.world_size)
            }
        }
    }
}

/// Whether a rank is among the share of ranks with the smallest hashes: as many as the share of all
/// ranks, one at least. Where it is not known how many there are, each is drawn on its own.
fn is_drawn(rank: u32, share: f64, seed: &str, world_size: Option<u32>) -> bool {
    let own = hash(seed, rank);
    match world_size {
        Some(size) if rank < size && size <= MAX_WORLD => {
            let count = (f64::from(size) * share).round().max(1.0);
            let before = (0..size).filter(|&other| (hash(seed, other), other) < (own, rank));
            (before.count() as f64) < count
        }
        _ => (own as f64) < share * u64::MAX as f64,
    }
}

fn hash(seed: &str, rank: u32) -> u64 {
    let digest = Sha256::new()
        .chain_update(seed)
        .chain_update([0])
        .chain_update(rank.to_le_bytes())
        .finalize();
    digest
        .iter()
        .take(8)
        .fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(rank: u32, world_size: Option<u32>, job: &str) -> JobPlace {
        JobPlace {
            job: Some(job.to_owned()),
            rank: Some(rank),
            world_size,
            ..JobPlace::default()
        }
    }

    /// The chosen of `world` ranks.
    fn chosen(text: &str, world: u32, job: &str) -> Vec<u32> {
        let choice = RankChoice::parse(text).unwrap();
        let has = |&rank: &u32| choice.has(&place(rank, Some(world), job)).unwrap();
        (0..world).filter(has).collect()
    }

    #[test]
    fn lists_ranges_and_steps_are_chosen() {
        assert_eq!(chosen("0,8,16", 32, "a"), [0, 8, 16]);
        assert_eq!(chosen("0, 3-5", 8, "a"), [0, 3, 4, 5]);
        assert_eq!(chosen("every:64", 200, "a"), [0, 64, 128, 192]);
        assert_eq!(chosen("1,every:4", 8, "a"), [0, 1, 4]);
        for text in [
            "",
            "0,",
            "x",
            "5-3",
            "every:0",
            "every:",
            "random:1",
            "random:0%",
            "random:101%",
            "random:nan%",
            "random:1%:x",
            "-1",
            "1.5",
        ] {
            assert!(RankChoice::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_random_share_is_the_same_for_all_and_as_large_as_it_says() {
        let ranks = chosen("random:5%", 200, "42");
        assert_eq!(ranks.len(), 10);
        assert_eq!(ranks, chosen("random:5%", 200, "42"));
        assert_ne!(ranks, chosen("random:5%", 200, "43"));
        assert_eq!(
            chosen("random:5%:7", 200, "42"),
            chosen("random:5%:7", 200, "43")
        );
        assert_eq!(chosen("random:1%", 8, "42").len(), 1, "one at least");
        assert_eq!(chosen("random:30%", 10, "42").len(), 3);
        assert_eq!(chosen("random:100%", 10, "42").len(), 10);
        let with_first = chosen("0,random:5%", 200, "42");
        assert!((10..=11).contains(&with_first.len()) && with_first[0] == 0);
        // Without the number of ranks.
        let choice = RankChoice::parse("random:10%").unwrap();
        let has = |&rank: &u32| choice.has(&place(rank, None, "42")).unwrap();
        let count = (0..10_000).filter(has).count();
        assert!((900..1100).contains(&count), "{count}");
        let huge = place(3, Some(u32::MAX), "42");
        assert!(choice.has(&huge).is_some(), "and it ends soon");
    }

    #[test]
    fn a_launchers_rank_is_not_that_of_its_processes() {
        let variables = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            let pairs = pairs.iter();
            pairs
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect()
        };
        let choice = RankChoice::parse("0,2").unwrap();
        let launcher = variables(&[("SLURM_PROCID", "1")]);
        for (pairs, left_out) in [
            (&[("SLURM_PROCID", "1")][..], None),
            (&[("SLURM_PROCID", "1"), ("RANK", "2")], None),
            (&[("SLURM_PROCID", "1"), ("RANK", "3")], Some(3)),
            (&[("SLURM_PROCID", "1"), ("RANK", "1")], Some(1)),
            (&[], None),
        ] {
            let found = choice.leaves_out(&variables(pairs), &launcher);
            assert_eq!(found, left_out, "{pairs:?}");
        }
    }
}
