//! A profile for `go tool pprof` and all that reads its format, gzipped
//! (github.com/google/pprof, proto/profile.proto).
//!
//! Samples are summed by stack and labels: `thread`, `rank`, `phase`, `activity`, `operator` and
//! `module`, which `-tags`, `-tagfocus` and `-tagroot` take. Times of threads are never added in a
//! report of torchspy's, but pprof adds all: `-tagfocus=thread=…` shows one.

use super::label::{self, LONG};
use super::proto::Message;
use super::view::{Interval, Shown, View, ViewOptions};
use crate::model::profile::{Profile, Role};
use flate2::{Compression, write::GzEncoder};
use rustc_hash::FxHashMap;
use std::io::{self, Write};

/// Numbers of fields.
mod fields {
    pub(super) const SAMPLE_TYPE: u64 = 1;
    pub(super) const SAMPLE: u64 = 2;
    pub(super) const LOCATION: u64 = 4;
    pub(super) const FUNCTION: u64 = 5;
    pub(super) const STRING: u64 = 6;
    pub(super) const TIME: u64 = 9;
    pub(super) const DURATION: u64 = 10;
    pub(super) const PERIOD_TYPE: u64 = 11;
    pub(super) const PERIOD: u64 = 12;
    pub(super) const COMMENT: u64 = 13;
    pub(super) const DEFAULT: u64 = 14;
    pub(super) mod value_type {
        pub(crate) const TYPE: u64 = 1;
        pub(crate) const UNIT: u64 = 2;
    }
    pub(super) mod sample {
        pub(crate) const LOCATION: u64 = 1;
        pub(crate) const VALUE: u64 = 2;
        pub(crate) const LABEL: u64 = 3;
        pub(crate) const KEY: u64 = 1;
        pub(crate) const TEXT: u64 = 2;
    }
    pub(super) mod location {
        pub(crate) const ID: u64 = 1;
        pub(crate) const LINE: u64 = 4;
        pub(crate) const FUNCTION: u64 = 1;
        pub(crate) const NUMBER: u64 = 2;
    }
    pub(super) mod function {
        pub(crate) const ID: u64 = 1;
        pub(crate) const NAME: u64 = 2;
        pub(crate) const SYSTEM_NAME: u64 = 3;
        pub(crate) const FILE: u64 = 4;
        pub(crate) const FIRST_LINE: u64 = 5;
    }
}
use fields::{function, location, sample, value_type};

/// What samples have in common that become one.
type Key = (Vec<u64>, [Option<u64>; LABELS.len()]);

/// All labels of a sample.
pub const LABELS: [&str; 6] = ["thread", "rank", "phase", "activity", "operator", "module"];

/// Writes a profile whose samples have all labels.
///
/// # Errors
/// Where `out` cannot be written.
pub fn render(profile: &Profile, options: &ViewOptions, out: &mut dyn Write) -> io::Result<()> {
    render_with(profile, options, &LABELS, out)
}

/// Writes a profile whose samples have only these of [`LABELS`].
///
/// # Errors
/// Where `out` cannot be written.
pub fn render_with(
    profile: &Profile,
    options: &ViewOptions,
    wanted: &[&str],
    out: &mut dyn Write,
) -> io::Result<()> {
    let view = View::new(profile, options);
    let mut file = File::default();
    file.text("");
    let mut samples: FxHashMap<Key, [u64; 2]> = FxHashMap::default();
    let mut stacks = FxHashMap::default();
    for interval in view.intervals() {
        let stack = stacks
            .entry((interval.stack, interval.queued))
            .or_insert_with(|| file.stack(&view, interval))
            .clone();
        let key = (stack, file.labels(&view, interval, wanted));
        let [ticks, ns] = samples.entry(key).or_default();
        *ticks = ticks.saturating_add(interval.ticks.into());
        *ns = ns.saturating_add(interval.weight_ns);
    }
    let mut samples: Vec<(Key, [u64; 2])> = samples.into_iter().collect();
    samples.sort_unstable();
    let names = LABELS.map(|name| file.text(name));
    for ((stack, labels), [ticks, ns]) in samples {
        let mut content = Message::default()
            .numbers(sample::LOCATION, &stack)
            .numbers(sample::VALUE, &[ticks, ns]);
        for (name, text) in names.iter().zip(labels) {
            let Some(text) = text else { continue };
            let label = Message::default()
                .number(sample::KEY, *name)
                .number(sample::TEXT, text);
            content = content.message(sample::LABEL, &label);
        }
        file.add(fields::SAMPLE, &content);
    }
    let mut gzip = GzEncoder::new(out, Compression::default());
    gzip.write_all(file.finish(profile).bytes())?;
    gzip.finish().map(drop)
}

/// Where a frame is, in words that are clean.
pub(super) struct Place {
    pub(super) name: String,
    /// Empty for frames that are no code.
    pub(super) file: String,
    /// The first line of a Python function; 0 for others.
    pub(super) first_line: u32,
    /// The source line; 0 where unknown.
    pub(super) line: u32,
}

impl Place {
    pub(super) fn of(view: &View<'_>, shown: Shown) -> Self {
        match (view.function(shown), shown) {
            (Some(function), Shown::Code { line, .. }) => Self {
                name: label::clean(function.shown_name(), LONG),
                file: label::clean(view.file(function), LONG),
                first_line: function.first_line,
                line,
            },
            _ => Self {
                name: view.label(shown),
                file: String::new(),
                first_line: 0,
                line: 0,
            },
        }
    }
}

#[derive(Default)]
struct File {
    content: Message,
    texts: FxHashMap<String, u64>,
    in_order: Vec<String>,
    locations: FxHashMap<Shown, u64>,
    functions: FxHashMap<(u64, u64), u64>,
}

impl File {
    /// The number of a string.
    fn text(&mut self, text: &str) -> u64 {
        if let Some(&known) = self.texts.get(text) {
            return known;
        }
        let number = self.in_order.len() as u64;
        self.texts.insert(text.to_owned(), number);
        self.in_order.push(text.to_owned());
        number
    }

    /// The locations of a stack, leaf first.
    fn stack(&mut self, view: &View<'_>, interval: Interval) -> Vec<u64> {
        let frames = view.frames(interval.stack, interval.queued);
        let frames = frames.iter().rev();
        frames
            .map(|frame| self.location(view, frame.shown))
            .collect()
    }

    fn location(&mut self, view: &View<'_>, shown: Shown) -> u64 {
        if let Some(&known) = self.locations.get(&shown) {
            return known;
        }
        let Place {
            name,
            file,
            first_line,
            line,
        } = Place::of(view, shown);
        let (name, file) = (self.text(&name), self.text(&file));
        let next = self.functions.len() as u64 + 1;
        let function_id = *self.functions.entry((name, file)).or_insert(next);
        if function_id == next {
            let content = Message::default()
                .number(function::ID, next)
                .number(function::NAME, name)
                .number(function::SYSTEM_NAME, name)
                .number(function::FILE, file)
                .number(function::FIRST_LINE, first_line.into());
            self.add(fields::FUNCTION, &content);
        }
        let id = self.locations.len() as u64 + 1;
        self.locations.insert(shown, id);
        let line = Message::default()
            .number(location::FUNCTION, function_id)
            .number(location::NUMBER, line.into());
        let content = Message::default()
            .number(location::ID, id)
            .message(location::LINE, &line);
        self.add(fields::LOCATION, &content);
        id
    }

    fn labels(
        &mut self,
        view: &View<'_>,
        interval: Interval,
        wanted: &[&str],
    ) -> [Option<u64>; LABELS.len()] {
        let profile = view.profile();
        let root = view.roots().get(interval.root);
        let rank = root.and_then(|root| match profile.process(root.process)?.role {
            Role::Trainer { rank, .. } => rank,
            _ => None,
        });
        let stack = interval.stack;
        let operator = profile.facts.own_operator(stack);
        let operator = operator.map(|site| profile.facts.names.get(site.name).to_owned());
        let module = profile.facts.modules(stack).next();
        let module = module.and_then(|module| profile.nn_module(module));
        let mut labels = [
            root.map(|root| root.label.clone()),
            rank.map(|rank| rank.to_string()),
            Some(profile.phase_name(interval.phase).to_owned()),
            Some(interval.activity.name().to_owned()),
            operator,
            module.map(|module| module.label()),
        ];
        for (name, label) in LABELS.iter().zip(&mut labels) {
            if !wanted.contains(name) {
                *label = None;
            }
        }
        labels.map(|text| text.map(|text| self.text(&label::clean(&text, LONG))))
    }

    fn add(&mut self, field: u64, message: &Message) {
        self.content = std::mem::take(&mut self.content).message(field, message);
    }

    fn finish(mut self, profile: &Profile) -> Message {
        for (field, name, unit) in [
            (fields::SAMPLE_TYPE, "samples", "count"),
            (fields::SAMPLE_TYPE, "wall", "nanoseconds"),
            (fields::PERIOD_TYPE, "wall", "nanoseconds"),
        ] {
            let content = Message::default()
                .number(value_type::TYPE, self.text(name))
                .number(value_type::UNIT, self.text(unit));
            self.add(field, &content);
        }
        let comment = format!("torchspy {}", profile.run.torchspy);
        let (comment, wall) = (self.text(&comment), self.text("wall"));
        let period = 1e9 / profile.run.rate_hz.max(1e-3);
        let content = self
            .content
            .number(fields::TIME, profile.start_wall_ns())
            .number(
                fields::DURATION,
                profile.end_ns.saturating_sub(profile.start_ns),
            )
            .number(fields::PERIOD, period as u64)
            .number(fields::COMMENT, comment)
            .number(fields::DEFAULT, wall);
        let texts = self.in_order.iter();
        texts.fold(content, |content, text| content.text(fields::STRING, text))
    }
}
