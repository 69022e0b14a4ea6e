// What the page shows of an interval of time, by the rules of src/analysis: no rule of attribution is here, only sums.

import { Data, LEFT_OUT, PLUMBING, PYTHON, TIMED, type Lines, type Share } from "./data";
import { NO_SHARE, Shares } from "./shares";

export interface Range {
  from: number;
  to: number;
}

export type Kind = "seconds" | "milliseconds" | "percent" | "share" | "count" | "id" | "number" | "text" | "place" | "flag" | "tree";
export type Cell = number | string | boolean | null | Share | Place;
export interface Place {
  file: string;
  line: number;
}

export interface Table {
  id: string;
  title: string;
  /** What a reader must know, below the title. */
  note: string;
  columns: { key: string; label: string; kind: Kind }[];
  rows: Cell[][];
  /** Whether it is of the whole run, whatever is selected. */
  whole: boolean;
  /** Of a trace of torch.profiler. */
  traced?: boolean;
}

const seconds = (us: number) => us / 1e6;

/** Sums of an interval: by context, in µs. */
export class Selection {
  /** Outside the run queue. */
  readonly run: Float64Array;
  /** In it. */
  readonly queue: Float64Array;
  readonly wall: Float64Array;
  readonly ticks: Float64Array;

  constructor(
    readonly data: Data,
    readonly range: Range,
  ) {
    const contexts = data.contexts.thread.length;
    this.run = new Float64Array(contexts);
    this.queue = new Float64Array(contexts);
    this.wall = new Float64Array(data.head.threads.length);
    this.ticks = new Float64Array(data.head.threads.length);
    for (let thread = 0; thread < this.wall.length; thread++) {
      this.each(thread, (row, length, ticks, queue) => {
        const context = data.context[row];
        this.run[context] += length - queue;
        this.queue[context] += queue;
        this.wall[thread] += length;
        this.ticks[thread] += ticks;
      });
    }
  }

  /** The samples of a thread, cut at the ends of the interval as src/analysis/progress/window.rs does. */
  each(thread: number, visit: (row: number, length: number, ticks: number, queue: number) => void): void {
    const { data, range } = this;
    const end = data.first[thread + 1];
    for (let row = this.seek(thread); row < end && data.start[row] < range.to; row++) {
      const all = data.length[row];
      const from = Math.max(data.start[row], range.from);
      const to = Math.min(data.start[row] + all, range.to);
      if (from <= data.start[row] && to >= data.start[row] + all) {
        visit(row, all, data.ticks[row], data.queue[row]);
      } else if (from < to) {
        const part = (to - from) / Math.max(all, 1e-3);
        visit(row, to - from, Math.max(Math.round(data.ticks[row] * part), 1), data.queue[row] * part);
      }
    }
  }

  /** The first sample that may lie in the interval. */
  private seek(thread: number): number {
    const { data } = this;
    let [low, high] = [data.first[thread], data.first[thread + 1]];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (data.start[middle] + data.length[middle] < this.range.from) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Shares of a thread's time by category; `of` names that of a context, -1 for none. */
  shares(thread: number, categories: number, of: (context: number) => number, queued?: (context: number) => number): Share[] {
    const shares = new Shares(this.wall[thread], this.ticks[thread], categories);
    this.each(thread, (row, length, ticks, queue) => {
      const context = this.data.context[row];
      const own = of(context);
      const waiting = queued && queue > 0 ? queued(context) : own;
      if (own === waiting) {
        if (own >= 0) shares.add(own, length, ticks, length);
      } else {
        if (own >= 0) shares.add(own, length, ticks, length - queue);
        if (waiting >= 0) shares.add(waiting, length, ticks, queue);
      }
      shares.next(length);
    });
    return Array.from({ length: categories }, (_, at) => shares.share(at));
  }
}

/** Sums by key, with the order in which keys were first seen. */
class Sums {
  readonly keys = new Map<string, number>();
  readonly self: number[] = [];
  readonly total: number[] = [];
  private readonly stamp: number[] = [];

  at(key: string): number {
    let at = this.keys.get(key);
    if (at === undefined) {
      at = this.self.length;
      this.keys.set(key, at);
      this.self.push(0);
      this.total.push(0);
      this.stamp.push(-1);
    }
    return at;
  }

  /** A key counts once in the total of a stamp. */
  add(key: string, stamp: number, us: number, own: boolean): void {
    const at = this.at(key);
    if (this.stamp[at] !== stamp) {
      this.total[at] += us;
      this.stamp[at] = stamp;
    }
    if (own) this.self[at] += us;
  }

  sorted(): { key: string; at: number; self: number; total: number }[] {
    const rows = Array.from(this.keys, ([key, at]) => ({ key, at, self: this.self[at], total: this.total[at] }));
    return rows.filter((row) => row.total > 0 || row.self > 0).sort((a, b) => b.self - a.self || b.total - a.total);
  }
}

/** Steps of an interval. */
export interface Pace {
  /** How many end in it. */
  steps: number;
  /** Lengths that the mean is of, µs, ascending: of the steps that lie in it and are timed; if none is timed, of all that lie in it. */
  lengths: number[];
  /** How many of those that lie in it the whole run's mean leaves out, by the reason's number. */
  leftOut: Map<number, number>;
  /** Whether it leaves out all of them. */
  all: boolean;
}

export function pace(steps: { start: Float64Array; end: Float64Array; leftOut: Float64Array }, range: { from: number; to: number }): Pace {
  const { start, end } = steps;
  const [timed, others]: number[][] = [[], []];
  const leftOut = new Map<number, number>();
  let count = 0;
  end.forEach((until, at) => {
    if (until <= range.from || until > range.to) return;
    count++;
    if (start[at] < range.from) return;
    const why = steps.leftOut[at];
    if (why !== TIMED) leftOut.set(why, (leftOut.get(why) ?? 0) + 1);
    (why === TIMED ? timed : others).push(until - start[at]);
  });
  const all = !timed.length && others.length > 0;
  return { steps: count, lengths: (all ? others : timed).sort((a, b) => a - b), leftOut, all };
}

/** The figures of one process in an interval. */
export class View {
  readonly data: Data;
  readonly thread: number;
  readonly wall: number;
  private readonly cpuWait: { activity: number; row: number; wait: number };

  constructor(
    readonly selection: Selection,
    readonly process: number,
  ) {
    this.data = selection.data;
    const { names, processes } = this.data.head;
    this.thread = processes[process]?.training_thread ?? -1;
    this.wall = this.thread < 0 ? 0 : selection.wall[this.thread];
    this.cpuWait = {
      activity: names.activity.indexOf("cpu_wait"),
      row: names.row.indexOf("cpu_wait"),
      wait: names.wait.indexOf("cpu"),
    };
  }

  /** Contexts of the training thread with time in the interval: all of their time, µs. */
  private own(): [number, number][] {
    const { run, queue } = this.selection;
    const found: [number, number][] = [];
    this.data.contexts.thread.forEach((thread, context) => {
      const us = run[context] + queue[context];
      if (thread === this.thread && us > 0) found.push([context, us]);
    });
    return found;
  }

  private shares(categories: number, of: (context: number) => number, queued?: (context: number) => number): Share[] {
    return this.thread < 0 ? Array(categories).fill(NO_SHARE) : this.selection.shares(this.thread, categories, of, queued);
  }

  /** The summary's rows: share by row, in the order of the names. */
  rows(): Share[] {
    const { row } = this.data.contexts;
    return this.shares(this.data.head.names.row.length, (context) => row[context], () => this.cpuWait.row);
  }

  phases(): Share[] {
    const { phase } = this.data.contexts;
    return this.shares(this.data.head.names.phase.length, (context) => phase[context]);
  }

  activities(): Share[] {
    const { activity } = this.data.contexts;
    return this.shares(this.data.head.names.activity.length, (context) => activity[context], () => this.cpuWait.activity);
  }

  /** Shares by phase, then activity. */
  matrix(): Float64Array[] {
    const { contexts, head } = this.data;
    const cells = head.names.phase.map(() => new Float64Array(head.names.activity.length));
    for (const [context] of this.own()) {
      const row = cells[contexts.phase[context]];
      row[contexts.activity[context]] += this.selection.run[context] / this.wall;
      row[this.cpuWait.activity] += this.selection.queue[context] / this.wall;
    }
    return cells;
  }

  private place(function_: number, line: number): Place {
    const { functions } = this.data.head;
    return { file: functions.files[functions.file[function_]], line };
  }

  private leaf(context: number): number {
    return this.data.contexts.leaf[context] - 1;
  }

  private line(lines: Lines, leaf: number): string {
    return leaf < 0 || !lines.function[leaf] ? "" : `${lines.function[leaf] - 1}:${lines.line[leaf]}`;
  }

  waits(): Table {
    const { contexts, leaves, head } = this.data;
    const { run, queue } = this.selection;
    const sums = new Sums();
    const keys = (context: number): [string, string] => {
      const line = this.line(leaves.near, this.leaf(context));
      const wait = contexts.wait[context];
      return [wait ? `${wait - 1}|${contexts.label[context]}|${line}` : "", `${this.cpuWait.wait}|0|${line}`];
    };
    const places = new Map<number, [number, number]>();
    for (const [context] of this.own()) {
      const [main, queued] = keys(context);
      const at: [number, number] = [-1, -1];
      if (main && run[context] > 0) sums.add(main, context, run[context], true);
      if (queue[context] > 0) sums.add(queued, context, queue[context], true);
      at[0] = main ? (sums.keys.get(main) ?? -1) : -1;
      at[1] = sums.keys.get(queued) ?? -1;
      places.set(context, at);
    }
    const shares = this.shares(
      sums.self.length,
      (context) => places.get(context)?.[0] ?? -1,
      (context) => places.get(context)?.[1] ?? -1,
    );
    const rows = sums.sorted().map(({ key, at, self }) => {
      const [kind, label, line] = key.split("|");
      const [function_, number] = line.split(":").map(Number);
      const what = Number(label) ? head.labels[Number(label) - 1] : "no CPU (run queue, quota)";
      return [seconds(self), shares[at], what, line ? this.place(function_, number) : null, head.names.wait[Number(kind)]];
    });
    return table("waits", "Waits", "What the training thread waited for, and the line that it waited at. Shares are of its time.", rows, [
      ["s", "s", "seconds"],
      ["share", "of all", "share"],
      ["what", "what", "text"],
      ["at", "line", "place"],
      ["kind", "kind", "text"],
    ]);
  }

  private lineTable(id: string, title: string, note: string, lines: Lines, sums: Sums): Table {
    const { functions } = this.data.head;
    const sorted = sums.sorted().slice(0, 500);
    const places = new Map(sorted.map((row, at) => [row.key, at]));
    const shares = this.shares(sorted.length, (context) => places.get(this.line(lines, this.leaf(context))) ?? -1);
    const rows = sorted.map(({ key, self, total }, at) => {
      const [function_, line] = key.split(":").map(Number);
      return [seconds(self), shares[at], this.place(function_, line), functions.name[function_], ...(id === "lines" ? [seconds(total)] : [])];
    });
    const [own, share] = id === "lines" ? ["self s", "self"] : ["s", "of all"];
    const columns: [string, string, Kind][] = [
      ["self_s", own, "seconds"],
      ["self_share", share, "share"],
      ["at", "line", "place"],
      ["name", "function", "text"],
    ];
    return table(id, title, note, rows, id === "lines" ? [...columns, ["total_s", "total s", "seconds"]] : columns);
  }

  userLines(): Table {
    const { leaves } = this.data;
    const sums = new Sums();
    for (const [context, us] of this.own()) {
      const line = this.line(leaves.user, this.leaf(context));
      if (line) sums.add(line, context, us, true);
    }
    const note = "Time in which a line is the innermost of your own code, with the libraries that it calls. Shares are of the training thread's time.";
    return this.lineTable("user_lines", "Your lines", note, leaves.user, sums);
  }

  /** Time of each leaf. */
  private byLeaf(): Map<number, number> {
    const found = new Map<number, number>();
    for (const [context, us] of this.own()) {
      const leaf = this.leaf(context);
      if (leaf >= 0) found.set(leaf, (found.get(leaf) ?? 0) + us);
    }
    return found;
  }

  /** Functions, lines and native functions. */
  code(): Table[] {
    const { data } = this;
    const { functions, names } = data.head;
    const marker = names.kind.indexOf("marker");
    const [python, lines, native] = [new Sums(), new Sums(), new Sums()];
    for (const [leaf, us] of this.byLeaf()) {
      let own = true;
      for (let stack = data.leaves.stack[leaf]; stack >= 0; stack = data.parent[stack]) {
        const frame = data.frame[stack];
        const function_ = data.frames.function[frame];
        if (functions.flags[function_] & PYTHON) {
          python.add(`${function_}`, leaf, us, own);
          lines.add(`${function_}:${data.frames.line[frame]}`, leaf, us, own);
          own = false;
        } else if (functions.kind[function_] !== marker && !(functions.flags[function_] & PLUMBING)) {
          native.add(`${function_}`, leaf, us, false);
        }
      }
      if (data.leaves.native[leaf]) native.add(`${data.leaves.native[leaf] - 1}`, leaf, us, true);
    }
    const list = (id: string, title: string, note: string, sums: Sums, own: Uint32Array) => {
      const sorted = sums.sorted();
      const places = new Map(sorted.slice(0, 500).map((row, at) => [Number(row.key), at]));
      const shares = this.shares(places.size, (context) => places.get((own[this.leaf(context)] ?? 0) - 1) ?? -1);
      const rows = sorted.map(({ key, self, total }, place) => {
        const at = Number(key);
        const name = functions.short[at] || functions.name[at];
        const share = shares[place] ?? { share: self / this.wall, low: 0, high: self / this.wall, samples: 0 };
        return [seconds(self), share, seconds(total), name, this.place(at, functions.line[at])];
      });
      return table(id, title, note, rows, [
        ["self_s", "self s", "seconds"],
        ["self_share", "self", "share"],
        ["total_s", "total s", "seconds"],
        ["name", "function", "text"],
        ["at", "at", "place"],
      ]);
    };
    return [
      list("functions", "Functions", "Python functions; own time includes the native code that they call.", python, data.leaves.python.function),
      this.lineTable("lines", "Lines", "Lines of any Python code.", data.leaves.python, lines),
      list("native_functions", "Native functions", "Own time goes to the nearest function that is not plumbing.", native, data.leaves.native),
    ];
  }

  operators(): Table {
    const { data } = this;
    const chain = data.chain("operators");
    const sums = new Sums();
    const ownName = (leaf: number) => {
      const innermost = leaf < 0 ? 0 : data.leaves.operators[leaf];
      return innermost && data.leaves.flags[leaf] & 1 ? String(chain.value[innermost - 1]) : "";
    };
    for (const [leaf, us] of this.byLeaf()) {
      const seen = new Set<number>();
      const own = ownName(leaf);
      for (let at = data.leaves.operators[leaf]; at; at = chain.parent[at - 1]) {
        const name = chain.value[at - 1];
        if (!seen.has(name)) sums.add(String(name), leaf, us, own !== "" && seen.size === 0);
        seen.add(name);
      }
    }
    const places = sums.keys;
    const shares = this.shares(sums.self.length, (context) => places.get(ownName(this.leaf(context))) ?? -1);
    const rows = sums.sorted().map(({ key, at, self, total }) => [seconds(self), shares[at], seconds(total), data.head.labels[Number(key)]]);
    const note = "Wall time of the training thread in operators, on the host: kernels run later, on the GPU.";
    return table("operators", "Operators", note, rows, [
      ["self_s", "self s", "seconds"],
      ["self_share", "self", "share"],
      ["total_s", "total s", "seconds"],
      ["name", "operator", "text"],
    ]);
  }

  modules(): Table {
    const { data } = this;
    const chain = data.chain("modules");
    const forward = data.head.names.phase.indexOf("forward");
    interface Node {
      key: string;
      name: string;
      class: string;
      path: string;
      parent: number;
      self: number;
      total: number;
      below: number[];
    }
    const nodes: Node[] = [];
    const index = new Map<string, number>();
    const pathOf = data.head.modules.map((module) => {
      const parts = module.path ? module.path.split(".") : [];
      const found: number[] = [];
      for (let depth = 0; depth <= parts.length; depth++) {
        const path = parts.slice(0, depth).join(".");
        const key = JSON.stringify([module.root, module.number, path]);
        let at = index.get(key);
        if (at === undefined) {
          at = nodes.length;
          index.set(key, at);
          const name = depth ? parts[depth - 1] : module.number ? `${module.root} #${module.number + 1}` : module.root;
          nodes.push({ key, name, class: "", path, parent: found.at(-1) ?? -1, self: 0, total: 0, below: [] });
        }
        if (depth === parts.length) nodes[at].class = module.class;
        if (depth === 0) nodes[at].class ||= module.root;
        found.push(at);
      }
      return found;
    });
    const called = new Map<number, number[]>();
    const calls = (leaf: number): number[] => {
      const start = leaf < 0 ? 0 : data.leaves.modules[leaf];
      let found = called.get(start);
      if (!found) {
        const all: number[] = [];
        for (let at = start; at; at = chain.parent[at - 1]) all.push(...(pathOf[chain.value[at - 1]] ?? []));
        const innermost = start ? (pathOf[chain.value[start - 1]] ?? []).at(-1) : undefined;
        found = innermost === undefined ? [] : [innermost, ...new Set(all)];
        called.set(start, found);
      }
      return found;
    };
    for (const [context, us] of this.own()) {
      if (data.contexts.phase[context] !== forward) continue;
      const [innermost, ...all] = calls(this.leaf(context));
      if (innermost === undefined) continue;
      nodes[innermost].self += us;
      for (const node of all) nodes[node].total += us;
    }
    nodes.forEach((node, at) => nodes[node.parent]?.below.push(at));
    const shares = new Shares(this.wall, this.selection.ticks[this.thread] ?? 0, nodes.length);
    if (nodes.length) {
      this.selection.each(this.thread, (row, length, ticks) => {
        const context = data.context[row];
        if (data.contexts.phase[context] === forward) {
          const [, ...all] = calls(this.leaf(context));
          for (const node of all) shares.add(node, length, ticks, length);
        }
        shares.next(length);
      });
    }
    const rows: Cell[][] = [];
    const visit = (at: number, depth: number) => {
      const node = nodes[at];
      if (node.total <= 0) return;
      const label = `${"\u2003".repeat(depth)}${node.name}`;
      rows.push([seconds(node.total), shares.share(at), seconds(node.self), label, node.class, node.path]);
      node.below.sort((a, b) => nodes[b].total - nodes[a].total);
      node.below.forEach((child) => visit(child, depth + 1));
    };
    const roots = nodes.flatMap((node, at) => (node.parent < 0 ? [at] : []));
    roots.sort((a, b) => nodes[b].total - nodes[a].total).forEach((at) => visit(at, 0));
    return table("modules", "Modules", "Forward passes by nn.Module; wall time on the host.", rows, [
      ["total_s", "total s", "seconds"],
      ["total_share", "total", "share"],
      ["self_s", "self s", "seconds"],
      ["module", "module", "tree"],
      ["class", "class", "text"],
      ["path", "path", "text"],
    ]);
  }

  threads(): Table {
    const { data, selection } = this;
    const { activity, thread, flags } = data.contexts;
    const { names, threads, processes } = data.head;
    const sums = threads.map(() => new Float64Array(names.activity.length));
    const running = new Float64Array(threads.length);
    thread.forEach((of, context) => {
      sums[of][activity[context]] += selection.run[context];
      sums[of][this.cpuWait.activity] += selection.queue[context];
      if (flags[context] & 1) running[of] += selection.run[context];
    });
    const rows = threads.flatMap((info, at) => {
      const wall = selection.wall[at];
      if (wall <= 0) return [];
      const most = sums[at].indexOf(Math.max(...sums[at]));
      const name = names.activity[most];
      return [[seconds(wall), seconds(running[at]), info.label, info.role, name, sums[at][most] / wall, info.tid, processes[info.process]?.pid ?? null]];
    });
    rows.sort((a, b) => Number(b[1]) - Number(a[1]));
    const note = "All threads that were sampled. Time on a CPU is as seen by the samples.";
    return table("threads", "Threads", note, rows, [
      ["wall_s", "wall s", "seconds"],
      ["on_cpu_s", "on CPU s", "seconds"],
      ["thread", "thread", "text"],
      ["role", "role", "text"],
      ["main_activity", "mostly", "text"],
      ["main_share", "of its time", "percent"],
      ["tid", "tid", "id"],
      ["pid", "pid", "id"],
    ]);
  }

  /** Phase by activity, without empty rows and columns. */
  matrixTable(): Table {
    const { names } = this.data.head;
    const cells = this.matrix();
    const phases = this.phases();
    const used = names.activity.map((_, at) => cells.reduce((sum, row) => sum + row[at], 0));
    const columns = used.map((sum, at) => ({ sum, at })).filter(({ sum }) => sum > 0);
    columns.sort((a, b) => b.sum - a.sum);
    const order = names.phase.map((_, at) => at).filter((at) => phases[at].share > 0);
    order.sort((a, b) => phases[b].share - phases[a].share);
    const rows: Cell[][] = order.map((at) => [names.phase[at], phases[at], ...columns.map((column) => cells[at][column.at] || null)]);
    if (rows.length > 1) rows.push(["all", null, ...columns.map(({ sum }) => sum)]);
    const note = "Shares of the training thread's wall time. Columns are what it did, rows the part of training.";
    return table("matrix", "Phases", note, rows, [
      ["phase", "phase", "text"],
      ["share", "all", "share"],
      ...columns.map(({ at }): [string, string, Kind] => [names.activity[at], names.activity_label[at], "percent"]),
    ]);
  }

  /** The pace in the interval. */
  pace(): Pace {
    return pace(this.data.steps(this.process), this.selection.range);
  }

  /** Steps that end in the interval, with their time by phase. */
  steps(): Table {
    const { data, selection } = this;
    const { names } = data.head;
    const steps = data.steps(this.process);
    const { from, to } = selection.range;
    const shown: number[] = [];
    steps.end.forEach((end, at) => {
      if (end > from && end <= to) shown.push(at);
    });
    const parts = new Map(shown.map((at) => [at, new Float64Array(names.phase.length)]));
    let step = shown[0] ?? 0;
    if (this.thread >= 0 && shown.length) {
      for (let row = data.first[this.thread]; row < data.first[this.thread + 1]; row++) {
        const [start, end] = [data.start[row], data.start[row] + data.length[row]];
        while (step < steps.end.length && steps.end[step] <= start) step++;
        for (let at = step; at < steps.end.length && steps.start[at] < end; at++) {
          const sums = parts.get(at);
          const part = Math.min(end, steps.end[at]) - Math.max(start, steps.start[at]);
          if (sums && part > 0) sums[data.contexts.phase[data.context[row]]] += part;
        }
      }
    }
    const sums = names.phase.map((_, phase) => shown.reduce((sum, at) => sum + (parts.get(at)?.[phase] ?? 0), 0));
    const phases = sums.map((sum, at) => ({ sum, at })).filter(({ sum }) => sum > 0);
    phases.sort((a, b) => b.sum - a.sum);
    const main = phases.slice(0, 6);
    const slow = new Set<number>((data.head.report.progress?.slow ?? []).map((each: { step: number }) => each.step));
    const isPrimary = data.head.processes[this.process]?.primary;
    const rows: Cell[][] = shown.map((at) => [
      steps.number[at],
      seconds(steps.start[at]),
      (steps.end[at] - steps.start[at]) / 1e3,
      isPrimary && slow.has(steps.number[at]) ? "slow" : LEFT_OUT[steps.leftOut[at]] ? `left out: ${LEFT_OUT[steps.leftOut[at]]}` : null,
      ...main.map(({ at: phase }) => (parts.get(at)?.[phase] ?? 0) / 1e3 || null),
    ]);
    const note = "Steps that end in the interval, from the end of the step before; ends are known to about a tick.";
    return table("steps", "Steps", note, rows, [
      ["step", "step", "id"],
      ["start_s", "start s", "seconds"],
      ["ms", "ms", "milliseconds"],
      ["mark", "", "text"],
      ...main.map(({ at }): [string, string, Kind] => [`${names.phase[at]}_ms`, `${names.phase[at]} ms`, "milliseconds"]),
    ]);
  }

  /** Mean of each figure of each device. */
  devices(): Table {
    const { data, selection } = this;
    const rows: Cell[][] = [];
    data.head.tracks.forEach((track, at) => {
      if (track.unit === "reasons") return;
      const { mean, low, high, covered } = statistics(data, at, selection.range);
      if (covered <= 0) return;
      const gpu = track.gpu === null ? null : data.head.report.gpus[track.gpu];
      const of = gpu ? `GPU ${gpu.mig === null ? gpu.index : `${gpu.index}:${gpu.mig}`}` : track.process || "host";
      const percent = track.unit === "share" ? 100 : 1;
      const unit = track.unit === "share" ? "%" : track.unit;
      rows.push([of, track.kind.replaceAll("_", " "), mean * percent, low * percent, high * percent, unit, seconds(covered)]);
    });
    return table("devices", "GPU and host", "Means over the windows that were measured in the interval.", rows, [
      ["of", "of", "text"],
      ["figure", "figure", "text"],
      ["mean", "mean", "number"],
      ["low", "lowest", "number"],
      ["high", "highest", "number"],
      ["unit", "unit", "text"],
      ["covered_s", "covered s", "seconds"],
    ]);
  }
}

export function statistics(data: Data, track: number, range: Range): { mean: number; low: number; high: number; covered: number } {
  const spans = data.spans[track];
  let [sum, covered, low, high] = [0, 0, Infinity, -Infinity];
  for (let at = 0; at < spans.start.length; at++) {
    const part = Math.min(spans.end[at], range.to) - Math.max(spans.start[at], range.from);
    if (part <= 0) continue;
    sum += spans.value[at] * part;
    covered += part;
    low = Math.min(low, spans.value[at]);
    high = Math.max(high, spans.value[at]);
  }
  return { mean: covered > 0 ? sum / covered : 0, low, high, covered };
}

function table(id: string, title: string, note: string, rows: Cell[][], columns: [string, string, Kind][]): Table {
  return { id, title, note, rows, whole: false, columns: columns.map(([key, label, kind]) => ({ key, label, kind })) };
}

const TITLES: Record<string, string> = {
  operator_sites: "Operators by call site",
  module_groups: "Modules, grouped",
  nodes: "Backward by node",
  backward_lines: "Backward by line",
  backward_modules: "Backward by module",
  collectives: "Collectives",
  compiled: "torch.compile",
  graph_breaks: "Graph breaks",
  gpu_idle: "GPU idle time",
  energy: "Energy",
  processes: "Processes",
  trace_operators: "Traced operators",
  trace_shapes: "Shapes",
  trace_kernels: "Kernels",
  trace_copies: "Copies",
  trace_collectives: "Traced collectives",
  trace_devices: "Devices",
  trace_idle: "Device idle: host",
  sampled_idle: "Device idle: lines",
};

/** The report's tables of the whole run. */
export function wholeTables(data: Data): Table[] {
  return [...data.head.tables.map((sheet) => ({ sheet, traced: false })), ...data.head.trace_tables.map((sheet) => ({ sheet, traced: true }))].map(({ sheet, traced }) => {
    const cell = (value: unknown, kind: string): Cell => {
      if (value === null || typeof value === "number" || typeof value === "string" || typeof value === "boolean") return value;
      const list = value as number[];
      if (kind === "place") return { file: String(list[0]), line: list[1] };
      return { share: list[0], low: list[1], high: list[2], samples: list[3] };
    };
    const more = sheet.more ? `The first ${sheet.rows.length} rows of ${sheet.rows.length + sheet.more}; torchspy report ${traced ? "--trace-file TRACE " : ""}--csv ${sheet.name} prints all.` : "";
    return {
      id: sheet.name,
      title: TITLES[sheet.name] ?? sheet.name,
      note: traced ? `Of the trace of torch.profiler, which slows down what it measures: never add these times to sampled ones. ${more}` : `Of ${data.ofAll}. ${more}`,
      columns: sheet.columns.map(([key, kind]) => ({ key, label: key.replaceAll("_", " "), kind: kind as Kind })),
      rows: sheet.rows.map((row) => row.map((value, at) => cell(value, sheet.columns[at][1]))),
      whole: true,
      traced,
    };
  });
}
