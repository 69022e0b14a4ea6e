// What the reader chose, in the address: `#sel=A,B&view=…`. Times are seconds since the start of the recording.

import type { Range } from "./model";

export interface State {
  selection: Range | null;
  /** The section that is shown first, and the table. */
  view: string;
  table: string;
  process: number;
  search: string;
  merge: string;
  colour: string;
  threads: string;
  /** Label of the only function that the flamegraph shows. */
  only: string;
  inverted: boolean;
  flame: boolean;
  plumbing: boolean;
  imports: boolean;
  recursion: boolean;
  waits: boolean;
}

const TEXTS = ["view", "table", "search", "merge", "colour", "threads", "only"] as const;
const FLAGS = ["inverted", "flame", "plumbing", "imports", "recursion", "waits"] as const;

export function parse(hash: string, length: number, initial: State): State {
  const found = new URLSearchParams(hash.replace(/^#/, ""));
  const state = { ...initial };
  const [from, to] = (found.get("sel") ?? "").split(",").map((text) => Math.round(parseFloat(text) * 1e6));
  if (from >= 0 && to > from && from < length) state.selection = { from, to: Math.min(to, length) };
  for (const name of TEXTS) state[name] = found.get(name) ?? initial[name];
  for (const name of FLAGS) state[name] = found.has(name) ? found.get(name) !== "0" : initial[name];
  const process = Number(found.get("process") ?? NaN);
  if (Number.isInteger(process) && process >= 0) state.process = process;
  return state;
}

export function address(state: State, initial: State): string {
  const parts = new URLSearchParams();
  if (state.selection) parts.set("sel", [state.selection.from, state.selection.to].map((us) => String(us / 1e6)).join(","));
  for (const name of TEXTS) if (state[name] !== initial[name]) parts.set(name, state[name]);
  for (const name of FLAGS) if (state[name] !== initial[name]) parts.set(name, state[name] ? "1" : "0");
  if (state.process !== initial.process) parts.set("process", String(state.process));
  return `#${parts.toString().replaceAll("%2C", ",")}`;
}
