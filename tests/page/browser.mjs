// Opens pages in the real Chromium and does what a reader does.
// usage: node browser.mjs MODULES CHROMIUM PICTURES PAGE FROM TO PART.json HOSTILE DEEP COMPARED
//   PART: the report of FROM to TO, seconds; HOSTILE: names of every trick; DEEP: a flamegraph of 50,000 boxes; COMPARED: the page
//   of a comparison. `-` leaves one out.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const [modules, executablePath, pictures, page, from, to, part, hostile, deep, compared] = process.argv.slice(2);
const require = createRequire(join(modules, "x.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

function check(condition, what) {
  if (!condition) throw new Error(what);
}

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });

/** Opens a page where nothing but the page itself may be asked for. */
async function open(path, { hash = "", width = 1280, height = 900, scheme = "light" } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, offline: true });
  const tab = await context.newPage();
  const said = [];
  const url = `file://${path}`;
  tab.on("console", (message) => ["error", "warning"].includes(message.type()) && said.push(message.text()));
  tab.on("pageerror", (error) => said.push(String(error)));
  tab.on("dialog", (dialog) => said.push(`a dialog: ${dialog.message()}`));
  await tab.route("**/*", (route) => {
    if (route.request().url().split("#")[0] === url) return route.continue();
    said.push(`a request: ${route.request().url()}`);
    return route.abort();
  });
  const started = Date.now();
  await tab.goto(url + hash);
  await tab.waitForFunction(() => !document.getElementById("status"));
  const painted = Date.now() - started;
  await frames(tab);
  return { tab, said, painted, close: () => context.close() };
}

const frames = (tab) => tab.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
const text = (tab, selector) => tab.locator(selector).innerText();
const cells = (tab) => tab.evaluate(() => [...document.querySelectorAll("#table tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent)));
const widths = (tab) => tab.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);

async function quiet({ tab, said, close }) {
  const [content, window] = await widths(tab);
  check(content <= window, `the page is ${content} pixels wide in a window of ${window}`);
  check(said.length === 0, `the browser says:\n  ${said.join("\n  ")}`);
  await close();
}

async function accessible(tab) {
  await tab.evaluate(axe);
  const { violations } = await tab.evaluate(() => globalThis.axe.run());
  const serious = violations.filter((each) => ["serious", "critical"].includes(each.impact));
  check(serious.length === 0, `axe-core: ${serious.map((each) => `${each.id} at ${each.nodes.map((node) => node.target.join(" ")).slice(0, 5).join(", ")}`).join("; ")}`);
}

async function reads() {
  const opened = await open(page);
  const { tab } = opened;
  check(opened.painted < 3000, `the first answer came after ${opened.painted} ms`);
  check((await text(tab, "#verdict")).length > 10, "no verdict");
  await accessible(tab);

  // An interval, typed: the same figures as report --from --to.
  const report = JSON.parse(readFileSync(part, "utf8"));
  await tab.fill("#from", from);
  await tab.press("#from", "Tab");
  await tab.fill("#to", to);
  await tab.press("#to", "Tab");
  await frames(tab);
  const lines = await cells(tab);
  report.user_lines.slice(0, 10).forEach((row, at) => {
    check(Math.abs(Number(lines[at][0]) - row.self_s) < 0.0011, `line ${at}: ${lines[at][0]} s in the page, ${row.self_s} in the report`);
  });
  const rows = await text(tab, "#time-list");
  const most = Math.max(...Object.values(report.summary));
  check(rows.includes((most * 100).toFixed(1)), `no row of ${(most * 100).toFixed(1)} %: ${rows}`);
  check(await tab.locator("#whole-note").isVisible(), "nothing says that the verdict is of the whole run");

  // Search, sort, filter.
  const name = report.user_lines[0].name;
  await tab.fill("#search", name.replace(/[^\w.]/g, "."));
  await tab.waitForFunction(() => /% matches/.test(document.getElementById("matches").textContent));
  const matched = await text(tab, "#matches");
  await tab.fill("#search", "(");
  check((await text(tab, "#matches")) === "not a regular expression", "a wrong expression is not said to be one");
  await tab.fill("#search", name.replace(/[^\w.]/g, "."));
  await tab.click("#tabs button[data-table=functions]");
  await tab.click("#table th:nth-child(3) button");
  check((await tab.locator("#table th:nth-child(3)").getAttribute("aria-sort")) === "descending", "the table is not sorted");
  const totals = (await cells(tab)).map((row) => Number(row[2]));
  check(totals.every((total, at) => at === 0 || total <= totals[at - 1]), "the rows are not in the order of the sort");
  await tab.fill("#table input[type=search]", "no such row");
  check((await cells(tab))[0][0].startsWith("Nothing"), "the filter keeps rows");
  await tab.fill("#table input[type=search]", "");

  // The address holds it all.
  const hash = await tab.evaluate(() => location.hash);
  const again = await open(page, { hash });
  check((await text(again.tab, "#selected")) === (await text(tab, "#selected")), "the address does not restore the selection");
  check((await text(again.tab, "#matches")) === matched, "the address does not restore the search");
  check((await again.tab.locator("#tabs button[aria-selected=true]").textContent()) === "Functions", "the address does not restore the table");
  await quiet(again);

  // The brush, by the pointer and by keys.
  await tab.click("#clear");
  check((await text(tab, "#selected")).startsWith("whole run"), "the selection is not cleared");
  await tab.locator("#timeline").evaluate((section) => section.scrollIntoView());
  const box = await tab.locator("#time-overlay").boundingBox();
  await tab.mouse.move(box.x + box.width * 0.5, box.y + 40);
  await tab.mouse.down();
  await tab.mouse.move(box.x + box.width * 0.6, box.y + 40, { steps: 4 });
  await tab.mouse.move(box.x + box.width * 0.7, box.y + 40, { steps: 4 });
  await tab.mouse.up();
  const brushed = await text(tab, "#selected");
  check(!brushed.startsWith("whole run"), "a drag selects nothing");
  await tab.focus("#time-overlay");
  await tab.keyboard.press("Shift+ArrowRight");
  check((await text(tab, "#selected")) !== brushed, "a key does not move the selection");
  await tab.keyboard.press("Escape");
  check((await text(tab, "#selected")).startsWith("whole run"), "Escape does not clear the selection");

  // The flamegraph by keys, and what is said of a box.
  await tab.focus("#flame-canvas");
  await tab.keyboard.press("ArrowDown");
  await tab.keyboard.press("ArrowDown");
  check(/% ±|%/.test(await text(tab, "#tip")), "a box has no share");
  await tab.keyboard.press("Enter");
  await tab.keyboard.press("Escape");
  for (const [select, values] of [["#merge", ["line", "module", "function"]], ["#colour", ["phase", "gpu", "rank", "kind"]], ["#threads", ["all", "training"]]]) {
    for (const value of values) await tab.selectOption(select, value);
  }
  for (const id of ["inverted", "flame", "plumbing", "imports", "recursion", "waits"]) {
    await tab.click(`#${id}`);
    await frames(tab);
  }
  await quiet(opened);
}

async function looks() {
  for (const width of [1280, 800, 390]) {
    for (const scheme of ["light", "dark"]) {
      const opened = await open(page, { width, height: width === 390 ? 844 : 900, scheme });
      if (scheme === "dark") await accessible(opened.tab);
      await opened.tab.screenshot({ path: join(pictures, `page-${width}-${scheme}.png`), fullPage: true });
      await quiet(opened);
    }
  }
}

async function harmless() {
  for (const width of [1280, 390]) {
    const opened = await open(hostile, { width });
    const { tab } = opened;
    for (const tabs of await tab.locator("#tabs button").all()) {
      if (await tabs.isVisible()) await tabs.click();
      await frames(tab);
    }
    await tab.selectOption("#threads", "all");
    await tab.focus("#flame-canvas");
    for (let depth = 0; depth < 6; depth++) await tab.keyboard.press("ArrowDown");
    check((await tab.evaluate(() => globalThis.hacked)) === undefined, "a name ran as a script");
    check((await tab.evaluate(() => document.querySelectorAll("img, iframe, object, base, form:not([method=dialog])").length)) === 0, "a name became an element");
    check(!/[\u202a-\u202e\u2066-\u2069]/.test(await tab.evaluate(() => document.body.innerText)), "a text reorders others");
    const links = await tab.evaluate(() => [...document.querySelectorAll("#table a")].map((link) => link.protocol));
    check(links.every((protocol) => ["vscode:", "idea:", "mvim:"].includes(protocol)), `links go elsewhere: ${links}`);
    await tab.screenshot({ path: join(pictures, `hostile-${width}.png`), fullPage: false });
    await quiet(opened);
  }
}

/** Frames a second while a flamegraph is panned. */
async function fast() {
  const opened = await open(deep, { hash: "#threads=all" });
  const { tab } = opened;
  await tab.locator("#flame-scroll").scrollIntoViewIfNeeded();
  const boxes = Number(/in (\d+) boxes/.exec(await tab.locator("#flame-canvas").getAttribute("aria-label"))[1]);
  check(boxes >= 50000, `${boxes} boxes are too few for this check`);
  const rate = await tab.evaluate(async () => {
    const canvas = document.getElementById("flame-canvas");
    const scroller = document.getElementById("flame-scroll");
    const frame = () => new Promise(requestAnimationFrame);
    const { left, top, width } = canvas.getBoundingClientRect();
    await frame();
    const started = performance.now();
    const most = 60;
    for (let at = 0; at < most; at++) {
      scroller.scrollTop = (at % 20) * 9;
      canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: left + (width * at) / most, clientY: top + 30 + (at % 10) * 18 }));
      await frame();
    }
    return (most * 1000) / (performance.now() - started);
  });
  check(rate >= 30, `a flamegraph of ${boxes} boxes pans at ${rate.toFixed(0)} frames a second`);
  await quiet(opened);
  return `${boxes} boxes at ${rate.toFixed(0)} frames a second`;
}

async function compares() {
  for (const [width, scheme] of [[1280, "light"], [390, "dark"]]) {
    const opened = await open(compared, { width, scheme });
    const { tab } = opened;
    await accessible(tab);
    check((await text(tab, "#verdict")).includes("NOT THE SAME") || (await text(tab, "#verdict")).includes("NOISE"), "nothing is said of the noise");
    check((await cells(tab)).length > 2 && (await cells(tab))[0].length === 8, "no part differs");
    const first = (await cells(tab))[0];
    check(Math.abs(Number(first[3]) - Number(first[2]) - Number(first[4])) < 0.2, `B less A is not the difference: ${first}`);
    await tab.focus("#flame-canvas");
    for (let depth = 0; depth < 3; depth++) await tab.keyboard.press("ArrowDown");
    check(/B .* ms per/.test(await text(tab, "#tip")), "a box says nothing of both sides");
    await tab.fill("#search", "a");
    check(/matches/.test(await text(tab, "#matches")), "the search finds nothing");
    check((await tab.locator("h3").count()) === 2, "there are not two timelines");
    await tab.screenshot({ path: join(pictures, `compared-${width}-${scheme}.png`), fullPage: true });
    await quiet(opened);
  }
}

try {
  const done = [];
  if (part !== "-") {
    await reads();
    await looks();
    done.push("read, selected, searched, sorted");
  }
  if (hostile !== "-") {
    await harmless();
    done.push("hostile names are harmless");
  }
  if (deep !== "-") done.push(await fast());
  if (compared !== "-") {
    await compares();
    done.push("two runs are compared");
  }
  console.log(`the page works in Chromium ${browser.version()}: ${done.join("; ")}`);
} catch (error) {
  console.error(`error: ${error.stack}`);
  process.exitCode = 1;
} finally {
  await browser.close();
}
