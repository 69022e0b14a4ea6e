//! The ranks of a job by parallel group, of simulated jobs.

use crate::job::{Simulated, answers, with_less_work};
use torchspy::analysis::job::Job;
use torchspy::analysis::job::by_group::{Difference, GroupTimes, Part};
use torchspy::analysis::job::mesh::Mesh;
use torchspy::analysis::job::ranks::Class;
use torchspy::report::csv;
use torchspy::report::json::job::job_report;
use torchspy::report::table::Sheet;
use torchspy::report::tables::by_group::{BY_GROUP, by_group};
use torchspy::report::text::job::render_job;

fn eight_ranks() -> Mesh {
    Mesh::parse("pp=2,dp=2,tp=2").unwrap()
}

fn groups_of<'j>(job: &'j Job, dimension: &str) -> &'j [GroupTimes] {
    let mut all = job.by_group.iter();
    &all.find(|along| along.dimension == dimension)
        .unwrap()
        .groups
}

/// How much more a part is, where it differs.
fn more(differs: &[Difference], part: Part) -> Option<f64> {
    let found = differs.iter().find(|each| each.part == part);
    found.map(|found| found.more.value)
}

fn no_ranks_differ(groups: &[GroupTimes]) {
    for group in groups {
        assert_eq!(group.differs, [], "{group:?}");
        assert_eq!(group.all_outliers, 0, "{group:?}");
    }
}

#[test]
fn a_stage_that_works_longer_differs_from_the_other() {
    for seed in 1..=10 {
        let simulated = Simulated {
            seed,
            slow: None,
            ..Simulated::default()
        };
        let reductions = with_less_work(simulated.reductions(), |rank| rank >= 4);
        let job = answers(reductions, Some(&eight_ranks()));
        let stages = groups_of(&job, "pp");
        let text = render_job(&job, false);
        assert_eq!(stages[0].differs, [], "{text}");
        let waits = more(&stages[1].differs, Part::Waits).unwrap();
        assert!((0.35..0.5).contains(&waits), "{text}");
        let computes = more(&stages[1].differs, Part::Class(Class::Computation)).unwrap();
        assert!((computes + waits).abs() < 0.02, "{text}");
        for stage in stages {
            assert_eq!((stage.ranks.len(), stage.compared), (4, 4));
            assert_eq!(stage.all_outliers, 0, "{text}");
            let common = stage.common[0];
            assert_eq!(job.names.place(&common.doing).unwrap().line, 10);
            assert_eq!(common.alike, 4, "{text}");
        }
        // Both have ranks of both stages.
        no_ranks_differ(groups_of(&job, "dp"));
        no_ranks_differ(groups_of(&job, "tp"));
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let said = words.split("pp=1: ").nth(1).unwrap();
        let (said, _) = said.split_once(" against the median of all ranks").unwrap();
        for part in ["waits for others +", "computation -"] {
            assert!(said.contains(part), "{text}");
        }
        assert!(words.contains("4 of its 4 ranks spend about"), "{text}");
        assert!(!text.contains("\n  dp=0"), "{text}");
        assert!(!text.contains("outlier"), "{text}");
    }
}

#[test]
fn an_outlier_is_named_in_its_own_group() {
    for seed in 1..=10 {
        let simulated = Simulated {
            seed,
            ..Simulated::default()
        };
        let job = answers(simulated.reductions(), Some(&eight_ranks()));
        let text = render_job(&job, false);
        let stages = groups_of(&job, "pp");
        no_ranks_differ(&stages[..1]);
        // One rank of four does not move their median.
        assert_eq!(stages[1].differs, [], "{text}");
        assert_eq!(stages[1].common[0].alike, 4, "{text}");
        let [outlier] = &stages[1].outliers[..] else {
            panic!("{text}");
        };
        assert_eq!(job.ranks[outlier.rank].facts.rank, Some(5));
        let waits = more(&outlier.differs, Part::Waits).unwrap();
        assert!((-0.45..-0.25).contains(&waits), "{text}");
        let (doing, share) = outlier.doing[0];
        assert_eq!(job.names.place(&doing).unwrap().line, 20);
        assert!((share + waits).abs() < 0.05, "{text}");
        // Of two ranks of a stage it is not known which differs.
        no_ranks_differ(groups_of(&job, "dp"));
        no_ranks_differ(groups_of(&job, "tp"));
        assert_eq!(
            text.matches("outlier: rank 5 (pid 105").count(),
            1,
            "{text}"
        );
    }
    let job = answers(Simulated::default().reductions(), Some(&eight_ranks()));
    let rows = by_group(&job);
    let table = csv::render(&Sheet::new(BY_GROUP, &rows));
    assert!(table.starts_with("group,dimension,index,ranks,"), "{table}");
    assert_eq!(table.lines().count(), 7, "{table}");
    let pp = table.lines().nth(2).unwrap();
    assert!(pp.starts_with("pp=1,pp,1,4,4,"), "{table}");
    assert!(pp.ends_with(",4,false,1"), "{table}");
}

#[test]
fn of_equal_groups_nothing_is_said() {
    for seed in 1..=20 {
        let simulated = Simulated {
            seed,
            slow: None,
            ..Simulated::default()
        };
        let job = answers(simulated.reductions(), Some(&eight_ranks()));
        for along in &job.by_group {
            no_ranks_differ(&along.groups);
        }
        let text = render_job(&job, true);
        assert!(!text.contains("PARALLEL GROUPS"), "{text}");
        let json = job_report(&job).by_group;
        let groups: Vec<&str> = json.iter().map(|row| row.group.as_str()).collect();
        assert_eq!(groups, ["pp=0", "pp=1", "dp=0", "dp=1", "tp=0", "tp=1"]);
    }
}

/// Where half of the ranks of a group differ from the others, none of them is an outlier.
#[test]
fn half_of_a_group_are_no_outliers() {
    let simulated = Simulated {
        slow: None,
        ..Simulated::default()
    };
    let reductions = with_less_work(simulated.reductions(), |rank| rank % 2 == 1);
    let job = answers(reductions, Some(&eight_ranks()));
    let stages = groups_of(&job, "pp");
    no_ranks_differ(stages);
    assert_eq!(stages[0].common[0].alike, 2, "{stages:?}");
    no_ranks_differ(groups_of(&job, "dp"));
    let [even, odd] = groups_of(&job, "tp") else {
        panic!("{:?}", job.by_group);
    };
    assert_eq!(even.differs, []);
    assert!(more(&odd.differs, Part::Waits).unwrap() > 0.3, "{odd:?}");
}

/// A row of one rank is what the table of ranks has.
#[test]
fn groups_of_one_rank_are_not_shown() {
    let mesh = Mesh::parse("dp=8").unwrap();
    let job = answers(Simulated::default().reductions(), Some(&mesh));
    assert!(!groups_of(&job, "dp")[5].differs.is_empty());
    assert!(!render_job(&job, false).contains("PARALLEL GROUPS"));
}
