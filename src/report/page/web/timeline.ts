// The time axis: counter tracks of devices and host, what each rank and worker did, steps. Its brush selects an interval.

import { phaseColours, waitColours } from "./colours";
import type { Data } from "./data";
import { colour, drawnAtOnce, sized } from "./dom";
import { amount, at as atText, clean, clock, duration, named } from "./format";
import { type Lane, type Times, binned, indexAt, upper } from "./lanes";
import { allocatorLanes, endLane, isMemory, limitLanes, memoryLegend, processMemory } from "./memory";
import { type Range, pace, statistics } from "./model";
import { traceLanes, traceLegend } from "./traced";

const AXIS = 24;
const GAP = 5;
const HEADING = 20;
const LABEL = 13;
/** Steps of the axis in seconds where it says minutes. */
const CLOCK = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400];
/** Height of the strip that says which part of a track is in sight. */
const STRIP = 4;

export interface Shown {
  moreGpu: boolean;
  workers: boolean;
  host: boolean;
  workerHost: boolean;
  trace: boolean;
  limits: boolean;
}

interface Steps extends Times {
  number: Float64Array;
  leftOut: Float64Array;
}

const GPU_MAIN = ["utilization", "memory_used"];

export class Timeline {
  private lanes: Lane[] = [];
  view: Range;
  private selection: Range | null = null;
  private drag: { from: number; x: number; mode: "select" | "pan" | "from" | "to"; moved: boolean; view: Range } | null = null;
  private hover: { x: number; y: number } | null = null;
  private frame = 0;
  private stale = true;
  /** Which marks there are. */
  private readonly marked = new Set<string>();
  readonly minimum: number;

  constructor(
    private readonly data: Data,
    private readonly canvas: HTMLCanvasElement,
    private readonly overlay: HTMLCanvasElement,
    private readonly shown: Shown,
    private readonly onSelect: (range: Range | null) => void,
    private readonly onTip: (lines: string[] | null, x: number, y: number) => void,
  ) {
    this.view = { from: 0, to: data.head.length_us };
    // Kernels have some microseconds.
    this.minimum = Math.max(data.head.traced?.window_us ? 100 : 1000, data.head.bin_us);
    this.build();
    overlay.addEventListener("pointerdown", (event) => this.down(event));
    overlay.addEventListener("pointermove", (event) => this.move(event));
    overlay.addEventListener("pointerup", (event) => this.up(event));
    overlay.addEventListener("pointercancel", () => (this.drag = null));
    overlay.addEventListener("pointerleave", () => {
      this.hover = null;
      this.onTip(null, 0, 0);
      this.redraw(false);
    });
    overlay.addEventListener("dblclick", () => this.selection && this.zoomTo(this.selection));
    overlay.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    overlay.addEventListener("keydown", (event) => this.key(event));
  }

  /** Bits of the reasons that hold a device's clocks down. */
  private get held(): number {
    return this.data.head.throttle.reduce((bits, [bit]) => bits | bit, 0);
  }

  private get gutter(): number {
    return this.canvas.clientWidth < 640 ? 0 : 170;
  }

  build(): void {
    const { data, shown } = this;
    const { processes, threads, tracks, report, names } = data.head;
    const lanes: Lane[] = endLane(data);
    report.gpus.forEach((gpu: any, at: number) => {
      const of = tracks.map((track, number) => ({ track, number })).filter(({ track }) => track.gpu === at);
      const name = `${gpu.mig === null ? `GPU ${gpu.index}` : `GPU ${gpu.index}:${gpu.mig}`} · ${clean(gpu.name, 60)}`;
      const find = (kind: string) => of.find(({ track }) => track.kind === kind)?.number ?? -1;
      for (const { track, number } of of) {
        // Power is that of the energy where the driver says no other.
        const isKnown = track.kind === "energy" && find("power") >= 0;
        if (track.kind === "throttle" || isKnown || (track.unit === "B/s" && track.high <= 0)) continue;
        const group = GPU_MAIN.includes(track.kind) ? "gpu" : "more gpu";
        if (track.kind === "memory_used" && report.gpus.length > 4 && !shown.moreGpu) continue;
        const most = track.kind === "memory_used" && gpu.memory?.total_bytes ? gpu.memory.total_bytes : 0;
        const throttle = ["utilization", "sm_clock"].includes(track.kind) ? find("throttle") : -1;
        lanes.push(this.series(name, trackName(track.kind), number, group, most, throttle));
      }
    });
    const trainers = processes.map((process, at) => ({ process, at })).filter(({ process }) => process.role === "trainer" || process.primary);
    trainers.sort((a, b) => (a.process.rank ?? 0) - (b.process.rank ?? 0));
    for (const { process, at } of trainers) {
      const thread = process.training_thread;
      if (thread === null) continue;
      const of = clean(process.label, 60);
      const { phase, wait } = data.contexts;
      lanes.push(this.classes(of, "phase", [thread], 22, "rank", names.phase, phaseColours(names.phase), (context) => phase[context]));
      const cpu = names.wait.indexOf("cpu");
      lanes.push(this.classes(of, "waits for", [thread], 14, "rank", names.wait, waitColours(names.wait), (context) => wait[context] - 1, cpu));
      if (process.has_steps) lanes.push(this.steps(at, of));
      const marks = this.marks(at, thread, of);
      if (marks) lanes.push(marks);
      lanes.push(...allocatorLanes(data, process.pid, of));
      const workers = processes.filter((each) => each.role === "dataloader_worker" && each.serves === at);
      // A loader starts its workers anew for each pass: those of one number share a lane.
      const numbers = [...new Set(workers.map((worker) => worker.worker ?? 0))].sort((a, b) => a - b);
      for (const number of numbers) {
        const those = workers.filter((worker) => (worker.worker ?? 0) === number);
        const own = those.flatMap((worker) => {
          const thread = worker.training_thread ?? threads.findIndex((each) => processes[each.process] === worker);
          return thread < 0 ? [] : [thread];
        });
        if (own.length) lanes.push(this.activity(of, `loader worker ${number}`, own));
      }
      if (data.head.traced?.process === at) lanes.push(...traceLanes(data));
    }
    if (data.head.traced?.process !== null && !trainers.some(({ at }) => at === data.head.traced?.process)) lanes.push(...traceLanes(data));
    lanes.push(...limitLanes(data));
    for (const [number, track] of tracks.entries()) {
      // What is 0 all the time says nothing.
      if (track.gpu !== null || track.high <= 0) continue;
      if (isMemory(track.kind)) continue;
      const process = track.pid ? processes.find((process) => process.pid === track.pid) : undefined;
      const of = track.pid ? process?.label || track.process || `pid ${track.pid}` : "host";
      if (track.kind === "resident") {
        lanes.push(...processMemory(data, number, clean(of, 60), process?.role === "dataloader_worker" ? "worker host" : "host"));
        continue;
      }
      lanes.push(this.series(clean(of, 60), trackName(track.kind), number, process?.role === "dataloader_worker" ? "worker host" : "host", 0, -1));
    }
    this.lanes = lanes.filter((lane) => {
      if (lane.group === "more gpu") return shown.moreGpu;
      if (lane.group === "worker") return shown.workers;
      if (lane.group === "worker host") return shown.workerHost;
      if (lane.group === "trace") return shown.trace;
      if (lane.group === "limits") return shown.limits;
      return lane.group !== "host" || shown.host;
    });
    this.redraw();
  }

  /** Whether there are tracks of that kind, shown or not. */
  has(group: Lane["group"]): boolean {
    const { processes, tracks } = this.data.head;
    const isWorker = (pid: number) => processes.some((process) => process.pid === pid && process.role === "dataloader_worker");
    return tracks.some((track) => track.gpu === null && track.high > 0 && !isMemory(track.kind) && (group === "worker host") === isWorker(track.pid));
  }

  private get height(): number {
    let end = AXIS;
    this.place((_, y, height) => (end = y + height));
    return end + GAP + 4;
  }

  private series(of: string, label: string, track: number, group: Lane["group"], limit: number, throttle: number): Lane {
    const spans = this.data.spans[track];
    const { unit, high } = this.data.head.tracks[track];
    const most = unit === "share" ? 1 : limit || high || 1;
    const reasons = throttle < 0 ? null : this.data.spans[throttle];
    return {
      label,
      of,
      height: 26,
      group,
      draw: ({ context, y, width, height, left, view }) => {
        context.fillStyle = colour("lane");
        context.fillRect(left, y, width, height);
        const bins = binned(spans, view, width);
        context.fillStyle = colour(group === "gpu" || group === "more gpu" ? "gpu" : "host");
        let last = NaN;
        for (let x = 0; x < width; x++) {
          const tall = Math.max(Math.min(bins[x] / most, 1) * height, 1.5);
          if (!Number.isNaN(tall)) {
            context.globalAlpha = 0.35;
            context.fillRect(left + x, y + height - tall, 1, tall);
            // The line goes up and down with the values.
            const from = Number.isNaN(last) ? tall : last;
            context.globalAlpha = 1;
            context.fillRect(left + x, y + height - Math.max(tall, from), 1, Math.abs(tall - from) + 1.5);
          }
          last = tall;
        }
        if (reasons) {
          context.fillStyle = colour("warn");
          for (let at = 0; at < reasons.start.length; at++) {
            if (!(reasons.value[at] & this.held)) continue;
            const x0 = Math.max(((reasons.start[at] - view.from) / (view.to - view.from)) * width, 0);
            const x1 = Math.min(((reasons.end[at] - view.from) / (view.to - view.from)) * width, width);
            if (x1 > x0) context.fillRect(left + x0, y, Math.max(x1 - x0, 1), 3);
          }
        }
      },
      value: (range) => {
        const { mean, covered } = statistics(this.data, track, range);
        return covered > 0 ? amount(mean, unit) : "";
      },
      tip: (us) => {
        const at = indexAt(spans, us);
        const why = reasons ? indexAt(reasons, us) : -1;
        const names = why < 0 ? [] : this.data.head.throttle.filter(([bit]) => reasons!.value[why] & bit).map(([, name]) => name);
        return at < 0 ? "not measured" : `${amount(spans.value[at], unit)}${names.length ? ` (held down: ${names.join(", ")})` : ""}`;
      },
    };
  }

  /** A thread's time by class, as heights of colours. */
  private classes(
    of: string,
    label: string,
    threads: number[],
    height: number,
    group: Lane["group"],
    names: string[],
    colours: string[],
    classOf: (context: number) => number,
    queued = -1,
  ): Lane {
    const { data } = this;
    return {
      label,
      of,
      height,
      group,
      draw: ({ context, y, width, left, view }) => {
        context.fillStyle = colour("lane");
        context.fillRect(left, y, width, height);
        const count = names.length;
        const sums = new Float32Array(width * count);
        const factor = width / (view.to - view.from);
        const add = (start: number, end: number, category: number) => {
          if (category < 0) return;
          const [x0, x1] = [Math.max((start - view.from) * factor, 0), Math.min((end - view.from) * factor, width)];
          for (let x = Math.floor(x0); x < x1 && x < width; x++) sums[x * count + category] += Math.min(x1, x + 1) - Math.max(x0, x);
        };
        for (const thread of threads) {
          for (let row = firstEnd(data, thread, view.from); row < data.first[thread + 1] && data.start[row] < view.to; row++) {
            const end = data.start[row] + data.length[row];
            const queue = queued >= 0 ? data.queue[row] : 0;
            add(data.start[row], end - queue, classOf(data.context[row]));
            if (queue > 0) add(end - queue, end, queued);
          }
        }
        for (let category = 0; category < count; category++) {
          context.fillStyle = colours[category];
          for (let x = 0; x < width; x++) {
            const part = sums[x * count + category];
            if (part <= 0) continue;
            let below = 0;
            for (let other = 0; other < category; other++) below += sums[x * count + other];
            if (part >= 0.999) {
              let past = x + 1;
              while (past < width && sums[past * count + category] >= 0.999) past++;
              context.fillRect(left + x, y, past - x, height);
              x = past - 1;
            } else {
              context.fillRect(left + x, y + (1 - below - part) * height, 1, part * height + 0.3);
            }
          }
        }
      },
      tip: (us) => {
        const row = anyAt(data, threads, us);
        if (row < 0) return "not sampled";
        const category = classOf(data.context[row]);
        return category < 0 ? "no wait" : named(names[category]);
      },
    };
  }

  private activity(of: string, label: string, threads: number[]): Lane {
    const { data } = this;
    const { names } = data.head;
    const { flags, activity } = data.contexts;
    const lane = this.classes(of, label, threads, 14, "worker", ["busy", "waits"], [colour("busy"), colour("lane")], (context) => (flags[context] & 2 ? -1 : 0));
    return {
      ...lane,
      tip: (us) => {
        const row = anyAt(data, threads, us);
        return row < 0 ? "not sampled" : named(names.activity[activity[data.context[row]]]);
      },
    };
  }

  /** Lengths of steps: in each column the mean, and above it the longest. */
  private steps(process: number, of: string): Lane {
    const { data } = this;
    const steps: Steps = data.steps(process);
    const isPrimary = data.head.processes[process].primary;
    const slow = new Set<number>(isPrimary ? (data.head.report.progress?.slow ?? []).map((each: any) => each.step) : []);
    const lengths = steps.start.map((start, at) => steps.end[at] - start).sort();
    const quantile = (part: number) => lengths[Math.min(Math.floor(part * lengths.length), lengths.length - 1)] ?? 0;
    // A few long ones do not make the others flat.
    const top = Math.min(quantile(1), Math.max(quantile(0.5) * 4, quantile(0.99) * 1.1)) || 1;
    return {
      label: "steps",
      of,
      height: 30,
      group: "rank",
      draw: ({ context, y, width, height, left, view }) => {
        context.fillStyle = colour("lane");
        context.fillRect(left, y, width, height);
        const factor = width / (view.to - view.from);
        const [longest, sums, covered, isSlow] = [new Float64Array(width), new Float64Array(width), new Float64Array(width), new Uint8Array(width)];
        const ends: number[] = [];
        for (let at = upper(steps.end, view.from); at < steps.start.length && steps.start[at] < view.to; at++) {
          const length = steps.end[at] - steps.start[at];
          const [x0, x1] = [Math.max((steps.start[at] - view.from) * factor, 0), Math.min((steps.end[at] - view.from) * factor, width)];
          for (let x = Math.floor(x0); x < x1 && x < width; x++) {
            const part = Math.min(x1, x + 1) - Math.max(x0, x);
            sums[x] += length * part;
            covered[x] += part;
            longest[x] = Math.max(longest[x], length);
            isSlow[x] ||= Number(slow.has(steps.number[at]));
          }
          ends.push(left + Math.round(x1));
        }
        const tall = (us: number) => Math.max(Math.min(us / top, 1) * (height - 2), 1);
        const [fill, light, red] = [colour("step"), colour("step-most"), colour("slow")];
        for (let x = 0; x < width; x++) {
          if (covered[x] <= 0) continue;
          const [most, mean] = [tall(longest[x]), tall(sums[x] / covered[x])];
          context.fillStyle = isSlow[x] ? red : light;
          context.fillRect(left + x, y + height - most, 1, most);
          context.fillStyle = isSlow[x] ? red : fill;
          context.fillRect(left + x, y + height - mean, 1, mean);
        }
        // Ticks, where steps are wide enough for them.
        if (ends.length > 1 && (ends.at(-1)! - ends[0]) / (ends.length - 1) >= 4) {
          context.fillStyle = colour("back");
          for (const x of ends) context.fillRect(x - 1, y, 1, height);
        }
      },
      // The mean that the tile has.
      value: (range) => {
        const { lengths } = pace(steps, range);
        return lengths.length ? duration(lengths.reduce((sum, length) => sum + length, 0) / lengths.length) : "";
      },
      tip: (us) => {
        const at = indexAt(steps, us);
        if (at < 0) return "no step";
        const length = duration(steps.end[at] - steps.start[at]);
        return `step ${steps.number[at]}: ${length}${slow.has(steps.number[at]) ? ", slow" : ""} (median ${duration(quantile(0.5))}); click selects it`;
      },
      pick: (us) => {
        const at = nearSlow(steps, slow, us, (this.view.to - this.view.from) / 300) ?? indexAt(steps, us);
        return at < 0 ? null : { from: steps.start[at], to: steps.end[at] };
      },
    };
  }

  /** Epochs, evaluation and checkpoints of a process; null if it has none. */
  private marks(process: number, thread: number, of: string): Lane | null {
    const { data } = this;
    const epochs = data.times(`epoch.${process}`);
    const evaluations = data.times(`evaluation.${process}`);
    const checkpoints = runs(data, thread, data.head.names.phase.indexOf("checkpoint"));
    const kinds: [string, Times][] = [["epoch", epochs], ["evaluation", evaluations], ["checkpoint", checkpoints]];
    const present = kinds.filter(([, times]) => times.start.length).map(([name]) => (name === "evaluation" ? name : `${name}s`));
    if (!present.length) return null;
    for (const [name, times] of kinds) if (times.start.length) this.marked.add(name);
    return {
      label: present.join(", "),
      of,
      height: 14,
      group: "rank",
      draw: ({ context, y, width, height, left, view }) => {
        context.fillStyle = colour("lane");
        context.fillRect(left, y, width, height);
        const factor = width / (view.to - view.from);
        const visit = ({ start, end }: Times, least: number, each: (x: number, wide: number, at: number) => void) => {
          for (let at = upper(end, view.from); at < start.length && start[at] < view.to; at++) {
            const [x0, x1] = [Math.max((start[at] - view.from) * factor, 0), Math.min((end[at] - view.from) * factor, width)];
            each(left + x0, Math.max(x1 - x0, least), at);
          }
        };
        context.font = "10px system-ui, sans-serif";
        context.textBaseline = "middle";
        visit(epochs, 1, (x, wide, at) => {
          context.fillStyle = colour(at % 2 ? "epoch-odd" : "epoch-even");
          context.fillRect(x, y, wide, height);
          const text = `epoch ${at + 1}`;
          if (context.measureText(text).width > wide - 12) return;
          context.fillStyle = colour("epoch-text");
          context.fillText(text, x + 6, y + height / 2 + 0.5);
        });
        visit(evaluations, 1, (x, wide) => {
          context.fillStyle = colour("evaluation");
          context.fillRect(x, y, wide, height);
        });
        visit(checkpoints, 1, (x, wide) => {
          context.fillStyle = colour("checkpoint");
          context.fillRect(x, y, wide, height);
          context.beginPath();
          context.moveTo(x - 3.5, y);
          context.lineTo(x + wide + 3.5, y);
          context.lineTo(x + wide / 2, y + 7);
          context.fill();
        });
      },
      tip: (us) => {
        const near = (this.view.to - this.view.from) / 250;
        const found = kinds.flatMap(([name, times]) => {
          const at = nearest(times, us, name === "checkpoint" ? near : 0);
          return at < 0 ? [] : [`${name}${name === "epoch" ? ` ${at + 1}` : ""}: ${name === "epoch" ? "" : `${atText(times.start[at], near / 10)}, `}${duration(times.end[at] - times.start[at])}`];
        });
        return found.length ? `${found.reverse().join("; ")}; click selects it` : "none";
      },
      pick: (us) => {
        const near = (this.view.to - this.view.from) / 250;
        for (const times of [checkpoints, evaluations, epochs]) {
          const at = nearest(times, us, times === checkpoints ? near : 0);
          if (at >= 0) return { from: times.start[at], to: times.end[at] };
        }
        return null;
      },
    };
  }

  select(range: Range | null): void {
    this.selection = range;
    this.redraw();
  }

  zoomTo(range: Range): void {
    const length = Math.max(range.to - range.from, this.minimum);
    const all = this.data.head.length_us;
    const from = Math.min(Math.max(range.from, 0), Math.max(all - length, 0));
    this.view = { from, to: Math.min(from + length, all) };
    this.redraw();
  }

  zoom(factor: number, middle = (this.view.from + this.view.to) / 2): void {
    const { from, to } = this.view;
    const length = Math.min(Math.max((to - from) * factor, this.minimum), this.data.head.length_us);
    const left = middle - ((middle - from) / (to - from)) * length;
    this.zoomTo({ from: left, to: left + length });
  }

  /** What is printed is what the canvas holds when the event ends. */
  drawNow(): void {
    drawnAtOnce(this.canvas, (picture) => this.drawLanes(picture));
  }

  redraw(all = true): void {
    this.stale ||= all;
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
  }

  private drawLanes(canvas: HTMLCanvasElement): void {
    const width = this.canvas.clientWidth;
    const { gutter, height } = this;
    const context = sized(canvas, width, height);
    context.clearRect(0, 0, width, height);
    this.axis(context, width);
    context.textBaseline = "alphabetic";
    this.place(
      () => {},
      (of, y) => {
        context.font = "600 12px system-ui, sans-serif";
        context.fillStyle = colour("back");
        context.fillRect(0, y, width, HEADING - 2);
        context.fillStyle = colour("fore");
        context.fillText(fitted(context, of, width - 8), 0, y + HEADING - 6);
      },
    );
    this.place((lane, y, laneHeight) => {
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "middle";
      context.fillStyle = colour("dim");
      const value = lane.value?.(this.selection ?? this.view) ?? "";
      const wide = value ? context.measureText(value).width + 8 : 0;
      const [begin, end, middle] = gutter ? [8, gutter - 8, y + laneHeight / 2] : [0, width, y - 7];
      context.fillText(fitted(context, lane.label, end - begin - wide), begin, middle);
      context.fillStyle = colour("fore");
      if (value) context.fillText(value, end - wide + 8, middle);
      lane.draw({ context, y, width: Math.floor(width - gutter), height: laneHeight, left: gutter, view: this.view });
    });
    this.events(context, width, height);
  }

  /** The time in which torch.profiler ran, and the ends of processes, over all tracks. */
  private events(context: CanvasRenderingContext2D, width: number, height: number): void {
    const { traced, ends } = this.data.head;
    const inside = (x: number) => Math.min(Math.max(x, this.gutter), width);
    if (traced?.window_us) {
      const [x0, x1] = traced.window_us.map((us) => inside(this.x(us)));
      context.fillStyle = colour("disturbed");
      context.fillRect(x0, AXIS - 6, Math.max(x1 - x0, 1), height);
      context.fillStyle = colour("warn");
      if (x1 > x0) context.fillRect(x0, AXIS - 6, Math.max(x1 - x0, 2), 3);
    }
    context.fillStyle = colour("slow");
    for (const { at_us } of ends) {
      const x = this.x(Math.min(at_us, this.data.head.length_us));
      if (x >= this.gutter && x <= width + 1) context.fillRect(Math.min(x, width - 1) - 1, AXIS - 6, 2, height);
    }
  }

  private draw(): void {
    this.frame = 0;
    const width = this.canvas.clientWidth;
    const { gutter, height } = this;
    if (this.stale) {
      this.stale = false;
      this.drawLanes(this.canvas);
    }
    const context = sized(this.overlay, width, height);
    context.clearRect(0, 0, width, height);
    if (this.selection) {
      const [x0, x1] = [this.x(this.selection.from), this.x(this.selection.to)];
      context.fillStyle = colour("brush");
      context.fillRect(x0, 0, Math.max(x1 - x0, 1), height);
      context.fillStyle = colour("accent");
      for (const x of [x0, x1]) if (x >= gutter && x <= width) context.fillRect(x - 1, 0, 2, height);
    }
    if (this.hover && this.hover.x >= gutter) {
      context.fillStyle = colour("dim");
      context.fillRect(this.hover.x, 0, 1, height);
    }
  }

  private place(visit: (lane: Lane, y: number, height: number) => void, heading: (of: string, y: number) => void = () => {}): void {
    let y = AXIS;
    let of = "";
    for (const lane of this.lanes) {
      if (lane.of !== of) {
        of = lane.of;
        heading(of, y);
        y += HEADING;
      }
      if (!this.gutter && lane.label) y += LABEL;
      visit(lane, y, lane.height);
      y += lane.height + (lane.gap ?? GAP);
    }
  }

  private axis(context: CanvasRenderingContext2D, width: number): void {
    const { from, to } = this.view;
    const { length_us: all } = this.data.head;
    const span = to - from;
    const target = span / Math.max((width - this.gutter) / 90, 1);
    const power = 10 ** Math.floor(Math.log10(target));
    const isClock = all >= 120e6 && target > 2e6;
    const steps = isClock ? CLOCK.map((s) => s * 1e6) : [1, 2, 5, 10].map((times) => times * power);
    const step = steps.find((each) => each >= target) ?? target;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    for (let us = Math.ceil(from / step) * step; us <= to; us += step) {
      const x = this.x(us);
      context.fillStyle = colour("grid");
      context.fillRect(x, 18, 1, this.height);
      context.fillStyle = colour("dim");
      const text = isClock ? clock(us) : atText(us, step);
      const wide = context.measureText(text).width;
      context.fillText(text, Math.min(Math.max(x - wide / 2, this.gutter), width - wide), 4);
    }
    if (span < all) {
      const wide = width - this.gutter;
      context.fillStyle = colour("grid");
      context.fillRect(this.gutter, 0, wide, STRIP - 1);
      context.fillStyle = colour("accent");
      context.fillRect(this.gutter + (from / all) * wide, 0, Math.max((span / all) * wide, 2), STRIP - 1);
    }
  }

  private x(us: number): number {
    const width = this.canvas.clientWidth - this.gutter;
    return this.gutter + ((us - this.view.from) / (this.view.to - this.view.from)) * width;
  }

  private us(x: number): number {
    const width = Math.max(this.canvas.clientWidth - this.gutter, 1);
    const part = Math.min(Math.max((x - this.gutter) / width, 0), 1);
    return this.view.from + part * (this.view.to - this.view.from);
  }

  private down(event: PointerEvent): void {
    if (event.button !== 0) return;
    this.overlay.setPointerCapture(event.pointerId);
    const bounds = this.overlay.getBoundingClientRect();
    const x = event.clientX - bounds.left;
    let mode: "select" | "pan" | "from" | "to" = event.shiftKey ? "pan" : "select";
    if (this.selection && mode === "select") {
      if (Math.abs(x - this.x(this.selection.from)) < 5) mode = "from";
      else if (Math.abs(x - this.x(this.selection.to)) < 5) mode = "to";
    }
    this.drag = { from: this.us(x), x, mode, moved: false, view: { ...this.view } };
  }

  private move(event: PointerEvent): void {
    const bounds = this.overlay.getBoundingClientRect();
    const [x, y] = [event.clientX - bounds.left, event.clientY - bounds.top];
    this.hover = { x, y };
    if (this.drag) {
      this.drag.moved ||= Math.abs(x - this.drag.x) > 3;
      if (this.drag.moved) this.dragged(x);
    }
    this.tip(event);
    this.redraw(false);
  }

  private dragged(x: number): void {
    const drag = this.drag!;
    const now = this.us(x);
    if (drag.mode === "pan") {
      const width = Math.max(this.canvas.clientWidth - this.gutter, 1);
      const by = ((drag.x - x) / width) * (drag.view.to - drag.view.from);
      this.zoomTo({ from: drag.view.from + by, to: drag.view.to + by });
      return;
    }
    let [from, to] = [drag.from, now];
    if (drag.mode === "from" && this.selection) [from, to] = [this.selection.to, now];
    if (drag.mode === "to" && this.selection) [from, to] = [this.selection.from, now];
    const range = { from: Math.round(Math.min(from, to)), to: Math.round(Math.max(from, to)) };
    if (range.to - range.from >= 1) this.pending(range);
  }

  /** Drawn at once; told when the drag ends. */
  private pending(range: Range): void {
    if (this.drag!.mode !== "select") {
      // The other end stays.
      this.drag!.from = range.from === Math.round(this.drag!.from) ? range.from : range.to;
    }
    this.selection = range;
    this.redraw(false);
  }

  private up(event: PointerEvent): void {
    const drag = this.drag;
    this.drag = null;
    if (!drag) return;
    if (drag.moved) {
      if (drag.mode !== "pan") this.onSelect(this.selection);
      return;
    }
    const bounds = this.overlay.getBoundingClientRect();
    const lane = this.laneAt(event.clientY - bounds.top);
    const picked = lane?.pick?.(drag.from) ?? null;
    if (event.detail < 2) this.onSelect(picked);
  }

  private laneAt(y: number): Lane | null {
    let found: Lane | null = null;
    this.place((lane, top, height) => {
      if (y >= top - 2 && y <= top + height + 2) found = lane;
    });
    return found;
  }

  private tip(event: PointerEvent): void {
    const bounds = this.overlay.getBoundingClientRect();
    const x = event.clientX - bounds.left;
    const us = this.us(x);
    const step = (this.view.to - this.view.from) / 2000;
    const lane = this.laneAt(event.clientY - bounds.top);
    const lines = [atText(us, step)];
    if (this.drag?.moved && this.drag.mode !== "pan" && this.selection) {
      lines.push(`selected ${duration(this.selection.to - this.selection.from)}`);
    } else if (lane) {
      lines.push(`${lane.of}: ${lane.label}`, lane.tip(us));
    }
    this.onTip(lines, event.clientX, event.clientY);
  }

  private wheel(event: WheelEvent): void {
    const bounds = this.overlay.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey || event.altKey) {
      event.preventDefault();
      this.zoom(Math.exp(Math.min(Math.max(event.deltaY, -100), 100) / 150), this.us(event.clientX - bounds.left));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      const by = (event.deltaX / Math.max(bounds.width, 1)) * (this.view.to - this.view.from);
      this.zoomTo({ from: this.view.from + by, to: this.view.to + by });
    }
  }

  private key(event: KeyboardEvent): void {
    const length = this.view.to - this.view.from;
    const move = (by: number) => this.zoomTo({ from: this.view.from + by, to: this.view.to + by });
    const part = event.key === "ArrowLeft" ? -0.1 : event.key === "ArrowRight" ? 0.1 : 0;
    if (part && event.shiftKey) {
      // The selection's length stays; without one, a tenth of what is seen is selected.
      const now = this.selection ?? { from: this.view.from, to: this.view.from + length / 10 };
      const by = this.selection ? part * (now.to - now.from) : 0;
      const all = this.data.head.length_us;
      const from = Math.min(Math.max(now.from + by, 0), all - (now.to - now.from));
      this.onSelect({ from: Math.round(from), to: Math.round(from + now.to - now.from) });
    } else if (part) move(part * length);
    else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "0" || event.key === "Home") this.zoomTo({ from: 0, to: this.data.head.length_us });
    else if (event.key === "Enter" && this.selection) this.zoomTo(this.selection);
    else if (event.key === "Escape") this.onSelect(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** What colours mean, of what occurs: label and colour. */
  legend(): [string, [string, string][]][] {
    const { head, contexts } = this.data;
    const trains = new Set(head.processes.filter((each) => each.role === "trainer" || each.primary).map((each) => each.training_thread));
    const [phases, waits] = [new Set<number>(), new Set<number>()];
    contexts.thread.forEach((thread, context) => {
      if (!trains.has(thread)) return;
      phases.add(contexts.phase[context]);
      if (contexts.wait[context]) waits.add(contexts.wait[context] - 1);
    });
    if (this.data.queue.some((us) => us > 0)) waits.add(head.names.wait.indexOf("cpu"));
    const listed = (names: string[], colours: string[], used: Set<number>): [string, string][] =>
      names.flatMap((name, at): [string, string][] => (used.has(at) ? [[named(name), colours[at]]] : []));
    const marks: [string, string][] = ["evaluation", "checkpoint"].flatMap((name): [string, string][] => (this.marked.has(name) ? [[name, colour(name)]] : []));
    if (head.report.progress?.slow?.length) marks.unshift(["slow step", colour("slow")]);
    const held = head.tracks.some((track, at) => track.kind === "throttle" && this.data.spans[at].value.some((bits) => bits & this.held));
    if (held) marks.push(["clocks held down", colour("warn")]);
    return [
      ["phases", listed(head.names.phase, phaseColours(head.names.phase), phases)],
      ["waits for", listed(head.names.wait, waitColours(head.names.wait), waits)],
      ["marks", marks],
      ["memory", memoryLegend(head, this.shown)],
      ["torch.profiler", this.shown.trace ? traceLegend(this.data) : []],
    ];
  }

  describe(): string {
    return `Timeline with ${this.lanes.length} tracks: ${this.lanes.map((lane) => `${lane.of}, ${lane.label}`).join("; ")}`;
  }
}

const NAMES: Record<string, string> = {
  utilization: "busy",
  memory_busy: "memory busy",
  sm_active: "SM active",
  sm_occupancy: "SM occupancy",
  tensor_active: "tensor cores",
  dram_active: "DRAM",
  memory_used: "memory",
  sm_clock: "SM clock",
  memory_clock: "memory clock",
  energy: "power",
  cpu: "CPU",
  resident: "memory",
  pcie_sent: "PCIe sent",
  pcie_received: "PCIe received",
  nvlink_sent: "NVLink sent",
  nvlink_received: "NVLink received",
};

export const trackName = (kind: string): string => NAMES[kind] ?? kind.replaceAll("_", " ");

/** One that holds this time, or whose middle is the nearest within a distance; -1 for none. */
function nearest(times: Times, us: number, within: number): number {
  let [found, least] = [indexAt(times, us), within];
  if (found >= 0) return found;
  for (let at = 0; at < times.start.length; at++) {
    const away = Math.max(times.start[at] - us, us - times.end[at], 0);
    if (away <= least && within > 0) [found, least] = [at, away];
  }
  return found;
}

/** When a thread was in a phase. */
function runs(data: Data, thread: number, phase: number): Times {
  const [start, end]: [number[], number[]] = [[], []];
  for (let row = data.first[thread]; row < data.first[thread + 1]; row++) {
    if (data.contexts.phase[data.context[row]] !== phase) continue;
    const past = data.start[row] + data.length[row];
    if (start.length && data.start[row] <= end.at(-1)! + 1000) end[end.length - 1] = past;
    else {
      start.push(data.start[row]);
      end.push(past);
    }
  }
  return { start: Float64Array.from(start), end: Float64Array.from(end) };
}

/** A slow step that is drawn so narrow that a pointer hardly meets it. */
function nearSlow(steps: Steps, slow: Set<number>, us: number, within: number): number | null {
  for (let at = 0; at < steps.start.length; at++) {
    if (slow.has(steps.number[at]) && us >= steps.start[at] - within && us <= steps.end[at] + within) return at;
  }
  return null;
}

/** The first sample of a thread that ends after this time. */
function firstEnd(data: Data, thread: number, us: number): number {
  let [low, high] = [data.first[thread], data.first[thread + 1]];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (data.start[middle] + data.length[middle] <= us) low = middle + 1;
    else high = middle;
  }
  return low;
}

function rowAt(data: Data, thread: number, us: number): number {
  const row = firstEnd(data, thread, us);
  return row < data.first[thread + 1] && data.start[row] <= us ? row : -1;
}

function anyAt(data: Data, threads: number[], us: number): number {
  for (const thread of threads) {
    const row = rowAt(data, thread, us);
    if (row >= 0) return row;
  }
  return -1;
}

function fitted(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  let most = text.length;
  while (most > 1 && context.measureText(`${text.slice(0, most)}…`).width > width) most--;
  return `${text.slice(0, most)}…`;
}
