// The page around the views: the state, its limits, the style, and the active view.
//
// Everything is in one shadow root, so that a notebook can hold several pages. Around the view are the header, the
// tabs, the strip of heads and the footer, each in its own file.

import CSS from "./page.css" with { type: "text" };
import { openingOf } from "./data/opening.js";
import { ramp } from "./map/colour.js";
import { element, styled } from "./shell/element.js";
import { Footer } from "./shell/footer.js";
import { Header } from "./shell/header.js";
import { Keys } from "./shell/keys.js";
import { Live } from "./shell/live/live.js";
import { silence, watched } from "./shell/questions.js";
import { Opening } from "./shell/opening.js";
import { Saving } from "./shell/saving.js";
import { Search } from "./shell/search.js";
import { State } from "./state.js";
import { Strip } from "./shell/strip.js";
import { Tabs } from "./shell/tabs.js";
import { Theme } from "./shell/theme.js";
import { Thumbs } from "./shell/thumbs.js";
import { ColourBar } from "./map/legend.js";
import { Caption } from "./views/text/caption.js";
import { SMALL, VIEWS } from "./views.js";
import { say } from "./words.js";

const NARROW = 640; // pixels; below, the heads are folded first (as in page.css)
const MANY = 64; // with more tokens most weights are small, so the page opens on the square root scale
const KEEP_MS = 150; // delay until the address is written, so that a moving pointer does not write it all the time
const CELL = ["row", "col", "pinRow", "pinCol", "sight"]; // fields of the state that name tokens
const COLOURS = ["paper", "panel", "soft", "line", "ink", "faint", "accent", "accent-soft", "error"];

export class App {
  // host: the element for the page, already in the document. page: the document is ours, so we use its keys, and its
  // address stores the state. runOf: how a live page runs its model (shell/live/live.js); first: the state with which such
  // a page begins if the address does not give another one.
  constructor(host, source, { page = false, runOf = null, first = source.live } = {}) {
    this.host = host;
    this.closing = new AbortController(); // its signal removes listeners outside of the host
    const { signal } = this.closing;
    addEventListener("unhandledrejection", silence, { signal });
    this.source = this.watch(source);
    this.small = source.small; // the heads that a small output shows, and how; null = the whole page
    this.Views = this.small ? SMALL : VIEWS;
    this.state = new State({
      ...(this.small ? beginning(this.small) : {}),
      ...(first ? Live.first(first) : {}),
      scale: this.source.inputs[0].stacks[0].cols.length > MANY ? "root" : "linear",
      stat: source.statistics[0]?.key ?? null,
      strip: !host.clientWidth || host.clientWidth > NARROW,
    }, this.small ? null : openingOf(this.source));
    this.address = page && location.protocol !== "about:";
    this.element = element;
    this.found = null; // the matches of the search: { rows: Set, cols: Set, query }
    this.root = host.attachShadow({ mode: "open" });
    styled(this.root, [CSS, ColourBar.css, Caption.css, ...this.Views.map((View) => View.css ?? ""), Live.css]);
    this.themes = new Theme(() => this.update(new Set(["theme"])), signal);
    this.live = source.live ? new Live(this, runOf) : null;
    this.build(page);
    this.restyle();
    const { hash } = location;
    if (this.address) {
      this.state.set(this.within(this.state.read(hash)));
      // The address of the event, not location.hash: keepAddress may have overwritten that since.
      addEventListener("hashchange", (event) => this.follow(new URL(event.newURL).hash), { signal });
    }
    this.state.on((changed) => this.update(changed));
    this.update(this.everything());
    if (this.address) this.sayUnknown(hash);
  }

  // Called when the address changes.
  follow(hash) {
    this.state.set(this.within(this.state.read(hash)));
    this.sayUnknown(hash);
  }

  // The address may belong to another page, or be written by hand.
  sayUnknown(hash) {
    const unknown = this.state.unknown(hash, this.state);
    if (unknown.length) this.say(say("The address names what this page does not have: {names}", { names: unknown.join(", ") }));
  }

  // The host is removed: remove all listeners and timers.
  close() {
    this.closing.abort();
    clearTimeout(this.keeping);
    this.thumbs.close();
    this.live?.close();
    for (const { view } of this.views) view?.close?.();
    this.source.close?.();
  }

  // A source with the same answers; the page shows how long they take, and their errors.
  watch(source) {
    return watched(source, { busy: (slow) => this.busy(slow), failed: (error) => this.fail(error) });
  }

  // Another run of the same model, with another prompt or other edits. If its tokens are the same, the selection stays.
  // Views that do not follow a new stack by themselves are made anew.
  replace(source) {
    const tile = this.root.activeElement?.closest?.(".tile");
    const before = this.stack;
    this.source = this.watch(source);
    this.state.openWith(openingOf(this.source));
    for (const axis of ["rows", "cols"]) keepAxis(before, this.stack, axis);
    for (const known of this.views) {
      if (!known.view || known.View.follows) continue;
      known.view.hide?.();
      known.view.close?.();
      if (known === this.shown) this.shown = null;
      known.view = null;
    }
    const found = this.within(this.state);
    if (!sameTokens(before.rows, this.stack.rows)) {
      const isSame = (field, axis) => before[axis].labels[found[field]] === this.stack[axis].labels[found[field]];
      const kept = isSame("pinRow", "rows") && isSame("pinCol", "cols") ? { pinRow: found.pinRow, pinCol: found.pinCol } : {};
      for (const field of CELL) found[field] = kept[field] ?? null;
    }
    Object.assign(this.state, found);
    this.update(this.everything());
    const { layer, head } = tile?.dataset ?? {};
    if (tile) this.root.querySelector(`.tile[data-layer="${layer}"][data-head="${head}"]`)?.focus();
  }

  // ---- the selection

  get input() {
    return this.source.inputs[this.state.input];
  }

  get stack() {
    return this.input.stacks[this.state.stack];
  }

  get layer() {
    return this.stack.layers[this.state.layer];
  }

  // The views that can show anything in this page, and the chosen view, which may say why it cannot.
  get shownViews() {
    if (this.able?.source !== this.source) {
      const stacks = this.source.inputs.flatMap((input) => input.stacks);
      const can = (View) => stacks.some((stack) => !View.why(Object.create(this, { stack: { value: stack } })));
      this.able = { source: this.source, views: this.Views.filter(can) };
    }
    return this.Views.filter((View) => View.id === this.state.view || this.able.views.includes(View));
  }

  // The class of the chosen view and its object; null if it has nothing to show.
  get View() {
    return this.Views.find(({ id }) => id === this.state.view);
  }

  get view() {
    return this.why ? null : this.shown?.view;
  }

  layerName(layer) {
    return say("layer {n}", { n: this.stack.layers[layer].number });
  }

  headName(layer, head) {
    const name = this.plainHeadName(layer, head);
    return this.live?.isOff(layer, head) ? say("{name} ({what})", { name, what: say("off") }) : name;
  }

  plainHeadName(layer, head) {
    const name = say("head {n}", { n: head });
    return this.small?.unnamed ? name : `${this.layerName(layer)} · ${name}`;
  }

  // The map of a head of this stack, for HeatMap.
  mapOf(layer, head) {
    const { stack } = this;
    const { rows, cols, cells, layers } = stack;
    const size = { head: this.headName(layer, head), rows: rows.length, cols: cols.length };
    const name = say("Attention of {head}: {rows} rows, {cols} columns. Arrow keys move from cell to cell", size);
    const { weights, masked } = layers[layer];
    const tile = (...question) => stack.tile(layer, head, ...question);
    return { rows, cols, tile, cells, weights, masked, name };
  }

  digits(weight) {
    return weight >= 1e-4 || weight === 0 ? weight.toPrecision(4) : weight.toExponential(3);
  }

  // ---- changes of the selection

  // Set the state, limited to what exists. If the tokens change, the current cell is cleared.
  go(given) {
    const next = this.within({ ...this.state, ...given });
    const [now, then] = [this.stack, this.source.inputs[next.input].stacks[next.stack]];
    if (!sameTokens(now.rows, then.rows) || !sameTokens(now.cols, then.cols)) {
      for (const field of CELL) next[field] = given[field] ?? null;
    }
    this.state.set(next);
  }

  // Add a head to the chosen heads, or remove it.
  choose(layer, head) {
    const others = this.state.heads.filter((pair) => pair[0] !== layer || pair[1] !== head);
    const there = others.length < this.state.heads.length;
    this.go({ heads: there ? others : [...others, [layer, head]] });
  }

  // A state limited to what exists: heads, rows and so on that do not exist are dropped.
  within(said) {
    const below = (number, count) => (number !== null && number < count ? number : null);
    const found = { ...said };
    if (!this.Views.some(({ id }) => id === said.view)) delete found.view; // the view stays
    found.input = below(said.input, this.source.inputs.length) ?? 0;
    const { stacks } = this.source.inputs[found.input];
    found.stack = below(said.stack, stacks.length) ?? 0;
    const stack = stacks[found.stack];
    found.layer = below(said.layer, stack.layers.length) ?? 0;
    found.head = below(said.head, stack.layers[found.layer].heads) ?? 0;
    for (const field of ["row", "pinRow"]) found[field] = below(said[field], stack.rows.length);
    for (const field of ["col", "pinCol"]) found[field] = below(said[field], stack.cols.length);
    const there = new Map(said.heads.map((pair) => [pair.join("."), pair])); // each once
    found.heads = [...there.values()].filter(([layer, head]) => head < (stack.layers[layer]?.heads ?? 0));
    if (said.sight) {
      const [row, pastRow, col, pastCol] = said.sight;
      const fits = row < pastRow && pastRow <= stack.rows.length && col < pastCol && pastCol <= stack.cols.length;
      found.sight = fits ? said.sight : null;
    }
    const { other } = said;
    const compared = other && this.source.inputs[other.input]?.stacks[other.stack]?.layers[other.layer];
    found.other = compared && other.head < compared.heads ? other : null;
    const { statistics } = this.source;
    if (!statistics.some(({ key }) => key === said.stat)) found.stat = statistics[0]?.key ?? null;
    return found;
  }

  // ---- the frame

  build(page) {
    this.views = this.Views.map((View) => ({ View, view: null }));
    this.thumbs = new Thumbs(this);
    this.header = new Header(this);
    this.search = new Search(this);
    this.saving = new Saving(this);
    this.tabs = new Tabs(this, [this.search.element, this.saving.element]);
    this.strip = new Strip(this);
    this.opening = new Opening(this);
    this.footer = new Footer(this);
    this.keys = new Keys(this, page ? document : this.host);
    this.progress = element("div", { className: "progress", role: "progressbar", ariaLabel: say("Computing") });
    this.progress.hidden = true;
    this.bar = element("div", { className: "bar" });
    this.panel = element("div", { className: "panel", role: "tabpanel", id: "panel", tabIndex: 0 });
    const { live } = this;
    const some = (...parts) => (live ? parts : []);
    const stage = element("div", { className: "stage" }, ...some(live?.row.element), this.opening.element, this.bar, this.panel);
    const aside = some(live?.predictions.element);
    const body = element("div", { className: "body" }, this.strip.element, stage, ...aside);
    const main = element(page ? "main" : "div", { className: "main" }, this.tabs.element, body);
    const whole = [this.header.element, ...some(live?.prompt.element), main];
    const parts = [this.progress, ...(this.small ? [this.panel] : whole), this.footer.element, this.keys.help];
    this.frame = element("div", { className: this.small ? "app small" : "app" }, ...parts);
    this.host.toggleAttribute("data-small", Boolean(this.small));
    this.root.append(this.frame);
  }

  // A sentence for the reader, on the status line.
  say(sentence) {
    this.footer.say(sentence);
  }

  // Show an error as a sentence. An aborted question is not an error.
  fail(error) {
    if (error?.name !== "AbortError") this.footer.fail(String(error?.message ?? error));
  }

  busy(slow) {
    this.progress.hidden = !slow;
    this.panel.ariaBusy = String(slow);
  }

  // ---- the style

  get theme() {
    return this.themes.shown(this.state.theme);
  }

  // The colours of the page, for canvases.
  restyle() {
    this.host.dataset.theme = this.theme;
    const computed = getComputedStyle(this.host);
    const value = (name) => computed.getPropertyValue(`--${name}`).trim();
    const dark = this.theme === "dark";
    this.style = { dark, font: computed.fontFamily, table: ramp(dark, this.state.colours) };
    this.style.hatch = hatch(value("hatch"), value("hatch-line"));
    for (const name of COLOURS) this.style[name.replace(/-s/, "S")] = value(name);
  }

  // ---- the active view

  everything() {
    return new Set([...Object.keys(this.state), "style", "found"]);
  }

  update(changed) {
    if (changed.has("theme") || changed.has("colours")) {
      this.restyle();
      changed.add("style");
    }
    const known = this.views.find(({ View }) => View === this.View);
    const why = known.View.why(this);
    if (changed.has("style") || changed.has("scale") || changed.has("sink")) this.thumbs.restyle();
    for (const part of [this.header, this.search, this.tabs, this.strip, this.opening, this.footer]) part.update(changed);
    this.live?.update(changed);
    if (this.shown !== known || why !== this.why) {
      this.show(known, why);
      changed = this.everything();
    }
    if (!why) this.tell(known.view, changed);
    this.saving.update();
    if (this.address) this.keepAddress();
  }

  show(known, why) {
    this.view?.hide?.();
    [this.shown, this.why] = [known, why];
    if (!why && !known.view) {
      try {
        known.view = new known.View(this);
      } catch (error) {
        this.fail(error);
        throw error;
      }
    }
    const controls = this.view?.controls;
    this.bar.hidden = !controls;
    this.bar.replaceChildren(...[controls].filter(Boolean));
    this.panel.replaceChildren(why ? element("p", { className: "why", textContent: why }) : known.view.element);
    this.panel.setAttribute("aria-labelledby", `tab-${known.View.id}`);
    this.panel.scrollTop = 0;
  }

  tell(view, changed) {
    try {
      view.update(changed);
    } catch (error) {
      this.fail(error); // the page stays usable if one view fails
      reportError(error);
    }
  }

  // The matches of the search have changed.
  mark(found) {
    this.found = found;
    if (this.view) this.tell(this.view, new Set(["found"]));
  }

  keepAddress() {
    clearTimeout(this.keeping);
    this.keeping = setTimeout(() => {
      const hash = this.state.write();
      try {
        history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
      } catch {
        this.address = false; // a page in a frame has no address of its own
      }
    }, KEEP_MS);
  }
}

// The state that a small output begins with.
function beginning({ kind, heads: [head, ...others], row }) {
  const also = others.map((other) => [0, other]);
  return { view: kind === "lines" ? "lines" : "maps", head, heads: also, pinRow: row };
}

const sameTokens = (one, other) => one === other || one.labels.join("\0") === other.labels.join("\0");

// Let a stack use the axis of the previous stack if its tokens are the same: maps then keep what they show of it.
function keepAxis(before, stack, axis) {
  if (sameTokens(before[axis], stack[axis])) stack[axis] = before[axis];
}

function hatch(fill, line) {
  const size = 6 * devicePixelRatio;
  const canvas = new OffscreenCanvas(size, size);
  const context = canvas.getContext("2d");
  context.fillStyle = fill;
  context.fillRect(0, 0, size, size);
  context.strokeStyle = line;
  context.lineWidth = devicePixelRatio;
  context.beginPath();
  for (const shift of [-size, 0, size]) {
    context.moveTo(shift - 1, size + 1);
    context.lineTo(shift + size + 1, -1);
  }
  context.stroke();
  return context.createPattern(canvas, "repeat");
}
