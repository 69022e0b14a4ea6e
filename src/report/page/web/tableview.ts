// A table that is sorted, filtered and copied.

import { copy, element } from "./dom";
import { cellText, cellValue, clean, isPlace, isShare } from "./format";
import { shortFile } from "./flame";
import type { Cell, Kind, Table } from "./model";

const ROWS = 50;
const NUMBERS = new Set<Kind>(["seconds", "milliseconds", "percent", "share", "count", "number", "id"]);

export class TableView {
  private table: Table | null = null;
  private sort: { column: number; down: boolean } | null = null;
  private shown = ROWS;
  private filter = "";

  constructor(
    private readonly root: HTMLElement,
    private readonly link: (file: string, line: number) => string | null,
    private readonly onRow: (table: Table, row: Cell[]) => void,
  ) {}

  set(table: Table): void {
    if (this.table?.id !== table.id) {
      this.sort = null;
      this.shown = ROWS;
      this.filter = "";
    }
    this.table = table;
    this.render();
  }

  private rows(): Cell[][] {
    const { columns, rows } = this.table!;
    const wanted = this.filter.toLowerCase();
    const found = wanted ? rows.filter((row) => row.some((cell, at) => cellText(cell, columns[at].kind).toLowerCase().includes(wanted))) : rows.slice();
    if (this.sort) {
      const { column, down } = this.sort;
      found.sort((a, b) => {
        const [x, y] = [cellValue(a[column]), cellValue(b[column])];
        const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
        return down ? -order : order;
      });
    }
    return found;
  }

  private render(): void {
    const table = this.table!;
    const body = element("tbody");
    const more = element("button", { class: "more", click: () => this.showMore(body, more) });
    const count = element("span", { class: "dim" });
    const filter = element("input", { type: "search", placeholder: "filter rows", "aria-label": `filter the rows of ${table.title}` });
    filter.value = this.filter;
    filter.addEventListener("input", () => {
      this.filter = filter.value;
      this.fill(body, more, count);
    });
    const said = element("span", { class: "dim", role: "status" });
    const button = (label: string, text: () => string) =>
      element("button", { click: async () => (said.textContent = (await copy(text())) ? "copied" : "could not be copied") }, label);
    const heads = table.columns.map((column, at) => {
      const sorted = this.sort?.column === at;
      const order = sorted ? (this.sort!.down ? "descending" : "ascending") : "none";
      const sorter = element("button", { click: () => this.sortBy(at) }, column.label || "\u00a0");
      if (sorted) sorter.append(this.sort!.down ? " ▾" : " ▴");
      return element("th", { scope: "col", class: NUMBERS.has(column.kind) ? "number" : "", "aria-sort": order }, sorter);
    });
    this.root.replaceChildren(
      element("p", { class: "dim note" }, table.note),
      element("div", { class: "tools" }, filter, button("Copy CSV", () => csv(table, this.rows())), button("Copy Markdown", () => markdown(table, this.rows())), count, said),
      element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": table.title }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body)),
      more,
    );
    this.fill(body, more, count);
  }

  private sortBy(column: number): void {
    const down = NUMBERS.has(this.table!.columns[column].kind);
    this.sort = this.sort?.column === column ? { column, down: !this.sort.down } : { column, down };
    this.render();
    this.root.querySelectorAll<HTMLElement>("th button")[column]?.focus();
  }

  private fill(body: HTMLElement, more: HTMLElement, count: HTMLElement): void {
    const rows = this.rows();
    count.textContent = `${rows.length.toLocaleString("en")} row${rows.length === 1 ? "" : "s"}`;
    body.replaceChildren(...rows.slice(0, this.shown).map((row) => this.row(row)));
    if (!rows.length) body.append(element("tr", {}, element("td", { colspan: this.table!.columns.length, class: "dim" }, "Nothing in this selection.")));
    more.hidden = rows.length <= this.shown;
    more.textContent = `${(rows.length - this.shown).toLocaleString("en")} more rows`;
  }

  private showMore(body: HTMLElement, more: HTMLElement): void {
    this.shown = this.shown === ROWS ? 500 : this.shown * 4;
    const count = this.root.querySelector<HTMLElement>(".tools .dim")!;
    this.fill(body, more, count);
  }

  private row(row: Cell[]): HTMLElement {
    const table = this.table!;
    const cells = row.map((cell, at) => {
      const { kind } = table.columns[at];
      const made = element("td", { class: NUMBERS.has(kind) ? "number" : kind === "place" ? "place" : "text" });
      if (isPlace(cell)) {
        const text = clean(cell.file ? `${shortFile(cell.file)}${cell.line ? `:${cell.line}` : ""}` : "", 200);
        const href = this.link(cell.file, cell.line);
        made.append(href ? element("a", { href, title: clean(cell.file, 500) }, text) : text);
        return made;
      }
      const text = cellText(cell, kind);
      made.textContent = text.length > 160 ? `${text.slice(0, 159)}…` : text;
      if (text.length > 40) made.title = text;
      if (isShare(cell)) {
        made.title = `95 % interval ${(cell.low * 100).toFixed(1)} to ${(cell.high * 100).toFixed(1)} %, seen in ${cell.samples} ticks`;
        bar(made, cell.share);
      } else if (kind === "percent" && typeof cell === "number") bar(made, cell);
      return made;
    });
    const made = element("tr", {}, ...cells);
    if (!table.whole && table.columns.some(({ key }) => key === "name" || table.id === "steps")) {
      made.title = table.id === "steps" ? "select this step" : "search it in the flamegraph";
      made.classList.add("pick");
      made.addEventListener("click", () => this.onRow(table, row));
    }
    return made;
  }
}

function bar(cell: HTMLElement, share: number): void {
  const width = Math.min(Math.max(share, 0), 1) * 100;
  cell.classList.add("bar");
  cell.style.setProperty("--part", `${width.toFixed(2)}%`);
}

function plain(table: Table, row: Cell[]): string[] {
  return row.flatMap((cell, at) => {
    const { kind } = table.columns[at];
    if (kind === "share") return isShare(cell) ? [cell.share, cell.low, cell.high, cell.samples].map(String) : ["", "", "", ""];
    if (kind === "place") return isPlace(cell) ? [clean(cell.file), String(cell.line || "")] : ["", ""];
    return [cell === null ? "" : typeof cell === "string" ? clean(cell) : String(cell)];
  });
}

export function csv(table: Table, rows: Cell[][]): string {
  const heads = table.columns.flatMap(({ key, kind }) => {
    if (kind === "share") return ["", "_low", "_high", "_samples"].map((end) => key + end);
    return kind === "place" ? ["file", "line"] : [key];
  });
  // A cell that begins like a formula is none (CWE-1236).
  const field = (text: string) => {
    const safe = /^[=+@\t\r-]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [heads, ...rows.map((row) => plain(table, row))].map((line) => `${line.map(field).join(",")}\n`).join("");
}

export function markdown(table: Table, rows: Cell[][]): string {
  const field = (text: string) => text.replace(/[\\`*_{}[\]<>|#&]/g, "\\$&").replaceAll("\u2003", "&emsp;");
  const heads = table.columns.map(({ label }) => field(label) || " ");
  const rules = table.columns.map(({ kind }) => (NUMBERS.has(kind) ? "---:" : "---"));
  const lines = rows.map((row) => row.map((cell, at) => field(cellText(cell, table.columns[at].kind))));
  return [heads, rules, ...lines].map((line) => `| ${line.join(" | ")} |\n`).join("");
}
