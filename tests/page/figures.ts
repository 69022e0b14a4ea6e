// Compares what the page's own code computes with what `torchspy report --json` says.
// usage: node figures.js PAGE.html REPORT.json [FROM TO PART.json]...: PART is the report of FROM to TO, seconds

import { Data, type Share, inflate } from "../../src/report/page/web/data";
import { type Cell, Selection, type Table, View } from "../../src/report/page/web/model";

declare const process: { argv: string[]; exit(code: number): never };
declare function require(name: string): any;
const { readFileSync } = require("fs");

let compared = 0;
const wrong: string[] = [];

function near(what: string, page: number, report: number, tolerance: number): void {
  compared++;
  if (!(Math.abs(page - report) <= tolerance)) wrong.push(`${what}: ${page} in the page, ${report} in the report`);
}

/** `exact`: nothing is cut, so ticks are whole. */
function share(what: string, page: Share, report: Share, exact: boolean): void {
  near(what, page.share, report.share, 3e-5);
  near(`${what}, low`, page.low, report.low, exact ? 5e-4 : 0.01);
  near(`${what}, high`, page.high, report.high, exact ? 5e-4 : 0.01);
  near(`${what}, ticks`, page.samples, report.samples, exact ? 0 : 3 + report.samples * 0.02);
}

function named(what: string, names: string[], page: Share[], report: Record<string, Share>, exact: boolean): void {
  for (const [name, value] of Object.entries(report)) share(`${what} ${name}`, page[names.indexOf(name)], value, exact);
}

/** Rows of a table by a key, against a list of the report, which may be shorter. */
function rows(table: Table, key: (row: Cell[]) => string, report: any[], of: (row: any) => string, each: (what: string, page: Cell[], report: any) => void): void {
  const known = new Map<string, Cell[] | null>();
  // Two rows of one key cannot be told apart: none is compared.
  for (const row of table.rows) known.set(key(row), known.has(key(row)) ? null : row);
  for (const row of report) {
    const found = known.get(of(row));
    if (found) each(`${table.id} ${of(row)}`, found, row);
    // What lasts less than is kept of a time may be gone.
    else if (found === undefined && (row.self_s ?? row.seconds ?? row.total_s) > 2e-6) wrong.push(`${table.id} ${of(row)}: not in the page`);
  }
}

const place = (cell: Cell): string => {
  const at = cell as { file: string; line: number } | null;
  return at ? `${at.file}:${at.line}` : "";
};

function compare(view: View, report: any, exact: boolean): void {
  const { head } = view.data;
  near("wall_s", view.wall / 1e6, report.wall_s, 1e-5);
  named("row", head.names.row, view.rows(), report.intervals.summary, exact);
  named("phase", head.names.phase, view.phases(), report.intervals.phases, exact);
  named("activity", head.names.activity, view.activities(), report.intervals.activities, exact);
  const cells = view.matrix();
  for (const [phase, activities] of Object.entries<Record<string, number>>(report.matrix)) {
    for (const [activity, value] of Object.entries(activities)) {
      near(`${phase} × ${activity}`, cells[head.names.phase.indexOf(phase)][head.names.activity.indexOf(activity)], value, 3e-5);
    }
  }
  const seconds = (what: string, page: Cell, value: number) => near(what, page as number, value, 2e-5 + value * 2e-5);
  rows(view.waits(), (row) => `${row[4]} ${row[2]} ${place(row[3])}`, report.waits, (row) => `${row.kind} ${row.what} ${row.at ? `${row.at.file}:${row.at.line}` : ""}`, (what, page, row) => {
    seconds(what, page[0], row.seconds);
    share(what, page[1] as Share, row.interval, exact);
  });
  const line = (row: any) => `${row.file}:${row.line} ${row.name}`;
  rows(view.userLines(), (row) => `${place(row[2])} ${row[3]}`, report.user_lines, line, (what, page, row) => {
    seconds(what, page[0], row.self_s);
    share(what, page[1] as Share, row.self_share, exact);
  });
  const [functions, lines, native] = view.code();
  rows(lines, (row) => `${place(row[2])} ${row[3]}`, report.lines, line, (what, page, row) => {
    seconds(what, page[0], row.self_s);
    share(what, page[1] as Share, row.self_share, exact);
    seconds(`${what}, total`, page[4], row.total_s);
  });
  const both = (what: string, page: Cell[], row: any) => {
    seconds(what, page[0], row.self_s);
    seconds(`${what}, total`, page[2], row.total_s);
  };
  // Functions of one name and place may be several code objects; native ones are shown by short names.
  const keyed = (row: Cell[]) => `${place(row[4])} ${row[3]}`;
  const once = (list: any[], of: (row: any) => string) => list.filter((row) => list.filter((other) => of(other) === of(row)).length === 1);
  rows(functions, keyed, once(report.functions, line), line, both);
  const names = new Map(head.functions.name.map((name, at) => [`${name} ${head.functions.files[head.functions.file[at]]}`, head.functions.short[at] || name]));
  const shown = (row: any) => `${row.file}:0 ${names.get(`${row.name} ${row.file}`)}`;
  rows(native, keyed, once(report.native_functions, shown), shown, both);
  rows(view.operators(), (row) => String(row[3]), report.ops, (row) => row.name, (what, page, row) => {
    both(what, page, row);
    share(what, page[1] as Share, row.share, exact);
  });
  const modules = view.modules();
  rows(modules, (row) => `${row[5]} ${row[4]}`, once(report.modules, (row) => `${row.path} ${row.class}`), (row) => `${row.path} ${row.class ?? ""}`, (what, page, row) => {
    seconds(`${what}, total`, page[0], row.total_s);
    seconds(what, page[2], row.self_s);
    share(`${what}, total`, page[1] as Share, row.total_share, exact);
  });
}

/** Steps of an interval: at its ends a step may count in one of the two only. */
function pace(view: View, report: any): void {
  const { progress } = report;
  if (!progress) return;
  const { steps, lengths, all } = view.pace();
  if (all !== progress.left_out.all) wrong.push(`all steps left out: ${all} in the page, ${progress.left_out.all} in the report`);
  near("steps", steps, progress.steps, 1);
  if (!progress.step_ms) {
    near("timed steps", lengths.length, 1, 1);
    return;
  }
  const mean = lengths.reduce((sum, length) => sum + length, 0) / lengths.length / 1e3;
  const apart = progress.step_ms.max === null ? progress.step_ms.mean : progress.step_ms.max - Math.min(...lengths) / 1e3;
  near("timed steps", lengths.length, progress.step_ms.steps, 2);
  near("mean step", mean, progress.step_ms.mean, lengths.length === progress.step_ms.steps ? 0.002 : (2 * apart) / lengths.length);
}

async function main(): Promise<void> {
  const [page, report, ...parts] = process.argv.slice(2);
  const html: string = readFileSync(page, "utf8");
  const data = new Data(await inflate(/id="data">([^<]*)</.exec(html)![1]));
  const primary = data.head.processes.findIndex((process) => process.primary);
  const whole = JSON.parse(readFileSync(report, "utf8"));
  compare(new View(new Selection(data, { from: 0, to: Infinity }), primary), whole, true);
  pace(new View(new Selection(data, { from: 0, to: Infinity }), primary), whole);
  if (JSON.stringify(data.head.report) !== JSON.stringify(whole)) wrong.push("the report in the page is another than --json prints");
  for (let at = 0; at + 2 < parts.length; at += 3) {
    const [from, to, part] = parts.slice(at, at + 3);
    const range = { from: Number(from) * 1e6, to: Number(to) * 1e6 };
    const selected = new View(new Selection(data, range), primary);
    const reported = JSON.parse(readFileSync(part, "utf8"));
    compare(selected, reported, false);
    pace(selected, reported);
  }
  if (wrong.length) {
    console.error(`error: ${wrong.length} of ${compared} figures differ:\n  ${wrong.slice(0, 20).join("\n  ")}`);
    process.exit(1);
  }
  console.log(`${compared} figures of the page are those of the report`);
}

void main();
