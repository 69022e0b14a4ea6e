// Tracks of a trace of torch.profiler: streams of devices, and operators of threads of the host.

import type { Data, TraceSpans } from "./data";
import { colour } from "./dom";
import { clean, duration, percent } from "./format";
import { type Area, type Lane, upper } from "./lanes";

const STREAM = 18;
const CALL = 13;
/** A box that is narrower has no name in it. */
const NAMED = 28;

/** Names of colours by kind. */
const COLOURS: Record<string, string> = { kernel: "gpu", collective: "collective", copy: "copied", memset: "copied", operator: "traced", annotation: "noted", runtime: "call" };
const MEANINGS: [string, string][] = [
  ["kernel", "kernel"],
  ["collective", "collective"],
  ["copy", "copy, memset"],
  ["operator", "operator"],
  ["annotation", "annotation"],
  ["runtime", "call of the CUDA runtime"],
];

export function traceLegend(data: Data): [string, string][] {
  const { traced } = data.head;
  if (!traced?.window_us) return [];
  const used = new Set(traced.kind.map((kind) => traced.kinds[kind]));
  if (used.has("memset")) used.add("copy");
  const seen = MEANINGS.filter(([kind]) => used.has(kind)).map(([kind, label]): [string, string] => [label, colour(COLOURS[kind])]);
  return [["torch.profiler ran: times are disturbed", colour("warn")], ...seen];
}

export function traceLanes(data: Data): Lane[] {
  const { traced } = data.head;
  if (!traced?.window_us) return [];
  const [from, to] = traced.window_us;
  const window: Lane = {
    label: "disturbed",
    of: traced.rows[0] ? clean(traced.rows[0].of, 90) : "torch.profiler",
    height: 15,
    group: "trace",
    draw: ({ context, y, width, height, left, view }) => {
      context.fillStyle = colour("lane");
      context.fillRect(left, y, width, height);
      const place = (us: number) => Math.min(Math.max(((us - view.from) / (view.to - view.from)) * width, 0), width);
      const [x0, x1] = [place(from), place(to)];
      if (to <= view.from || from >= view.to) return;
      context.fillStyle = colour("warn");
      context.globalAlpha = 0.3;
      context.fillRect(left + x0, y, Math.max(x1 - x0, 2), height);
      context.globalAlpha = 1;
      const text = `torch.profiler ran for ${duration(to - from)}: times are disturbed`;
      context.font = "11px system-ui, sans-serif";
      context.textBaseline = "middle";
      const wide = context.measureText(text).width + 8;
      // In the window, or where there is room beside it.
      const x = wide <= x1 - x0 ? x0 : x1 + wide <= width ? x1 : Math.max(x0 - wide, 0);
      context.fillStyle = colour("fore");
      context.fillText(text, left + x + 4, y + height / 2 + 0.5, width);
    },
    tip: (us) => (us >= from && us <= to ? "torch.profiler ran and added time to every call; click selects it" : "torch.profiler did not run"),
    pick: (us) => (us >= from && us <= to ? { from: Math.floor(from), to: Math.ceil(to) } : null),
  };
  // Calls within calls are one below the other, without gaps.
  const threads = traced.rows.map((row) => `${row.of} ${row.label}`);
  const rows = traced.rows.map((row, at): Lane => lane(data, at, row.depth ? "" : clean(row.label, 60), clean(row.of, 90), threads[at] === threads[at + 1]));
  return [window, ...rows];
}

function lane(data: Data, row: number, label: string, of: string, isFollowed: boolean): Lane {
  const traced = data.head.traced!;
  const spans = data.traceRow(row);
  const isStream = traced.kinds[traced.kind[spans.name[0] ?? 0]] && ["kernel", "collective", "copy", "memset"].includes(traced.kinds[traced.kind[spans.name[0] ?? 0]]);
  return {
    label,
    of,
    height: isStream ? STREAM : CALL,
    gap: isFollowed ? 1 : undefined,
    group: "trace",
    draw: (area) => draw(area, spans, traced.names, (name) => colour(COLOURS[traced.kinds[traced.kind[name]]] ?? "host")),
    tip: (us) => {
      const at = upper(spans.end, us);
      if (at >= spans.start.length || spans.start[at] > us) return us >= traced.window_us![0] && us <= traced.window_us![1] ? "nothing" : "torch.profiler did not run";
      const name = clean(traced.names[spans.name[at]], 300);
      const kind = traced.kinds[traced.kind[spans.name[at]]];
      const length = spans.end[at] - spans.start[at];
      if (spans.count[at] === 1) return `${kind} ${name}: ${exact(length)}`;
      return `${spans.count[at].toLocaleString("en")} short ones within ${exact(length)}, ${percent(Math.min(spans.busy[at] / length, 1), 0)} of it busy; the longest: ${kind} ${name}, ${exact(spans.longest[at])}`;
    },
    pick: (us) => {
      const at = upper(spans.end, us);
      const found = at < spans.start.length && spans.start[at] <= us;
      return found ? { from: Math.floor(spans.start[at]), to: Math.ceil(spans.end[at]) } : null;
    },
  };
}

const exact = (us: number): string => (us < 100 ? `${us.toFixed(1)} µs` : us < 1e4 ? `${us.toFixed(0)} µs` : duration(us));

/** Boxes where they are wide; where many are in a pixel, how much of it is busy. */
function draw({ context, y, width, height, left, view }: Area, spans: TraceSpans, names: string[], fill: (name: number) => string): void {
  context.fillStyle = colour("lane");
  context.fillRect(left, y, width, height);
  const factor = width / (view.to - view.from);
  const [busy, most, name] = [new Float64Array(width), new Float64Array(width), new Int32Array(width).fill(-1)];
  const boxes: [number, number, number][] = [];
  for (let at = upper(spans.end, view.from); at < spans.start.length && spans.start[at] < view.to; at++) {
    const [x0, x1] = [Math.max((spans.start[at] - view.from) * factor, 0), Math.min((spans.end[at] - view.from) * factor, width)];
    const share = Math.min(spans.busy[at] / Math.max(spans.end[at] - spans.start[at], 1e-6), 1);
    for (let x = Math.floor(x0); x < x1 && x < width; x++) {
      const part = (Math.min(x1, x + 1) - Math.max(x0, x)) * share;
      busy[x] += part;
      if (part > most[x]) [most[x], name[x]] = [part, spans.name[at]];
    }
    if (x1 - x0 >= 4) boxes.push([x0, x1, at]);
  }
  const colours = new Map<number, string>();
  const of = (each: number) => colours.get(each) ?? colours.set(each, fill(each)).get(each)!;
  for (let x = 0; x < width; x++) {
    if (name[x] < 0) continue;
    context.fillStyle = of(name[x]);
    const tall = Math.max(Math.min(busy[x], 1) * height, 1);
    context.fillRect(left + x, y + height - tall, 1, tall);
  }
  context.font = "10px system-ui, sans-serif";
  context.textBaseline = "middle";
  for (const [x0, x1, at] of boxes) {
    context.fillStyle = colour("back");
    context.fillRect(left + x0, y, 0.7, height);
    if (x1 - x0 < NAMED) continue;
    const several = spans.count[at] > 1 ? `${spans.count[at]} × ` : "";
    const text = several + clean(names[spans.name[at]], 80);
    const most = Math.floor((x1 - x0 - 6) / (context.measureText(text).width / text.length));
    context.fillStyle = "#000000";
    if (most > 3) context.fillText(most < text.length ? `${text.slice(0, most - 1)}…` : text, left + x0 + 3, y + height / 2 + 0.5);
  }
}
