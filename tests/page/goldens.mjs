// Compares what a page looks like with pictures that a person has looked at, in golden/.
//
// A picture is kept at a quarter of its size, and is compared section by section, each stretched to the golden's size: what is left of
// another Chromium's smoothing, and of lines that break elsewhere, is small beside what a part leaves that is missing or has moved.
// With other fonts nothing is compared. UPDATE_GOLDENS=1 writes the pictures.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const folder = join(fileURLToPath(new URL(".", import.meta.url)), "golden");
const list = join(folder, "golden.json");
const SECTIONS = ["header", "#answer", "#timeline", "#flamegraph", "#tables", "#about"];
/** Pixels of the page to one of the picture, in each direction. */
const SCALE = 4;
/** A section may be taller or shorter by this part. */
const STRETCH = 0.08;
/** Mean difference of colours, of 255, that a place of the picture may have; places are squares of this many of its pixels. */
const MOST = 20;
const PLACE = 5;
/** Colours are kept to this. */
const COARSE = 16;

/** Runs in a tab: the picture, smaller, as a data URL; with a golden, the largest difference of each section, and where it is. */
async function compare({ picture, sections, golden, SCALE, PLACE, COARSE }) {
  const load = async (url) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    return image;
  };
  const drawn = (image, from, width, height) => {
    const canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.imageSmoothingQuality = "high";
    context.drawImage(image, from.x, from.y, from.width, from.height, 0, 0, width, height);
    return [canvas, context.getImageData(0, 0, width, height).data];
  };
  const image = await load(picture);
  const [canvas, pixels] = drawn(image, { x: 0, y: 0, width: image.width, height: image.height }, Math.round(image.width / SCALE), Math.round(image.height / SCALE));
  if (!golden) {
    // Fewer colours are fewer bytes.
    const few = new ImageData(pixels.map((value) => Math.min(Math.round(value / COARSE) * COARSE, 255)), canvas.width, canvas.height);
    canvas.getContext("2d").putImageData(few, 0, 0);
    const bytes = new Uint8Array(await (await canvas.convertToBlob({ type: "image/png" })).arrayBuffer());
    return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  }
  const known = await load(golden.picture);
  const smaller = (section) => Object.fromEntries(Object.entries(section).map(([name, value]) => [name, Math.round(value / SCALE)]));
  return sections.map((section, at) => {
    const was = smaller(golden.sections[at]);
    const { width, height } = was;
    const [, before] = drawn(known, was, width, height);
    const [, after] = drawn(canvas, smaller(section), width, height);
    let worst = { difference: 0, x: 0, y: 0 };
    for (let top = 0; top < height; top += PLACE) {
      for (let left = 0; left < width; left += PLACE) {
        const sums = [0, 0, 0];
        let pixels = 0;
        for (let y = top; y < Math.min(top + PLACE, height); y++) {
          for (let x = left; x < Math.min(left + PLACE, width); x++, pixels++) {
            for (let part = 0; part < 3; part++) sums[part] += after[(y * width + x) * 4 + part] - before[(y * width + x) * 4 + part];
          }
        }
        const difference = Math.max(...sums.map(Math.abs)) / pixels;
        if (difference > worst.difference) worst = { difference, x: left * SCALE, y: top * SCALE };
      }
    }
    return worst;
  });
}

/** Width of a text: fonts of two machines differ by more than their Chromiums. */
const fonts = () =>
  ["14px system-ui, sans-serif", "600 18px ui-monospace, Menlo, Consolas, monospace"].map((font) => {
    const context = new OffscreenCanvas(1, 1).getContext("2d");
    context.font = font;
    return Math.round(context.measureText("Where host time went, 12.5 % of train.py:88").width);
  });

/** Checks one page as it is shown; returns what is wrong with it, or why it was not compared. */
export async function golden(tab, blank, name) {
  const isUpdate = process.env.UPDATE_GOLDENS === "1";
  const known = existsSync(list) ? JSON.parse(readFileSync(list, "utf8")) : {};
  const sections = await tab.evaluate((names) => names.map((name) => {
    const { x, y, width, height } = document.querySelector(name).getBoundingClientRect();
    return { x: Math.round(x + scrollX), y: Math.round(y + scrollY), width: Math.round(width), height: Math.round(height) };
  }), SECTIONS);
  const own = await tab.evaluate(fonts);
  const picture = `data:image/png;base64,${(await tab.screenshot({ fullPage: true, animations: "disabled" })).toString("base64")}`;
  const path = join(folder, `${name}.png`);
  if (isUpdate) {
    mkdirSync(folder, { recursive: true });
    writeFileSync(path, Buffer.from(await blank.evaluate(compare, { picture, sections, golden: null, SCALE, PLACE, COARSE }), "base64"));
    writeFileSync(list, `${JSON.stringify({ ...known, [name]: { fonts: own, sections } }, null, 1)}\n`);
    return { written: path };
  }
  const was = known[name];
  if (!was || !existsSync(path)) return { wrong: [`${name} has no golden picture: UPDATE_GOLDENS=1 writes it`] };
  if (own.some((width, at) => Math.abs(width - was.fonts[at]) > was.fonts[at] * 0.005)) return { skipped: "this machine's fonts are others than the golden pictures'" };
  const found = await blank.evaluate(compare, { picture, sections, golden: { picture: `data:image/png;base64,${readFileSync(path).toString("base64")}`, sections: was.sections }, SCALE, PLACE, COARSE });
  const wrong = SECTIONS.flatMap((section, at) => {
    const [now, before] = [sections[at], was.sections[at]];
    const what = `${name}, ${section}`;
    if (Math.abs(now.width - before.width) > 2 || Math.abs(now.height - before.height) > before.height * STRETCH + 8) return [`${what}: ${now.width}×${now.height} pixels, and ${before.width}×${before.height} in the golden picture`];
    const { difference, x, y } = found[at];
    return difference > MOST ? [`${what}: differs by ${difference.toFixed(0)} of 255 at ${x}, ${y} of the section`] : [];
  });
  return { wrong, worst: Math.max(...found.map((each) => each.difference)) };
}
