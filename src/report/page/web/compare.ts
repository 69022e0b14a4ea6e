// The page of a comparison: what differs beyond noise, two timelines, and a differential flamegraph. All figures are the report's.

import type { Data } from "./data";
import { byId, chooseTab, element, showTip, tabList } from "./dom";
import { clean } from "./format";
import type { Boxes, Key } from "./flame";
import { type Details, FlameView } from "./flameview";
import { type Cell, Selection, type Table } from "./model";
import { TableView } from "./tableview";
import { Timeline } from "./timeline";

interface Box {
  depth: number;
  label: string;
  file: string;
  a_ms: number;
  b_ms: number;
  difference_ms: [number, number] | null;
  change: number;
}

export interface Comparison {
  report: any;
  text: string;
  boxes: Box[];
}

/** Noise; slower by up to 10 %, 50 %, more; faster. ColorBrewer's RdBu, as in the SVG. */
const CHANGES = ["#ececec", "#fddbc7", "#f4a582", "#de6e5a", "#d1e5f0", "#92c5de", "#54a0cb"];

const ms = (value: number): string => value.toFixed(Math.abs(value) < 10 ? 2 : 1);
const signed = (value: number): string => `${value < 0 ? "−" : "+"}${ms(Math.abs(value))}`;

class DiffView extends FlameView {
  compared: Box[] = [];
  unit = "step";

  override colour(): void {
    this.fills = this.compared.map((box) => CHANGES[box.change]);
    this.redraw();
  }

  override details(at: number): Details {
    const box = this.compared[at];
    const of = `per ${this.unit}`;
    const difference = box.difference_ms
      ? `B − A ${signed(box.difference_ms[0])} ±${ms(box.difference_ms[1])} ms (95 %)${box.change ? "" : ": no difference beyond noise"}`
      : "seen too seldom to compare (fewer than 30 samples)";
    return { title: clean(box.label, 300), lines: [`B ${ms(box.b_ms)} ms ${of}, A ${ms(box.a_ms)} ms`, difference], file: box.file, line: 0 };
  }
}

/** Boxes from their depths; widths are B's. */
function arrange(compared: Box[]): Boxes {
  const count = compared.length;
  const boxes: Boxes = {
    keys: compared.map((box): Key => ({ label: clean(box.label, 200), name: box.label, file: box.file, line: 0, kind: 0 })),
    count,
    key: Int32Array.from(compared, (_, at) => at),
    depth: Uint16Array.from(compared, (box) => box.depth),
    parent: new Int32Array(count).fill(-1),
    end: new Int32Array(count).fill(count),
    left: new Float64Array(count),
    total: Float64Array.from(compared, (box) => box.b_ms * 1e3),
    self: new Float64Array(count),
    thread: new Int32Array(count),
    deepest: compared.reduce((most, box) => Math.max(most, box.depth), 0),
    whole: (compared[0]?.b_ms ?? 0) * 1e3,
    boxOf: new Int32Array(0),
    boxOfQueue: new Int32Array(0),
  };
  const open: number[] = [];
  const next: number[] = [];
  compared.forEach((box, at) => {
    while (open.length > box.depth) boxes.end[open.pop()!] = at;
    const parent = open.at(-1) ?? -1;
    boxes.parent[at] = parent;
    boxes.left[at] = parent < 0 ? 0 : next[parent];
    next[at] = boxes.left[at];
    if (parent >= 0) next[parent] += boxes.total[at];
    open.push(at);
  });
  return boxes;
}

export class ComparePage {
  private readonly table: TableView;
  private readonly flame: DiffView;
  private readonly timelines: Timeline[] = [];

  constructor(
    private readonly a: Data,
    private readonly b: Data,
    private readonly comparison: Comparison,
  ) {
    this.table = new TableView(byId("table"), () => null, (_, row) => this.search(String(row[1])));
    const details = (found: Details | null, x: number, y: number) => showTip(found ? [found.title, ...found.lines, clean(found.file, 300)].filter(Boolean) : null, x, y);
    const matches = (text: string) => (byId("matches").textContent = text);
    this.flame = new DiffView(b, byId("flame-canvas"), byId("flame-scroll"), byId("flame-space"), details, matches, () => {}, () => {});
  }

  start(): void {
    this.answer();
    this.draw();
    this.tabs();
    byId("report-text").textContent = this.comparison.text;
    byId("version").textContent = `Compared by torchspy ${clean(this.comparison.report.torchspy, 40)}, rules ${this.comparison.report.rules}.`;
    byId<HTMLInputElement>("search").addEventListener("input", (event) => this.flame.search((event.target as HTMLInputElement).value));
    byId("flame-reset").addEventListener("click", () => this.flame.reset());
    window.addEventListener("resize", () => this.redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  private redraw(): void {
    this.timelines.forEach((timeline) => timeline.redraw());
    this.flame.redraw();
  }

  private get unit(): string {
    return this.comparison.report.unit === "step" ? "step" : "second of wall time";
  }

  private answer(): void {
    const { report, text } = this.comparison;
    byId("command").textContent = `B: ${clean(this.b.head.command, 300)}`;
    byId("facts").textContent = `against A: ${clean(this.a.head.command, 300)}`;
    const list = byId("verdict");
    for (const [word, says] of this.b.head.verdict) {
      if (word === "HASHED") list.append(element("dt", {}, word), element("dd", {}, clean(says)));
    }
    const [headline] = text.split("\n\n");
    list.append(element("dt", {}, "DIFF"), element("dd", { class: "verdict first" }, clean(headline.replaceAll("\n", " "), 600)));
    for (const [at, { what, a, b }] of report.differs.entries()) {
      list.append(element("dt", {}, at ? "" : "NOT THE SAME"), element("dd", {}, clean(`${what}: A ${a.join(", ")}; B ${b.join(", ")}`, 400)));
    }
    const scatter = `${(report.run_to_run.relative * 100).toFixed(1)} % from run to run, ${report.run_to_run.measured ? "measured" : "assumed: several runs of each would measure it"}`;
    list.append(element("dt", {}, "NOISE"), element("dd", {}, scatter));
    document.querySelector("#answer h2")!.textContent = `Parts that differ most, ms per ${this.unit}`;
    const most = report.parts.filter((part: any) => part.beyond_noise).sort((x: any, y: any) => Math.abs(y.difference_s) - Math.abs(x.difference_s));
    byId("time-list").replaceChildren(
      ...most.slice(0, 8).map((part: any) => {
        const dot = element("i");
        dot.style.background = part.difference_s > 0 ? CHANGES[3] : CHANGES[6];
        return element("li", {}, dot, element("span", {}, `${clean(part.name, 60)} (${part.kind.replaceAll("_", " ")})`), element("b", {}, `${signed(part.difference_s * 1e3)} ±${ms(part.half_s * 1e3)}`));
      }),
    );
    byId("time-of").textContent = most.length ? "A part and what it calls are both listed: they do not add up." : "Nothing differs beyond noise.";
  }

  private draw(): void {
    const place = document.querySelector("#timeline .canvases")!;
    const sides: [string, Data, any][] = [
      ["A", this.a, this.comparison.report.a[0]],
      ["B", this.b, this.comparison.report.b[0]],
    ];
    const parts = sides.flatMap(([name, data, run]) => {
      const canvas = element("canvas", { "aria-hidden": "true" });
      const overlay = element("canvas", { tabindex: 0, role: "img", class: "overlay" });
      const several = this.comparison.report[name.toLowerCase()].length;
      const title = `${name}: ${clean(String(run?.file ?? ""), 200)}${several > 1 ? ` (the first of ${several} runs)` : ""}`;
      const timeline: Timeline = new Timeline(data, canvas, overlay, { moreGpu: false, workers: false, host: false, workerHost: false, trace: false, limits: false }, (range) => timeline.select(range), showTip);
      this.timelines.push(timeline);
      overlay.setAttribute("aria-label", `${title}. ${timeline.describe()}`);
      return [element("h3", {}, title), element("div", { class: "canvases" }, canvas, overlay)];
    });
    place.replaceWith(...parts);
    const legend = (entries: [string, string][]) =>
      entries.map(([name, fill]) => {
        const dot = element("i");
        dot.style.background = fill;
        return element("li", {}, dot, name);
      });
    const lists = this.timelines[1].legend().filter(([, entries]) => entries.length);
    byId("time-legend").replaceChildren(...lists.map(([title, entries]) => element("ul", { class: "legend" }, element("li", { class: "title" }, title), ...legend(entries))));
    const words = this.comparison.report.unit === "step" ? ["slower", "faster"] : ["larger share", "smaller share"];
    const labels = ["no difference beyond noise", ...words.flatMap((word) => ["up to 10 %", "up to 50 %", "more"].map((by) => `${word}, ${by}`))];
    byId("legend").replaceChildren(...legend(labels.map((label, at): [string, string] => [label, CHANGES[at]])));
    this.flame.compared = this.comparison.boxes;
    this.flame.unit = this.unit;
    this.flame.set(arrange(this.comparison.boxes), new Selection(this.b, { from: 0, to: 0 }));
    byId("flamegraph-title").textContent = `Differential flamegraph: widths are B's, ms per ${this.unit}`;
    byId("flame-canvas").setAttribute("aria-label", `Differential flamegraph in ${this.comparison.boxes.length} boxes. The table below has the parts as text.`);
  }

  private tabs(): void {
    const { parts } = this.comparison.report;
    const kinds = [...new Set<string>(parts.map((part: any) => part.kind))];
    const lists: [string, any[]][] = [["beyond noise", parts.filter((part: any) => part.beyond_noise)], ...kinds.map((kind): [string, any[]] => [kind.replaceAll("_", " "), parts.filter((part: any) => part.kind === kind)])];
    const select = byId<HTMLSelectElement>("table-select");
    const show = (at: number) => {
      select.value = String(at);
      chooseTab(String(at));
      this.table.set(this.parts(lists[at][0], lists[at][1]));
    };
    const tabs = lists.map(([name, rows], at) => ({ id: String(at), title: `${name} (${rows.length})` }));
    select.append(...tabs.map(({ id, title }) => element("option", { value: id }, title)));
    byId("tabs").append(tabList("tables", tabs, (id) => show(Number(id))));
    select.addEventListener("change", () => show(Number(select.value)));
    show(0);
  }

  private parts(title: string, parts: any[]): Table {
    const rows = parts.map((part): Cell[] => [
      part.kind.replaceAll("_", " "),
      part.name,
      part.a.mean_s * 1e3,
      part.b.mean_s * 1e3,
      part.difference_s * 1e3,
      part.half_s * 1e3,
      part.beyond_noise ? part.verdict : "",
      part.file ? { file: part.file, line: part.line ?? 0 } : null,
    ]);
    rows.sort((x, y) => Math.abs(Number(y[4])) - Math.abs(Number(x[4])));
    return {
      id: `parts ${title}`,
      title,
      note: `Wall time of the training thread, ms per ${this.unit}. Differences are beyond noise with all parts taken into account.`,
      whole: false,
      rows,
      columns: [
        { key: "kind", label: "kind", kind: "text" },
        { key: "name", label: "part", kind: "text" },
        { key: "a_ms", label: "A", kind: "milliseconds" },
        { key: "b_ms", label: "B", kind: "milliseconds" },
        { key: "difference_ms", label: "B − A", kind: "milliseconds" },
        { key: "half_ms", label: "±95 %", kind: "milliseconds" },
        { key: "verdict", label: "beyond noise", kind: "text" },
        { key: "at", label: "at", kind: "place" },
      ],
    };
  }

  private search(name: string): void {
    const pattern = name.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
    byId<HTMLInputElement>("search").value = pattern;
    this.flame.search(pattern);
    byId("flamegraph").scrollIntoView();
  }
}
