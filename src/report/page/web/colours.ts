// Colours of kinds, phases and waits. Those of kinds are the SVG's (src/report/flamegraph/palette.rs): black text is readable on all.

export const KINDS = [
  "#ffcb05",
  "#ffff71",
  "#d9bb92",
  "#d15036",
  "#fc7a2b",
  "#d8a7ff",
  "#1c8fff",
  "#5cd85b",
  "#3c98bd",
  "#d6a6b2",
  "#9d7d6a",
  "#6d7b86",
  "#f5ffcf",
  "#dbff9d",
  "#e6d2ff",
  "#ececec",
];

const PHASES: Record<string, string> = {
  input: "#3c98bd",
  forward: "#5b8def",
  backward: "#a783e8",
  recompute: "#d3bdf7",
  optimizer: "#e58ba0",
  communication: "#f0a04b",
  compile: "#a9b84a",
  checkpoint: "#b08968",
  startup: "#b4b8bd",
  shutdown: "#94999f",
  framework: "#d8b94a",
  user: "#6fbf7f",
};

/** For the regions that the user named. */
const MORE = ["#ff8fab", "#7bdff2", "#b2f7ef", "#f7d6e0", "#eff7b6", "#cdb4db", "#ffc8dd", "#a2d2ff", "#fcd5ce", "#d8e2dc", "#ffe5d9", "#9d8189"];

export function phaseColours(names: string[]): string[] {
  let more = 0;
  return names.map((name) => PHASES[name] ?? MORE[more++ % MORE.length]);
}

const WAITS: Record<string, string> = {
  gpu_sync: "#5cc45b",
  gpu_copy: "#a5d86e",
  collective: "#f0a04b",
  input_queue: "#3c98bd",
  gil: "#e5c542",
  autograd: "#a783e8",
  omp_barrier: "#b98a70",
  lock: "#8d99a6",
  disk: "#c97b84",
  socket: "#e08dac",
  io: "#d3a0a7",
  child: "#b4b8bd",
  events: "#9fb4c7",
  sleep: "#c3cbd3",
  cpu: "#e0604c",
  stopped: "#94999f",
};

export const waitColours = (names: string[]): string[] => names.map((name) => WAITS[name] ?? "#999999");

const ROWS: Record<string, string> = {
  host_computation: "#5b8def",
  omp_barrier: "#b98a70",
  communication: "#f0a04b",
  input: "#3c98bd",
  gpu_wait: "#5cc45b",
  python: "#e5c542",
  cpu_wait: "#e0604c",
  compile: "#a9b84a",
  startup: "#b4b8bd",
  shutdown: "#94999f",
  other: "#8d99a6",
  unclassified: "#d5d8db",
};

export const rowColours = (names: string[]): string[] => names.map((name) => ROWS[name] ?? "#999999");

/** From busy to idle, as in the SVG; the last is for no GPU. */
export const IDLE = ["#ffffd5", "#e4e091", "#ffd964", "#ff8400", "#d04f00", "#e6e4e7"];

export const RANKS = ["#5b8def", "#f0a04b", "#6fbf7f", "#e58ba0", "#a783e8", "#e5c542", "#3c98bd", "#b08968"];
