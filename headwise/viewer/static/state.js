// The state of the page. Every view reads and sets it, and is told what changed; a page stores it in the address.

import { LANGUAGES } from "./words.js";
import { read, written as writtenEdits } from "./data/edits.js";

const FIELDS = {
  // field: [name in the address, initial value]
  view: ["view", "head"],
  input: ["input", 0],
  stack: ["stack", 0],
  layer: ["layer", 0],
  head: ["head", 0],
  heads: ["heads", []], // additionally chosen heads, [layer, head]
  row: ["row", null], // the current cell
  col: ["col", null],
  pinRow: ["pinrow", null],
  pinCol: ["pincol", null],
  scale: ["scale", "linear"],
  colours: ["colours", "ember"],
  sink: ["sink", false], // hide the sink's columns
  threshold: ["threshold", 0], // smaller weights are not drawn
  theme: ["theme", "auto"],
  language: ["lang", null], // null: that of the writer of the file, or of the browser
  stat: ["stat", null],
  sort: ["sort", "layers"],
  level: ["level", "tokens"],
  direction: ["look", "gives"],
  sight: ["sight", null], // the visible part of the map: row, past the last row, column, past the last column
  other: ["other", null], // the head on the right of Compare: {input, stack, layer, head}
  compare: ["compare", "side"],
  flow: ["flow", "rollout"],
  overlay: ["overlay", "cells"], // of the Image view; also the next one
  over: ["over", "heads"], // what lies over the image
  bands: ["bands", "each"], // of the Flow view: one colour scale for each layer
  strip: ["strip", true], // the heads at the side
  hints: ["hints", true], // what to look at first
  prompt: ["prompt", null], // of a live page; also the next two
  edits: ["edits", []], // heads that are off and edges that are blocked (data/edits.js)
  after: ["after", null], // the token after which the next one is predicted; null = the last
};

export const CHOICES = {
  scale: ["linear", "root", "log", "row"],
  colours: ["ember", "viridis", "cividis", "grey"],
  theme: ["auto", "light", "dark"],
  language: Object.keys(LANGUAGES),
  sort: ["layers", "down", "up"],
  level: ["tokens", "words", "sentences"],
  direction: ["gives", "gets"],
  compare: ["side", "difference"],
  flow: ["rollout", "relevance"],
  overlay: ["cells", "smooth"],
  over: ["heads", "rollout"],
  bands: ["each", "alike"],
};

// What an opening selects. An address that names one of them says itself what is selected.
const SELECTION = ["input", "stack", "layer", "head", "row", "col", "pinRow", "pinCol"];

export class State {
  #first;
  #opening;
  #listeners = new Set();

  // first: initial values that differ from page to page. opening: the selection with which the page opens, null = none.
  constructor(first = {}, opening = null) {
    this.#first = Object.fromEntries(Object.entries(FIELDS).map(([field, [, value]]) => [field, value]));
    Object.assign(this.#first, first);
    this.openWith(opening);
    Object.assign(this, this.#first, this.#opening);
  }

  // The opening of another run.
  openWith(opening) {
    this.#opening = opening ?? {};
  }

  on(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  // Set the given fields, and tell listeners which really changed.
  set(given) {
    const changed = new Set();
    for (const [field, value] of Object.entries(given)) {
      if (JSON.stringify(this[field]) !== JSON.stringify(value)) changed.add(field);
      this[field] = value;
    }
    if (changed.size) for (const listener of this.#listeners) listener(changed);
  }

  // The part of the address after the #: fields that differ from their initial values.
  write() {
    const opens = { ...this.#first, ...this.#opening };
    const isOpening = SELECTION.every((field) => this[field] === opens[field]);
    const from = isOpening ? opens : this.#first;
    const differs = (field) => JSON.stringify(this[field]) !== JSON.stringify(from[field]);
    const fields = Object.keys(FIELDS).filter(differs);
    if (!isOpening && !fields.some((field) => SELECTION.includes(field))) fields.unshift("layer");
    return fields.map((field) => `${FIELDS[field][0]}=${encodeURIComponent(written(field, this[field]))}`).join("&");
  }

  // The state in an address. Invalid values are ignored, as anyone may have written them; the rest is initial.
  read(hash) {
    const said = new URLSearchParams(hash.replace(/^#/, ""));
    const isSelected = SELECTION.some((field) => said.has(FIELDS[field][0]));
    const found = { ...this.#first, ...(isSelected ? {} : this.#opening) };
    for (const [field, [name]] of Object.entries(FIELDS)) {
      const value = said.has(name) ? parsed(field, said.get(name)) : undefined;
      if (value !== undefined) found[field] = value;
    }
    return found;
  }

  // What an address says and the page does not show: names that no field has, and values that `found` has not.
  unknown(hash, found) {
    const fields = new Map(Object.entries(FIELDS).map(([field, [name]]) => [name, field]));
    const isShown = ([name, text]) => {
      const field = fields.get(name);
      const value = field && parsed(field, text);
      return value !== undefined && JSON.stringify(value) === JSON.stringify(found[field]);
    };
    const said = [...new URLSearchParams(hash.replace(/^#/, ""))];
    return said.filter((each) => !isShown(each)).map(([name, text]) => (text ? `${name}=${text}` : name));
  }
}

function written(field, value) {
  if (field === "heads") return value.map((pair) => pair.join(".")).join(",");
  if (field === "edits") return writtenEdits(value);
  if (field === "sight" && value) return value.map((edge) => Number(edge.toFixed(2))).join(",");
  if (field === "other" && value) return [value.input, value.stack, value.layer, value.head].join(".");
  return String(value ?? "");
}

// The value of a field, or undefined if the text is invalid.
function parsed(field, text) {
  if (CHOICES[field]) return CHOICES[field].includes(text) ? text : undefined;
  if (field === "view" || field === "stat") return text; // the app knows which there are
  if (field === "prompt") return text.trim() ? text : undefined;
  if (field === "edits") return read(text);
  if (["sink", "strip", "hints"].includes(field)) return { true: true, false: false }[text];
  if (field === "heads") return text.split(",").map(places).filter((pair) => pair?.length === 2);
  if (field === "sight") {
    const edges = text.split(",").map(Number);
    return edges.length === 4 && edges.every((edge) => edge >= 0) ? edges : undefined;
  }
  if (field === "other") {
    const [input, stack, layer, head] = places(text) ?? [];
    return head === undefined ? undefined : { input, stack, layer, head };
  }
  if (field === "threshold") {
    const share = Number(text || NaN);
    return share >= 0 && share <= 1 ? share : undefined;
  }
  return places(text)?.length === 1 ? Number(text) : undefined;
}

// The whole numbers in "3.5", or null.
const places = (text) => (/^\d{1,9}(\.\d{1,9})*$/.test(text) ? text.split(".").map(Number) : null);
