// Tracks of memory: what is in use of each limit, what processes hold, and the ends that lack of memory brought.

import type { Data, Head, Spans, Track } from "./data";
import { colour } from "./dom";
import { amount, at as atText, bytes, clean, percent } from "./format";
import { type Area, type Lane, binned, indexAt } from "./lanes";
import type { Range } from "./model";

/** From this part of a limit on the tracks are open. */
const NEAR = 0.8;
/** Cgroups that are drawn, the fullest first. */
const MOST = 6;
/** Height of the track of ends. */
const FLAG = 16;

/** Kinds that have tracks of their own here: as series they would crowd the page. */
const OWN = ["anonymous", "shared_memory", "locked_memory", "pinned_memory", "swap"];
export const isMemory = (kind: string): boolean => /^(cgroup|machine|dev_shm|allocator)_/.test(kind) || OWN.includes(kind);

export const hasMemory = (tracks: Track[]): boolean => tracks.some((track) => /^(cgroup|machine|dev_shm)_/.test(track.kind));

/** Whether there is a reason to look at memory. */
export const isShort = (head: Head): boolean => head.limit_share >= NEAR || head.ends.length > 0;

export function memoryLegend({ tracks, ends }: Head, shown: { host: boolean; limits: boolean }): [string, string][] {
  const entries: [string, string][] = [];
  const parts = shown.host && tracks.some((track) => track.kind === "resident" && track.high > 0);
  if (parts && tracks.some((track) => track.kind === "anonymous" && track.high > 0)) entries.push(["anonymous", colour("host")]);
  if (parts && tracks.some((track) => track.kind === "shared_memory" && track.high > 0)) entries.push(["shared", colour("busy")]);
  if (shown.limits && hasMemory(tracks)) entries.push(["limit, and what comes within 5 % of it", colour("slow")]);
  if (tracks.some((track) => track.kind === "allocator_reserved")) entries.push(["device memory of tensors", colour("busy")], ["free between them", colour("warn")], ["free", colour("host")]);
  if (ends.length) entries.push(["a process was killed", colour("slow")]);
  return entries;
}

/** A level, and below what it must stay. */
interface Limited {
  label: string;
  name: string;
  used: (view: Range, width: number) => Float64Array;
  usedAt: (us: number) => number;
  limit: Spans | null;
  high: Spans | null;
  cache: Spans | null;
  more: [string, Spans][];
  most: number;
}

export function limitLanes(data: Data): Lane[] {
  const { tracks } = data.head;
  const find = (kind: string, path: string): Spans | null => {
    const at = tracks.findIndex((track) => track.gpu === null && track.pid === 0 && track.kind === kind && track.process === path);
    return at < 0 ? null : data.spans[at];
  };
  const listed: Limited[] = [];
  const add = (label: string, name: string, used: Spans | null, limit: Spans | null, rest: Partial<Limited> = {}) => {
    if (!used?.start.length) return;
    const most = share(used, limit);
    listed.push({ label, name, used: (view, width) => binned(used, view, width), usedAt: (us) => valueAt(used, us), limit, high: null, cache: null, more: [], most, ...rest });
  };
  const paths = [...new Set(tracks.filter((track) => track.kind === "cgroup_used").map((track) => track.process))];
  for (const path of paths) {
    const of = (kind: string) => find(`cgroup_${kind}`, path);
    const more = [["anonymous", of("anonymous")], ["shared", of("shared")], ["swapped out", of("swap")]].filter((each): each is [string, Spans] => each[1] !== null);
    const short = path.split("/").filter(Boolean).at(-1) ?? "/";
    add(`cgroup ${short}`, `cgroup ${path}`, of("used"), of("limit"), { high: of("high"), cache: of("cache"), more });
  }
  listed.sort((a, b) => b.most - a.most);
  listed.splice(MOST);
  add("/dev/shm", "/dev/shm", find("dev_shm_used", ""), find("dev_shm_size", ""));
  const [available, all] = [find("machine_available", ""), find("machine_memory", "")];
  if (available?.start.length && all?.start.length) {
    const used: Spans = { ...available, value: available.value.map((value, at) => Math.max(valueAt(all, available.start[at]) - value, 0)) };
    add("machine", "this machine", used, all);
  }
  return listed.map((each) => limited(each));
}

/** The largest part of the limit that was in use. */
function share(used: Spans, limit: Spans | null): number {
  let most = 0;
  if (limit) {
    for (let at = 0; at < used.start.length; at++) {
      const below = valueAt(limit, used.start[at]);
      if (below > 0) most = Math.max(most, used.value[at] / below);
    }
  }
  return most;
}

function valueAt(spans: Spans | null, us: number): number {
  const at = spans ? indexAt(spans, us) : -1;
  return at < 0 ? 0 : spans!.value[at];
}

function limited({ label, name, used, usedAt, limit, high, cache, more }: Limited): Lane {
  return {
    label,
    of: "memory in use (peak in % of the limit)",
    height: 34,
    group: "limits",
    draw: (area) => {
      const { view, width } = area;
      const [level, below, slowed, taken] = [used(view, width), limit, high, cache].map((each) => (each instanceof Float64Array ? each : each ? binned(each, view, width) : new Float64Array(width)));
      const top = Math.max(...level.map((value, x) => Math.max(value || 0, below[x] || 0)), 1) * 1.06;
      stacked(area, top, [
        [level, (x) => (below[x] > 0 && level[x] >= below[x] * 0.95 ? "slow" : "host"), 1],
        [taken.map((value, x) => Math.min(value, below[x] > 0 ? Math.max(below[x] - level[x], 0) : value)), () => "host", 0.3],
      ]);
      line(area, top, below, "slow", [6, 3]);
      line(area, top, slowed, "warn", [2, 3]);
    },
    value: ({ from, to }) => {
      let most = 0;
      const steps = 400;
      for (let step = 0; step <= steps; step++) {
        const us = from + ((to - from) * step) / steps;
        const below = valueAt(limit, us);
        if (below > 0) most = Math.max(most, usedAt(us) / below);
      }
      return most > 0 ? percent(most, 0) : "";
    },
    tip: (us) => {
      const level = usedAt(us);
      if (level <= 0) return `${clean(name, 120)}: not measured`;
      const [below, slowed, taken] = [limit, high, cache].map((each) => valueAt(each, us));
      const parts = more.map(([what, spans]) => [what, valueAt(spans, us)] as const).filter(([, value]) => value > 0);
      return [
        `${clean(name, 120)}: ${bytes(level)} in use${below > 0 ? ` of ${bytes(below)} (${percent(level / below, 0)})` : ", no limit"}`,
        parts.length ? `: ${parts.map(([what, value]) => `${what} ${bytes(value)}`).join(", ")}` : "",
        taken > 0 ? `; page cache that can be taken back ${bytes(taken)}` : "",
        slowed > 0 ? `; slowed down from ${bytes(slowed)} on` : "",
      ].join("");
    },
  };
}

/** What a process holds: anonymous, shared, and the rest, which is of files; below it what is swapped out, locked or pinned. */
export function processMemory(data: Data, resident: number, of: string, group: Lane["group"]): Lane[] {
  const { tracks } = data.head;
  const { pid, high } = tracks[resident];
  const find = (kind: string): Spans | null => {
    const at = tracks.findIndex((track) => track.pid === pid && track.gpu === null && track.kind === kind);
    return at < 0 || tracks[at].high <= 0 ? null : data.spans[at];
  };
  const all = data.spans[resident];
  const [anonymous, shared, swap, locked, pinned] = ["anonymous", "shared_memory", "swap", "locked_memory", "pinned_memory"].map(find);
  const memory: Lane = {
    label: "memory",
    of,
    height: 26,
    group,
    draw: (area) => {
      const { view, width } = area;
      const [level, own, common] = [all, anonymous, shared].map((each) => (each ? binned(each, view, width) : new Float64Array(width)));
      const part = (values: Float64Array) => values.map((value, x) => (Number.isNaN(level[x]) ? NaN : value || 0));
      const [a, b] = [part(own), part(common)];
      stacked(area, high || 1, [
        [a, () => "host", 1],
        [b, () => "busy", 0.8],
        [level.map((value, x) => Math.max(value - a[x] - b[x], 0)), () => "host", 0.35],
      ]);
    },
    value: ({ from, to }) => {
      const values = Array.from({ length: 200 }, (_, at) => valueAt(all, from + ((to - from) * (at + 0.5)) / 200)).filter((value) => value > 0);
      return values.length ? bytes(values.reduce((sum, value) => sum + value, 0) / values.length) : "";
    },
    tip: (us) => {
      const level = valueAt(all, us);
      if (level <= 0) return "not measured";
      const parts: [string, Spans | null][] = [["anonymous", anonymous], ["shared", shared]];
      const known = parts.filter(([, spans]) => spans).map(([what, spans]) => `${what} ${bytes(valueAt(spans, us))}`);
      return `${bytes(level)} resident${known.length ? `: ${known.join(", ")}, the rest of files` : ""}`;
    },
  };
  const others: [string, Spans | null][] = [["swapped out", swap], ["locked", locked], ["pinned", pinned]];
  const more = others.filter((each): each is [string, Spans] => each[1] !== null).map(([label, spans]): Lane => ({
    label,
    of,
    height: 16,
    group: "limits",
    draw: (area) => stacked(area, Math.max(...spans.value, 1), [[binned(spans, area.view, area.width), () => "host", 1]]),
    tip: (us) => (indexAt(spans, us) < 0 ? "not measured" : `${amount(valueAt(spans, us), "B")} ${label}`),
  }));
  return [memory, ...more];
}

/** What torch's allocator of a process holds of each device: given to tensors, free between them, and free. */
export function allocatorLanes(data: Data, pid: number, of: string): Lane[] {
  const { tracks } = data.head;
  const own = tracks.filter((track) => track.pid === pid && track.kind === "allocator_reserved");
  return own.map(({ process, high }): Lane => {
    const find = (kind: string): Spans | null => {
      const at = tracks.findIndex((track) => track.pid === pid && track.process === process && track.kind === `allocator_${kind}`);
      return at < 0 ? null : data.spans[at];
    };
    const [all, tensors, active, between, peak] = ["reserved", "allocated", "active", "inactive_split", "peak"].map(find);
    return {
      label: `memory ${process.split(" ").at(-1)}`,
      of,
      height: 30,
      group: "rank",
      draw: (area) => {
        const { view, width } = area;
        const [level, given, used, kept] = [all, tensors, active, between].map((each) => (each ? binned(each, view, width) : new Float64Array(width)));
        stacked(area, high || 1, [
          [given, () => "busy", 1],
          [used.map((value, x) => Math.max(value - (given[x] || 0), 0)), () => "busy", 0.5],
          [kept, () => "warn", 0.8],
          [level.map((value, x) => Math.max(value - (used[x] || 0) - (kept[x] || 0), 0)), () => "host", 0.35],
        ]);
      },
      value: ({ from, to }) => {
        let most = 0;
        tensors?.value.forEach((value, at) => (most = tensors.start[at] < to && tensors.end[at] > from ? Math.max(most, value) : most));
        return most > 0 ? bytes(most) : "";
      },
      tip: (us) => {
        const level = valueAt(all, us);
        if (level <= 0) return "not measured";
        const given = valueAt(tensors, us);
        return `${bytes(given)} of tensors (at most ${bytes(valueAt(peak, us))} so far), ${bytes(valueAt(between, us))} free between them, ${bytes(level)} held by torch's allocator`;
      },
    };
  });
}

/** When processes were ended for lack of memory, as flags; nothing where none was. */
export function endLane(data: Data): Lane[] {
  const { ends, processes, length_us: all } = data.head;
  if (!ends.length) return [];
  const place = (us: number, { from, to }: Range, width: number) => ((Math.min(us, all) - from) / (to - from)) * width;
  return [
    {
      label: "ended",
      of: "processes that were killed",
      height: FLAG,
      group: "rank",
      draw: ({ context, y, width, height, left, view }) => {
        context.fillStyle = colour("lane");
        context.fillRect(left, y, width, height);
        context.font = "600 11px system-ui, sans-serif";
        context.textBaseline = "middle";
        let free = Infinity;
        for (const end of [...ends].reverse()) {
          const x = place(end.at_us, view, width);
          if (x < 0 || x > width + 1) continue;
          context.fillStyle = colour("slow");
          context.fillRect(left + Math.min(x, width - 1) - 3, y, 4, height);
          const who = end.process === null ? "a process" : processes[end.process].label;
          const text = clean(`${who} killed`, 60);
          const wide = context.measureText(text).width + 10;
          // On the side where there is room, and where no other one is.
          const begin = x - wide >= 0 ? x - wide : x + 6;
          if (begin + wide > free) continue;
          context.fillText(text, left + begin, y + height / 2 + 0.5);
          free = begin;
        }
      },
      tip: (us) => {
        const nearest = ends.map((end) => ({ end, away: Math.abs(Math.min(end.at_us, all) - us) })).sort((a, b) => a.away - b.away)[0].end;
        return `${atText(nearest.at_us, 1e5)}: ${clean(nearest.text, 400)}`;
      },
    },
  ];
}

type Layer = [values: Float64Array, colour: (x: number) => string, alpha: number];

function stacked({ context, y, width, height, left }: Area, top: number, layers: Layer[]): void {
  context.fillStyle = colour("lane");
  context.fillRect(left, y, width, height);
  const colours = new Map<string, string>();
  const of = (name: string) => colours.get(name) ?? colours.set(name, colour(name)).get(name)!;
  const below = new Float64Array(width);
  for (const [values, name, alpha] of layers) {
    context.globalAlpha = alpha;
    for (let x = 0; x < width; x++) {
      if (!(values[x] > 0)) continue;
      const tall = Math.min((values[x] / top) * height, height - below[x]);
      context.fillStyle = of(name(x));
      context.fillRect(left + x, y + height - below[x] - tall, 1, tall);
      below[x] += tall;
    }
  }
  context.globalAlpha = 1;
}

/** A limit, where there is one. */
function line({ context, y, width, height, left }: Area, top: number, values: Float64Array, name: string, dashes: number[]): void {
  context.strokeStyle = colour(name);
  context.lineWidth = 1.5;
  context.setLineDash(dashes);
  context.beginPath();
  let isOpen = false;
  for (let x = 0; x < width; x++) {
    if (!(values[x] > 0)) {
      isOpen = false;
      continue;
    }
    const at = y + height - (values[x] / top) * height;
    if (isOpen) context.lineTo(left + x, at);
    else context.moveTo(left + x, at);
    isOpen = true;
  }
  context.stroke();
  context.setLineDash([]);
}
