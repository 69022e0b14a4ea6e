//! `--confidential`: no name of the user's is in any output, and no figure changes.

use crate::analysis_builder::*;
use crate::installed::torch_python;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::read::MultiGzDecoder;
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output};
use torchspy::model::ids::{CounterId, GpuId, ProcessId, ThreadId, TrackId};
use torchspy::model::nn_module::NnModuleInfo;
use torchspy::model::progress::{Condition, CounterInfo, CounterKind, ProgressPoint};
use torchspy::model::region::Region;
use torchspy::model::track::{GpuInfo, TrackGap, TrackInfo, TrackKind, TrackPoint};
use torchspy::recording::RecordingWriter;

/// In every name of the user's; what follows says whose it is.
const MARK: &str = "zqxvault";
/// Every format that `convert` writes.
const EXTENSIONS: &[&str] = &[
    "html",
    "svg",
    "speedscope.json",
    "folded",
    "json",
    "txt",
    "md",
    "csv",
    "parquet",
    "perfetto-trace",
    "trace.json",
    "firefox.json.gz",
    "pb.gz",
];
/// Formats of a comparison.
const COMPARED: &[&str] = &["html", "svg", "folded", "json", "txt"];

fn torchspy(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_torchspy"));
    let output = command
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    output
}

fn unzipped(bytes: &[u8]) -> Vec<u8> {
    let mut inside = Vec::new();
    MultiGzDecoder::new(bytes).read_to_end(&mut inside).unwrap();
    inside
}

/// All that a file holds, in small letters: itself, and what is packed in it.
fn content(path: &Path) -> String {
    let bytes = fs::read(path).unwrap();
    assert!(
        bytes.len() > 60,
        "{}: {} bytes",
        path.display(),
        bytes.len()
    );
    let mut all = bytes.clone();
    let name = path.to_str().unwrap();
    if name.ends_with(".gz") {
        all.extend(unzipped(&bytes));
    } else if name.ends_with(".parquet") {
        let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
        all.extend(format!("{:?}", reader.metadata()).bytes());
        for row in reader.get_row_iter(None).unwrap() {
            all.extend(row.unwrap().to_string().bytes());
        }
    } else if name.ends_with(".html") {
        let text = String::from_utf8(bytes).unwrap();
        // gzip begins with 1f 8b 08.
        let packed = text
            .split(['"', '<', '>', '.'])
            .filter(|part| part.starts_with("H4sI"));
        let parts: Vec<Vec<u8>> = packed
            .map(|part| unzipped(&BASE64_STANDARD.decode(part.trim()).unwrap()))
            .collect();
        assert!(!parts.is_empty(), "{name}: no data");
        all.extend(parts.concat());
    }
    String::from_utf8_lossy(&all).to_lowercase()
}

/// Every output of the recordings of a folder, with these options.
fn outputs(folder: &Path, options: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for extension in EXTENSIONS {
        let file = format!("out.{extension}");
        let convert = ["convert", "run.tspy", "--force", "-o", &file];
        torchspy(&[&convert, options].concat(), folder);
        found.push((file.clone(), content(&folder.join(&file))));
    }
    let stacks = folder.join("out.stacks.parquet");
    found.push(("stacks".to_owned(), content(&stacks)));
    for more in [
        &["--full"][..],
        &["--json"],
        &["--itwinai"],
        &["--by", "step"],
        &["--html"],
    ] {
        let output = torchspy(&[&["report", "run.tspy"], more, options].concat(), folder);
        let path = folder.join(if more == ["--html"] {
            "printed.html"
        } else {
            "printed.txt"
        });
        fs::write(&path, &output.stdout).unwrap();
        found.push((format!("report {more:?}"), content(&path)));
    }
    for table in torchspy::report::tables::TABLES
        .iter()
        .map(|(name, _)| name)
    {
        let output = torchspy(
            &[&["report", "run.tspy", "--csv", table], options].concat(),
            folder,
        );
        let text = String::from_utf8(output.stdout).unwrap().to_lowercase();
        found.push((format!("table {table}"), text));
    }
    for extension in COMPARED {
        let file = format!("diff.{extension}");
        let diff = [
            "diff",
            "run.tspy",
            "zqxvault-other.tspy",
            "--force",
            "-o",
            &file,
        ];
        let output = torchspy(&[&diff, options].concat(), folder);
        found.push((file.clone(), content(&folder.join(&file))));
        let printed = String::from_utf8(output.stdout).unwrap().to_lowercase();
        found.push(("diff".to_owned(), printed));
    }
    found
}

/// The names with the mark in a text, as far as they go.
fn marks(text: &str) -> BTreeSet<String> {
    let found = text.match_indices(MARK).map(|(at, _)| {
        let rest = &text[at + MARK.len()..];
        let end = rest
            .find(|each: char| !each.is_ascii_lowercase())
            .unwrap_or(rest.len());
        rest[..end].to_owned()
    });
    found.collect()
}

const FILE: &str = "/home/zqxvaulthome/zqxvaultfolder/zqxvaultfile.py";

fn own(function: &str, line: u32) -> F {
    py(FILE, function, line)
}

/// A function of a library that the user built.
fn built(symbol: &str) -> F {
    F::Native(
        "/home/zqxvaulthome/zqxvaultlibrary.so".to_owned(),
        Some(symbol.to_owned()),
    )
}

/// A trainer whose every name has the mark.
fn builder(ticks: u64) -> Builder {
    let mut b = Builder::new();
    b.run.host = "zqxvaulthost".to_owned();
    let exe = "/home/zqxvaulthome/zqxvaultvenv/bin/python3.11";
    let command = [
        exe,
        "-u",
        FILE,
        "--zqxvaultoption",
        "zqxvaultargument",
        "/data/zqxvaultcheckpoint.pt",
    ];
    b.run.command = command.map(str::to_owned).to_vec();
    b.run.threads = Some("zqxvaultpattern|.".to_owned());
    b.run.notes = vec![
        "zqxvaultnote".to_owned(),
        "cgroup quota 4.0 CPUs".to_owned(),
    ];
    b.run.regions = [
        "zqxvaultloss=zqxvaultfile.py:Zqxvaultnet.zqxvaultregion",
        "input=x.py:zqxvaultmore",
    ]
    .map(|text| Region::parse(text).unwrap())
    .to_vec();
    let trainer = b.process(100, 1, &command);
    b.processes[trainer].exe = exe.to_owned();
    b.processes[trainer].note = "zqxvaultprocessnote".to_owned();
    b.processes[trainer].has_cuda = true;
    b.environment(
        trainer,
        &[
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "zqxvaultmaster"),
            ("CUDA_VISIBLE_DEVICES", "GPU-zqxvaultuuid"),
        ],
    );
    let main = b.thread(trainer, 100, "zqxvaultmain", true);
    let helper = b.thread(trainer, 101, "zqxvaulthelper", true);
    let other = b.process(200, 100, &["zqxvaulttitle: working on /zqxvaulttitlepath"]);
    b.processes[other].python = String::new();
    b.processes[other].exe = "/opt/zqxvaultprogram".to_owned();
    b.processes[other].cpu_ns = 5_000_000_000;
    let other = b.thread(other, 200, "zqxvaultother", false);

    let class = |root: &str, path: &str, class: &str| {
        F::Module(NnModuleInfo {
            root: root.to_owned(),
            number: 0,
            path: path.to_owned(),
            class: class.to_owned(),
            training: Some(true),
        })
    };
    let call = || lib("torch/nn/modules/module.py", "Module._call_impl");
    let root = [own("<module>", 90), own("zqxvaulttrain", 41)];
    let with = |more: &[F]| [&root[..], more].concat();
    let inside = [
        class("Zqxvaultnet", "", "Zqxvaultnet"),
        call(),
        own("Zqxvaultnet.forward", 50),
        class("Zqxvaultnet", "zqxvaultattribute.0", "Zqxvaultlayer"),
        call(),
        own("zqxvaultmake.<locals>.Zqxvaultlayer.forward", 60),
    ];
    let add = torch("at::_ops::add_Tensor::call(at::Tensor const&)");
    let kernel = built("zqxvaultns::zqxvaultkernel(int)");
    let glue = built(
        "c10::impl::X<c10::CompileTimeFunctionPointer<at::Tensor (at::Tensor const&), &zqxvaultns::zqxvaultop>, at::Tensor>::call(int)",
    );
    let node = built(
        "torch::autograd::generated::ZqxvaultnodeBackward0::apply(std::vector<at::Tensor>&&)",
    );
    b.ticks(
        main,
        ticks,
        S::Running,
        &with(&[&inside[..], std::slice::from_ref(&add)].concat()),
    );
    b.ticks(
        main,
        30,
        S::Running,
        &with(&[&inside[..], &[glue, kernel.clone()]].concat()),
    );
    b.ticks(
        main,
        20,
        S::Running,
        &with(
            &[
                &inside[..],
                &[F::Native("/opt/zqxvaultunnamed.so".to_owned(), None)],
            ]
            .concat(),
        ),
    );
    b.ticks(
        main,
        20,
        S::Running,
        &with(&[own("Zqxvaultnet.zqxvaultregion", 70), add]),
    );
    b.ticks(
        main,
        20,
        S::Futex,
        &with(&[kernel, libc("pthread_mutex_lock")]),
    );
    b.ticks(
        main,
        30,
        S::Running,
        &with(&[
            lib("torch/_tensor.py", "Tensor.backward"),
            torch("torch::autograd::Engine::execute(int)"),
            node,
        ]),
    );
    b.ticks(
        main,
        20,
        S::Running,
        &with(&[
            lib("torch/_tensor.py", "Tensor.backward"),
            torch("torch::autograd::Engine::evaluate_function(int)"),
            torch("torch::autograd::PyNode::apply(int)"),
            lib("torch/autograd/function.py", "BackwardCFunction.apply"),
            own("Zqxvaultautograd.backward", 80),
        ]),
    );
    b.ticks(
        main,
        20,
        S::Running,
        &with(&[
            lib("torch/_dynamo/convert_frame.py", "compile_inner"),
            F::Compiles(Box::new(own("zqxvaultcompiled", 95))),
            lib(
                "torch/_dynamo/symbolic_convert.py",
                "InstructionTranslator.run",
            ),
        ]),
    );
    b.ticks(
        main,
        10,
        S::Running,
        &with(&[own("torch_dynamo_resume_in_zqxvaultbroken_at_44", 44)]),
    );
    b.ticks(
        helper,
        100,
        S::Nanosleep,
        &[
            std_lib("threading.py", "Thread.run"),
            own("zqxvaultwork", 12),
            libc("clock_nanosleep"),
        ],
    );
    b.ticks(
        other,
        100,
        S::Running,
        &[F::Native(
            "/opt/zqxvaultprogram".to_owned(),
            Some("zqxvaultnative".to_owned()),
        )],
    );

    let process = ProcessId::from_index(trainer);
    let counter = |number, kind, class: &str, facts: &[(&str, &str)]| CounterInfo {
        process,
        number,
        kind,
        class: class.to_owned(),
        file: "/home/zqxvaultcounter.py".to_owned(),
        line: 3,
        facts: facts
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    };
    b.counters = vec![
        counter(
            0,
            CounterKind::Batches,
            "Zqxvaultloader",
            &[
                ("function", "zqxvaultowner"),
                ("dataset", "Zqxvaultdataset"),
                ("batch_size", "64"),
            ],
        ),
        counter(
            1,
            CounterKind::ParameterVersion,
            "Zqxvaultoptimizer",
            &[("parameter_dtype", "float32")],
        ),
    ];
    for at in 1..20_u64 {
        for counter in 0..2 {
            b.sideband.points.push(ProgressPoint {
                counter: CounterId::from_index(counter),
                thread: ThreadId::from_index(main),
                before_ns: at * 100_000_000 - 10_000_000,
                time_ns: at * 100_000_000,
                value: at,
            });
        }
    }
    b.sideband.conditions = vec![Condition {
        process,
        name: "autocast".to_owned(),
        value: "zqxvaultautocast".to_owned(),
    }];
    b.sideband.tracks.gpus = vec![GpuInfo {
        uuid: "GPU-zqxvaultuuid".to_owned(),
        name: "NVIDIA H100".to_owned(),
        recorded: true,
        ..GpuInfo::default()
    }];
    let track = |kind, gpu, pid, process: &str| TrackInfo {
        kind,
        gpu,
        pid,
        process: process.to_owned(),
    };
    b.sideband.tracks.tracks = vec![
        track(TrackKind::Utilization, Some(GpuId::from_index(0)), 0, ""),
        track(
            TrackKind::ProcessMemory,
            Some(GpuId::from_index(0)),
            555,
            "/opt/zqxvaultneighbour",
        ),
    ]
    .into();
    for track in 0..2 {
        b.sideband
            .tracks
            .points
            .extend((0..20).map(|at| TrackPoint {
                track: TrackId::from_index(track),
                start_ns: at * 100_000_000,
                end_ns: (at + 1) * 100_000_000,
                value: 500_000,
            }));
    }
    b.sideband.tracks.gaps = vec![TrackGap {
        gpu: Some(GpuId::from_index(0)),
        kind: Some(TrackKind::SmActive),
        start_ns: 0,
        end_ns: 0,
        reason: "cannot load /zqxvaultreason/libnvidia-ml.so".to_owned(),
    }];
    b
}

fn write(builder: Builder, path: &Path) {
    let file = File::create_new(path).unwrap();
    let mut writer = RecordingWriter::from_file(file, &builder.run).unwrap();
    writer.write_segment(&builder.segment(0, 0)).unwrap();
    writer.finish().unwrap();
}

fn assert_hidden(found: &[(String, String)]) {
    for (name, text) in found {
        let marks = marks(text);
        assert!(marks.is_empty(), "{name}: {marks:?}");
    }
}

/// JSON without names, in an order that names do not decide.
fn shape(value: &Value) -> Value {
    match value {
        Value::String(_) => Value::from("a name"),
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(shape).collect();
            items.sort_by_key(Value::to_string);
            Value::Array(items)
        }
        Value::Object(fields) => {
            // Regions are keys.
            let is_hash = |digits: &str| digits.len() == 6;
            let shapes = fields.iter().map(|(key, value)| {
                let is_name =
                    key.contains(MARK) || key.strip_prefix("region_").is_some_and(is_hash);
                let key = if is_name { "a region" } else { key };
                (key.to_owned(), shape(value))
            });
            shapes.collect()
        }
        other => other.clone(),
    }
}

fn json(folder: &Path, options: &[&str]) -> Value {
    let report = ["report", "run.tspy", "--json"];
    let output = torchspy(&[&report, options].concat(), folder);
    serde_json::from_slice(&output.stdout).unwrap()
}

fn assert_figures_stay(folder: &Path) {
    let (mut plain, hidden) = (json(folder, &[]), json(folder, &["--confidential"]));
    // What modules hold is full of names, and is left out.
    for memory in plain["memory"].as_array_mut().unwrap() {
        memory["held"] = Value::Null;
        memory["held_at_s"] = Value::Null;
    }
    assert_eq!(plain["verdict"]["cause"], hidden["verdict"]["cause"]);
    assert_eq!(plain["summary"], hidden["summary"]);
    assert_eq!(shape(&plain), shape(&hidden));
    assert_ne!(plain, hidden);
}

#[test]
fn no_name_of_the_user_s_is_in_any_output() {
    let folder = tempfile::tempdir().unwrap();
    write(builder(100), &folder.path().join("run.tspy"));
    write(builder(160), &folder.path().join("zqxvault-other.tspy"));
    // Otherwise a name that no output has would prove nothing.
    let plain = outputs(folder.path(), &[]);
    let shown: BTreeSet<String> = plain.iter().flat_map(|(_, text)| marks(text)).collect();
    for name in [
        "",
        "argument",
        "attribute",
        "autocast",
        "autograd",
        "broken",
        "checkpoint",
        "compiled",
        "dataset",
        "file",
        "folder",
        "helper",
        "home",
        "host",
        "kernel",
        "layer",
        "library",
        "loss",
        "main",
        "make",
        "net",
        "neighbour",
        "nodebackward",
        "note",
        "ns",
        "op",
        "optimizer",
        "option",
        "other",
        "pattern",
        "processnote",
        "program",
        "reason",
        "region",
        "title",
        "titlepath",
        "train",
        "unnamed",
        "uuid",
        "venv",
        "work",
    ] {
        assert!(shown.contains(name), "no output has {name}: {shown:?}");
    }
    for (name, text) in &plain {
        let has_names =
            !name.starts_with("table ") && !name.contains("itwinai") && !name.contains("step");
        assert!(
            !has_names || text.contains(MARK),
            "{name} has no name at all"
        );
    }
    assert_hidden(&outputs(folder.path(), &["--confidential"]));
    assert_hidden(&outputs(folder.path(), &["--confidential=some key"]));
}

#[test]
fn figures_and_verdict_stay() {
    let folder = tempfile::tempdir().unwrap();
    write(builder(100), &folder.path().join("run.tspy"));
    assert_figures_stay(folder.path());
    let known = json(folder.path(), &["--confidential"]).to_string();
    let text = torchspy(
        &["report", "run.tspy", "--full", "--confidential"],
        folder.path(),
    );
    let known = known + &String::from_utf8(text.stdout).unwrap();
    for name in [
        "aten::add",
        "NVIDIA H100",
        "cgroup quota 4.0 CPUs",
        "site-packages/torch/_tensor.py",
    ] {
        assert!(known.contains(name), "{name} is gone");
    }
}

#[test]
fn threads_are_chosen_by_the_names_that_the_user_knows() {
    let folder = tempfile::tempdir().unwrap();
    write(builder(100), &folder.path().join("run.tspy"));
    let drawn = |options: &[&str]| {
        let convert = [
            "convert",
            "run.tspy",
            "-o",
            "-",
            "-f",
            "folded",
            "--thread-name",
            "zqxvaulthelper",
            "--idle",
        ];
        let output = torchspy(&[&convert, options].concat(), folder.path());
        String::from_utf8(output.stdout).unwrap().lines().count()
    };
    assert!(drawn(&[]) > 0);
    assert_eq!(drawn(&[]), drawn(&["--confidential"]));
}

const SCRIPT: &str = "\
import sys, threading, time
import torch

class ZqxvaultNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.zqxvault_layers = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU())

    def forward(self, x):
        return self.zqxvault_layers(x)

def zqxvault_helper():
    while True:
        time.sleep(0.01)

def zqxvault_step(model, optimizer):
    loss = model(torch.randn(512, 256)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

threading.Thread(target=zqxvault_helper, name='zqxvault-thread', daemon=True).start()
model = ZqxvaultNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
end = time.monotonic() + 3
while time.monotonic() < end:
    zqxvault_step(model, optimizer)
";

#[test]
fn a_script_is_recorded_and_its_names_are_in_the_recording_alone() {
    let Some(python) = torch_python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("zqxvault_folder/zqxvault_train.py");
    fs::create_dir(script.parent().unwrap()).unwrap();
    fs::write(&script, SCRIPT).unwrap();
    let (script, python) = (script.to_str().unwrap(), python.to_str().unwrap());
    let files = EXTENSIONS
        .iter()
        .map(|extension| format!("out.{extension}"));
    let files: Vec<String> = files.chain(["run.tspy".to_owned()]).collect();
    let mut arguments = vec![
        "record",
        "--confidential",
        "--region",
        "zqxvault=zqxvault_train.py:zqxvault_step",
    ];
    for file in &files {
        arguments.extend(["-o", file]);
    }
    arguments.extend(["--", python, script, "--zqxvault", "zqxvault_value"]);
    let output = torchspy(&arguments, folder.path());
    let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
    assert!(said.contains("the recording keeps all names"), "{said}");
    assert!(!said.contains(MARK), "{said}");
    for extension in EXTENSIONS {
        let text = content(&folder.path().join(format!("out.{extension}")));
        assert!(!text.contains(MARK), "{extension}: {:?}", marks(&text));
    }
    fs::copy(
        folder.path().join("run.tspy"),
        folder.path().join("zqxvault-other.tspy"),
    )
    .unwrap();
    let plain = outputs(folder.path(), &[]);
    assert!(plain.iter().filter(|(_, text)| text.contains(MARK)).count() > 15);
    assert_hidden(&outputs(folder.path(), &["--confidential"]));
    assert_figures_stay(folder.path());
    let known = json(folder.path(), &["--confidential"]).to_string();
    let text = torchspy(
        &["report", "run.tspy", "--full", "--confidential"],
        folder.path(),
    );
    let known = known + &String::from_utf8(text.stdout).unwrap();
    assert!(
        known.contains("aten::addmm") && known.contains("\"Linear\""),
        "{known}"
    );
}

/// The names of a recording's default files have the script and the host in them.
#[test]
fn default_names_of_files_are_hashes_too() {
    let Some(python) = crate::installed::any_python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("zqxvault.py"), "sum(range(10_000_000))").unwrap();
    torchspy(
        &["record", "--confidential=key", "--", &python, "zqxvault.py"],
        folder.path(),
    );
    let names = fs::read_dir(folder.path()).unwrap();
    let names: Vec<String> = names
        .map(|each| each.unwrap().file_name().into_string().unwrap())
        .collect();
    let own: Vec<&String> = names
        .iter()
        .filter(|name| name.contains("zqxvault"))
        .collect();
    assert_eq!(own, ["zqxvault.py"], "{names:?}");
    assert_eq!(names.len(), 3, "{names:?}");
}
