// Opens pages in the real Chromium and does what a reader does.
// usage: node browser.mjs MODULES CHROMIUM PICTURES PAGE FROM TO PART.json HOSTILE DEEP COMPARED SOURCED TRACED MEMORY
//   PART: the report of FROM to TO, seconds; HOSTILE: names of every trick; DEEP: a flamegraph of 50,000 boxes; COMPARED: the page
//   of a comparison; SOURCED: that of FROM to TO, with the text of a file; TRACED: with a trace of torch.profiler; MEMORY: of a run that a
//   limit of memory ended. `-` leaves one out.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { golden } from "./goldens.mjs";

const [modules, executablePath, pictures, page, from, to, part, hostile, deep, compared, sourced, traced, memory] = process.argv.slice(2);
const require = createRequire(join(modules, "x.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

function check(condition, what) {
  if (!condition) throw new Error(what);
}

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });

/** Opens a page where nothing but the page itself may be asked for. */
async function open(path, { hash = "", width = 1280, height = 900, scheme = "light", isHost = false } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, offline: true });
  const tab = await context.newPage();
  const said = [];
  const url = `file://${path}`;
  tab.on("console", (message) => ["error", "warning"].includes(message.type()) && said.push(message.text()));
  tab.on("pageerror", (error) => said.push(String(error)));
  tab.on("dialog", (dialog) => said.push(`a dialog: ${dialog.message()}`));
  await tab.route("**/*", (route) => {
    if (route.request().url().split("#")[0] === url) return route.continue();
    if (isHost && /^(about:srcdoc|blob:)/.test(route.request().url())) return route.continue();
    said.push(`a request: ${route.request().url()}`);
    return route.abort();
  });
  const started = Date.now();
  await tab.goto(url + hash);
  if (!isHost) await tab.waitForFunction(() => !document.getElementById("status"));
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

/** The tables of the page are of the report's interval. */
async function isOf(tab, report, how) {
  await frames(tab);
  const lines = await cells(tab);
  report.user_lines.slice(0, 10).forEach((row, at) => {
    check(Math.abs(Number(lines[at][0]) - row.self_s) < 0.0011, `${how}: line ${at}: ${lines[at][0]} s in the page, ${row.self_s} in the report`);
  });
  const list = await text(tab, "#time-list");
  for (const [name, { share, samples }] of Object.entries(report.intervals.summary)) {
    if (samples >= 30) check(list.includes(`${(share * 100).toFixed(1)} % ±`), `${how}: no row of ${(share * 100).toFixed(1)} % (${name}): ${list}`);
  }
}

async function drag(tab, from, to, y) {
  await tab.mouse.move(from, y);
  await tab.mouse.down();
  await tab.mouse.move((from + to) / 2, y, { steps: 3 });
  await tab.mouse.move(to, y, { steps: 3 });
  await tab.mouse.up();
}

/** A point on the track of that name where the text at the pointer is this. */
async function onTrack(tab, track, wanted) {
  const found = await tab.evaluate(([track, wanted]) => {
    const overlay = document.getElementById("time-overlay");
    const { left, top, width, height } = overlay.getBoundingClientRect();
    const lines = (x, y) => {
      overlay.dispatchEvent(new PointerEvent("pointermove", { clientX: left + x, clientY: top + y }));
      return [...document.getElementById("tip").children].map((line) => line.textContent);
    };
    for (let y = 24; y < height; y += 4) {
      if (!new RegExp(track).test(lines(width / 2, y)[1] ?? "")) continue;
      for (let x = 180; x < width; x++) if (new RegExp(wanted).test(lines(x, y + 2)[2] ?? "")) return { x, y: y + 2 };
    }
    return null;
  }, [track.source, wanted.source]);
  check(found, `no track ${track} says ${wanted}`);
  return { position: found };
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
  await isOf(tab, report, "typed");
  check(await tab.locator("#whole-note").isVisible(), "nothing says that the verdict is of the whole run");
  if (report.progress) {
    const cards = await text(tab, "#cards");
    const [, steps] = /steps\s+([\d,]+)\s+in the selection/.exec(cards) ?? [];
    check(Math.abs(Number(steps?.replace(",", "")) - report.progress.steps) <= 1, `the cards are not of the selection: ${cards}`);
    check(/^(Times are of|No step lies)/.test(await text(tab, "#cards-note")), "nothing says which steps the times are of");
  }
  const verdict = await text(tab, "#verdict");

  // The same interval, zoomed to and drawn over with the brush: from the middle to one end, then its other end to the other.
  await tab.click("#zoom-selection");
  await tab.click("#clear");
  await frames(tab);
  const over = await tab.locator("#time-overlay").boundingBox();
  const middle = over.x + over.width / 2;
  await drag(tab, middle, over.x - 20, over.y + 40);
  await drag(tab, middle, over.x + over.width + 20, over.y + 40);
  await isOf(tab, report, "brushed");
  check((await text(tab, "#verdict")) === verdict, "the verdict is not that of the whole run");
  await tab.click("#zoom-all");
  await frames(tab);

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

  // Copied as data, and as Markdown; a row of a step selects it.
  await tab.evaluate(() => (navigator.clipboard.writeText = async (copied) => void (globalThis.copied = copied)));
  await tab.getByRole("button", { name: "Copy CSV" }).click();
  const csv = (await tab.evaluate(() => globalThis.copied)).trim().split("\n");
  check(csv[0] === "self_s,self_share,self_share_low,self_share_high,self_share_samples,total_s,name,file,line" && csv.length > 2, `the table as CSV begins with ${csv[0]}`);
  await tab.getByRole("button", { name: "Copy Markdown" }).click();
  const markdown = (await tab.evaluate(() => globalThis.copied)).trim().split("\n");
  check(markdown.length === csv.length + 1 && markdown[1].includes("---:"), `the table as Markdown has ${markdown.length} lines`);
  // Tabs by the arrow keys.
  await tab.focus("#tabs button[data-table=functions]");
  await tab.keyboard.press("ArrowRight");
  check((await tab.locator("#tabs button[data-table=lines]").getAttribute("aria-selected")) === "true", "an arrow key does not go to the next table");
  await tab.keyboard.press("ArrowLeft");

  // The address holds it all.
  const hash = await tab.evaluate(() => location.hash);
  const again = await open(page, { hash });
  check((await text(again.tab, "#selected")) === (await text(tab, "#selected")), "the address does not restore the selection");
  check((await text(again.tab, "#matches")) === matched, "the address does not restore the search");
  check((await again.tab.locator("#tabs button[aria-selected=true]").textContent()) === "Functions", "the address does not restore the table");
  check(await again.tab.evaluate(() => scrollY > 0), "the address does not restore what was in view");
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

  // The zoom: without a selection, this key selects a tenth of what is in sight.
  const tenth = async () => {
    await tab.focus("#time-overlay");
    await tab.keyboard.press("Shift+ArrowRight");
    const found = /sel=([\d.]+),([\d.]+)/.exec(await tab.evaluate(() => location.hash));
    await tab.keyboard.press("Escape");
    return Number(found[2]) - Number(found[1]);
  };
  const all = await tenth();
  await tab.click("#zoom-in");
  check(Math.abs((await tenth()) - all / 2) < 1e-5, "the button does not zoom to a half");
  await tab.mouse.move(box.x + box.width / 2, box.y + 40);
  await tab.keyboard.down("Control");
  await tab.mouse.wheel(0, -100);
  await tab.keyboard.up("Control");
  await frames(tab);
  check((await tenth()) < all * 0.45, "the wheel does not zoom");
  await tab.click("#zoom-all");
  check((await tenth()) === all, "the whole run is not in sight again");

  // What a track says at a place, and what a click there selects.
  await tab.locator("#timeline").evaluate((section) => section.scrollIntoView());
  const step = await onTrack(tab, /: steps$/, /^step \d+: .*; click selects it/);
  await tab.click("#time-overlay", step);
  check(/sel=/.test(await tab.evaluate(() => location.hash)), "a click on a step selects nothing");
  await tab.keyboard.press("Escape");
  const saved = await onTrack(tab, /checkpoints$/, /checkpoint: .*; click selects it/);
  await tab.click("#time-overlay", saved);
  check(/sel=/.test(await tab.evaluate(() => location.hash)), "a click on a checkpoint selects nothing");
  await tab.keyboard.press("Escape");
  if (report.gpus.some((gpu) => Object.keys(gpu.throttle ?? {}).length)) await onTrack(tab, /: busy$/, /held down: power cap/);

  // The flamegraph by keys, and what is said of a box.
  await tab.focus("#flame-canvas");
  for (let depth = 0; depth < 4; depth++) await tab.keyboard.press("ArrowDown");
  check(/% ±|%/.test(await text(tab, "#tip")), "a box has no share");
  const drawn = () => tab.evaluate(() => document.getElementById("flame-canvas").toDataURL());
  await tab.keyboard.press("Enter");
  await frames(tab);
  const zoomed = await drawn();
  await tab.click("#flame-reset");
  await frames(tab);
  check((await drawn()) !== zoomed, "Enter does not zoom to a box");
  // One function alone, and the address of that.
  await tab.focus("#flame-canvas");
  for (let depth = 0; depth < 4; depth++) await tab.keyboard.press("ArrowDown");
  const time = /([\d.]+ µ?m?s), own/.exec(await text(tab, "#tip"))[1];
  await tab.keyboard.press("Shift+Enter");
  await tab.keyboard.press("ArrowDown");
  check((await tab.locator("#only").isVisible()) && (await text(tab, "#tip")).includes(time), `one function alone has another time than ${time}: ${await text(tab, "#tip")}`);
  const alone = await open(page, { hash: await tab.evaluate(() => location.hash) });
  check((await text(alone.tab, "#only-name")) === (await text(tab, "#only-name")), "the address does not restore the function that is shown alone");
  await quiet(alone);
  await tab.click("#only-clear");
  for (const [select, values] of [["#merge", ["line", "module", "function"]], ["#colour", ["phase", "gpu", "rank", "kind"]], ["#threads", ["all", "training"]]]) {
    for (const value of values) await tab.selectOption(select, value);
  }
  for (const id of ["inverted", "flame", "plumbing", "imports", "recursion", "waits"]) {
    await tab.click(`#${id}`);
    await frames(tab);
  }
  await quiet(opened);
}

/** Three widths, light and dark, beside the golden pictures. */
async function looks() {
  const blank = await (await browser.newContext()).newPage();
  const results = [];
  for (const width of [1280, 800, 390]) {
    for (const scheme of ["light", "dark"]) {
      const opened = await open(page, { width, height: width === 390 ? 844 : 900, scheme });
      if (width !== 800) await accessible(opened.tab);
      await opened.tab.screenshot({ path: join(pictures, `page-${width}-${scheme}.png`), fullPage: true });
      results.push(await golden(opened.tab, blank, `${width}-${scheme}`));
      await quiet(opened);
    }
  }
  const wrong = results.flatMap((result) => result.wrong ?? []);
  check(wrong.length === 0, `the page looks other than the golden pictures (tests/page/golden; UPDATE_GOLDENS=1 writes them):\n  ${wrong.join("\n  ")}`);
  const [first] = results;
  return first.skipped ?? (first.written ? "golden pictures written" : `like the golden pictures (differences of at most ${Math.max(...results.map(({ worst }) => worst)).toFixed(0)} of 255)`);
}

/** Paper is white, as wide as it is, and has the pictures. */
async function prints() {
  const opened = await open(page, { scheme: "dark" });
  const { tab } = opened;
  await tab.selectOption("#theme", "dark");
  const inked = () =>
    tab.evaluate(() => ["time-canvas", "flame-canvas"].map((id) => {
      const canvas = document.getElementById(id);
      const context = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
      context.drawImage(canvas, 0, 0);
      const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
      return pixels.filter((value, at) => at % 4 === 3 && value > 0).length / (canvas.width * canvas.height);
    }));
  const before = await inked();
  await tab.evaluate(() => dispatchEvent(new Event("beforeprint")));
  await tab.emulateMedia({ media: "print" });
  check((await tab.evaluate(() => getComputedStyle(document.body).backgroundColor)) === "rgb(255, 255, 255)", "paper is not white");
  // Not quite the same: the width is another, and so are the parts without a drawing.
  (await inked()).forEach((part, at) => check(Math.abs(part - before[at]) < 0.1, `a picture covers ${part} of its place on paper, and ${before[at]} on the screen`));
  for (const id of ["time-canvas", "flame-canvas"]) {
    const shape = await tab.evaluate((id) => {
      const canvas = document.getElementById(id);
      const { width, height } = canvas.getBoundingClientRect();
      return width / height / (canvas.width / canvas.height);
    }, id);
    check(Math.abs(shape - 1) < 0.02, `${id} is stretched by ${shape} on paper`);
  }
  await tab.emulateMedia({ media: "screen" });
  await tab.evaluate(() => dispatchEvent(new Event("afterprint")));
  check((await tab.evaluate(() => document.documentElement.dataset.theme)) === "dark", "the page is not dark again");
  await quiet(opened);
}

/** In frames as notebooks make them: without an origin, so without memory and an address to change. */
async function framed() {
  const source = readFileSync(page, "utf8");
  const quoted = source.replaceAll("&", "&amp;").replaceAll('"', "&quot;");
  const host = join(pictures, "framed.html");
  writeFileSync(
    host,
    `<!doctype html><title>a notebook</title><iframe id="srcdoc" sandbox="allow-scripts" width="1200" height="800" srcdoc="${quoted}"></iframe>
<iframe id="blob" sandbox="allow-scripts" width="1200" height="800"></iframe>
<script>document.getElementById("blob").src = URL.createObjectURL(new Blob([document.getElementById("srcdoc").srcdoc], { type: "text/html" }));</script>`,
  );
  const opened = await open(host, { height: 1700, isHost: true });
  for (const id of ["srcdoc", "blob"]) {
    const frame = await (await opened.tab.waitForSelector(`#${id}`)).contentFrame();
    await frame.waitForFunction(() => !document.getElementById("status"));
    check((await frame.evaluate(() => origin)) === "null", `${id}: the frame has an origin`);
    await frame.fill("#from", from);
    await frame.press("#from", "Tab");
    check((await text(frame, "#selected")).startsWith(`${Number(from).toFixed(3)} to`), `${id}: nothing is selected`);
    await frame.click("#tabs button[data-table=waits]");
    await frame.fill("#search", "a");
    check(/matches/.test(await text(frame, "#matches")), `${id}: the search finds nothing`);
    await frame.selectOption("#theme", "dark");
    await frame.click("nav a[href='#about']");
    check((await frame.locator("#about").evaluate((section) => section.getBoundingClientRect().top)) < 800, `${id}: a link does not lead to its part`);
    check(await frame.locator("#verdict").evaluate((list) => list.childElementCount > 1), `${id}: the link left the page`);
    await frame.selectOption("#editor", "idea");
    await frame.click("#clear");
  }
  await quiet(opened);
}

async function harmless() {
  for (const width of [1280, 800, 390]) {
    const opened = await open(hostile, { width });
    const { tab } = opened;
    await accessible(tab);
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

/** The text of a file, with the report's times, which also stands beside lines in the table. */
async function hasSource() {
  const opened = await open(sourced);
  const { tab } = opened;
  await accessible(tab);
  const report = JSON.parse(readFileSync(part, "utf8"));
  const lines = await tab.evaluate(() => [...document.querySelectorAll("#source-lines tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent)));
  const [most] = report.user_lines;
  const text = lines[most.line - 1];
  check(text[1].startsWith((most.self_share.share * 100).toFixed(1)) && text[2] === String(most.line) && text[3].endsWith("loss = step(model)"), `line ${most.line} of the source: ${text}`);
  check((await cells(tab))[0].at(-1) === "loss = step(model)", "the table of lines has no text");
  await quiet(opened);
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
    check((await tab.locator("#timeline h3").count()) === 2, "there are not two timelines");
    await tab.screenshot({ path: join(pictures, `compared-${width}-${scheme}.png`), fullPage: true });
    await quiet(opened);
  }
}

/** How many pixels of the timeline have about this colour. */
const drawn = (tab, name) =>
  tab.evaluate((name) => {
    const canvas = document.getElementById("time-canvas");
    const probe = document.createElement("canvas").getContext("2d");
    probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
    probe.fillRect(0, 0, 1, 1);
    const [red, green, blue] = probe.getImageData(0, 0, 1, 1).data;
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let at = 0; at < data.length; at += 4) count += Math.abs(data[at] - red) + Math.abs(data[at + 1] - green) + Math.abs(data[at + 2] - blue) < 60;
    return count;
  }, name);

const LOOKS = [1280, 700].flatMap((width) => ["light", "dark"].map((scheme) => [width, scheme]));

/** A trace on the time axis, and its tables. */
async function hasTrace() {
  for (const [width, scheme] of LOOKS) {
    const opened = await open(traced, { width, scheme });
    const { tab } = opened;
    await accessible(tab);
    check((await text(tab, "#verdict")).includes("disturbed"), "the answer does not say that times are disturbed");
    const label = () => tab.getAttribute("#time-overlay", "aria-label");
    check((await label()).includes("stream 20"), "no stream is drawn");
    await tab.locator("#timeline").screenshot({ path: join(pictures, `traced-all-${width}-${scheme}.png`) });
    await tab.click("#zoom-trace");
    await frames(tab);
    const orange = await drawn(tab, "collective");
    check(orange > 200, `collectives have ${orange} pixels`);
    await tab.locator("#timeline").screenshot({ path: join(pictures, `traced-zoom-${width}-${scheme}.png`) });
    await tab.uncheck("#lane-trace");
    await frames(tab);
    check(!(await label()).includes("stream 20"), "the tracks of the trace are not folded");
    await tab.selectOption("#table-select", "trace_shapes", { force: true });
    const rows = await cells(tab);
    check(rows.some((row) => row.includes("aten::mm") && row.some((cell) => cell === "100")), `calls per step: ${rows[0]}`);
    await quiet(opened);
  }
}

/** Limits are drawn, and are open where memory was short; elsewhere they are folded. */
async function hasMemory() {
  for (const [width, scheme] of LOOKS) {
    const opened = await open(memory, { width, scheme });
    const { tab } = opened;
    await accessible(tab);
    check((await text(tab, "#verdict")).includes("out of memory in cgroup"), "the answer does not say why a process ended");
    const label = () => tab.getAttribute("#time-overlay", "aria-label");
    for (const track of ["cgroup train-job-42", "/dev/shm", "machine", "swapped out", "ended"]) check((await label()).includes(track), `no track ${track}`);
    check((await drawn(tab, "slow")) > 200, "neither a limit nor an end is drawn");
    await tab.locator("#timeline").screenshot({ path: join(pictures, `memory-${width}-${scheme}.png`) });
    await tab.uncheck("#lane-limits");
    await frames(tab);
    check(!(await label()).includes("cgroup"), "the tracks of limits are not folded");
    await quiet(opened);
  }
}

try {
  const done = [];
  if (part !== "-") {
    await reads();
    done.push("read, selected, searched, sorted");
    await prints();
    await framed();
    done.push("printed, in a sandboxed frame", await looks());
  }
  if (hostile !== "-") {
    await harmless();
    done.push("hostile names are harmless");
  }
  if (deep !== "-") done.push(await fast());
  if (sourced !== "-") {
    await hasSource();
    done.push("source with times");
  }
  if (traced !== "-") {
    await hasTrace();
    done.push("a trace is drawn");
  }
  if (memory !== "-") {
    await hasMemory();
    done.push("limits of memory are drawn");
  }
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
