// The page: the answer, and one selection of time that all the rest follows.

import { IDLE, KINDS, RANKS, rowColours } from "./colours";
import { ComparePage } from "./compare";
import { Data, LEFT_OUT, type Share, inflate } from "./data";
import { byId, chooseTab, colour, element, showTip, sized, tabList } from "./dom";
import { amount, clean, duration, isPlace, percent, shareText } from "./format";
import { Flame, type Merge } from "./flame";
import { type Colours, type Details, FlameView } from "./flameview";
import { type Cell, type Range, Selection, type Table, View, statistics, wholeTables } from "./model";
import { FEW } from "./shares";
import { type State, address, parse } from "./state";
import { TableView } from "./tableview";
import { hasMemory, isShort } from "./memory";
import { type Shown, Timeline, trackName } from "./timeline";

/** What the report's texts call a table of the page. */
const TABLE_NAMES: Record<string, string> = { "PHASE x ACTIVITY": "matrix", WAITS: "waits", OPERATORS: "operators" };

/** The table that says more of a row of the summary. */
const ROW_TABLES: Record<string, string> = {
  host_computation: "matrix",
  omp_barrier: "waits",
  communication: "waits",
  input: "waits",
  gpu_wait: "waits",
  cpu_wait: "waits",
  python: "functions",
  startup: "user_lines",
  shutdown: "functions",
};

/** Name, value, and what to know of it. */
type Card = [string, string, string];
/** Cards of steps, and which steps the times are of. */
type Pace = [Card[], string];

const whole = (count: number): string => count.toLocaleString("en");
const rate = (value: number): string => Number(value.toPrecision(3)).toLocaleString("en");

const encoded = (path: string): string => path.split("/").map(encodeURIComponent).join("/");

const EDITORS: Record<string, (file: string, line: number) => string> = {
  vscode: (file, line) => `vscode://file${encoded(file)}:${line}`,
  idea: (file, line) => `idea://open?file=${encodeURIComponent(file)}&line=${line}`,
  vim: (file, line) => `mvim://open?url=file://${encoded(file)}&line=${line}`,
};

/** Memory of a browser that may deny it: a file that is opened from a mail. */
function remembered(key: string): string {
  try {
    return localStorage.getItem(`torchspy.${key}`) ?? "";
  } catch {
    return "";
  }
}

function remember(key: string, value: string): void {
  try {
    localStorage.setItem(`torchspy.${key}`, value);
  } catch {
    // It holds until the page is closed.
  }
}

/** What both kinds of page have. */
function settings(changed: () => void): void {
  const theme = byId<HTMLSelectElement>("theme");
  theme.value = remembered("theme");
  document.documentElement.dataset.theme = theme.value;
  theme.addEventListener("change", () => {
    remember("theme", theme.value);
    document.documentElement.dataset.theme = theme.value;
    changed();
  });
  byId("keys").addEventListener("click", () => byId<HTMLDialogElement>("help").showModal());
}

/** Links within the page: a document of a frame without an address (srcdoc) would leave for its parent's. */
function sections(): void {
  document.querySelectorAll<HTMLAnchorElement>("a[href^='#']").forEach((link) =>
    link.addEventListener("click", (event) => {
      const section = document.getElementById(link.hash.slice(1));
      if (!section) return;
      event.preventDefault();
      section.scrollIntoView();
      section.tabIndex = -1;
      section.focus({ preventScroll: true });
    }),
  );
}

class Page {
  private readonly initial: State;
  private state: State;
  private selection: Selection;
  private view: View;
  private readonly flame: Flame;
  private readonly flameView: FlameView;
  private readonly timeline: Timeline;
  private readonly tableView: TableView;
  private readonly whole: Table[];
  /** Of the files whose text the page has. */
  private readonly lines = new Map<string, string[]>();
  private readonly shown: Shown;
  private editor = remembered("editor") || "vscode";

  constructor(private readonly data: Data) {
    const { processes, report } = data.head;
    const primary = Math.max(processes.findIndex((process) => process.primary), 0);
    this.initial = {
      selection: null,
      view: "",
      table: "user_lines",
      process: primary,
      search: "",
      merge: "function",
      colour: "kind",
      threads: "training",
      only: "",
      inverted: false,
      flame: false,
      plumbing: false,
      imports: false,
      recursion: true,
      waits: false,
    };
    this.state = parse(location.hash, data.head.length_us, this.initial);
    if (!processes[this.state.process]) this.state.process = primary;
    const workers = new Set(processes.filter((process) => process.role === "dataloader_worker").map((process) => `${process.serves} ${process.worker}`)).size;
    this.shown = { moreGpu: report.gpus.length === 1, workers: workers <= 8, host: processes.length <= 4, workerHost: false, trace: true, limits: isShort(data.head) };
    this.whole = wholeTables(data);
    this.selection = new Selection(data, this.range);
    this.view = new View(this.selection, this.state.process);
    this.flame = new Flame(data);
    const tip = (lines: string[] | null, x: number, y: number) => this.tip(lines, x, y);
    this.flameView = new FlameView(
      data,
      byId("flame-canvas"),
      byId("flame-scroll"),
      byId("flame-space"),
      (details, x, y) => this.details(details, x, y),
      (text) => (byId("matches").textContent = text),
      (file, line) => this.open(file, line),
      (label) => this.only(label),
    );
    this.timeline = new Timeline(data, byId("time-canvas"), byId("time-overlay"), this.shown, (range) => this.select(range), tip);
    this.tableView = new TableView(
      byId("table"),
      (file, line) => this.link(file, line),
      (table, row) => this.picked(table, row),
    );
  }

  /** A row was clicked: a step is selected, code is searched for. */
  private picked(table: Table, row: Cell[]): void {
    if (table.id === "steps") {
      const from = Math.round(Number(row[1]) * 1e6);
      this.select({ from, to: from + Math.round(Number(row[2]) * 1e3) }, true);
      return;
    }
    const name = String(row[table.columns.findIndex((column) => column.key === "name")] ?? "");
    this.state.search = name.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
    byId<HTMLInputElement>("search").value = this.state.search;
    this.save();
    this.flameView.search(this.state.search);
    byId("flamegraph").scrollIntoView();
  }

  private get range(): Range {
    return this.state.selection ?? { from: 0, to: Infinity };
  }

  start(): void {
    sections();
    this.answer();
    this.controls();
    this.about();
    this.update();
    const section = this.state.view && document.getElementById(this.state.view);
    if (section) section.scrollIntoView();
    window.addEventListener("hashchange", () => this.restore());
    new ResizeObserver(() => this.resized()).observe(byId("timeline"));
    document.addEventListener("keydown", (event) => this.key(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.resized());
    window.addEventListener("beforeprint", () => this.print("light"));
    window.addEventListener("afterprint", () => this.print(byId<HTMLSelectElement>("theme").value));
  }

  /** Paper is white. */
  private print(theme: string): void {
    document.documentElement.dataset.theme = theme;
    this.timeline.drawNow();
    this.flameView.drawNow();
  }

  private resized(): void {
    this.timeline.redraw();
    this.flameView.redraw();
  }

  private restore(): void {
    if (location.hash === address(this.state, this.initial)) return;
    this.state = parse(location.hash, this.data.head.length_us, this.initial);
    if (!this.data.head.processes[this.state.process]) this.state.process = this.initial.process;
    this.showControls();
    this.update();
    const section = this.state.view && document.getElementById(this.state.view);
    if (section) section.scrollIntoView();
  }

  private save(): void {
    const hash = address(this.state, this.initial);
    try {
      history.replaceState(null, "", hash === "#" ? location.pathname + location.search : hash);
    } catch {
      // A frame without an address of its own (srcdoc).
    }
  }

  select(range: Range | null, show = false): void {
    const all = this.data.head.length_us;
    if (range) range = { from: Math.max(range.from, 0), to: Math.min(range.to, all) };
    this.state.selection = range && range.to > range.from ? range : null;
    this.update();
    if (show) byId("timeline").scrollIntoView({ block: "nearest" });
  }

  /** Everything that depends on the selection. */
  private update(): void {
    this.save();
    this.selection = new Selection(this.data, this.range);
    this.view = new View(this.selection, this.state.process);
    this.timeline.select(this.state.selection);
    this.selected();
    this.time();
    this.cards();
    this.drawFlame();
    this.drawTable();
    this.drawSource();
  }

  /** The text of a file, with the time of its lines. */
  private drawSource(): void {
    const source = this.data.head.sources?.[Number(byId<HTMLSelectElement>("source-file").value || 0)];
    if (!source) return;
    byId("source-changed").textContent = source.changed ? "changed after the recording began: lines may not be those that ran" : "";
    const times = new Map<number, { us: number; share: Share }>();
    for (const [s, share, place] of this.view.userLines().rows) {
      if (!isPlace(place) || place.file !== source.file) continue;
      // A line of several functions has the interval of the largest part.
      const known = times.get(place.line);
      times.set(place.line, { us: Number(s) * 1e6 + (known?.us ?? 0), share: known?.share ?? (share as Share) });
    }
    const lines = source.text.split("\n").slice(0, 20000);
    const rows = lines.map((text, at) => {
      const time = times.get(at + 1);
      const href = this.link(source.file, at + 1);
      const number = element("td", { class: "number" }, href ? element("a", { href, tabindex: -1 }, String(at + 1)) : String(at + 1));
      const share = element("td", { class: "number" }, time ? shareText(time.share) : "");
      if (time) {
        share.classList.add("bar");
        share.style.setProperty("--part", percent(time.share.share, 2).replace(" ", ""));
      }
      return element("tr", {}, element("td", { class: "number" }, time ? duration(time.us) : ""), share, number, element("td", { class: "code" }, clean(text.replaceAll("\t", "    "), 1000)));
    });
    const heads = ["time", "share", "line", "text"].map((label) => element("th", { scope: "col" }, label));
    const box = byId("source-lines");
    box.replaceChildren(element("table", { class: "source" }, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows)));
    const hottest = [...times].sort((a, b) => b[1].us - a[1].us)[0];
    const row = hottest && rows[hottest[0] - 1];
    if (row) box.scrollTop = row.offsetTop - box.clientHeight / 3;
  }

  private selected(): void {
    const { selection } = this.state;
    const all = this.data.head.length_us;
    const chosen = selection ?? { from: 0, to: all };
    byId("selected").textContent = selection
      ? `${(selection.from / 1e6).toFixed(3)} to ${(selection.to / 1e6).toFixed(3)} s (${duration(selection.to - selection.from)})`
      : `${this.data.all} (${duration(all)})`;
    byId<HTMLButtonElement>("clear").hidden = !selection;
    byId<HTMLInputElement>("from").value = (chosen.from / 1e6).toFixed(3);
    byId<HTMLInputElement>("to").value = (chosen.to / 1e6).toFixed(3);
    byId("whole-note").hidden = !selection;
    byId("whole-note").textContent = `The verdict is of ${this.data.ofAll}.`;
  }

  private link(file: string, line: number): string | null {
    if (!file.startsWith("/")) return null;
    const given = this.data.head.editor;
    if (this.editor === "repository" && given && "repository" in given) {
      const { url, name, revision } = given.repository;
      const at = file.indexOf(`/${name}/`);
      if (at < 0 || !url.startsWith("https://")) return null;
      return `${url}/blob/${encodeURIComponent(revision)}/${encoded(file.slice(at + name.length + 2))}#L${line || 1}`;
    }
    return (EDITORS[this.editor] ?? EDITORS.vscode)(file, line || 1);
  }

  private open(file: string, line: number): void {
    const href = this.link(file, line);
    if (href) element("a", { href }).click();
  }

  // The answer.

  private answer(): void {
    const { head } = this.data;
    const { report } = head;
    byId("command").textContent = clean(head.command, 400);
    const process = head.processes[this.initial.process];
    const conditions = report.conditions ?? {};
    const gpus = new Map<string, number>();
    for (const gpu of report.gpus) gpus.set(gpu.name, (gpus.get(gpu.name) ?? 0) + 1);
    const facts = [
      `host ${clean(report.host, 80)}`,
      ...Array.from(gpus, ([name, count]) => `${count > 1 ? `${count} × ` : ""}${clean(name, 80)}`),
      conditions.torch ? `torch ${clean(String(conditions.torch), 40)}` : "",
      `${duration(head.length_us)} recorded`,
      new Date(report.started_wall_ns / 1e6).toISOString().slice(0, 16).replace("T", " ") + " UTC",
    ];
    byId("facts").textContent = facts.filter(Boolean).join("  ·  ");
    const list = byId("verdict");
    let last = "";
    for (const [word, text] of head.verdict) {
      const kind = (word || last).toLowerCase();
      last = word || last;
      list.append(element("dt", { class: kind }, word), element("dd", { class: word ? `${kind} first` : kind }, ...this.linked(clean(text))));
    }
    if (!head.verdict.length) list.append(element("dd", {}, process ? "No verdict: nothing in this recording trains." : "Nothing was sampled."));
  }

  /** Steps, and how busy GPUs are. Its height does not depend on the selection: the timeline below would move as one drags. */
  private cards(): void {
    const { head } = this.data;
    const { report } = head;
    const isReported = !this.state.selection && head.processes[this.state.process]?.primary;
    const [cards, note] = isReported ? this.reportedPace() : this.selectedPace();
    const busy = report.gpus.filter((gpu: any) => gpu.utilization !== null);
    if (busy.length) {
      const mean = busy.reduce((sum: number, gpu: any) => sum + gpu.utilization, 0) / busy.length;
      const of = [busy.length > 1 ? `mean of ${busy.length}` : "", this.state.selection ? "whole run" : ""];
      cards.push(["GPU busy", percent(mean, 0), of.filter(Boolean).join(", ")]);
    }
    byId("cards").replaceChildren(
      ...cards.map(([name, value, more]) => element("div", { class: "card" }, element("span", { class: "dim" }, name), element("b", {}, value), element("span", { class: "dim" }, more))),
    );
    byId("cards-note").textContent = note;
  }

  /** Those of the report. */
  private reportedPace(): Pace {
    const { progress } = this.data.head.report;
    if (!progress) return [[], ""];
    const cards: Card[] = [["steps", `${whole(progress.steps)}${progress.steps_at_most ? "+" : ""}`, progress.epochs ? `${progress.epochs} epoch${progress.epochs === 1 ? "" : "s"}` : ""]];
    if (!progress.step_ms) return [cards, "Too few steps to be timed."];
    const { mean, p95, steps } = progress.step_ms;
    const { start, start_seconds, compiles } = progress.left_out;
    cards.push(["mean step", duration(mean * 1e3), p95 ? `p95 ${duration(p95 * 1e3)}` : ""]);
    if (progress.samples_per_s) cards.push(["samples/s", rate(progress.samples_per_s), "of this process"]);
    const without = `, without ${whole(start)} ${compiles ? "until torch.compile was done" : "slow at the start"} (${duration(start_seconds * 1e6)})`;
    return [cards, `Times are of ${whole(steps)} steps${start ? without : ""}.`];
  }

  /** The same of the interval and the process that are selected. */
  private selectedPace(): Pace {
    const { head } = this.data;
    const process = head.processes[this.state.process];
    if (!process?.has_steps) return [[], ""];
    const { steps, lengths, leftOut, all } = this.view.pace();
    const where = this.state.selection ? "in the selection" : "of this process";
    const cards: Card[] = [["steps", whole(steps), where]];
    if (!lengths.length) return [cards, `No step lies ${where} as a whole.`];
    const mean = lengths.reduce((sum, length) => sum + length, 0) / lengths.length;
    cards.push(["mean step", duration(mean), `longest ${duration(lengths[lengths.length - 1])}`]);
    const { progress } = head.report;
    if (process.primary && progress?.samples_per_s) {
      const each = progress.samples_per_s / progress.steps_per_s;
      cards.push(["samples/s", rate((each * 1e6) / mean), "of this process"]);
    }
    // Short: a second line would move the timeline.
    const reasons = [...leftOut].map(([why, count]) => `${whole(count)} (${LEFT_OUT[why]})`).join(", ");
    const those = `Times are of ${whole(lengths.length)} step${lengths.length === 1 ? "" : "s"}`;
    if (all) return [cards, `${those}, left out of the run's mean: ${reasons}.`];
    return [cards, `${those} ${where}${reasons ? `, without ${reasons}` : ""}.`];
  }

  /** A text of the report whose places in the user's code open, and whose tables are those of this page. */
  private linked(text: string): (Node | string)[] {
    const files = this.data.head.functions.files.filter((file) => file.startsWith("/"));
    const parts = text.split(/([\w.-]+\.py:\d+|PHASE x ACTIVITY|WAITS|OPERATORS)/);
    return parts.map((part) => {
      const table = TABLE_NAMES[part];
      if (table && this.tableList().some(({ id }) => id === table)) return element("button", { class: "link", click: () => this.show(table, true) }, part);
      const [name, line] = part.split(":");
      const found = line && name.endsWith(".py") ? files.filter((file) => file.endsWith(`/${name}`)) : [];
      const href = found.length === 1 ? this.link(found[0], Number(line)) : null;
      return href ? element("a", { href }, part) : part;
    });
  }

  /** Where the training thread's time went. */
  private time(): void {
    const { head } = this.data;
    const rows = this.view.rows();
    const colours = rowColours(head.names.row);
    const isPrimary = head.processes[this.state.process]?.primary;
    const cuda = head.processes[this.state.process]?.cuda;
    const label = (at: number) => {
      if (head.names.row[at] !== "host_computation") return head.row_labels[at];
      return isPrimary ? head.report.computation_label : cuda ? "host op dispatch" : "host computation";
    };
    const order = rows.map((_, at) => at).filter((at) => rows[at].share > 0);
    order.sort((a, b) => rows[b].share - rows[a].share);
    const bar = byId("time-bar");
    bar.replaceChildren(
      ...order.map((at) => {
        const part = element("span", { title: `${label(at)} ${percent(rows[at].share)}` });
        part.style.width = percent(rows[at].share, 3).replace(" ", "");
        part.style.background = colours[at];
        return part;
      }),
    );
    bar.setAttribute("aria-label", `Host wall time: ${order.map((at) => `${label(at)} ${percent(rows[at].share)}`).join(", ")}`);
    const few = this.view.wall > 0 && this.selection.ticks[this.view.thread] < FEW;
    byId("time-list").replaceChildren(
      ...order.slice(0, 8).map((at) => {
        const dot = element("i");
        dot.style.background = colours[at];
        const id = ROW_TABLES[head.names.row[at]];
        const name = id ? element("button", { class: "link", title: "the table with the details", click: () => this.show(id, true) }, label(at)) : element("span", {}, label(at));
        return element("li", {}, dot, name, element("span", { class: "dim" }, duration(rows[at].share * this.view.wall)), element("b", {}, shareText(rows[at])));
      }),
    );
    byId("time-of").textContent = `100 % is ${duration(this.view.wall)} of ${clean(head.processes[this.state.process]?.label ?? "", 60)}'s training thread${few ? ", too few ticks for shares" : ""}; not GPU time`;
    const shown = ["utilization", "sm_active", "tensor_active", "dram_active", "power", "memory_used"];
    const gpu = head.processes[this.state.process]?.gpu;
    const figures = head.tracks.flatMap((track, at) => {
      if (gpu === null || track.gpu !== gpu || !shown.includes(track.kind)) return [];
      const { mean, covered } = statistics(this.data, at, this.range);
      return covered > 0 ? [`${trackName(track.kind)} ${amount(mean, track.unit)}`] : [];
    });
    byId("device").textContent = figures.length ? `GPU in the selection: ${figures.join(", ")}` : "";
  }

  // The flamegraph.

  private threads(): Set<number> {
    const { processes, threads } = this.data.head;
    const all = threads.map((_, at) => at);
    const { threads: wanted } = this.state;
    if (wanted === "all") return new Set(all);
    const rank = /^process:(\d+)$/.exec(wanted);
    if (rank) return new Set(all.filter((at) => threads[at].process === Number(rank[1])));
    const one = /^thread:(\d+)$/.exec(wanted);
    if (one) return new Set([Number(one[1])]);
    const training = processes.flatMap((process) => ((process.role === "trainer" || process.primary) && process.training_thread !== null ? [process.training_thread] : []));
    return new Set(training.length ? training : all);
  }

  private drawFlame(): void {
    const { state } = this;
    const options = {
      merge: state.merge as Merge,
      plumbing: state.plumbing,
      imports: state.imports,
      recursion: state.recursion,
      inverted: state.inverted,
      waits: state.waits,
      only: state.only,
      threads: this.threads(),
    };
    const boxes = this.flame.boxes(this.selection, options);
    this.flameView.colours = state.colour as Colours;
    this.flameView.icicle = !state.flame;
    this.flameView.set(boxes, this.selection);
    this.flameView.search(state.search);
    byId("only").hidden = !state.only;
    byId("only-name").textContent = clean(state.only, 200);
    byId("only-what").textContent = state.inverted ? "callers of" : "only";
    byId("flame-canvas").setAttribute(
      "aria-label",
      `Flamegraph of ${duration(boxes.whole)} in ${boxes.count} boxes. Arrow keys move, Enter zooms, Escape returns. The tables below have the same figures as text.`,
    );
    this.legend();
  }

  /** Shows one function alone: with all that it calls, or all that calls it. */
  private only(label: string): void {
    this.state.only = label;
    this.save();
    this.flameView.reset();
    this.drawFlame();
  }

  private legend(): void {
    const { names } = this.data.head;
    const kinds = this.flameView.kinds();
    const { processes } = this.data.head;
    const ranks = processes.flatMap((process, at) => (process.role === "trainer" || process.primary ? [process.rank ?? at] : []));
    const lists: Record<string, [string[], string[]]> = {
      kind: [kinds.map((kind) => names.kind[kind]), kinds.map((kind) => KINDS[kind])],
      phase: [this.phases.map(([name]) => name), this.phases.map(([, fill]) => fill)],
      gpu: [["GPU idle below 20 %", "20 to 40 %", "40 to 60 %", "60 to 80 %", "80 % and more", "no GPU known"], IDLE],
      rank: [ranks.map((rank) => `rank ${rank}`), ranks.map((rank) => RANKS[rank % RANKS.length])],
    };
    const [labels, colours] = lists[this.state.colour] ?? lists.kind;
    byId("legend").replaceChildren(
      ...labels.map((label, at) => legendEntry(label, colours[at])),
    );
  }

  private get phases(): [string, string][] {
    return this.timeline.legend()[0][1];
  }

  private details(details: Details | null, x: number, y: number): void {
    if (!details) return this.tip(null, 0, 0);
    const place = details.file ? clean(details.line ? `${details.file}:${details.line}` : details.file, 300) : "";
    const text = clean(this.text(details.file, details.line), 200);
    this.tip([details.title, ...details.lines, place, text].filter(Boolean), x, y);
  }

  private tip(lines: string[] | null, x: number, y: number): void {
    showTip(lines, x, y);
  }

  // Tables.

  private tableList(): { id: string; title: string; whole: boolean; traced?: boolean; make: () => Table }[] {
    const { view } = this;
    const { head } = this.data;
    const live: [string, string, () => Table, boolean?][] = [
      ["user_lines", "Your lines", () => this.withText(view.userLines())],
      ["matrix", "Phases", () => view.matrixTable()],
      ["waits", "Waits", () => view.waits()],
      ["operators", "Operators", () => view.operators(), head.columns["chain.operators.value"][2] > 0],
      ["modules", "Modules", () => view.modules(), head.modules.length > 0],
      ["steps", "Steps", () => view.steps(), head.processes.some((process) => process.has_steps)],
      ["functions", "Functions", () => view.code()[0]],
      ["lines", "Lines", () => view.code()[1]],
      ["native_functions", "Native functions", () => view.code()[2]],
      ["threads", "Threads", () => view.threads()],
      ["devices", "GPU and host", () => view.devices(), head.tracks.length > 0],
    ];
    const shown = live.filter(([, , , is]) => is !== false);
    return [...shown.map(([id, title, make]) => ({ id, title, whole: false, make })), ...this.whole.map((table) => ({ id: table.id, title: table.title, whole: true, traced: table.traced, make: () => table }))];
  }

  /** The text of a line, where the page has it. */
  private text(file: string, line: number): string {
    const source = this.data.head.sources?.find((each) => each.file === file);
    return source && !source.changed ? (this.lines.get(file) ?? this.split(source)).at(line - 1)?.trim() ?? "" : "";
  }

  private split({ file, text }: { file: string; text: string }): string[] {
    const lines = text.split("\n");
    this.lines.set(file, lines);
    return lines;
  }

  private withText(table: Table): Table {
    if (!this.data.head.sources?.length) return table;
    const rows = table.rows.map((row) => [...row, isPlace(row[2]) ? this.text(row[2].file, row[2].line) : ""]);
    return { ...table, rows, columns: [...table.columns, { key: "text", label: "text", kind: "text" }] };
  }

  private drawTable(): void {
    const list = this.tableList();
    const found = list.find(({ id }) => id === this.state.table) ?? list[0];
    const table = found.make();
    const select = byId<HTMLSelectElement>("table-select");
    select.value = found.id;
    this.tableView.set(table);
    this.stepsChart(table);
    chooseTab(found.id);
  }

  /** Lengths of the steps, and their distribution. */
  private stepsChart(table: Table): void {
    const chart = byId("steps-chart");
    chart.hidden = table.id !== "steps" || table.rows.length < 2;
    if (chart.hidden) return;
    const canvas = byId<HTMLCanvasElement>("steps-canvas");
    const values = table.rows.map((row) => Number(row[2]));
    const sorted = values.slice().sort((a, b) => a - b);
    const quantile = (part: number) => sorted[Math.min(Math.floor(part * sorted.length), sorted.length - 1)];
    const outlier = quantile(0.5) + 3 * (quantile(0.75) - quantile(0.25));
    const far = values.filter((value) => value > outlier).length;
    const text = `${values.length.toLocaleString("en")} steps: median ${duration(quantile(0.5) * 1e3)}, p95 ${duration(quantile(0.95) * 1e3)}, longest ${duration(sorted.at(-1)! * 1e3)}; ${far.toLocaleString("en")} outlier${far === 1 ? "" : "s"} above ${duration(outlier * 1e3)} (median and three times the interquartile range)`;
    byId("steps-text").textContent = text;
    canvas.setAttribute("aria-label", text);
    stepsPlot(canvas, table, values, quantile);
  }

  // Controls.

  private controls(): void {
    const { head } = this.data;
    byId("clear").addEventListener("click", () => this.select(null));
    const range = () => {
      const [from, to] = ["from", "to"].map((id) => Math.round(parseFloat(byId<HTMLInputElement>(id).value) * 1e6));
      if (from <= 0 && to >= head.length_us) this.select(null);
      else if (to > from) this.select({ from, to });
    };
    byId("from").addEventListener("change", range);
    byId("to").addEventListener("change", range);
    byId("zoom-in").addEventListener("click", () => this.timeline.zoom(0.5));
    byId("zoom-out").addEventListener("click", () => this.timeline.zoom(2));
    byId("zoom-selection").addEventListener("click", () => this.state.selection && this.timeline.zoomTo(this.state.selection));
    byId("zoom-all").addEventListener("click", () => this.timeline.zoomTo({ from: 0, to: head.length_us }));
    for (const name of ["moreGpu", "workers", "host", "workerHost", "trace", "limits"] as const) {
      const box = byId<HTMLInputElement>(`lane-${name}`);
      box.checked = this.shown[name];
      box.addEventListener("change", () => {
        this.shown[name] = box.checked;
        this.timeline.build();
        this.describe();
        this.timeLegend();
      });
    }
    byId("lane-moreGpu").parentElement!.hidden = !head.report.gpus.length;
    byId("lane-workers").parentElement!.hidden = !head.processes.some((process) => process.role === "dataloader_worker");
    byId("lane-host").parentElement!.hidden = !this.timeline.has("host");
    byId("lane-workerHost").parentElement!.hidden = !this.timeline.has("worker host");
    byId("lane-limits").parentElement!.hidden = !hasMemory(head.tracks);
    // What is folded says how near it is.
    byId("limits-near").textContent = head.limit_share > 0 ? ` (at most ${percent(head.limit_share, 0)} of a limit)` : "";
    const traced = head.traced?.window_us;
    byId("lane-trace").parentElement!.hidden = !traced;
    byId("zoom-trace").hidden = !traced;
    if (traced) {
      const margin = (traced[1] - traced[0]) / 20;
      byId("zoom-trace").addEventListener("click", () => this.timeline.zoomTo({ from: traced[0] - margin, to: traced[1] + margin }));
    }
    this.describe();
    this.timeLegend();
    const trainers = head.processes.map((process, at) => ({ process, at })).filter(({ process }) => process.role === "trainer" || process.primary);
    const processes = byId<HTMLSelectElement>("process");
    processes.append(...trainers.map(({ process, at }) => element("option", { value: at }, clean(process.label, 60))));
    processes.parentElement!.hidden = trainers.length < 2;
    processes.addEventListener("change", () => {
      this.state.process = Number(processes.value);
      this.update();
    });
    const threads = byId<HTMLSelectElement>("threads");
    const sampled = head.threads.map((thread, at) => ({ thread, at })).filter(({ at }) => this.data.first[at + 1] > this.data.first[at]);
    threads.append(
      element("option", { value: "training" }, "training threads"),
      element("option", { value: "all" }, "all threads"),
      element("optgroup", { label: "processes" }, ...head.processes.map((process, at) => element("option", { value: `process:${at}` }, clean(process.label, 60)))),
      element("optgroup", { label: "threads" }, ...sampled.slice(0, 500).map(({ thread, at }) => element("option", { value: `thread:${at}` }, clean(thread.label, 60)))),
    );
    for (const name of ["threads", "merge", "colour"] as const) {
      const select = byId<HTMLSelectElement>(name);
      select.addEventListener("change", () => {
        this.state[name] = select.value;
        this.save();
        this.drawFlame();
      });
    }
    for (const name of ["inverted", "flame", "plumbing", "imports", "recursion", "waits"] as const) {
      const box = byId<HTMLInputElement>(name);
      box.addEventListener("change", () => {
        this.state[name] = box.checked;
        this.save();
        this.drawFlame();
      });
    }
    const search = byId<HTMLInputElement>("search");
    search.addEventListener("input", () => {
      this.state.search = search.value;
      this.save();
      this.flameView.search(search.value);
    });
    byId("flame-reset").addEventListener("click", () => this.flameView.reset());
    byId("only-clear").addEventListener("click", () => this.only(""));
    const tables = byId<HTMLSelectElement>("table-select");
    const list = this.tableList();
    const groups = [["of the selection", "live"], [`of ${this.data.ofAll}`, "whole"], ["of the trace (disturbed times)", "trace"]] as const;
    for (const [title, group] of groups) {
      const those = list.filter((table) => (table.traced ? "trace" : table.whole ? "whole" : "live") === group);
      if (!those.length) continue;
      tables.append(element("optgroup", { label: title }, ...those.map((table) => element("option", { value: table.id }, table.title))));
      byId("tabs").append(element("span", { class: "dim" }, title), tabList(`tables ${title}`, those, (id) => this.show(id)));
    }
    tables.addEventListener("change", () => this.show(tables.value));
    settings(() => this.resized());
    const editor = byId<HTMLSelectElement>("editor");
    const given = head.editor;
    if (given) this.editor = "local" in given ? given.local : "repository";
    editor.querySelector<HTMLOptionElement>("option[value=repository]")!.hidden = !(given && "repository" in given);
    if (!(this.editor in EDITORS) && this.editor !== "repository") this.editor = "vscode";
    editor.value = this.editor;
    editor.addEventListener("change", () => {
      this.editor = editor.value;
      remember("editor", editor.value);
      this.drawTable();
    });
    const files = byId<HTMLSelectElement>("source-file");
    byId("source").hidden = !head.sources?.length;
    byId("no-source").hidden = head.sources !== null;
    files.append(...(head.sources ?? []).map(({ file }, at) => element("option", { value: at }, clean(file, 120))));
    files.addEventListener("change", () => this.drawSource());
    const most = new Map<string, number>();
    for (const [us, , place] of this.view.userLines().rows) if (isPlace(place)) most.set(place.file, (most.get(place.file) ?? 0) + Number(us));
    const first = (head.sources ?? []).map(({ file }, at) => ({ at, us: most.get(file) ?? 0 })).sort((a, b) => b.us - a.us)[0];
    if (first) files.value = String(first.at);
    for (const id of ["timeline", "flamegraph", "tables", "source"]) {
      byId(id).addEventListener("pointerdown", () => {
        if (this.state.view !== id) {
          this.state.view = id;
          this.save();
        }
      });
    }
    this.showControls();
  }

  private describe(): void {
    byId("time-overlay").setAttribute("aria-label", `${this.timeline.describe()}. Arrow keys pan, plus and minus zoom, Shift with arrows moves the selection, Escape clears it.`);
  }

  private timeLegend(): void {
    const lists = this.timeline.legend().filter(([, entries]) => entries.length);
    byId("time-legend").replaceChildren(...lists.map(([title, entries]) => element("ul", { class: "legend" }, element("li", { class: "title" }, title), ...entries.map(([name, fill]) => legendEntry(name.replaceAll("_", " "), fill)))));
  }

  private showControls(): void {
    byId<HTMLSelectElement>("process").value = String(this.state.process);
    byId<HTMLSelectElement>("threads").value = this.state.threads;
    byId<HTMLSelectElement>("merge").value = this.state.merge;
    byId<HTMLSelectElement>("colour").value = this.state.colour;
    byId<HTMLInputElement>("search").value = this.state.search;
    for (const name of ["inverted", "flame", "plumbing", "imports", "recursion", "waits"] as const) byId<HTMLInputElement>(name).checked = this.state[name];
  }

  private show(table: string, scroll = false): void {
    this.state.table = table;
    this.state.view = "tables";
    this.save();
    this.drawTable();
    if (scroll) byId("tables").scrollIntoView();
  }

  private key(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") byId("search").focus();
    else if (event.key === "?") byId<HTMLDialogElement>("help").showModal();
    else if (event.key === "t") byId("time-overlay").focus();
    else if (event.key === "f") byId("flame-canvas").focus();
    else if (event.key === "Escape" && !byId<HTMLDialogElement>("help").open) this.select(null);
    else return;
    if (event.key !== "Escape") event.preventDefault();
  }

  // About.

  private about(): void {
    const { head } = this.data;
    byId("report-text").textContent = head.text;
    const notes = [...head.report.missing, ...head.report.gpus_missing].map((text: string) => clean(text, 400));
    notes.push(...(head.traced?.notes ?? []).map((text) => clean(text, 400)));
    if (head.bin_us) notes.push(`The recording has more samples than a page holds: within ${duration(head.bin_us)} their order is not kept, so times are exact to that.`);
    if (!notes.length) notes.push("Nothing that torchspy knows of.");
    byId("missing").replaceChildren(...notes.map((text) => element("li", {}, text)));
    const { quality, conditions } = head.report;
    byId("sampler").replaceChildren(...pairs(samplerFacts(quality)));
    byId("conditions").replaceChildren(...pairs(Object.entries(conditions ?? {}).filter(([key, value]) => key !== "version" && value !== null && typeof value !== "object").map(([key, value]): [string, string] => [key.replaceAll("_", " "), String(value)])));
    byId("version").textContent = `Recorded by torchspy ${clean(head.report.torchspy, 40)}, rules ${head.report.rules}; ${head.samples.toLocaleString("en")} intervals in this page.`;
  }
}

const pairs = (facts: [string, string][]): HTMLElement[] => facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, clean(value, 200))]);

/** What the sampler itself did, of the report's figures. */
function samplerFacts(quality: any): [string, string][] {
  if (!quality) return [];
  const count = (value: number) => value.toLocaleString("en");
  const us = (value: number) => duration(value);
  const truncated = Object.entries<number>(quality.partial ?? {}).map(([why, stacks]) => `${why.replaceAll("_", " ")} ${count(stacks)}`);
  return [
    ["rate", `${quality.rate_hz.toFixed(1)} of ${quality.asked_hz} Hz; training threads ${quality.training_hz.toFixed(0)} Hz`],
    ["samples", `${count(quality.samples)}, of which ${count(quality.fresh)} were read and the others are of threads that had not run`],
    ["stops", quality.stops ? `${count(quality.stops)}, half of them below ${us(quality.stop_us.p50)}, p99 ${us(quality.stop_us.p99)}, longest ${us(quality.stop_us.max)}; ${percent(quality.stopped_share)} of the target's running time` : "none"],
    ["own cost", `${percent(quality.own_cpu)} of a core`],
    ["native stacks to their root", percent(quality.rooted_share)],
    ["Python merged", percent(quality.merged_share, 2)],
    ["guessed frames", `${percent(quality.guessed_frames)}, in ${percent(quality.guessed_stacks)} of the stacks`],
    ["truncated stacks", truncated.join(", ") || "none"],
    ["unclassified", `${percent(quality.unclassified)} of the training threads' time`],
    ["not captured", `${count(quality.captures.unread ?? 0)}; ${count(quality.skipped_for_budget)} left out to stay within the stop budget`],
    ["lost", count(quality.lost)],
  ];
}

function legendEntry(label: string, fill: string): HTMLElement {
  const dot = element("i");
  dot.style.background = fill;
  return element("li", {}, dot, clean(label, 60));
}

const PLOT_HEIGHT = 140;
const BINS = 40;

/** Lengths in order, with a line at the median, and how often each occurs. */
function stepsPlot(canvas: HTMLCanvasElement, table: Table, values: number[], quantile: (part: number) => number): void {
  const width = canvas.clientWidth;
  const context = sized(canvas, width, PLOT_HEIGHT);
  context.clearRect(0, 0, width, PLOT_HEIGHT);
  const [dim, accent, slow, grid] = ["dim", "accent", "slow", "grid"].map(colour);
  const [left, tall] = [56, PLOT_HEIGHT - 20];
  const plot = Math.floor(width * 0.68) - left;
  const top = Math.min(quantile(1), quantile(0.99) * 1.5) || 1;
  const y = (value: number) => tall - Math.min(value / top, 1) * (tall - 10);
  const right = left + plot + 24;
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const value of [0, quantile(0.5), top]) {
    context.fillStyle = grid;
    context.fillRect(left, Math.round(y(value)), plot, 1);
    context.fillStyle = dim;
    if (value || y(0) - y(quantile(0.5)) > 12) context.fillText(value ? duration(value * 1e3) : "0", left - 6, y(value));
  }
  values.forEach((value, at) => {
    const x = left + ((at + 0.5) / values.length) * plot;
    context.fillStyle = table.rows[at][3] ? slow : accent;
    // Above the scale: a mark at its top.
    if (value > top) context.fillRect(x - 1, 2, 2, 7);
    else context.fillRect(x - 1.5, y(value) - 1.5, 3, 3);
  });
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  context.fillStyle = dim;
  context.fillText(`step ${table.rows[0][0]} to ${table.rows.at(-1)![0]}; the line is the median`, left, PLOT_HEIGHT - 5);
  const bins = new Array<number>(BINS).fill(0);
  values.forEach((value) => bins[Math.min(Math.floor((value / top) * BINS), BINS - 1)]++);
  const most = Math.max(...bins);
  const wide = (width - right) / BINS;
  const outlier = quantile(0.5) + 3 * (quantile(0.75) - quantile(0.25));
  bins.forEach((count, at) => {
    const high = count ? Math.max((count / most) * (tall - 10), 1) : 0;
    context.fillStyle = ((at + 0.5) / BINS) * top > outlier ? slow : accent;
    context.fillRect(right + at * wide, tall - high, Math.max(wide - 1, 1), high);
  });
  context.fillStyle = dim;
  context.fillRect(right, tall, width - right, 1);
  context.fillText("0", right, PLOT_HEIGHT - 5);
  context.textAlign = "right";
  context.fillText(`${quantile(1) > top ? "≥ " : ""}${duration(top * 1e3)}`, width, PLOT_HEIGHT - 5);
  context.textAlign = "left";
}

async function main(): Promise<void> {
  const status = byId("status");
  try {
    const parts = (byId("data").textContent ?? "").split(".");
    const [a, b, comparison] = await Promise.all(parts.map(inflate));
    if (comparison) {
      settings(() => dispatchEvent(new Event("resize")));
      document.body.classList.add("ready", "compares");
      new ComparePage(new Data(a), new Data(b), JSON.parse(new TextDecoder().decode(comparison))).start();
    } else {
      const page = new Page(new Data(a));
      document.body.classList.add("ready");
      page.start();
    }
    status.remove();
  } catch (error) {
    status.textContent = `This page cannot be shown: ${error instanceof Error ? error.message : String(error)}`;
    throw error;
  }
}

void main();
