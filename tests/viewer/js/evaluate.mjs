// Evaluates some code for a test in Python: `node --import ./modules.mjs evaluate.mjs` gets { code, given, page } as JSON and
// prints what the code returns as JSON, with NaN and infinities as Python reads them.
//
// The code is the body of an async function of use(path), which imports a module of the page, of `given`, and of `source`,
// the numbers of a page with these facts and blocks.

import { readFileSync } from "node:fs";

const AsyncFunction = (async () => {}).constructor;
const use = (path) => import(new URL(`../../../headwise/viewer/static/${path}`, import.meta.url));

const { code, given, page } = JSON.parse(readFileSync(0, "utf-8"));
const { embeddedSource } = await use("data/source.js");
const bytesOf = (name) => Uint8Array.from(Buffer.from(page.blocks[name], "base64")).buffer;
const source = page && embeddedSource(page.facts, bytesOf);
process.stdout.write(written(await new AsyncFunction("use", "given", "source", code)(use, given, source)));

function written(value) {
  if (typeof value === "number") return String(value);
  if (value === null || typeof value !== "object") return JSON.stringify(value ?? null);
  if (Array.isArray(value) || ArrayBuffer.isView(value)) return `[${Array.from(value, written).join()}]`;
  return `{${Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}:${written(each)}`).join()}}`;
}
