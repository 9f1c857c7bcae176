// What is looked at. Every view reads it and sets it, and hears of what changed; a page keeps it in the address.

const FIELDS = {
  // field: [name in the address, value at first]
  view: ["view", "head"],
  input: ["input", 0],
  stack: ["stack", 0],
  layer: ["layer", 0],
  head: ["head", 0],
  heads: ["heads", []], // further heads chosen, [layer, head]
  row: ["row", null], // the cell in question
  col: ["col", null],
  pinRow: ["pinrow", null],
  pinCol: ["pincol", null],
  scale: ["scale", "linear"],
  colours: ["colours", "ember"],
  sink: ["sink", false], // hide the sink's columns
  theme: ["theme", "auto"],
  stat: ["stat", null],
  sort: ["sort", "layers"],
  level: ["level", "tokens"],
  direction: ["look", "gives"],
  sight: ["sight", null], // the part of the map in sight: row, past the last row, column, past the last column
  other: ["other", null], // what it is compared with: {input, stack, layer, head}
  compare: ["compare", "side"],
  flow: ["flow", "rollout"],
  form: ["form", "text"], // of the Text view
  overlay: ["overlay", "cells"], // of the Image view
  bands: ["bands", "each"], // of the Flow view: each layer on a scale of its own
  strip: ["strip", true], // the heads at the side
};

export const CHOICES = {
  view: ["model", "head", "text", "compare", "flow", "image"],
  scale: ["linear", "root", "log", "row"],
  colours: ["ember", "viridis", "cividis", "grey"],
  theme: ["auto", "light", "dark"],
  sort: ["layers", "down", "up"],
  level: ["tokens", "words", "sentences"],
  direction: ["gives", "gets"],
  compare: ["side", "difference"],
  flow: ["rollout", "relevance"],
  form: ["text", "lines"],
  overlay: ["cells", "smooth"],
  bands: ["each", "alike"],
};

export class State {
  #first;
  #listeners = new Set();

  // first: what holds at first here, where that is not the same for every page.
  constructor(first = {}) {
    this.#first = Object.fromEntries(Object.entries(FIELDS).map(([field, [, value]]) => [field, value]));
    Object.assign(this.#first, first);
    Object.assign(this, this.#first);
  }

  on(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  // Take over what is given, and tell of what really changed.
  set(given) {
    const changed = new Set();
    for (const [field, value] of Object.entries(given)) {
      if (JSON.stringify(this[field]) !== JSON.stringify(value)) changed.add(field);
      this[field] = value;
    }
    if (changed.size) for (const listener of this.#listeners) listener(changed);
  }

  // The address's part after the #: what differs from the beginning.
  write() {
    const parts = [];
    for (const [field, [name]] of Object.entries(FIELDS)) {
      const value = this[field];
      if (JSON.stringify(value) === JSON.stringify(this.#first[field])) continue;
      parts.push(`${name}=${encodeURIComponent(written(field, value))}`);
    }
    return parts.join("&");
  }

  // What an address says, without what makes no sense: anyone may have written it. What it does not say is as at first.
  read(hash) {
    const said = new URLSearchParams(hash.replace(/^#/, ""));
    const found = { ...this.#first };
    for (const [field, [name]] of Object.entries(FIELDS)) {
      const value = said.has(name) ? parsed(field, said.get(name)) : undefined;
      if (value !== undefined) found[field] = value;
    }
    return found;
  }
}

function written(field, value) {
  if (field === "heads") return value.map((pair) => pair.join(".")).join(",");
  if (field === "sight" && value) return value.map((edge) => Number(edge.toFixed(2))).join(",");
  if (field === "other" && value) return [value.input, value.stack, value.layer, value.head].join(".");
  return String(value ?? "");
}

// The value of a field, or undefined where the text means none.
function parsed(field, text) {
  if (CHOICES[field]) return CHOICES[field].includes(text) ? text : undefined;
  if (field === "stat") return text;
  if (field === "sink" || field === "strip") return { true: true, false: false }[text];
  if (field === "heads") return text.split(",").map(places).filter((pair) => pair?.length === 2);
  if (field === "sight") {
    const edges = text.split(",").map(Number);
    return edges.length === 4 && edges.every((edge) => edge >= 0) ? edges : undefined;
  }
  if (field === "other") {
    const [input, stack, layer, head] = places(text) ?? [];
    return head === undefined ? undefined : { input, stack, layer, head };
  }
  return places(text)?.length === 1 ? Number(text) : undefined;
}

// The whole numbers in "3.5", or null.
const places = (text) => (/^\d{1,9}(\.\d{1,9})*$/.test(text) ? text.split(".").map(Number) : null);
