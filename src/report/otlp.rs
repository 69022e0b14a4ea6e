//! A profile for receivers of OTLP: the request of opentelemetry.proto.collector.profiles
//! .v1development, as of opentelemetry-proto 1.10.0. The signal is not stable: a receiver of
//! another version may read it wrongly.
//!
//! Each process is a resource, so that `process.pid` is always that of what was sampled. Attributes
//! of samples have values of closed sets only: receivers make series of them.

use super::pprof::Place;
use super::view::{Interval, Shown, View, ViewOptions};
use crate::model::ids::ProcessId;
use crate::model::profile::{Profile, ProfileProcess, Role};
use indexmap::IndexSet;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, InstrumentationScope, KeyValue, any_value::Value,
};
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, Profile as Times, ProfilesDictionary,
    ResourceProfiles, Sample, ScopeProfiles, Stack, ValueType,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::hash::Hash;

/// The name of the service that all resources are of.
pub const SERVICE: &str = "torchspy";

/// Time of stacks in nanoseconds, by what the samples have in common: stack and attributes.
type Sums = FxHashMap<(i32, [i32; 3]), i64>;

/// The request that exports a profile of a job; `None` if there is no time in it.
///
/// Values are wall time in nanoseconds: of the training threads all of it, of other threads the
/// part in which they did something.
pub fn request(profile: &Profile, job: Option<&str>) -> Option<Vec<u8>> {
    let view = View::new(profile, &ViewOptions::default());
    let mut dictionary = Dictionary::new();
    let mut processes: BTreeMap<ProcessId, Sums> = BTreeMap::new();
    let mut stacks = FxHashMap::default();
    for interval in view.intervals() {
        let Some(root) = view.roots().get(interval.root) else {
            continue;
        };
        let stack = *stacks
            .entry((interval.stack, interval.queued))
            .or_insert_with(|| dictionary.stack(&view, interval));
        let attributes = [
            ("torchspy.phase", profile.phase_name(interval.phase)),
            ("torchspy.activity", interval.activity.name()),
            (
                "torchspy.thread",
                if root.training { "training" } else { "other" },
            ),
        ]
        .map(|(key, value)| dictionary.attribute(key, value));
        let sums = processes.entry(root.process).or_default();
        let ns = sums.entry((stack, attributes)).or_default();
        *ns = ns.saturating_add_unsigned(interval.weight_ns);
    }
    let wall = ValueType {
        type_strindex: dictionary.text("wall"),
        unit_strindex: dictionary.text("nanoseconds"),
    };
    let resources = processes.into_iter().filter_map(|(id, sums)| {
        let resource = resource(profile, profile.process(id)?, job);
        Some(of_process(profile, resource, wall, sums))
    });
    let resource_profiles: Vec<ResourceProfiles> = resources.collect();
    let request = ExportProfilesServiceRequest {
        dictionary: (!resource_profiles.is_empty()).then(|| dictionary.finish()),
        resource_profiles,
    };
    request
        .dictionary
        .is_some()
        .then(|| request.encode_to_vec())
}

/// What is known of a process. Names: OpenTelemetry's semantic conventions 1.44, and torchspy's
/// own.
///
/// Keys and values stand here and not in the dictionary's strings, as the protocol permits as well:
/// the Collector resolves such references of what it receives only since its pull request 15794
/// (August 2026), and Pyroscope does not (pkg/ingester/otlp/ingest_handler.go).
fn resource(profile: &Profile, process: &ProfileProcess, job: Option<&str>) -> Resource {
    let trainer = match process.role {
        Role::DataLoaderWorker { trainer, .. } => trainer.and_then(|id| profile.process(id)),
        _ => Some(process),
    };
    let rank = trainer.and_then(|trainer| trainer.role.rank());
    let text = |text: &str| Value::StringValue(text.to_owned());
    let attributes = [
        ("service.name", Some(text(SERVICE))),
        ("host.name", Some(text(&profile.run.host))),
        (
            "process.pid",
            Some(Value::IntValue(process.info.pid.into())),
        ),
        ("torchspy.role", Some(text(process.role.name()))),
        ("torchspy.job", job.map(text)),
        (
            "torchspy.rank",
            rank.map(|rank| Value::IntValue(rank.into())),
        ),
    ];
    let attributes = attributes.into_iter().filter_map(|(key, value)| {
        Some(KeyValue {
            key: key.to_owned(),
            value: Some(AnyValue {
                value: Some(value?),
            }),
            ..KeyValue::default()
        })
    });
    Resource {
        attributes: attributes.collect(),
        ..Resource::default()
    }
}

fn of_process(
    profile: &Profile,
    resource: Resource,
    wall: ValueType,
    sums: Sums,
) -> ResourceProfiles {
    let samples = sums
        .into_iter()
        .map(|((stack_index, attributes), ns)| Sample {
            stack_index,
            attribute_indices: attributes.to_vec(),
            values: vec![ns],
            ..Sample::default()
        });
    let mut samples: Vec<Sample> = samples.collect();
    samples.sort_unstable_by(|one, other| {
        let key = |sample: &Sample| (sample.stack_index, sample.attribute_indices.clone());
        key(one).cmp(&key(other))
    });
    let times = Times {
        sample_type: Some(wall),
        samples,
        time_unix_nano: profile.start_wall_ns(),
        duration_nano: profile.end_ns.saturating_sub(profile.start_ns),
        period_type: Some(wall),
        period: (1e9 / profile.run.rate_hz.max(1e-3)) as i64,
        ..Times::default()
    };
    let scope = InstrumentationScope {
        name: "torchspy".to_owned(),
        version: profile.run.torchspy.clone(),
        ..InstrumentationScope::default()
    };
    ResourceProfiles {
        resource: Some(resource),
        scope_profiles: vec![ScopeProfiles {
            scope: Some(scope),
            profiles: vec![times],
            ..ScopeProfiles::default()
        }],
        ..ResourceProfiles::default()
    }
}

/// The tables that samples refer to. The first entry of each is the empty one, and none is there
/// twice.
struct Dictionary {
    texts: IndexSet<String>,
    functions: IndexSet<Function>,
    /// Function, line and attribute.
    locations: IndexSet<(i32, i64, i32)>,
    stacks: IndexSet<Vec<i32>>,
    /// Key and value.
    attributes: IndexSet<(i32, String)>,
}

impl Dictionary {
    fn new() -> Self {
        Self {
            texts: IndexSet::from([String::new()]),
            functions: IndexSet::from([Function::default()]),
            locations: IndexSet::from([(0, 0, 0)]),
            stacks: IndexSet::from([Vec::new()]),
            attributes: IndexSet::from([(0, String::new())]),
        }
    }

    fn text(&mut self, text: &str) -> i32 {
        match self.texts.get_index_of(text) {
            Some(known) => index(known),
            None => insert(&mut self.texts, text.to_owned()),
        }
    }

    fn attribute(&mut self, key: &str, value: &str) -> i32 {
        let key = self.text(key);
        insert(&mut self.attributes, (key, value.to_owned()))
    }

    /// A stack, leaf first.
    fn stack(&mut self, view: &View<'_>, interval: Interval) -> i32 {
        let frames = view.frames(interval.stack, interval.queued);
        let frames = frames.iter().rev();
        let locations = frames.map(|frame| self.location(view, frame.shown));
        let locations = locations.collect();
        insert(&mut self.stacks, locations)
    }

    fn location(&mut self, view: &View<'_>, shown: Shown) -> i32 {
        let place = Place::of(view, shown);
        let name = self.text(&place.name);
        let function = Function {
            name_strindex: name,
            system_name_strindex: name,
            filename_strindex: self.text(&place.file),
            start_line: place.first_line.into(),
        };
        let function = insert(&mut self.functions, function);
        // Semantic conventions, registry of attributes, "profile".
        let kind = view
            .function(shown)
            .map(|function| match function.is_python {
                true => self.attribute("profile.frame.type", "cpython"),
                false => self.attribute("profile.frame.type", "native"),
            });
        let location = (function, place.line.into(), kind.unwrap_or(0));
        insert(&mut self.locations, location)
    }

    fn finish(self) -> ProfilesDictionary {
        let location = |(function_index, line, attribute)| Location {
            lines: match function_index {
                0 => Vec::new(),
                _ => vec![Line {
                    function_index,
                    line,
                    column: 0,
                }],
            },
            attribute_indices: (attribute != 0).then_some(attribute).into_iter().collect(),
            ..Location::default()
        };
        let attribute = |(key_strindex, value)| KeyValueAndUnit {
            key_strindex,
            value: (key_strindex != 0).then_some(AnyValue {
                value: Some(Value::StringValue(value)),
            }),
            unit_strindex: 0,
        };
        let stack = |location_indices| Stack { location_indices };
        ProfilesDictionary {
            mapping_table: vec![Mapping::default()],
            location_table: self.locations.into_iter().map(location).collect(),
            function_table: self.functions.into_iter().collect(),
            link_table: vec![Link::default()],
            string_table: self.texts.into_iter().collect(),
            attribute_table: self.attributes.into_iter().map(attribute).collect(),
            stack_table: self.stacks.into_iter().map(stack).collect(),
        }
    }
}

/// The number of an entry of a table.
fn insert<T: Eq + Hash>(table: &mut IndexSet<T>, entry: T) -> i32 {
    index(table.insert_full(entry).0)
}

fn index(index: usize) -> i32 {
    i32::try_from(index).unwrap_or(i32::MAX)
}
