// What the tracks of the timeline have in common.

import type { Spans } from "./data";
import type { Range } from "./model";

export interface Lane {
  label: string;
  /** What it is of, which stands above the first track of it. */
  of: string;
  height: number;
  /** Pixels to the next track. */
  gap?: number;
  group: "gpu" | "more gpu" | "rank" | "worker" | "host" | "worker host" | "trace" | "limits";
  draw: (area: Area) => void;
  /** In one word what it is in an interval. */
  value?: (range: Range) => string;
  tip: (us: number) => string;
  /** What a click at this time selects. */
  pick?: (us: number) => Range | null;
}

export interface Area {
  context: CanvasRenderingContext2D;
  y: number;
  width: number;
  height: number;
  left: number;
  view: Range;
}

export interface Times {
  start: Float64Array;
  end: Float64Array;
}

export function binned(spans: Spans, view: Range, width: number): Float64Array {
  const [sums, covered] = [new Float64Array(width), new Float64Array(width)];
  const factor = width / (view.to - view.from);
  for (let at = upper(spans.end, view.from); at < spans.start.length && spans.start[at] < view.to; at++) {
    const [x0, x1] = [Math.max((spans.start[at] - view.from) * factor, 0), Math.min((spans.end[at] - view.from) * factor, width)];
    for (let x = Math.floor(x0); x < x1 && x < width; x++) {
      const part = Math.min(x1, x + 1) - Math.max(x0, x);
      sums[x] += spans.value[at] * part;
      covered[x] += part;
    }
  }
  return sums.map((sum, x) => (covered[x] > 0 ? sum / covered[x] : NaN));
}

/** The first that is larger. */
export function upper(values: Float64Array, value: number): number {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

export function indexAt(spans: Times, us: number): number {
  const at = upper(spans.end, us);
  return at < spans.start.length && spans.start[at] <= us ? at : -1;
}
