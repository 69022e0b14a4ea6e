// Opens a page in the real Firefox, over WebDriver BiDi.
// usage: node firefox.mjs MODULES FIREFOX PICTURE PAGE FROM TO
import { createRequire } from "node:module";
import { join } from "node:path";

const [modules, executablePath, picture, page, from, to] = process.argv.slice(2);
const puppeteer = createRequire(join(modules, "x.js"))("puppeteer-core");
const browser = await puppeteer.launch({ browser: "firefox", executablePath, headless: true });
try {
  const tab = await browser.newPage();
  await tab.setViewport({ width: 1280, height: 900 });
  const said = [];
  tab.on("console", (message) => ["error", "warn"].includes(message.type()) && said.push(message.text()));
  tab.on("pageerror", (error) => said.push(String(error)));
  tab.on("request", (request) => request.url().startsWith("http") && said.push(`a request: ${request.url()}`));
  await tab.goto(`file://${page}#sel=${from},${to}&table=waits&search=a`);
  await tab.waitForFunction(() => !document.getElementById("status"));
  const selected = await tab.$eval("#selected", (each) => each.textContent);
  if (!selected.startsWith(`${Number(from).toFixed(3)} to ${Number(to).toFixed(3)} s`)) throw new Error(`the address selects ${selected}`);
  const drawn = await tab.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
    const { width, height } = document.getElementById("flame-canvas");
    const pixels = document.getElementById("flame-canvas").getContext("2d").getImageData(0, 0, width, height).data;
    done(pixels.filter((value, at) => at % 4 === 3 && value > 0).length / (width * height));
  }))));
  if (drawn < 0.05) throw new Error(`the flamegraph covers ${drawn} of its canvas`);
  if (!/% matches/.test(await tab.$eval("#matches", (each) => each.textContent))) throw new Error("the address does not restore the search");
  if (said.length) throw new Error(`the browser says:\n  ${said.join("\n  ")}`);
  await tab.screenshot({ path: picture });
  console.log(`the page works in ${await browser.version()}`);
} catch (error) {
  console.error(`error: ${error.stack}`);
  process.exitCode = 1;
} finally {
  await browser.close();
}
