//! Counter tracks of devices and processes: what there is of each, and what is missing.

use super::Text;
use crate::model::ids::GpuId;
use crate::model::text::printable;
use crate::model::track::{TrackInfo, TrackPoint};
use std::fmt::{self, Write};

impl Text<'_> {
    /// Nothing where none was recorded.
    pub(super) fn tracks(&mut self) -> fmt::Result {
        let tracks = &self.recording.sideband.tracks;
        if !tracks.gpus.is_empty() {
            writeln!(self.out, "\nGPUs")?;
        }
        for (index, gpu) in tracks.gpus.iter().enumerate() {
            writeln!(
                self.out,
                "  G{index} {} {} {}, driver {}, bus {}, {} bytes, limit {} mW{}",
                gpu.label(),
                printable(&gpu.name),
                printable(&gpu.uuid),
                printable(&gpu.driver),
                printable(&gpu.pci),
                gpu.memory_bytes,
                gpu.power_limit_mw,
                if gpu.recorded { "" } else { ", not recorded" }
            )?;
            let last = tracks
                .clocks
                .iter()
                .rev()
                .find(|clock| clock.gpu == GpuId::from_index(index));
            if let Some(clock) = last {
                writeln!(
                    self.out,
                    "     clock {}: {} ns there was {} ns here, to within {} ns",
                    printable(&clock.clock),
                    clock.driver_ns,
                    clock.monotonic_ns,
                    clock.error_ns
                )?;
            }
        }
        if !tracks.tracks.is_empty() {
            writeln!(self.out, "\ncounter tracks")?;
        }
        for (index, track) in tracks.tracks.iter().enumerate() {
            self.track(index, track)?;
        }
        for gap in &tracks.gaps {
            write!(self.out, "  missing")?;
            if let Some(gpu) = gap.gpu {
                write!(self.out, " G{}", gpu.0)?;
            }
            if let Some(kind) = gap.kind {
                write!(self.out, " {}", kind.name())?;
            }
            write!(self.out, " from {:.3} s", self.since_start(gap.start_ns))?;
            if gap.end_ns > 0 {
                write!(self.out, " to {:.3} s", self.since_start(gap.end_ns))?;
            }
            writeln!(self.out, ": {}", printable(&gap.reason))?;
        }
        Ok(())
    }

    fn track(&mut self, index: usize, track: &TrackInfo) -> fmt::Result {
        write!(self.out, "  L{index} {}", track.kind.name())?;
        if let Some(gpu) = track.gpu {
            write!(self.out, " of G{}", gpu.0)?;
        }
        if track.pid != 0 {
            write!(
                self.out,
                " of pid {} {}",
                track.pid,
                printable(&track.process)
            )?;
        }
        // Points are sorted by counter track.
        let all = &self.recording.sideband.tracks.points;
        let from = all.partition_point(|point| point.track.index() < index);
        let own =
            &all[from..from + all[from..].partition_point(|point| point.track.index() == index)];
        match (own.first(), own.last()) {
            (Some(first), Some(last)) => {
                write!(self.out, ": {} values: ", own.len())?;
                self.point(first)?;
                if own.len() > 1 {
                    write!(self.out, " .. ")?;
                    self.point(last)?;
                }
                writeln!(self.out)
            }
            _ => writeln!(self.out, ": no values"),
        }
    }

    fn point(&mut self, point: &TrackPoint) -> fmt::Result {
        let end = self.since_start(point.end_ns);
        let length_ms = point.end_ns.saturating_sub(point.start_ns) as f64 / 1e6;
        write!(
            self.out,
            "{} over {length_ms:.0} ms to {end:.3} s",
            point.value
        )
    }
}
