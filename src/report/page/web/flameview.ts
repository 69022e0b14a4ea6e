// Draws boxes of a flamegraph, and what the reader does with them.

import { IDLE, KINDS, RANKS, phaseColours } from "./colours";
import type { Data } from "./data";
import { colour, drawnAtOnce, sized } from "./dom";
import { clean, duration, percent, shareText } from "./format";
import type { Boxes } from "./flame";
import type { Selection } from "./model";
import { Shares } from "./shares";

const ROW = 18;
const HEIGHT = 520;

export type Colours = "kind" | "phase" | "gpu" | "rank";

export interface Details {
  title: string;
  lines: string[];
  file: string;
  line: number;
}

export class FlameView {
  protected boxes: Boxes | null = null;
  private selection: Selection | null = null;
  private focus = 0;
  private cursor = -1;
  private hovered = -1;
  private matched: Uint8Array | null = null;
  protected fills: string[] = [];
  private frame = 0;
  private rows = 1;
  /** Widths of letters, for texts that fit. */
  private letter = 6.2;
  colours: Colours = "kind";
  /** Roots at the top. */
  icicle = true;

  constructor(
    protected readonly data: Data,
    private readonly canvas: HTMLCanvasElement,
    private readonly scroller: HTMLElement,
    private readonly spacer: HTMLElement,
    private readonly onDetails: (details: Details | null, x: number, y: number) => void,
    private readonly onMatches: (text: string) => void,
    private readonly onOpen: (file: string, line: number) => void,
    private readonly onOnly: (label: string) => void,
  ) {
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("click", (event) => this.click(event));
    canvas.addEventListener("keydown", (event) => this.key(event));
    scroller.addEventListener("scroll", () => this.redraw());
  }

  set(boxes: Boxes, selection: Selection): void {
    // The focus stays where the same box is there again.
    const path = this.path(this.focus);
    this.boxes = boxes;
    this.selection = selection;
    this.focus = this.find(path);
    this.cursor = this.hovered = -1;
    this.colour();
    this.layout();
  }

  private path(box: number): string[] {
    const labels: string[] = [];
    if (!this.boxes?.count || box < 0) return labels;
    for (let at = box; at >= 0; at = this.boxes.parent[at]) labels.unshift(this.boxes.keys[this.boxes.key[at]].label);
    return labels;
  }

  private find(path: string[]): number {
    const boxes = this.boxes!;
    let [found, from, to] = [-1, 0, boxes.count];
    for (const label of path) {
      let at = from;
      while (at < to && boxes.keys[boxes.key[at]].label !== label) at = boxes.end[at];
      if (at >= to) break;
      [found, from, to] = [at, at + 1, boxes.end[at]];
    }
    return found;
  }

  /** Rows down to the deepest box that is wide enough to be drawn. */
  private count(): number {
    const { boxes } = this;
    if (!boxes?.count) return 1;
    const { from, to } = this.scale;
    const least = ((to - from) / Math.max(this.scroller.clientWidth, 1)) * 0.5;
    let deepest = 0;
    for (let at = 0; at < boxes.count; ) {
      const wide = Math.min(boxes.left[at] + boxes.total[at], to) - Math.max(boxes.left[at], from);
      if (wide < least) at = boxes.end[at];
      else deepest = Math.max(deepest, boxes.depth[at++]);
    }
    return deepest + 1;
  }

  private layout(): void {
    const rows = (this.rows = this.count());
    this.spacer.style.height = `${Math.max(rows * ROW, 3 * ROW)}px`;
    const height = Math.min(rows * ROW + 2, HEIGHT);
    this.scroller.style.height = `${Math.max(height, 3 * ROW)}px`;
    if (!this.icicle) this.scroller.scrollTop = rows * ROW;
    this.redraw();
  }

  flip(icicle: boolean): void {
    this.icicle = icicle;
    this.layout();
  }

  redraw(): void {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
  }

  /** Kinds of code that occur, by their colours' order. */
  kinds(): number[] {
    const { boxes } = this;
    const used = new Set<number>();
    for (let at = 0; at < (boxes?.count ?? 0); at++) used.add(boxes!.keys[boxes!.key[at]].kind);
    return KINDS.flatMap((_, kind) => (used.has(kind) ? [kind] : []));
  }

  /** By box: its colour. */
  colour(): void {
    const boxes = this.boxes;
    if (!boxes) return;
    const { processes, threads } = this.data.head;
    if (this.colours === "kind") {
      this.fills = Array.from({ length: boxes.count }, (_, at) => KINDS[boxes.keys[boxes.key[at]].kind] ?? KINDS.at(-1)!);
    } else if (this.colours === "rank") {
      this.fills = Array.from({ length: boxes.count }, (_, at) => {
        const process = threads[boxes.thread[at]].process;
        return RANKS[(processes[process].rank ?? process) % RANKS.length];
      });
    } else if (this.colours === "phase") {
      const palette = phaseColours(this.data.head.names.phase);
      const count = palette.length;
      const sums = this.sums(count, (context) => this.data.contexts.phase[context]);
      this.fills = Array.from({ length: boxes.count }, (_, at) => {
        let most = at * count;
        for (let phase = 1; phase < count; phase++) if (sums[at * count + phase] > sums[most]) most = at * count + phase;
        return palette[most - at * count];
      });
    } else {
      const idle = this.idle();
      const known = this.sums(1, (context) => (idle[context] >= 0 ? 0 : -1));
      const sums = this.sums(1, (context) => (idle[context] >= 0 ? 0 : -1), (context) => idle[context]);
      this.fills = Array.from({ length: boxes.count }, (_, at) => {
        return known[at] > 0 ? IDLE[Math.min(Math.floor((sums[at] / known[at]) * 5), 4)] : IDLE[5];
      });
    }
    this.redraw();
  }

  /** Sums by box and category of all time in it. */
  private sums(categories: number, of: (context: number) => number, weight: (context: number) => number = () => 1): Float64Array {
    const boxes = this.boxes!;
    const selection = this.selection!;
    const sums = new Float64Array(boxes.count * categories);
    const add = (box: number, context: number, us: number) => {
      const category = of(context);
      if (box >= 0 && category >= 0) sums[box * categories + category] += us * weight(context);
    };
    for (let context = 0; context < boxes.boxOf.length; context++) {
      if (boxes.boxOf[context] >= 0) add(boxes.boxOf[context], context, selection.run[context]);
      if (boxes.boxOfQueue[context] >= 0) add(boxes.boxOfQueue[context], context, selection.queue[context]);
    }
    for (let at = boxes.count - 1; at > 0; at--) {
      const parent = boxes.parent[at];
      if (parent < 0) continue;
      for (let category = 0; category < categories; category++) sums[parent * categories + category] += sums[at * categories + category];
    }
    return sums;
  }

  /** By context: the share of its time in which its GPU was idle, -1 where that was not measured. */
  private idle(): Float64Array {
    const { head, spans, context: contexts, start } = this.data;
    const all = new Float64Array(this.data.contexts.thread.length);
    const busy = new Float64Array(all.length);
    head.threads.forEach((thread, at) => {
      const gpu = head.processes[thread.process]?.gpu;
      const track = head.tracks.findIndex((each) => each.gpu === gpu && each.kind === "utilization");
      if (gpu === null || track < 0) return;
      const windows = spans[track];
      let window = 0;
      this.selection!.each(at, (row, length) => {
        const middle = start[row] + length / 2;
        while (window < windows.end.length && windows.end[window] <= middle) window++;
        if (window < windows.end.length && windows.start[window] <= middle) {
          all[contexts[row]] += length;
          busy[contexts[row]] += length * windows.value[window];
        }
      });
    });
    return all.map((us, context) => (us > 0 ? Math.min(Math.max(1 - busy[context] / us, 0), 1) : -1));
  }

  search(pattern: string): void {
    this.matched = null;
    const boxes = this.boxes;
    let regex: RegExp | null = null;
    if (pattern) {
      try {
        regex = new RegExp(pattern, "i");
      } catch {
        this.onMatches("not a regular expression");
      }
    }
    if (!boxes || !regex) {
      if (!pattern) this.onMatches("");
      this.redraw();
      return;
    }
    const hits = boxes.keys.map((key) => (regex.test(key.label) || regex.test(key.name) || regex.test(key.file) ? 1 : 0));
    const matched = new Uint8Array(boxes.count);
    // Times of two threads are not added: that of the first thread with a match is said.
    const found: [number, number][] = [];
    // Roots are threads, not code.
    for (let at = 0, outer = 0, root = 0; at < boxes.count; at++) {
      if (boxes.depth[at] === 0) root = at;
      else if (hits[boxes.key[at]]) {
        matched[at] = 1;
        if (at < outer) continue;
        if (found.at(-1)?.[0] !== root) found.push([root, 0]);
        found.at(-1)![1] += boxes.total[at];
        outer = boxes.end[at];
      }
    }
    this.matched = matched;
    const [first] = found;
    const of = first && boxes.parent.subarray(0, boxes.count).filter((parent) => parent < 0).length > 1 ? ` of ${clean(boxes.keys[boxes.key[first[0]]].label, 30)}` : "";
    const more = found.length > 1 ? `, and in ${found.length - 1} more` : "";
    this.onMatches(first ? `${percent(first[1] / boxes.total[first[0]])} matches${of} (${duration(first[1])})${more}` : "nothing matches");
    this.redraw();
  }

  private get scale(): { from: number; to: number } {
    const boxes = this.boxes!;
    if (this.focus < 0 || this.focus >= boxes.count) return { from: 0, to: boxes.whole };
    return { from: boxes.left[this.focus], to: boxes.left[this.focus] + boxes.total[this.focus] };
  }

  /** What is printed is what the canvas holds when the event ends. */
  drawNow(): void {
    drawnAtOnce(this.canvas, (picture) => this.draw(picture));
  }

  private draw(canvas = this.canvas): void {
    this.frame = 0;
    const boxes = this.boxes;
    const width = this.scroller.clientWidth;
    const height = this.scroller.clientHeight;
    const context = sized(canvas, width, height);
    // The canvas stays in sight while what it stands for scrolls.
    this.spacer.style.marginTop = `-${height}px`;
    context.clearRect(0, 0, width, height);
    if (!boxes || !boxes.count || width <= 0) {
      context.fillStyle = colour("dim");
      context.font = "13px system-ui, sans-serif";
      context.fillText("Nothing was sampled in this selection.", 8, 24);
      return;
    }
    const { rows } = this;
    const top = this.scroller.scrollTop;
    const { from, to } = this.scale;
    const factor = width / (to - from);
    const [line, text, hit] = [colour("box-line"), "#111111", colour("match")];
    context.font = "11px ui-monospace, Menlo, Consolas, monospace";
    context.textBaseline = "middle";
    this.letter = context.measureText("m").width;
    const focusDepth = this.focus < 0 ? -1 : boxes.depth[this.focus];
    for (let at = 0; at < boxes.count; ) {
      const left = boxes.left[at];
      const right = left + boxes.total[at];
      const wide = Math.min(right, to) - Math.max(left, from);
      if (wide * factor < 0.5) {
        at = boxes.end[at];
        continue;
      }
      const row = this.icicle ? boxes.depth[at] : rows - 1 - boxes.depth[at];
      const y = row * ROW - top;
      if (y > height && this.icicle) {
        at = boxes.end[at];
        continue;
      }
      if (y > -ROW && y < height) {
        const x = Math.max((left - from) * factor, 0);
        const w = Math.min((right - from) * factor, width) - x;
        context.globalAlpha = boxes.depth[at] < focusDepth || (this.matched && !this.matched[at]) ? 0.45 : 1;
        context.fillStyle = this.matched?.[at] ? hit : this.fills[at];
        context.fillRect(x, y, Math.max(w - (w > 2 ? 0.6 : 0), 0.5), ROW - 1);
        if (w > 3 * this.letter) {
          context.globalAlpha = boxes.depth[at] < focusDepth ? 0.7 : 1;
          context.fillStyle = text;
          context.fillText(this.fit(boxes.keys[boxes.key[at]].label, w - 6), x + 3, y + ROW / 2);
        }
        context.globalAlpha = 1;
        if (at === this.hovered || at === this.cursor) {
          context.strokeStyle = line;
          context.lineWidth = at === this.cursor ? 2 : 1;
          context.strokeRect(x + 0.5, y + 0.5, Math.max(w - 1.5, 1), ROW - 2);
        }
      }
      at++;
    }
  }

  private fit(label: string, width: number): string {
    const most = Math.floor(width / this.letter);
    if (label.length <= most) return label;
    return most < 3 ? "" : `${label.slice(0, most - 1)}…`;
  }

  private boxAt(event: MouseEvent): number {
    const boxes = this.boxes;
    if (!boxes?.count) return -1;
    const bounds = this.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - bounds.top + this.scroller.scrollTop) / ROW);
    const depth = this.icicle ? row : this.rows - 1 - row;
    const { from, to } = this.scale;
    const time = from + ((event.clientX - bounds.left) / bounds.width) * (to - from);
    for (let at = 0; at < boxes.count; ) {
      if (time < boxes.left[at] || time >= boxes.left[at] + boxes.total[at]) at = boxes.end[at];
      else if (boxes.depth[at] === depth) return at;
      else at++;
    }
    return -1;
  }

  private hover(event: PointerEvent): void {
    const box = this.boxAt(event);
    if (box !== this.hovered) {
      this.hovered = box;
      this.redraw();
    }
    this.onDetails(box < 0 ? null : this.details(box), event.clientX, event.clientY);
  }

  private leave(): void {
    this.hovered = -1;
    this.onDetails(null, 0, 0);
    this.redraw();
  }

  private click(event: MouseEvent): void {
    const box = this.boxAt(event);
    if (box >= 0 && (event.ctrlKey || event.metaKey)) {
      const key = this.boxes!.keys[this.boxes!.key[box]];
      this.onOpen(key.file, key.line);
    } else if (box >= 0 && event.shiftKey) {
      this.only(box);
    } else if (box >= 0) {
      this.zoom(box);
    }
  }

  /** Threads are no code to look for. */
  private only(box: number): void {
    const { keys, key, parent } = this.boxes!;
    if (parent[box] >= 0) this.onOnly(keys[key[box]].label);
  }

  zoom(box: number): void {
    this.focus = box >= 0 && this.boxes!.parent[box] < 0 && this.boxes!.total[box] === this.boxes!.whole ? -1 : box;
    this.layout();
  }

  reset(): void {
    this.focus = this.cursor = -1;
    this.layout();
  }

  private key(event: KeyboardEvent): void {
    const boxes = this.boxes;
    if (!boxes?.count) return;
    const at = Math.max(this.cursor, 0);
    const siblings = (): number[] => {
      const list: number[] = [];
      const parent = boxes.parent[at];
      const last = parent < 0 ? boxes.count : boxes.end[parent];
      for (let next = parent < 0 ? 0 : parent + 1; next < last; next = boxes.end[next]) list.push(next);
      return list;
    };
    const widest = (): number => {
      let found = at;
      for (let next = at + 1, most = 0; next < boxes.end[at]; next = boxes.end[next]) {
        if (boxes.total[next] > most) [found, most] = [next, boxes.total[next]];
      }
      return found;
    };
    const deeper = this.icicle ? "ArrowDown" : "ArrowUp";
    const shallower = this.icicle ? "ArrowUp" : "ArrowDown";
    if (event.key === deeper) this.cursor = this.cursor < 0 ? 0 : widest();
    else if (event.key === shallower) this.cursor = boxes.parent[at] < 0 ? at : boxes.parent[at];
    else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const list = siblings();
      const next = list.indexOf(at) + (event.key === "ArrowRight" ? 1 : -1);
      this.cursor = list[Math.min(Math.max(next, 0), list.length - 1)];
    } else if (event.key === "Enter" && event.shiftKey) this.only(at);
    else if (event.key === "Enter") this.zoom(at);
    else if (event.key === "Escape" || event.key === "Backspace") this.reset();
    else return;
    event.preventDefault();
    event.stopPropagation();
    if (this.cursor >= 0) {
      const row = this.icicle ? boxes.depth[this.cursor] : this.rows - 1 - boxes.depth[this.cursor];
      if (row * ROW < this.scroller.scrollTop) this.scroller.scrollTop = row * ROW;
      if ((row + 1) * ROW > this.scroller.scrollTop + this.scroller.clientHeight) this.scroller.scrollTop = (row + 2) * ROW - this.scroller.clientHeight;
      const bounds = this.canvas.getBoundingClientRect();
      this.onDetails(this.details(this.cursor), bounds.left + 20, bounds.top + row * ROW - this.scroller.scrollTop + ROW);
    } else {
      this.onDetails(null, 0, 0);
    }
    this.redraw();
  }

  details(box: number): Details {
    const boxes = this.boxes!;
    const selection = this.selection!;
    const { data } = this;
    const key = boxes.keys[boxes.key[box]];
    const thread = boxes.thread[box];
    const [run, queue] = [new Uint8Array(boxes.boxOf.length), new Uint8Array(boxes.boxOf.length)];
    const phases = new Float64Array(data.head.names.phase.length);
    const inside = (at: number) => at >= box && at < boxes.end[box];
    for (let context = 0; context < run.length; context++) {
      if (inside(boxes.boxOf[context])) {
        run[context] = 1;
        phases[data.contexts.phase[context]] += selection.run[context];
      }
      if (inside(boxes.boxOfQueue[context])) {
        queue[context] = 1;
        phases[data.contexts.phase[context]] += selection.queue[context];
      }
    }
    const shares = new Shares(selection.wall[thread], selection.ticks[thread], 1);
    selection.each(thread, (row, length, ticks, waiting) => {
      const context = data.context[row];
      shares.add(0, length, ticks, (run[context] ? length - waiting : 0) + (queue[context] ? waiting : 0));
      shares.next(length);
    });
    const total = boxes.total[box];
    const named = Array.from(phases, (us, at) => ({ us, name: data.head.names.phase[at] })).filter((each) => each.us > 0);
    named.sort((a, b) => b.us - a.us);
    const lines = [
      `${shareText(shares.share(0)) || percent(total / Math.max(selection.wall[thread], 1))} of ${clean(data.head.threads[thread].label, 80)}`,
      `${duration(total)}, own ${duration(boxes.self[box])}`,
      data.head.names.kind[key.kind],
      `phase: ${named.slice(0, 3).map((each) => `${each.name} ${percent(each.us / total, 0)}`).join(", ")}`,
    ];
    return { title: clean(key.name, 300), lines, file: key.file, line: key.line };
  }
}
