//! Which collective a moment is in.

use crate::model::category::Activity;
use crate::model::collective::{CollectiveMoment, CollectivePart, Issuer};

/// The collective of a moment, from the parts of its functions, leaf first. Of several names the outermost is the one that was
/// called (`all_gather_object` gathers twice); of several wrappers the innermost is the one at work.
pub fn collective(
    leaf_to_root: impl Iterator<Item = CollectivePart>,
    activity: Activity,
) -> Option<CollectiveMoment> {
    let mut name = None;
    let mut backend = None;
    let mut issuer: Option<Issuer> = None;
    for part in leaf_to_root.take_while(|part| !part.imports) {
        name = part.name.or(name);
        backend = backend.or(part.backend);
        issuer = issuer.or(part.issuer);
    }
    let by_activity = match activity {
        Activity::CollectiveWait => Some("wait"),
        Activity::CollectiveCall => Some("other"),
        _ => None,
    };
    let is_one =
        name.is_some() || by_activity.is_some() || issuer.is_some_and(Issuer::is_communication);
    let own_work = matches!(issuer, Some(Issuer::DdpReducer | Issuer::FsdpReshard));
    is_one.then(|| CollectiveMoment {
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

    fn issued(issuer: Issuer) -> CollectivePart {
        CollectivePart {
            issuer: Some(issuer),
            ..CollectivePart::default()
        }
    }

    #[test]
    fn the_outermost_name_and_the_innermost_wrapper_count() {
        let parts = [named("all_gather"), named("all_gather_object")];
        let found = collective(parts.into_iter(), Activity::CollectiveWait).expect("one");
        assert_eq!(found.name, Some("all_gather_object"));
        let parts = [issued(Issuer::FsdpReshard), issued(Issuer::FsdpReduce)];
        let found = collective(parts.into_iter(), Activity::Python).expect("one");
        assert_eq!(found.issuer, Some(Issuer::FsdpReshard));
        assert!(!found.has_arrived());
    }

    #[test]
    fn what_imports_is_in_no_collective() {
        let import = CollectivePart {
            imports: true,
            ..CollectivePart::default()
        };
        let parts = [import, named("init_process_group")];
        assert_eq!(collective(parts.into_iter(), Activity::Io), None);
    }

    #[test]
    fn a_wrapper_names_the_collective_that_no_frame_names() {
        let found = collective(
            [issued(Issuer::DdpBucket)].into_iter(),
            Activity::CollectiveWait,
        );
        assert_eq!(found.expect("one").name, Some("all_reduce"));
        let copies = collective(
            [issued(Issuer::DdpReducer)].into_iter(),
            Activity::AtenCompute,
        );
        assert_eq!(copies.expect("one").name, None);
        assert_eq!(
            collective([issued(Issuer::Checkpoint)].into_iter(), Activity::Io),
            None
        );
        assert_eq!(
            collective([issued(Issuer::DdpStart)].into_iter(), Activity::Python),
            None
        );
        assert_eq!(collective(std::iter::empty(), Activity::Python), None);
    }
}
