//! Which collective a sample is in.

use crate::model::category::Activity;
use crate::model::collective::{COMMUNICATOR_INIT, CollectiveCall, CollectivePart, Issuer};

/// The collective of a stack, from its parent's and its leaf. Of several names the outermost is the
/// one that was called (`all_gather_object` gathers twice), except where a communicator is set up
/// first; of several wrappers the innermost is the one at work. Imported code is in no collective.
pub fn with_leaf(outward: CollectivePart, leaf: CollectivePart) -> CollectivePart {
    match leaf.imports {
        true => CollectivePart::default(),
        false => CollectivePart {
            name: leaf
                .name
                .filter(|&name| name == COMMUNICATOR_INIT)
                .or(outward.name)
                .or(leaf.name),
            backend: leaf.backend.or(outward.backend),
            issuer: leaf.issuer.or(outward.issuer),
            imports: false,
            watches: outward.watches || leaf.watches,
        },
    }
}

/// The collective of a sample, from what its stack shows.
pub fn collective(stack: CollectivePart, activity: Activity) -> Option<CollectiveCall> {
    let CollectivePart {
        name,
        backend,
        issuer,
        ..
    } = stack;
    let by_activity = match activity {
        Activity::CollectiveWait => Some("wait"),
        Activity::CollectiveCall => Some("other"),
        _ => None,
    };
    let is_one =
        name.is_some() || by_activity.is_some() || issuer.is_some_and(Issuer::is_communication);
    let own_work = matches!(issuer, Some(Issuer::DdpReducer | Issuer::FsdpReshard));
    is_one.then(|| CollectiveCall {
        name: name
            .or(issuer.and_then(Issuer::collective))
            .or(match own_work {
                true => None,
                false => by_activity,
            }),
        backend,
        issuer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &'static str) -> CollectivePart {
        CollectivePart {
            name: Some(name),
            ..CollectivePart::default()
        }
    }

    fn found(root_to_leaf: &[CollectivePart], activity: Activity) -> Option<CollectiveCall> {
        let none = CollectivePart::default();
        let stack = root_to_leaf
            .iter()
            .fold(none, |outward, &leaf| with_leaf(outward, leaf));
        collective(stack, activity)
    }

    fn issued(issuer: Issuer) -> CollectivePart {
        CollectivePart {
            issuer: Some(issuer),
            ..CollectivePart::default()
        }
    }

    #[test]
    fn the_outermost_name_and_the_innermost_wrapper_count() {
        let parts = [named("all_gather_object"), named("all_gather")];
        let both = found(&parts, Activity::CollectiveWait).expect("one");
        assert_eq!(both.name, Some("all_gather_object"));
        let parts = [issued(Issuer::FsdpReduce), issued(Issuer::FsdpReshard)];
        let both = found(&parts, Activity::Python).expect("one");
        assert_eq!(both.issuer, Some(Issuer::FsdpReshard));
        assert!(!both.has_arrived());
    }

    #[test]
    fn a_communicator_is_set_up_whatever_collective_comes_first() {
        for called in ["init_process_group", "all_reduce"] {
            let parts = [named(called), named(COMMUNICATOR_INIT), named("all_gather")];
            let found = found(&parts, Activity::CollectiveWait).expect("one");
            assert_eq!(found.name, Some(COMMUNICATOR_INIT));
        }
    }

    #[test]
    fn what_imports_is_in_no_collective() {
        let import = CollectivePart {
            imports: true,
            ..CollectivePart::default()
        };
        let parts = [named("init_process_group"), import];
        assert_eq!(found(&parts, Activity::Io), None);
    }

    #[test]
    fn a_wrapper_names_the_collective_that_no_frame_names() {
        let of = |issuer, activity| found(&[issued(issuer)], activity);
        let bucket = of(Issuer::DdpBucket, Activity::CollectiveWait);
        assert_eq!(bucket.expect("one").name, Some("all_reduce"));
        let copies = of(Issuer::DdpReducer, Activity::AtenCompute);
        assert_eq!(copies.expect("one").name, None);
        assert_eq!(of(Issuer::Checkpoint, Activity::Io), None);
        assert_eq!(of(Issuer::DdpStart, Activity::Python), None);
        assert_eq!(found(&[], Activity::Python), None);
    }
}
