// Lets node import the page's modules as a browser gets them (headwise/viewer/bundle.py): .js files that are modules, and
// files as texts. `node --import ./modules.mjs …`, of node 18.19 or newer.

import { readFile } from "node:fs/promises";
import { register } from "node:module";
import { isMainThread } from "node:worker_threads";

const STATIC = new URL("../../../headwise/viewer/static/", import.meta.url).href;

if (isMainThread) register(import.meta.url);

export async function load(url, context, next) {
  if (!url.startsWith(STATIC)) return next(url, context);
  const text = await readFile(new URL(url), "utf-8");
  const asText = /^(import \w+ from "[^"]+)" with \{ type: "text" \};/gm;
  const source = url.endsWith("?text") ? `export default ${JSON.stringify(text)};` : text.replace(asText, '$1?text";');
  return { format: "module", shortCircuit: true, source };
}
