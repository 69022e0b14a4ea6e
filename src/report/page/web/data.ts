// Reads what src/report/page writes: a JSON head, and columns of integers.

export interface Share {
  share: number;
  low: number;
  high: number;
  samples: number;
}

export interface Process {
  pid: number;
  label: string;
  role: string;
  rank: number | null;
  worker: number | null;
  serves: number;
  training_thread: number | null;
  gpu: number | null;
  cuda: boolean;
  has_steps: boolean;
  primary: boolean;
}

export interface Thread {
  process: number;
  tid: number;
  label: string;
  name: string;
  role: string;
  cpu_us: number;
}

export interface Track {
  gpu: number | null;
  pid: number;
  process: string;
  kind: string;
  unit: string;
  scale: number;
  mean: number;
  high: number;
}

export interface WholeTable {
  name: string;
  columns: [string, string][];
  rows: unknown[][];
  more: number;
}

/** A trace of torch.profiler: what is drawn of it. */
export interface Traced {
  /** Null where it is not on the time axis of the recording. */
  process: number | null;
  window_us: [number, number] | null;
  names: string[];
  /** Of each name, into `kinds`. */
  kind: number[];
  kinds: string[];
  rows: { of: string; label: string; depth: number; grain_us: number }[];
  notes: string[];
}

/** Spans of a row of a trace, µs. */
export interface TraceSpans {
  start: Float64Array;
  end: Float64Array;
  name: Uint32Array;
  count: Float64Array;
  busy: Float64Array;
  longest: Float64Array;
}

export interface Head {
  version: number;
  report: any;
  command: string;
  verdict: [string, string][];
  text: string;
  length_us: number;
  bin_us: number;
  samples: number;
  part: boolean;
  editor: { local: string } | { repository: { url: string; name: string; revision: string } } | null;
  /** Null: no source text was asked for. */
  sources: { file: string; text: string; changed: boolean }[] | null;
  names: Record<"phase" | "activity" | "activity_label" | "row" | "wait" | "kind" | "partial", string[]>;
  row_labels: string[];
  labels: string[];
  modules: { root: string; number: number; path: string; class: string; evaluates: boolean; label: string }[];
  functions: { name: string[]; short: string[]; file: number[]; files: string[]; line: number[]; kind: number[]; flags: number[] };
  processes: Process[];
  threads: Thread[];
  tracks: Track[];
  throttle: [number, string][];
  traced: Traced | null;
  trace_tables: WholeTable[];
  ends: { at_us: number; process: number | null; text: string }[];
  limit_share: number;
  tables: WholeTable[];
  columns: Record<string, [number, number, number]>;
}

/** Intervals of time with a value each, µs. */
export interface Spans {
  start: Float64Array;
  end: Float64Array;
  value: Float64Array;
}

const VERSION = 1;

/** What `step.N.left_out` holds. */
export const TIMED = 0;
export const LEFT_OUT = ["", "new pass", "slow start", "compile", "torch.profiler"];

export const PYTHON = 1;
export const PLUMBING = 2;
export const START = 4;
export const MODULE_CALL = 8;

/** The text of the page's data element, inflated. */
export async function inflate(base64: string): Promise<Uint8Array> {
  const packed = Uint8Array.from(atob(base64.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const unsigned = (value: number) => (value % 2 ? -(value + 1) / 2 : value / 2);

export class Data {
  readonly head: Head;
  private readonly columns: Uint8Array;

  // Samples of all threads, one thread after the other; times in µs.
  readonly start: Float64Array;
  readonly length: Float64Array;
  readonly queue: Float64Array;
  readonly ticks: Float64Array;
  readonly context: Uint32Array;
  /** Where each thread's samples begin; one more than there are threads. */
  readonly first: Uint32Array;

  readonly contexts: Record<"thread" | "leaf" | "phase" | "activity" | "row" | "wait" | "label" | "flags", Uint32Array>;
  readonly leaves: {
    stack: Uint32Array;
    user: Lines;
    near: Lines;
    python: Lines;
    native: Uint32Array;
    operators: Uint32Array;
    nodes: Uint32Array;
    modules: Uint32Array;
    flags: Uint32Array;
  };
  /** Parent of each stack, -1 for none: parents come first. */
  readonly parent: Int32Array;
  readonly frame: Uint32Array;
  readonly frames: Record<"function" | "line" | "module" | "marks", Uint32Array>;
  readonly spans: Spans[];

  /** What there is if nothing is selected: a recording that goes on is no whole run, nor is an interval of one. */
  get all(): string {
    const { growing } = this.head.report;
    return this.head.part ? "all of this part" : growing ? "all so far" : "whole run";
  }

  /** The same after a preposition. */
  get ofAll(): string {
    return this.all === "whole run" ? "the whole run" : this.all;
  }

  constructor(bytes: Uint8Array) {
    const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
    this.head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
    if (this.head.version !== VERSION) {
      throw new Error(`data of version ${this.head.version}, and the page reads ${VERSION}`);
    }
    this.columns = bytes.subarray(4 + length);
    const counts = this.integers("thread.samples");
    this.first = new Uint32Array(counts.length + 1);
    counts.forEach((count, at) => (this.first[at + 1] = this.first[at] + count));
    this.length = this.numbers("sample.length");
    this.queue = this.numbers("sample.queue");
    this.ticks = this.numbers("sample.ticks");
    this.context = this.integers("sample.context");
    this.start = this.numbers("sample.gap");
    for (let thread = 0; thread < counts.length; thread++) {
      let at = 0;
      for (let row = this.first[thread]; row < this.first[thread + 1]; row++) {
        at += unsigned(this.start[row]);
        this.start[row] = at;
        at += this.length[row];
      }
    }
    const of = (name: string) => this.integers(`context.${name}`);
    this.contexts = {
      thread: of("thread"),
      leaf: of("leaf"),
      phase: of("phase"),
      activity: of("activity"),
      row: of("row"),
      wait: of("wait"),
      label: of("label"),
      flags: of("flags"),
    };
    const leaf = (name: string) => this.integers(`leaf.${name}`);
    const lines = (name: string) => ({ function: leaf(`${name}.function`), line: leaf(`${name}.line`) });
    this.leaves = {
      stack: leaf("stack"),
      user: lines("user"),
      near: lines("near"),
      python: lines("python"),
      native: leaf("native"),
      operators: leaf("operators"),
      nodes: leaf("nodes"),
      modules: leaf("modules"),
      flags: leaf("flags"),
    };
    this.parent = Int32Array.from(this.integers("stack.parent"), (back, at) => (back ? at - back : -1));
    this.frame = this.integers("stack.frame");
    const frame = (name: string) => this.integers(`frame.${name}`);
    this.frames = { function: frame("function"), line: frame("line"), module: frame("module"), marks: frame("marks") };
    this.spans = this.head.tracks.map((track, at) => {
      const spans = this.times(`track.${at}`);
      const value = this.numbers(`track.${at}.value`);
      let last = 0;
      value.forEach((delta, row) => {
        last += unsigned(delta);
        value[row] = last / track.scale;
      });
      return { ...spans, value };
    });
  }

  /** A column; values are below 2^53. */
  numbers(name: string): Float64Array {
    const [from, size, count] = this.head.columns[name] ?? [0, 0, 0];
    const values = new Float64Array(count);
    const bytes = this.columns;
    let at = from;
    for (let row = 0; row < count && at < from + size; row++) {
      let byte = bytes[at++];
      let value = byte & 0x7f;
      for (let scale = 128; byte & 0x80; scale *= 128) {
        byte = bytes[at++];
        value += (byte & 0x7f) * scale;
      }
      values[row] = value;
    }
    return values;
  }

  integers(name: string): Uint32Array {
    return Uint32Array.from(this.numbers(name));
  }

  /** A chain table: parents are one more than their number. */
  chain(name: string): { parent: Uint32Array; value: Uint32Array } {
    return { parent: this.integers(`chain.${name}.parent`), value: this.integers(`chain.${name}.value`) };
  }

  /** Intervals whose starts are relative to the end before. */
  times(name: string): { start: Float64Array; end: Float64Array } {
    const start = this.numbers(`${name}.gap`);
    const end = this.numbers(`${name}.length`);
    let at = 0;
    for (let row = 0; row < start.length; row++) {
      at += unsigned(start[row]);
      start[row] = at;
      at += end[row];
      end[row] = at;
    }
    return { start, end };
  }

  /** A row of the trace, which is written in ns. */
  traceRow(row: number): TraceSpans {
    const { start, end } = this.times(`trace.${row}`);
    const of = (name: string) => this.numbers(`trace.${row}.${name}`);
    const [count, busy, longest] = ["count", "busy", "longest"].map(of);
    for (let at = 0; at < start.length; at++) {
      start[at] /= 1e3;
      end[at] /= 1e3;
      const length = end[at] - start[at];
      busy[at] = count[at] > 1 ? busy[at] / 1e3 : length;
      longest[at] = count[at] > 1 ? longest[at] / 1e3 : length;
    }
    return { start, end, name: this.integers(`trace.${row}.name`), count, busy, longest };
  }

  /** Steps of a process, with their numbers, and why their lengths are left out of means: `TIMED` if they are not. */
  steps(process: number): { start: Float64Array; end: Float64Array; number: Float64Array; leftOut: Float64Array } {
    const number = this.numbers(`step.${process}.number`);
    let last = 0;
    number.forEach((delta, row) => (number[row] = last += unsigned(delta)));
    return { ...this.times(`step.${process}`), number, leftOut: this.numbers(`step.${process}.left_out`) };
  }
}

export interface Lines {
  /** One more than the function, 0 for none. */
  function: Uint32Array;
  line: Uint32Array;
}
