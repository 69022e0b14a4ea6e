// Builds the page from these sources: node build.mjs NODE_MODULES OUT
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const [modules, out] = process.argv.slice(2);
const { buildSync } = createRequire(join(resolve(modules), "x.js"))("esbuild");
const read = (name) => readFileSync(join(here, name), "utf8");
const built = (options) => buildSync({ absWorkingDir: here, bundle: true, minify: true, write: false, charset: "ascii", legalComments: "none", ...options }).outputFiles[0].text.trim();

const script = built({ entryPoints: ["main.ts"], format: "iife", target: "es2022" });
const style = built({ entryPoints: ["style.css"] });
if (/<\/script|<!--/i.test(script)) throw new Error("the script would end its own element");
const hash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
// Nothing is loaded from anywhere; only this script and this style are applied.
const csp = `default-src 'none'; script-src ${hash(script)}; style-src ${hash(style)}; img-src data:; base-uri 'none'; form-action 'none'`;
const parts = { csp, style, script };
const page = read("template.html").replace(/@(csp|style|script)@/g, (_, name) => parts[name]);
writeFileSync(out, page);
