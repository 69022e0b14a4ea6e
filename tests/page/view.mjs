// Opens what `torchspy view` serves, of a folder with a recording that grows, in the real Chromium.
// usage: node view.mjs MODULES CHROMIUM ADDRESS PICTURES
import { createRequire } from "node:module";
import { join } from "node:path";

const [modules, executablePath, address, pictures] = process.argv.slice(2);
const { chromium } = createRequire(join(modules, "x.js"))("playwright-core");

function check(condition, what) {
  if (!condition) throw new Error(what);
}

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const tab = await browser.newPage({ viewport: { width: 1280, height: 900 } });
// Reloads come less often where a page takes long to load: on a busy machine a minute apart.
tab.setDefaultTimeout(300_000);
const said = [];
tab.on("console", (message) => ["error", "warning"].includes(message.type()) && said.push(message.text()));
tab.on("pageerror", (error) => said.push(String(error)));
await tab.route("**/*", (route) => {
  if (route.request().url().startsWith(address)) return route.continue();
  said.push(`a request: ${route.request().url()}`);
  return route.abort();
});

// The list fills itself.
await tab.goto(address);
const row = tab.locator('tr[data-name="run.tspy"]');
await tab.waitForFunction(() => document.querySelector('tr[data-name="run.tspy"] .duration').textContent !== "");
check((await row.getAttribute("class")) === "growing", "the list does not say that the recording grows");
check((await tab.locator("td.error").innerText()).includes("cannot be read"), "the list has no error");
await tab.screenshot({ path: join(pictures, "view-list.png") });

// The page in its frame follows the recording, with what the reader chose.
await row.locator("a").click();
const frame = async () => {
  await tab.waitForFunction(() => {
    const page = document.getElementById("page")?.contentDocument;
    return page?.getElementById("facts")?.textContent && !page.getElementById("status");
  });
  return tab.frames().find((each) => each.url().includes("/page/"));
};
let page = await frame();
const stamp = (url) => new URL(url).searchParams.get("v");
const first = stamp(page.url());
check((await page.locator("#verdict").innerText()).includes("still being recorded"), "the page does not say that it is a snapshot");
check((await page.locator("#selected").innerText()).startsWith("all so far"), "what is not there yet is called the whole run");
await tab.waitForFunction(() => {
  const page = document.getElementById("page").contentWindow;
  // What is chosen while the page is loaded again is lost with the old one.
  if (!loading && !page.location.hash.includes("sel=0.1,0.6")) page.location.hash = "#sel=0.1,0.6&table=functions";
  return location.hash.includes("sel=0.1,0.6");
});
await tab.waitForFunction((first) => new URL(document.getElementById("page").contentWindow.location.href).searchParams.get("v") !== first, first);
page = await frame();
check(page.url().includes("sel=0.1,0.6") && page.url().includes("table=functions"), `the state was lost: ${page.url()}`);
check((await page.locator("#selected").innerText()) !== "all", "the selection was lost");
await tab.screenshot({ path: join(pictures, "view-run.png") });

// An interval alone, back, and by the browser's own keys.
await tab.locator("#detail").click();
await tab.waitForFunction(() => document.getElementById("page").contentWindow.location.search.includes("from=0.1"));
page = await frame();
check(new URL(page.url()).searchParams.get("to") === "0.6", page.url());
check(page.url().includes("table=functions") && !page.url().includes("sel="), `the state was lost: ${page.url()}`);
check(new URL(tab.url()).search === "?from=0.1&to=0.6", tab.url());
await tab.screenshot({ path: join(pictures, "view-part.png") });
await tab.locator("#whole").click();
await tab.waitForFunction(() => !document.getElementById("page").contentWindow.location.search.includes("from="));
page = await frame();
check(page.url().includes("sel=0.1,0.6"), `the selection is not what was shown: ${page.url()}`);
await tab.goBack();
await tab.waitForFunction(() => document.getElementById("page").contentWindow.location.search.includes("from=0.1"));
await frame();
await tab.reload();
page = await frame();
check(page.url().includes("from=0.1"), "the address does not restore the interval");

check(said.length === 0, `the browser says:\n  ${said.join("\n  ")}`);
await browser.close();
console.log("torchspy view works in Chromium");
