//! Formats of output, with everything that the command line knows about each.

use super::failure::Failure;
use super::plan::Drawing;
use super::sources;
use crate::analysis::traced::traced;
use crate::analysis::{Analysis, analyze};
use crate::model::profile::Profile;
use crate::report::folded::{self, Count, FoldedOptions};
use crate::report::json::render_json;
use crate::report::page::PageOptions;
use crate::report::speedscope::{self, SpeedscopeOptions};
use crate::report::text::{TextOptions, render_summary};
use crate::report::{
    chrometrace, firefox, flamegraph, markdown, page, parquet, perfetto, pprof, tracks_csv,
};
use anyhow::Result;
use clap::builder::{PossibleValue, PossibleValuesParser};
use std::io::Write;
use std::path::Path;

/// A format, for people and for the command line.
struct Entry {
    /// Name and help for `--format`; `None` if it is selected in another way.
    named: Option<(&'static str, &'static str)>,
    /// Extension of its files.
    extension: &'static str,
    /// Whether it shows stacks, which can be filtered.
    draws: bool,
    /// Writes it.
    render: fn(&Profile, &Drawing, &mut dyn Write) -> Result<()>,
}

macro_rules! formats {
    ($($(#[$doc:meta])* $variant:ident: $entry:expr;)+) => {
        /// The content of a file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Format {
            $($(#[$doc])* $variant,)+
        }

        impl Format {
            /// Every format, in the order of the help.
            const ALL: &'static [Format] = &[$(Format::$variant,)+];

            fn entry(self) -> &'static Entry {
                match self {
                    $(Format::$variant => {
                        const ENTRY: Entry = $entry;
                        &ENTRY
                    })+
                }
            }
        }
    };
}

formats!(
    Recording: Entry {
        named: None,
        extension: "tspy",
        draws: false,
        render: |_, _, _| anyhow::bail!("a recording is not rendered"),
    };
    Page: Entry {
        named: Some((
            "html",
            "A page with timeline, flamegraph and tables of any interval, in one file",
        )),
        extension: "html",
        draws: false,
        render: |profile, drawing, out| {
            let options = PageOptions {
                editor: drawing.editor.clone(),
                sources: match drawing.source {
                    true => Some(sources::read(profile)),
                    false => None,
                },
            };
            Ok(page::render(profile, &analyzed(profile, drawing), &options, out)?)
        },
    };
    Flamegraph: Entry {
        named: Some(("svg", "Flamegraph")),
        extension: "svg",
        draws: true,
        render: |profile, drawing, out| {
            Ok(flamegraph::render_in(profile, &drawing.view(), drawing.colours, out)?)
        },
    };
    Speedscope: Entry {
        named: Some(("speedscope", "For speedscope.app")),
        extension: "speedscope.json",
        draws: true,
        render: |profile, drawing, out| {
            let options = SpeedscopeOptions { view: drawing.view(), categories: true };
            Ok(speedscope::render(profile, &options, out)?)
        },
    };
    Folded: Entry {
        named: Some(("folded", "Folded stacks, for flamegraph tools")),
        extension: "folded",
        draws: true,
        render: |profile, drawing, out| {
            let options = FoldedOptions {
                view: drawing.view(),
                python_only: drawing.python_only,
                py_spy: drawing.py_spy,
                count: Count::Ticks,
            };
            Ok(folded::render(profile, &options, out)?)
        },
    };
    Json: Entry {
        named: Some(("json", "The summary for machines")),
        extension: "json",
        draws: false,
        render: |profile, drawing, out| {
            Ok(out.write_all(render_json(profile, &analyzed(profile, drawing))?.as_bytes())?)
        },
    };
    Text: Entry {
        named: Some(("text", "The summary for people")),
        extension: "txt",
        draws: false,
        render: |profile, drawing, out| {
            let analysis = analyzed(profile, drawing);
            let text = render_summary(profile, &analysis, TextOptions::default());
            Ok(out.write_all(text.as_bytes())?)
        },
    };
    Markdown: Entry {
        named: Some(("markdown", "The report on one screen, for a pull request or an issue")),
        extension: "md",
        draws: false,
        render: |profile, drawing, out| {
            Ok(markdown::render(profile, &analyzed(profile, drawing), out)?)
        },
    };
    /// Counter tracks of GPUs and host.
    Csv: Entry {
        named: Some(("csv", "Counter tracks of GPUs and host, as a table")),
        extension: "csv",
        draws: false,
        render: |profile, _, out| Ok(tracks_csv::render(profile, out)?),
    };
    Parquet: Entry {
        named: Some((
            "parquet",
            "A row per sample, for DuckDB, pandas or Spark; and a second file, of stacks",
        )),
        extension: "parquet",
        draws: false,
        render: |profile, _, out| Ok(parquet::samples::render(profile, out)?),
    };
    /// The stacks of those rows, in a file of their own.
    ParquetStacks: Entry {
        named: None,
        extension: "stacks.parquet",
        draws: false,
        render: |profile, _, out| Ok(parquet::stacks::render(profile, out)?),
    };
    Perfetto: Entry {
        named: Some((
            "perfetto",
            "A trace for Perfetto's viewer, with code and counter tracks on one time axis",
        )),
        extension: "perfetto-trace",
        draws: true,
        render: |profile, drawing, out| Ok(perfetto::render(profile, &drawing.view(), out)?),
    };
    ChromeTrace: Entry {
        named: Some(("chrometrace", "A trace in Chrome's JSON format, for viewers and scripts")),
        extension: "trace.json",
        draws: true,
        render: |profile, drawing, out| Ok(chrometrace::render(profile, &drawing.view(), out)?),
    };
    Firefox: Entry {
        named: Some(("firefox", "For Firefox Profiler, profiler.firefox.com")),
        extension: "firefox.json.gz",
        draws: true,
        render: |profile, drawing, out| Ok(firefox::render(profile, &drawing.view(), out)?),
    };
    Pprof: Entry {
        named: Some(("pprof", "For go tool pprof, with phases, operators and modules as tags")),
        extension: "pb.gz",
        draws: true,
        render: |profile, drawing, out| Ok(pprof::render(profile, &drawing.view(), out)?),
    };
);

/// What reports show, with the trace that the user named if there is one.
fn analyzed(profile: &Profile, drawing: &Drawing) -> Analysis {
    let mut analysis = analyze(profile);
    if let Some(trace) = &drawing.trace {
        analysis.traced = Some(traced(profile, trace.as_ref().clone()));
    }
    analysis
}

/// Names that the help does not list: aliases, and py-spy's own.
const HIDDEN: &[(&str, Format)] = &[("flamegraph", Format::Flamegraph), ("raw", Format::Folded)];

impl Format {
    /// The format of a name that [`names`] takes.
    pub(super) fn named(name: &str) -> Result<Self, Failure> {
        let listed = Self::ALL
            .iter()
            .copied()
            .map(|format| (format, format.entry().named));
        let hidden = HIDDEN.iter().filter(|(each, _)| *each == name);
        let mut found = listed
            .filter(|(_, named)| named.is_some_and(|(each, _)| each == name))
            .map(|(format, _)| format)
            .chain(hidden.map(|&(_, format)| format));
        found.next().ok_or_else(|| {
            Failure::usage(format!("no format is called {name}"), "--help lists them")
        })
    }

    /// Extension of its files.
    pub(crate) fn extension(self) -> &'static str {
        self.entry().extension
    }

    /// Whether it shows stacks, which can be filtered.
    pub(crate) fn draws(self) -> bool {
        self.entry().draws
    }

    /// Whether it shows a trace of torch.profiler beside the recording.
    pub(crate) fn takes_trace(self) -> bool {
        matches!(
            self,
            Format::Page | Format::Json | Format::Text | Format::Markdown
        )
    }

    /// The format of the companion file.
    pub(crate) fn stacks(self) -> Option<Self> {
        (self == Format::Parquet).then_some(Format::ParquetStacks)
    }

    /// The format that a file's name selects.
    pub(crate) fn of_path(path: &Path) -> Result<Self, Failure> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let stem = |format: &Format| name.strip_suffix(format.extension())?.strip_suffix('.');
        let fits = Self::asked_for().filter(|format| stem(format).is_some());
        // `.speedscope.json` is also a `.json`.
        let longest = fits.max_by_key(|format| format.extension().len());
        longest.ok_or_else(|| {
            let known = extensions(Self::asked_for());
            Failure::usage(
                format!("{}: its extension names no format", path.display()),
                format!("the format goes by the extension: {known}; or name it: --format svg"),
            )
        })
    }

    /// Formats that a name or an extension selects: all except companion files.
    pub(super) fn asked_for() -> impl Iterator<Item = Self> {
        let goes_with =
            |format: &Format| Self::ALL.iter().any(|each| each.stacks() == Some(*format));
        Self::ALL
            .iter()
            .copied()
            .filter(move |format| !goes_with(format))
    }

    /// Formats that a recording can be converted to.
    pub(super) fn converted() -> impl Iterator<Item = Self> {
        Self::asked_for().filter(|&format| format != Format::Recording)
    }

    /// Writes a profile in this format.
    pub(crate) fn render(
        self,
        profile: &Profile,
        drawing: &Drawing,
        out: &mut dyn Write,
    ) -> Result<()> {
        (self.entry().render)(profile, drawing, out)
    }
}

/// Extensions as one types them: `.svg .folded`.
pub(super) fn extensions(formats: impl Iterator<Item = Format>) -> String {
    let dotted = formats.map(|format| format!(".{}", format.extension()));
    dotted.collect::<Vec<_>>().join(" ")
}

/// Names for `--format` of formats that can go to standard output.
pub(super) fn streamed() -> String {
    let one_file = Format::converted().filter(|format| format.stacks().is_none());
    let names = one_file.filter_map(|format| Some(format.entry().named?.0));
    names.collect::<Vec<_>>().join(", ")
}

/// What `--format` takes.
pub(super) fn names() -> PossibleValuesParser {
    let listed = Format::ALL.iter().filter_map(|format| format.entry().named);
    let listed = listed.map(|(name, help)| PossibleValue::new(name).help(help));
    let hidden = HIDDEN
        .iter()
        .map(|(name, _)| PossibleValue::new(*name).hide(true));
    PossibleValuesParser::new(listed.chain(hidden))
}
