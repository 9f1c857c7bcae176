// The state of the page. Every view reads and sets it, and is told what changed; a page stores it in the address.

import { LANGUAGES } from "./words.js";
import { read, written as writtenEdits } from "./data/edits.js";

// A kind of field: its value as text, and the value of a text, undefined if the text is invalid.
const kind = (read, written = (value) => String(value ?? "")) => ({ read, written });
const choice = (...values) => ({ ...kind((text) => (values.includes(text) ? text : undefined)), values });
const NUMBER = kind((text) => (places(text)?.length === 1 ? Number(text) : undefined));
const NAME = kind((text) => text); // the app knows which names exist
const FLAG = kind((text) => (["true", "false"].includes(text) ? text === "true" : undefined));
const PROMPT = kind((text) => (text.trim() ? text : undefined));
const EDITS = kind(read, writtenEdits);
const SHARE = kind((text) => {
  const share = Number(text || NaN);
  return share >= 0 && share <= 1 ? share : undefined;
});
const HEADS = kind(
  (text) => text.split(",").map(places).filter((pair) => pair?.length === 2),
  (pairs) => pairs.map((pair) => pair.join(".")).join(","),
);
const SIGHT = kind((text) => {
  const edges = text.split(",").map(Number);
  return edges.length === 4 && edges.every((edge) => edge >= 0) ? edges : undefined;
}, (edges) => edges?.map((edge) => Number(edge.toFixed(2))).join(",") ?? "");
const OTHER = kind((text) => {
  const [input, stack, layer, head] = places(text) ?? [];
  return head === undefined ? undefined : { input, stack, layer, head };
}, (other) => (other ? [other.input, other.stack, other.layer, other.head].join(".") : ""));

// The whole numbers in "3.5", or null.
const places = (text) => (/^\d{1,9}(\.\d{1,9})*$/.test(text) ? text.split(".").map(Number) : null);

const FIELDS = {
  // field: [name in the address, initial value, kind]
  view: ["view", "head", NAME],
  input: ["input", 0, NUMBER],
  stack: ["stack", 0, NUMBER],
  layer: ["layer", 0, NUMBER],
  head: ["head", 0, NUMBER],
  heads: ["heads", [], HEADS], // additionally chosen heads, [layer, head]
  row: ["row", null, NUMBER], // the current cell
  col: ["col", null, NUMBER],
  pinRow: ["pinrow", null, NUMBER],
  pinCol: ["pincol", null, NUMBER],
  scale: ["scale", "linear", choice("linear", "root", "log", "row")],
  colours: ["colours", "ember", choice("ember", "viridis", "cividis", "grey")],
  sink: ["sink", false, FLAG], // hide the sink's columns
  threshold: ["threshold", 0, SHARE], // smaller weights are not drawn
  theme: ["theme", "auto", choice("auto", "light", "dark")],
  language: ["lang", null, choice(...Object.keys(LANGUAGES))], // null: that of the file's writer, or of the browser
  stat: ["stat", null, NAME],
  sort: ["sort", "layers", choice("layers", "down", "up")],
  level: ["level", "tokens", choice("tokens", "words", "sentences")],
  direction: ["look", "gives", choice("gives", "gets")],
  sight: ["sight", null, SIGHT], // the visible part of the map: row, past the last row, column, past the last column
  other: ["other", null, OTHER], // the head on the right of Compare: {input, stack, layer, head}
  compare: ["compare", "side", choice("side", "difference")],
  align: ["align", "tokens", choice("tokens", "positions")], // of the two texts of Compare
  flow: ["flow", "rollout", choice("rollout", "relevance")],
  overlay: ["overlay", "cells", choice("cells", "smooth")], // the Image view uses this field and the next one
  over: ["over", "heads", choice("heads", "rollout")], // what lies over the image
  bands: ["bands", "each", choice("each", "alike")], // of the Flow view: one colour scale for each layer
  strip: ["strip", true, FLAG], // the heads at the side
  hints: ["hints", true, FLAG], // what to look at first
  prompt: ["prompt", null, PROMPT], // a live page uses this field and the next two
  edits: ["edits", [], EDITS], // heads that are off and edges that are blocked (data/edits.js)
  after: ["after", null, NUMBER], // the token after which the next one is predicted; null = the last
};

// The values of a field that has only a few.
export const valuesOf = (field) => FIELDS[field][2].values;

// The fields that an opening selects. An address that names one of them replaces the opening.
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

  // Set the opening of another run.
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
    return fields.map((field) => `${FIELDS[field][0]}=${encodeURIComponent(FIELDS[field][2].written(this[field]))}`).join("&");
  }

  // The state in an address. Invalid values are ignored; the rest is initial.
  read(hash) {
    const said = new URLSearchParams(hash.replace(/^#/, ""));
    const isSelected = SELECTION.some((field) => said.has(FIELDS[field][0]));
    const found = { ...this.#first, ...(isSelected ? {} : this.#opening) };
    for (const [field, [name, , { read }]] of Object.entries(FIELDS)) {
      const value = said.has(name) ? read(said.get(name)) : undefined;
      if (value !== undefined) found[field] = value;
    }
    return found;
  }

  // The parts of an address that the page does not show: names that no field has, and values that `found` lacks.
  unknown(hash, found) {
    const fields = new Map(Object.entries(FIELDS).map(([field, [name]]) => [name, field]));
    const isShown = ([name, text]) => {
      const field = fields.get(name);
      const value = field && FIELDS[field][2].read(text);
      return value !== undefined && JSON.stringify(value) === JSON.stringify(found[field]);
    };
    const said = [...new URLSearchParams(hash.replace(/^#/, ""))];
    return said.filter((each) => !isShown(each)).map(([name, text]) => (text ? `${name}=${text}` : name));
  }
}
