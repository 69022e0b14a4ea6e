//! Who holds the memory of tensors, of each process of a dump: for people, and as JSON.

use super::head::title;
use crate::analysis::dump::held::{held_rows, rows_in_all};
use crate::model::dump::{DeviceTensors, Dump, DumpedProcess};
use crate::model::held::{Held, HeldPart, Holding};
use crate::model::text::printable;
use crate::report::command::shown_command;
use crate::report::label::counted;
use crate::report::text::format::{cut_front, short_time};
use crate::report::text::tracks::bytes;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Rows of modules.
const ROWS: usize = 20;
/// Width of a module's name and of a command line.
const NAME: usize = 32;
const COMMAND: usize = 60;
/// Shared tensors that are named.
const SHARED: usize = 3;

/// The memory of all processes that were read for it.
pub(super) fn memory(out: &mut String, dump: &Dump) {
    for read in dump.memory.iter().flatten() {
        let process = dump.processes.iter().find(|each| each.pid == read.pid);
        let Some(process) = process else { continue };
        match &read.tensors.held {
            Some(held) => of_process(out, process, held),
            None => {
                let why = match process.torch.is_empty() {
                    true => "it has no torch",
                    false => "no variable of its frames leads to a module or an optimizer",
                };
                let _ = writeln!(out, "\nMEMORY of {}: not read, {why}", whose(process));
            }
        }
        for device in &read.tensors.devices {
            let _ = writeln!(out, "  {}", of_device(device, read.tensors.held.as_ref()));
        }
        if let Some(why) = read.tensors.devices_unread {
            let _ = writeln!(out, "  its allocator of device memory is not read: {why}");
        }
    }
}

/// `on cuda:0 torch's allocator has given 4.2 GB to tensors, 1.2 GB more than these (…), and …`.
fn of_device(device: &DeviceTensors, held: Option<&Held>) -> String {
    let mut text = format!(
        "on {} torch's allocator has given {} to tensors",
        device.device,
        amount(device.bytes)
    );
    // Less than what modules hold: it changed meanwhile.
    if let Some(others) = held.and_then(|held| beside(device, held)) {
        text.push_str(&format!(
            ", {} more than these (activations, batches, temporary tensors)",
            amount(others)
        ));
    }
    let in_use = device.active_bytes.saturating_sub(device.bytes);
    if in_use > 0 {
        text.push_str(&format!(
            ", and {} that tensors gave back is still in use by a stream",
            amount(in_use)
        ));
    }
    let free = device.reserved_bytes.saturating_sub(device.active_bytes);
    text.push_str(&format!(", and keeps {} free", amount(free)));
    text
}

/// What tensors of the device have that no module or optimizer holds; `None` where that is less
/// than nothing, or where what they hold is not all known.
fn beside(device: &DeviceTensors, held: &Held) -> Option<u64> {
    let totals = held.totals();
    let on_it = totals.iter().filter(|part| part.device == device.device);
    let known = on_it.map(|part| part.bytes).sum();
    device.bytes.checked_sub(known).filter(|_| held.is_whole())
}

fn whose(process: &DumpedProcess) -> String {
    let command = shown_command(&process.command, COMMAND);
    format!(
        "{} pid {} ({})",
        title(process.role),
        process.pid,
        printable(&command)
    )
}

fn of_process(out: &mut String, process: &DumpedProcess, held: &Held) {
    let _ = writeln!(out, "\nMEMORY of {}", whose(process));
    held_by(out, held);
}

/// Sums, modules and notes.
pub(crate) fn held_by(out: &mut String, held: &Held) {
    let totals = held.totals();
    let tensors: u64 = totals.iter().map(|part| part.tensors).sum();
    let _ = writeln!(
        out,
        "  {} in {}{}, read in {} while it ran",
        amount(sum(&totals)),
        counted(tensors, "tensor"),
        match &held.cut {
            Some(_) => ": A PART ONLY, see below",
            None => "",
        },
        short_time(held.read_ns)
    );
    for holding in Holding::ALL {
        let parts: Vec<&HeldPart> = totals
            .iter()
            .filter(|part| part.holding == holding)
            .collect();
        let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
        let is_unread =
            held.cut.is_some() || held.unread.iter().any(|each| each.holding == holding);
        // Zero is a figure only where all was read.
        let (cell, words) = match (parts.is_empty(), is_unread) {
            (true, true) => ("?".to_owned(), "not read, see below".to_owned()),
            (true, false) => (amount(0), none_of(holding, held)),
            (false, _) => (amount(bytes), words_of(&parts)),
        };
        let _ = writeln!(
            out,
            "    {:<17}{cell:>8}   {}{}",
            label(holding),
            match holding == Holding::OptimizerState && !held.optimizers.is_empty() {
                true => printable(&format!("{}: ", held.optimizers.join(", "))).into_owned(),
                false => String::new(),
            },
            printable(&words)
        );
    }
    rows(out, held);
    notes(out, held);
}

fn label(holding: Holding) -> &'static str {
    match holding {
        Holding::Parameters => "parameters",
        Holding::Gradients => "gradients",
        Holding::OptimizerState => "optimizer state",
        Holding::Buffers => "buffers",
    }
}

/// What an absence means.
fn none_of(holding: Holding, held: &Held) -> String {
    match holding {
        Holding::Parameters | Holding::Buffers => "none",
        Holding::Gradients => "none at that moment: they exist from backward to zero_grad",
        Holding::OptimizerState if held.optimizers.is_empty() => "no optimizer was found",
        Holding::OptimizerState => "none (the first step makes it, if any)",
    }
    .to_owned()
}

/// `148 float32 on cuda:0, 12 bfloat16 on cpu (1.2 MB)`.
fn words_of(parts: &[&HeldPart]) -> String {
    let words = parts.iter().map(|part| {
        let bytes = match parts.len() {
            1 => String::new(),
            _ => format!(" ({})", amount(part.bytes)),
        };
        let no_memory = if part.device == "meta" {
            ", no memory"
        } else {
            ""
        };
        format!(
            "{} {} on {}{no_memory}{bytes}",
            part.tensors, part.dtype, part.device
        )
    });
    words.collect::<Vec<_>>().join(", ")
}

fn rows(out: &mut String, held: &Held) {
    let rows = held_rows(held, ROWS);
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "\n  {:<NAME$}{:>9}{:>9}{:>9}{:>9}{:>9}",
        "module, with all inside", "all", "params", "grads", "optim", "buffers"
    );
    for row in &rows {
        let mut name = format!("{}{}", "  ".repeat(row.depth), row.name);
        if row.count > 1 {
            name.push_str(&format!(" ({} x)", row.count));
        }
        let of = |holding: Holding| {
            let parts = row.parts.iter().filter(|part| part.holding == holding);
            parts.map(|part| part.bytes).sum::<u64>()
        };
        let _ = write!(
            out,
            "  {:<NAME$}{:>9}",
            cut_front(&printable(&name), NAME - 1),
            amount(row.bytes())
        );
        for holding in Holding::ALL {
            let bytes = of(holding);
            let cell = if bytes == 0 {
                "-".to_owned()
            } else {
                amount(bytes)
            };
            let _ = write!(out, "{cell:>9}");
        }
        let _ = writeln!(out, "  {}", kinds(&row.parts, &row.class));
    }
    let more = rows_in_all(held).saturating_sub(rows.len());
    if more > 0 {
        let _ = writeln!(
            out,
            "  and {} more with less; --json has all",
            counted(more as u64, "row")
        );
    }
}

/// The class, and the types and devices of parameters.
fn kinds(parts: &[HeldPart], class: &str) -> String {
    let (mut types, mut devices) = (Vec::new(), Vec::new());
    for part in parts {
        if part.holding == Holding::Parameters {
            add(&mut types, &part.dtype);
            add(&mut devices, &part.device);
        }
    }
    let words = [
        printable(class).into_owned(),
        types.join("+"),
        devices.join("+"),
    ];
    let words: Vec<String> = words.into_iter().filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

fn add<'a>(words: &mut Vec<&'a str>, word: &'a str) {
    if !words.contains(&word) {
        words.push(word);
    }
}

fn notes(out: &mut String, held: &Held) {
    out.push('\n');
    if let Some(why) = &held.cut {
        let _ = writeln!(out, "  A PART ONLY: {why}");
    }
    for unread in &held.unread {
        let _ = writeln!(
            out,
            "  not read, and in no figure: {} ({}), the first is {}",
            counted(unread.tensors, "tensor"),
            unread.reason,
            printable(&unread.first)
        );
    }
    if held.shared_tensors > 0 {
        let named = held.shared.iter().take(SHARED).map(|each| {
            let name = printable(&each.name);
            match &each.counted_as {
                Some(first) => format!("{name} is {}", printable(first)),
                None => name.into_owned(),
            }
        });
        let _ = writeln!(
            out,
            "  counted once: {} in the memory of others ({}{})",
            counted(held.shared_tensors, "tensor"),
            named.collect::<Vec<_>>().join(", "),
            if held.shared_tensors > SHARED as u64 {
                ", .."
            } else {
                ""
            }
        );
    }
    if held.uncovered_bytes > 0 {
        let _ = writeln!(
            out,
            "  besides {} of larger storages that these tensors are views of",
            amount(held.uncovered_bytes)
        );
    }
    let _ = writeln!(
        out,
        "  not counted: activations, temporary tensors, free blocks of allocators, CUDA itself"
    );
}

fn sum(parts: &[HeldPart]) -> u64 {
    parts.iter().map(|part| part.bytes).sum()
}

fn amount(value: u64) -> String {
    bytes(value as f64)
}

/// The memory of all processes, as JSON; null if it was not requested.
pub(super) fn memory_json(dump: &Dump) -> Value {
    let Some(processes) = &dump.memory else {
        return Value::Null;
    };
    let each = processes.iter().map(|read| {
        json!({
            "pid": read.pid,
            "held": read.tensors.held.as_ref().map(held_json),
            "devices": read.tensors.devices.iter().map(|device| json!({
                "device": device.device,
                "allocated_bytes": device.bytes,
                "active_bytes": device.active_bytes,
                "reserved_bytes": device.reserved_bytes,
                "beside_modules_bytes": read.tensors.held.as_ref().and_then(|held| beside(device, held)),
            })).collect::<Vec<_>>(),
            "devices_unread": read.tensors.devices_unread,
        })
    });
    each.collect()
}

/// What a process holds.
pub(crate) fn held_json(held: &Held) -> Value {
    let totals = held.totals();
    let of = |holding: Holding| -> u64 {
        let parts = totals.iter().filter(|part| part.holding == holding);
        parts.map(|part| part.bytes).sum()
    };
    json!({
        "bytes": sum(&totals),
        "parameters": of(Holding::Parameters),
        "gradients": of(Holding::Gradients),
        "optimizer_state": of(Holding::OptimizerState),
        "buffers": of(Holding::Buffers),
        "parts": totals.iter().map(part_json).collect::<Vec<_>>(),
        "optimizers": held.optimizers,
        "modules": modules_json(held),
        "shared_tensors": held.shared_tensors,
        "shared": held.shared.iter().map(|each| json!({
            "name": each.name, "counted_as": each.counted_as,
        })).collect::<Vec<_>>(),
        "uncovered_bytes": held.uncovered_bytes,
        "unread": held.unread.iter().map(|each| json!({
            "holding": each.holding.name(), "reason": each.reason, "tensors": each.tensors, "first": each.first,
        })).collect::<Vec<_>>(),
        "cut": held.cut,
        "read_ms": held.read_ns as f64 / 1e6,
    })
}

fn part_json(part: &HeldPart) -> Value {
    json!({
        "holding": part.holding.name(), "dtype": part.dtype, "device": part.device,
        "bytes": part.bytes, "tensors": part.tensors,
    })
}

/// Each module with its path and what it holds itself.
fn modules_json(held: &Held) -> Vec<Value> {
    let mut paths: Vec<String> = Vec::with_capacity(held.modules.len());
    let mut found = Vec::with_capacity(held.modules.len());
    for module in &held.modules {
        let above = module.parent.and_then(|parent| paths.get(parent));
        let path = match above {
            Some(above) if module.name.is_empty() => above.clone(),
            Some(above) => format!("{above}.{}", module.name),
            None => module.name.clone(),
        };
        found.push(json!({
            "path": path,
            "class": (!module.class.is_empty()).then_some(&module.class),
            "own": module.parts.iter().map(part_json).collect::<Vec<_>>(),
        }));
        paths.push(path);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stream_still_uses_is_not_free() {
        let mut device = DeviceTensors {
            device: "cuda:0".to_owned(),
            bytes: 1_000_000_000,
            active_bytes: 1_200_000_000,
            reserved_bytes: 2_000_000_000,
        };
        let said = "on cuda:0 torch's allocator has given 1.0 GB to tensors, and 200 MB that tensors gave back is still in use by a stream, and keeps 800 MB free";
        assert_eq!(of_device(&device, None), said);
        device.active_bytes = device.bytes;
        let said = "on cuda:0 torch's allocator has given 1.0 GB to tensors, and keeps 1.0 GB free";
        assert_eq!(of_device(&device, None), said);
    }
}
