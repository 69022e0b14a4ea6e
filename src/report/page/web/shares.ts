// How certain a share is: the same rules as src/analysis/intervals.rs, which says where they come from.

import type { Share } from "./data";

const MOST_BATCHES = 30;
const FEWEST_BATCHES = 10;
const TICKS_A_BATCH = 10;

/** Fewer ticks: a share is not quoted, only its upper end. */
export const FEW = 30;

const STUDENT: [number, number][] = [
  [6, 2.447],
  [8, 2.306],
  [10, 2.228],
  [13, 2.16],
  [16, 2.12],
  [20, 2.086],
  [25, 2.06],
  [30, 2.042],
  [32, 2.037],
];

function student(freedom: number): number {
  let found = 2.571;
  for (const [from, t] of STUDENT) {
    if (from <= freedom) found = t;
  }
  return found;
}

export const NO_SHARE: Share = { share: 0, low: 0, high: 0, samples: 0 };

export class Shares {
  private readonly count: number;
  private readonly width: number;
  private readonly parts: Float64Array;
  private readonly ticks: Float64Array;
  private elapsed = 0;

  constructor(
    private readonly total: number,
    private readonly all: number,
    categories: number,
  ) {
    this.count = Math.min(Math.max(Math.floor(all / TICKS_A_BATCH), FEWEST_BATCHES), MOST_BATCHES);
    // At least a nanosecond.
    this.width = Math.max(total / this.count, 1e-3);
    this.parts = new Float64Array(categories * this.count);
    this.ticks = new Float64Array(categories);
  }

  /** The thread's next `length`, of which `part` is of a category; call `next` after the last one. */
  add(category: number, length: number, ticks: number, part: number): void {
    if (part <= 0) return;
    this.ticks[category] += ticks;
    const end = this.elapsed + length;
    const density = part / Math.max(length, 1e-3);
    const last = this.count - 1;
    const first = Math.min(Math.floor(this.elapsed / this.width), last);
    const past = Math.min(Math.floor(end / this.width), last);
    const row = category * this.count;
    if (first === past) {
      this.parts[row + first] += (end - this.elapsed) * density;
      return;
    }
    for (let batch = first; batch <= past; batch++) {
      const from = batch * this.width;
      const to = batch === last ? Infinity : from + this.width;
      this.parts[row + batch] += Math.max(Math.min(end, to) - Math.max(this.elapsed, from), 0) * density;
    }
  }

  next(length: number): void {
    this.elapsed += length;
  }

  share(category: number): Share {
    if (this.total <= 0 || this.all <= 0) return NO_SHARE;
    const batches = this.parts.subarray(category * this.count, (category + 1) * this.count);
    let sum = 0;
    let squares = 0;
    for (let at = 0; at < batches.length; at++) {
      sum += batches[at];
      if (at > 0) squares += ((batches[at] - batches[at - 1]) / this.width) ** 2;
    }
    const share = Math.min(Math.max(sum / this.total, 0), 1);
    const variance = squares / (2 * (this.count - 1)) / this.count;
    const spread = share * (1 - share);
    const worth = variance <= 0 || spread <= 0 ? this.all : Math.min(Math.max(spread / variance, 1), Math.max(this.all, 1));
    const [low, high] = wilson(share, worth, student(Math.floor(((this.count - 1) * 2) / 3)));
    return { share, low, high, samples: this.ticks[category] };
  }
}

function wilson(value: number, samples: number, z: number): [number, number] {
  if (samples <= 0) return [0, 1];
  const z2 = (z * z) / samples;
  const middle = (value + z2 / 2) / (1 + z2);
  const half = (z / (1 + z2)) * Math.sqrt(Math.max((value * (1 - value)) / samples + z2 / (4 * samples), 0));
  return [Math.min(Math.max(middle - half, 0), value), Math.min(Math.max(middle + half, value), 1)];
}
