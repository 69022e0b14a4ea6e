// Text for people. Names come from the profiled program: they are data, and are set as text only.

import type { Share } from "./data";
import type { Cell, Kind, Place } from "./model";
import { FEW } from "./shares";

/** Without controls and characters that reorder text (CVE-2021-42574), and not too long. */
export function clean(text: string, most = 4000): string {
  const harmless = text.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffe\uffff]/g, "\ufffd");
  return harmless.length > most ? `${harmless.slice(0, most - 1)}…` : harmless;
}

export function duration(us: number): string {
  const s = us / 1e6;
  if (s >= 3600) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  if (s >= 600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  if (s >= 1) return `${s.toFixed(s >= 100 ? 0 : s >= 10 ? 1 : 2)} s`;
  if (s >= 1e-3) return `${(s * 1e3).toFixed(s >= 0.01 ? 0 : 1)} ms`;
  return `${us.toFixed(0)} µs`;
}

/** A point in time since the start, exact to what can be seen at this width. */
export function at(us: number, step: number): string {
  const digits = Math.min(Math.max(Math.ceil(-Math.log10(step / 1e6)), 0), 6);
  const s = us / 1e6;
  return s < 60 || digits > 0 ? `${s.toFixed(digits)} s` : clock(us);
}

/** A point in time since the start in minutes, or hours: 1:40, 1:05:00. */
export function clock(us: number): string {
  const s = Math.round(us / 1e6);
  const two = (value: number) => String(value).padStart(2, "0");
  const [hours, minutes] = [Math.floor(s / 3600), Math.floor(s / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(s % 60)}` : `${minutes}:${two(s % 60)}`;
}

const WORDS: Record<string, string> = { cpu: "CPU", gil: "GIL", io: "I/O", omp_barrier: "OpenMP barrier", gpu_sync: "GPU", gpu_copy: "copy to or from GPU", startup: "start-up", shutdown: "exit", cpu_wait: "waits for a CPU", omp_idle: "waits at OpenMP barrier" };

/** A name of a phase, a wait or an activity, as it is read. */
export const named = (name: string): string => WORDS[name] ?? name.replaceAll("_", " ");

export const percent = (share: number, digits = 1): string => `${(share * 100).toFixed(digits)} %`;

/** As in the report's text: what was seen in too few ticks has only an upper end. */
export function shareText(share: Share): string {
  if (share.samples < FEW) return share.high > 0 ? `<${percent(Math.min(Math.ceil(share.high * 1000) / 1000, 1))}` : "";
  return `${percent(share.share)} ±${(((share.high - share.low) / 2) * 100).toFixed(1)}`;
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${value.toFixed(unit && value < 100 ? 1 : 0)} ${units[unit]}`;
}

export function amount(value: number, unit: string): string {
  if (unit === "share") return percent(value, 0);
  if (unit === "B") return bytes(value);
  if (unit === "B/s") return `${bytes(value)}/s`;
  return `${value.toFixed(value < 10 ? 2 : 0)} ${unit === "C" ? "°C" : unit}`;
}

export const isShare = (cell: Cell): cell is Share => typeof cell === "object" && cell !== null && "share" in cell;
export const isPlace = (cell: Cell): cell is Place => typeof cell === "object" && cell !== null && "file" in cell;

/** A cell as it is read. */
export function cellText(cell: Cell, kind: Kind): string {
  if (cell === null) return "";
  if (isShare(cell)) return shareText(cell);
  if (isPlace(cell)) return cell.file ? clean(cell.line ? `${cell.file}:${cell.line}` : cell.file) : "";
  if (typeof cell === "boolean") return cell ? "yes" : "no";
  if (typeof cell === "string") return clean(cell);
  switch (kind) {
    case "seconds":
      return cell.toFixed(3);
    case "milliseconds":
      return cell.toFixed(Math.abs(cell) < 10 ? 2 : 1);
    case "percent":
      return percent(cell);
    case "number":
      return cell === 0 ? "0" : Number(cell.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 3 });
    case "count":
      return cell.toLocaleString("en");
    default:
      return String(cell);
  }
}

/** What a cell is sorted by. */
export function cellValue(cell: Cell): number | string {
  if (cell === null) return -Infinity;
  if (isShare(cell)) return cell.share;
  if (isPlace(cell)) return `${cell.file}:${String(cell.line).padStart(8, "0")}`;
  if (typeof cell === "boolean") return Number(cell);
  return cell;
}
