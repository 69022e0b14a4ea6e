// The flamegraph of a selection: which boxes there are and where. Drawing is in flameview.ts.
//
// Every thread has a root of its own; times of two threads are never added.

import { Data, MODULE_CALL, PLUMBING, PYTHON, START } from "./data";
import type { Selection } from "./model";

export type Merge = "function" | "line" | "module";

export interface Options {
  merge: Merge;
  plumbing: boolean;
  imports: boolean;
  recursion: boolean;
  inverted: boolean;
  /** Waits of threads other than training threads. */
  waits: boolean;
  /** Label of what all boxes are below of, or, inverted, callers of; empty for all. */
  only: string;
  threads: Set<number>;
}

/** What a box stands for. */
export interface Key {
  label: string;
  file: string;
  line: number;
  kind: number;
  /** The complete name. */
  name: string;
}

const NONE = -1;

/** Stacks as they are drawn: each recorded stack's number among them, by options. */
class Drawn {
  readonly keys: Key[] = [];
  private readonly keyIndex = new Map<string, number>();
  readonly parent: number[] = [];
  readonly key: number[] = [];
  private readonly children = new Map<number, number>();
  /** By recorded stack. */
  readonly of: Int32Array;
  private readonly full: Int32Array;

  constructor(
    private readonly data: Data,
    private readonly options: Options,
  ) {
    this.of = this.fold(options.plumbing);
    this.full = options.plumbing ? this.of : this.fold(true);
  }

  private fold(plumbing: boolean): Int32Array {
    const { data, options } = this;
    const of = new Int32Array(data.parent.length).fill(NONE);
    /** The innermost module so far. */
    const inner = new Int32Array(options.merge === "module" ? of.length : 0).fill(NONE);
    const { functions } = data.head;
    for (let stack = 0; stack < of.length; stack++) {
      const parent = data.parent[stack];
      const below = parent < 0 ? NONE : of[parent];
      if (inner.length) inner[stack] = parent < 0 ? NONE : inner[parent];
      const frame = data.frame[stack];
      const module = data.frames.module[frame];
      const flags = functions.flags[data.frames.function[frame]];
      const partial = data.frames.marks[frame] >> 1;
      if (module && !partial) {
        of[stack] = below;
        if (options.merge === "module") {
          const outer = inner[stack] === NONE ? below : inner[stack];
          of[stack] = inner[stack] = this.stack(outer, this.moduleKey(module - 1), true);
        }
        continue;
      }
      const isImport = !options.imports && this.isImport(data.frames.function[frame]);
      const isReplaced = options.merge === "module" && flags & MODULE_CALL;
      const isBase = below === NONE && flags & START;
      if (!partial && ((flags & PLUMBING && !plumbing) || isImport || isReplaced || (isBase && !plumbing))) {
        of[stack] = below;
      } else {
        of[stack] = this.stack(below, this.frameKey(frame, partial), !options.recursion);
      }
    }
    return of;
  }

  private isImport(function_: number): boolean {
    const { functions, names } = this.data.head;
    if (functions.flags[function_] & PYTHON) return functions.files[functions.file[function_]].startsWith("<frozen importlib");
    const isInterpreter = names.kind[functions.kind[function_]] === "interpreter";
    return isInterpreter && /^(_?PyImport_|import_|builtin___import__|builtin_exec|PyEval_EvalCode)/.test(functions.name[function_]);
  }

  /** A stack of these; `once`: a frame right above itself counts as one. */
  stack(parent: number, key: number, once: boolean): number {
    if (once && parent !== NONE && this.key[parent] === key) return parent;
    const index = (parent + 1) * 4194304 + key;
    let at = this.children.get(index);
    if (at === undefined) {
      at = this.parent.length;
      this.children.set(index, at);
      this.parent.push(parent);
      this.key.push(key);
    }
    return at;
  }

  private intern(id: string, make: () => Key): number {
    let at = this.keyIndex.get(id);
    if (at === undefined) {
      at = this.keys.length;
      this.keyIndex.set(id, at);
      this.keys.push(make());
    }
    return at;
  }

  private moduleKey(module: number): number {
    const { head } = this.data;
    return this.intern(`m${head.modules[module].root}#${head.modules[module].number}#${head.modules[module].label}`, () => {
      const { label } = head.modules[module];
      return { label, name: label, file: "", line: 0, kind: head.names.kind.indexOf("python (torch)") };
    });
  }

  private frameKey(frame: number, partial: number): number {
    const { head, frames } = this.data;
    if (partial) return this.marker(`[partial: ${head.names.partial[partial - 1]}]`);
    const function_ = frames.function[frame];
    const isPython = head.functions.flags[function_] & PYTHON;
    const line = !isPython ? 0 : this.options.merge === "line" ? frames.line[frame] : head.functions.line[function_];
    return this.intern(`f${function_}:${line}`, () => {
      const name = head.functions.name[function_];
      const file = head.functions.files[head.functions.file[function_]];
      const label = isPython ? `${name} (${shortFile(file)}${line ? `:${line}` : ""})` : head.functions.short[function_] || name;
      return { label, name, file, line, kind: head.functions.kind[function_] };
    });
  }

  marker(label: string): number {
    const kind = label === "[cpu_wait]" ? "wait" : "marker";
    return this.intern(label, () => ({ label, name: label, file: "", line: 0, kind: this.data.head.names.kind.indexOf(kind) }));
  }

  /** The drawn stack of a leaf. */
  leaf(leaf: number): number {
    const stack = leaf < 0 ? NONE : this.data.leaves.stack[leaf];
    if (stack === NONE) return this.stack(NONE, this.marker("[not captured]"), false);
    if (this.of[stack] !== NONE) return this.of[stack];
    return this.full[stack] !== NONE ? this.full[stack] : this.stack(NONE, this.marker("[not captured]"), false);
  }
}

/** The end of a path that says where code is from. */
export function shortFile(file: string): string {
  const packages = file.lastIndexOf("-packages/");
  if (packages >= 0) return file.slice(packages + 10);
  const library = /\/lib\/python3[^/]*\/(.*)$/.exec(file);
  return library ? library[1] : file.slice(file.lastIndexOf("/") + 1);
}

/** Boxes in depth-first order: what is above a box lies right behind it. */
export interface Boxes {
  keys: Key[];
  count: number;
  key: Int32Array;
  depth: Uint16Array;
  parent: Int32Array;
  /** Past the last box of the same branch. */
  end: Int32Array;
  /** µs. */
  left: Float64Array;
  total: Float64Array;
  self: Float64Array;
  /** The thread of a root and all above it. */
  thread: Int32Array;
  deepest: number;
  /** All of the drawn time, µs. */
  whole: number;
  /** The box of a context's time outside the run queue and in it; -1 for none. */
  boxOf: Int32Array;
  boxOfQueue: Int32Array;
}

export class Flame {
  private drawn: Drawn | null = null;
  private drawnFor = "";

  constructor(private readonly data: Data) {}

  private stacks(options: Options): Drawn {
    const key = [options.merge, options.plumbing, options.imports, options.recursion].join();
    if (!this.drawn || this.drawnFor !== key) {
      this.drawn = new Drawn(this.data, options);
      this.drawnFor = key;
    }
    return this.drawn;
  }

  boxes(selection: Selection, options: Options): Boxes {
    const { data } = this;
    const drawn = this.stacks(options);
    const { thread, leaf, flags } = data.contexts;
    const nodes: { key: number; parent: number; self: number; total: number; thread: number; below: number[] }[] = [];
    const boxOf = new Int32Array(thread.length).fill(NONE);
    const boxOfQueue = new Int32Array(thread.length).fill(NONE);
    const byThread: number[][] = data.head.threads.map(() => []);
    thread.forEach((of, context) => {
      if (options.threads.has(of) && selection.run[context] + selection.queue[context] > 0) byThread[of].push(context);
    });
    const cpuWait = drawn.marker("[cpu_wait]");
    const roots: number[] = [];
    const trains = new Set(data.head.processes.filter((each) => each.role !== "dataloader_worker").map((each) => each.training_thread));
    const make = (key: number, parent: number, of: number): number => {
      nodes.push({ key, parent, self: 0, total: 0, thread: of, below: [] });
      if (parent !== NONE) nodes[parent].below.push(nodes.length - 1);
      return nodes.length - 1;
    };
    byThread.forEach((contexts, of) => {
      if (!contexts.length) return;
      const root = make(drawn.marker(data.head.threads[of].label), NONE, of);
      const known = new Map<number, number>();
      const at = (stack: number): number => {
        if (stack === NONE) return root;
        let node = known.get(stack);
        if (node === undefined) {
          node = make(drawn.key[stack], at(drawn.parent[stack]), of);
          known.set(stack, node);
        }
        return node;
      };
      const children = new Map<number, number>();
      const below = (node: number, key: number): number => {
        const index = node * 4194304 + key;
        let child = children.get(index);
        if (child === undefined) {
          child = make(key, node, of);
          children.set(index, child);
        }
        return child;
      };
      const inverted = (stack: number): number => {
        let node = root;
        for (let next = stack; next !== NONE; next = drawn.parent[next]) node = below(node, drawn.key[next]);
        return node;
      };
      const only = options.only ? drawn.keys.flatMap((key, number) => (key.label === options.only ? [number] : [])) : [];
      const wanted = new Set(only);
      /** From the outermost call inward, or outward from the innermost; NONE without one. */
      const focused = (stack: number): number => {
        const path: number[] = [];
        for (let next = stack; next !== NONE; next = drawn.parent[next]) path.push(drawn.key[next]);
        if (!options.inverted) path.reverse();
        const from = path.findIndex((key) => wanted.has(key));
        return from < 0 ? NONE : path.slice(from).reduce(below, root);
      };
      const place = options.only ? focused : options.inverted ? inverted : at;
      for (const context of contexts) {
        const stack = drawn.leaf(leaf[context] - 1);
        const isHidden = !options.waits && !trains.has(of) && flags[context] & 2;
        if (selection.run[context] > 0 && !isHidden) {
          boxOf[context] = place(stack);
          if (boxOf[context] !== NONE) nodes[boxOf[context]].self += selection.run[context];
        }
        if (selection.queue[context] > 0) {
          boxOfQueue[context] = place(drawn.stack(stack, cpuWait, false));
          if (boxOfQueue[context] !== NONE) nodes[boxOfQueue[context]].self += selection.queue[context];
        }
      }
      roots.push(root);
    });
    // Children have larger numbers than their parents.
    for (let at = nodes.length - 1; at >= 0; at--) {
      nodes[at].total += nodes[at].self;
      if (nodes[at].parent !== NONE) nodes[nodes[at].parent].total += nodes[at].total;
    }
    return arrange(nodes, roots.filter((root) => nodes[root].total > 0), drawn.keys, boxOf, boxOfQueue);
  }
}

function arrange(
  nodes: { key: number; parent: number; self: number; total: number; thread: number; below: number[] }[],
  roots: number[],
  keys: Key[],
  boxOf: Int32Array,
  boxOfQueue: Int32Array,
): Boxes {
  const count = nodes.length;
  const boxes: Boxes = {
    keys,
    count: 0,
    key: new Int32Array(count),
    depth: new Uint16Array(count),
    parent: new Int32Array(count),
    end: new Int32Array(count),
    left: new Float64Array(count),
    total: new Float64Array(count),
    self: new Float64Array(count),
    thread: new Int32Array(count),
    deepest: 0,
    whole: 0,
    boxOf,
    boxOfQueue,
  };
  const placed = new Int32Array(count).fill(NONE);
  const byName = (a: number, b: number) => (keys[nodes[a].key].label < keys[nodes[b].key].label ? -1 : 1);
  // A stack of what is to be placed; a negative entry ends a branch.
  const open: number[] = [];
  let left = 0;
  const starts = new Map<number, number>();
  for (const root of roots) {
    starts.set(root, left);
    left += nodes[root].total;
  }
  boxes.whole = left;
  for (const root of roots.slice().reverse()) open.push(root);
  while (open.length) {
    const next = open.pop()!;
    if (next < 0) {
      boxes.end[placed[-next - 1]] = boxes.count;
      continue;
    }
    const node = nodes[next];
    const at = boxes.count++;
    placed[next] = at;
    const parent = node.parent === NONE ? NONE : placed[node.parent];
    boxes.key[at] = node.key;
    boxes.parent[at] = parent;
    boxes.depth[at] = parent === NONE ? 0 : boxes.depth[parent] + 1;
    boxes.deepest = Math.max(boxes.deepest, boxes.depth[at]);
    boxes.left[at] = starts.get(next)!;
    boxes.total[at] = node.total;
    boxes.self[at] = node.self;
    boxes.thread[at] = node.thread;
    open.push(-next - 1);
    let x = boxes.left[at];
    const below = node.below.filter((child) => nodes[child].total > 0).sort(byName);
    for (const child of below) {
      starts.set(child, x);
      x += nodes[child].total;
    }
    for (let child = below.length - 1; child >= 0; child--) open.push(below[child]);
  }
  const moved = (box: number) => (box === NONE ? NONE : placed[box]);
  boxes.boxOf = boxOf.map(moved);
  boxes.boxOfQueue = boxOfQueue.map(moved);
  return boxes;
}
