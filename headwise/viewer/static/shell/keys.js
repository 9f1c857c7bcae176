// The keys, and the table that lists them. Keys of the view take precedence over those of the page.

import { SCALES } from "../map/colour.js";
import { button } from "./controls.js";
import { element } from "./element.js";
import { valuesOf } from "../state.js";
import { VIEWS } from "../views.js";
import { STEPS } from "./thumbs.js";
import { aboutSaid, say } from "../words.js";

const TYPED = "input:not([type=range], [type=checkbox], [type=radio]), textarea, select, [contenteditable]";
const FAR = 10; // cells that an arrow moves with Shift

// Each: the keys, what they do, and the function of (app, key, event).
const MOVING = [
  [Object.keys(STEPS), "move the cell; with Shift by {n}", (app, key, event) => move(app, STEPS[key], event.shiftKey)],
  [["[", "]"], "previous layer, next layer", (app, key) => turn(app, "layer", key === "]", app.stack.layers.length)],
  [[",", "."], "previous head, next head", (app, key) => turn(app, "head", key === ".", app.layer.heads)],
  [["x"], "add this head to the chosen heads, or remove it", (app) => app.choose(app.state.layer, app.state.head)],
  [["p"], "pin the cell, or unpin it", (app) => pin(app.state)],
  [["Escape"], "unpin, then clear the cell", (app) => letGo(app.state)],
  [["/"], "search for a token; Enter: next, Shift+Enter: previous", (app) => app.search.focus()],
];
const SHOWING = [
  [VIEWS.slice(0, 9).map((_, at) => String(at + 1)), "choose a view", (app, key) => chooseView(app, key)],
  [["s"], "next colour scale", (app) => following(app, "scale")],
  [["c"], "next colour map", (app) => following(app, "colours")],
  [["h"], "hide or show the sink", (app) => app.state.set({ sink: !app.state.sink })],
  [["b"], "hide or show the heads at the side", (app) => app.state.set({ strip: !app.state.strip })],
  [["i"], "hide or show what to look at", (app) => app.state.set({ hints: !app.state.hints })],
  [["t"], "theme: light, dark, or that of the system", (app) => app.header.turnTheme()],
  [["?"], "this table", (app) => app.keys.show()],
];

// The characters of keys on layouts with other letters.
const LATIN = { BracketLeft: "[", BracketRight: "]", Comma: ",", Period: ".", Slash: "/" };
for (const letter of "abcdefghijklmnopqrstuvwxyz") LATIN[`Key${letter.toUpperCase()}`] = letter;

const CAPS = { ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→", Escape: "Esc", " ": "Space" };

export class Keys {
  // place: the element with the listeners, the document or one host in a notebook.
  constructor(app, place) {
    this.app = app;
    this.editing = app.live?.keys ?? [];
    this.acts = new Map([...MOVING, ...SHOWING, ...this.editing].flatMap(([keys, , act]) => keys.map((key) => [key, act])));
    place.addEventListener("keydown", (event) => this.press(event), { signal: app.closing.signal });
    this.table = element("div", { className: "tables" });
    const title = element("h2", { textContent: say("Keyboard"), id: "help-title" });
    const close = button({ icon: "close" }, say("Close"), () => this.help.close());
    const top = element("div", { className: "top" }, title, close);
    const about = element("p", { className: "about", textContent: aboutSaid(app.source.about) });
    this.help = element("dialog", { className: "help" }, top, this.table, about);
    this.help.setAttribute("aria-labelledby", "help-title");
    this.help.addEventListener("click", (event) => event.target === this.help && this.help.close()); // beside it
  }

  press(event) {
    if (event.defaultPrevented || event.isComposing || isCommand(event)) return;
    const target = event.composedPath()[0];
    if (target.matches?.(TYPED) || this.app.root.querySelector("dialog[open]")) return;
    const key = event.key > "\x7f" ? (LATIN[event.code] ?? event.key) : event.key;
    const own = this.app.view?.keys?.[key];
    const act = own ? own[0] : this.acts.get(key);
    if (!act || ([" ", "Enter"].includes(key) && target.matches?.("button, a, summary"))) return;
    event.preventDefault();
    event.stopPropagation(); // a notebook has its own keys
    if (own) act(event);
    else act(this.app, key, event);
  }

  show() {
    const own = Object.entries(this.app.view?.keys ?? {});
    const alike = new Map(); // keys with the same function share a line
    for (const [key, [, does]] of own) alike.set(does, [...(alike.get(does) ?? []), key]);
    const taken = new Set(own.map(([key]) => key));
    const views = this.app.shownViews.length;
    const free = ([keys, does]) => [keys.filter((key) => !taken.has(key) && !(key > views)), does];
    const left = (lines) => lines.map(free).filter(([keys]) => keys.length);
    const tables = [[say("Move"), left(spoken(MOVING))], [say("Show"), left(spoken(SHOWING))]];
    if (this.editing.length) tables.push([say("Edit"), left(this.editing)]);
    if (own.length) tables.push([say("In {view}", { view: say(this.app.shown.View.title) }), [...alike].map(([does, keys]) => [keys, does])]);
    this.table.replaceChildren(...tables.map(([name, lines]) => tableOf(name, lines)));
    this.help.showModal();
  }
}

// Whether the key belongs to browser or system. Many layouts have [ and ] only with Option, or AltGr (Ctrl and Alt).
function isCommand({ key, metaKey, ctrlKey, altKey }) {
  const sign = key.length === 1 && !/[\p{L}\p{N}]/u.test(key);
  return metaKey || (ctrlKey && !altKey) || (altKey && !sign);
}

// The lines of a table above, in the reader's language.
const spoken = (lines) => lines.map(([keys, does]) => [keys, say(does, { n: FAR })]);

function tableOf(name, lines) {
  const cap = (key) => element("kbd", { textContent: CAPS[key] ?? key });
  const short = (keys) => (keys.length > 4 ? [cap(keys[0]), " … ", cap(keys.at(-1))] : keys.map(cap));
  const line = ([keys, does]) => [element("dt", {}, ...short(keys)), element("dd", { textContent: does })];
  return element("section", {}, element("h3", { textContent: name }), element("dl", {}, ...lines.flatMap(line)));
}

// ---- functions of the keys

// Move the current cell. If there is none, it appears at the pinned cell, or at the beginning.
function move(app, [down, right], shift) {
  const { row, col, pinRow, pinCol } = app.state;
  const { rows, cols } = app.stack;
  if (row === null && col === null) return app.state.set({ row: pinRow ?? 0, col: pinCol ?? 0 });
  const far = shift ? FAR : 1;
  const within = (at, axis) => Math.max(0, Math.min(axis.length - 1, at));
  app.state.set({
    row: within((row ?? pinRow ?? 0) + far * down, rows),
    col: within((col ?? pinCol ?? 0) + far * right, cols),
  });
}

function turn(app, field, on, count) {
  app.go({ [field]: (app.state[field] + (on ? 1 : count - 1)) % count });
}

// The number keys are those of the tabs that are there.
function chooseView(app, key) {
  const View = app.shownViews[key - 1];
  if (View) app.go({ view: View.id });
}

function following(app, field) {
  const values = valuesOf(field);
  const value = values[(values.indexOf(app.state[field]) + 1) % values.length];
  app.state.set({ [field]: value });
  const name = say(SCALES[value]?.name ?? value);
  app.say(field === "scale" ? say("Scale: {name}", { name }) : say("Colours: {name}", { name }));
}

function pin(state) {
  const { row, col, pinRow, pinCol } = state;
  const there = pinRow === row && pinCol === col;
  state.set(there ? { pinRow: null, pinCol: null } : { pinRow: row, pinCol: col });
}

function letGo(state) {
  const pinned = state.pinRow !== null || state.pinCol !== null;
  state.set(pinned ? { pinRow: null, pinCol: null } : { row: null, col: null });
}
