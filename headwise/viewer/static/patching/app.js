// The page of a patching experiment: the effects as a map, a row for each layer, a column for each position or head.

import PAGE from "../page.css" with { type: "text" };
import STYLE from "./patching.css" with { type: "text" };
import { css, divergingRamp } from "../map/colour.js";
import { choices, languageSwitch, picker, button } from "../shell/controls.js";
import { element, listed, styled } from "../shell/element.js";
import { Theme } from "../shell/theme.js";
import { aboutSaid, say } from "../words.js";

const LISTED = 10;

export class PatchingApp {
  constructor(host, facts) {
    Object.assign(this, { host, facts, theme: "auto", measure: "effects", head: "most" });
    this.root = host.attachShadow({ mode: "open" });
    styled(this.root, [PAGE, STYLE]);
    const said = new URLSearchParams(location.hash.slice(1));
    if (["light", "dark"].includes(said.get("theme"))) this.theme = said.get("theme");
    this.themes = new Theme(() => this.update());
    this.turn = button({ icon: "auto" }, say("Theme"), () => this.set({ theme: this.themes.after(this.theme) }));
    const measures = [["effects", say("patched")], ["attributed", say("attribution"), say("Approximated by one backward pass")]];
    this.measures = choices(say("Measure"), measures, (measure) => this.set({ measure }));
    this.measures.hidden = !facts.attributed;
    const heads = Array.from({ length: facts.heads }, (_, head) => [head, say("head {n}", { n: head })]);
    this.heads = picker(say("Effect of"), [["most", say("the head with the largest effect")], ...heads], (head) => this.set({ head }));
    this.heads.hidden = facts.positions === null;
    this.reading = element("p", { className: "reading", role: "status" });
    this.map = element("div", { className: "map", tabIndex: 0, role: "region", ariaLabel: say("Effects") });
    this.most = element("ol");
    this.legend = element("p", { className: "about" });
    const section = element("section", { className: "patching" },
      element("div", { className: "patching-bar" }, this.measures, this.heads), this.reading, this.map, this.legend,
      element("h2", { textContent: say("Largest effects") }), this.most);
    this.root.append(element("div", { className: "app" }, this.header(), element("main", { className: "patching-stage" }, section)));
    for (const type of ["pointerover", "focusin"]) {
      this.map.addEventListener(type, (event) => this.read(event.composedPath()[0].closest?.("td")?.dataset ?? null));
    }
    this.update();
  }

  header() {
    const { facts } = this;
    const numbers = { clean: digits(facts.clean), corrupted: digits(facts.corrupted) };
    const said = [say("metric: clean {clean}, corrupted {corrupted}", numbers)];
    if (facts.correlation !== null) said.push(say("correlation with attribution patching: {r}", { r: facts.correlation.toFixed(3) }));
    said.push(aboutSaid(facts.about));
    const speak = (lang) => {
      location.hash = new URLSearchParams({ lang, theme: this.theme });
      location.reload();
    };
    return element("header", {}, element("h1", { textContent: facts.title, dir: "auto" }),
      element("p", { className: "facts" }, ...listed(said)),
      element("span", { className: "corner" }, languageSwitch(speak), this.turn));
  }

  set(given) {
    Object.assign(this, given);
    this.update();
  }

  // What a cell shows: its effect, and of which head it is.
  cell(layer, column) {
    const heads = this.facts[this.measure][layer];
    if (this.facts.positions === null) return { effect: heads[column], head: column };
    if (this.head !== "most") return { effect: heads[this.head][column], head: Number(this.head) };
    const found = heads.map((each, head) => ({ effect: each[column], head })).filter(({ effect }) => effect !== null);
    return found.reduce((most, each) => (Math.abs(each.effect) > Math.abs(most.effect) ? each : most));
  }

  // The effects of every head, or of the chosen one.
  get all() {
    const { facts, measure, head: chosen } = this;
    const found = facts[measure].flatMap((heads, layer) => heads.flatMap((each, head) => {
      if (facts.positions === null) return [{ effect: each, layer, head, column: head }];
      return each.map((effect, column) => ({ effect, layer, head, column }));
    }));
    return found.filter(({ effect, head }) => effect !== null && (chosen === "most" || head === Number(chosen)));
  }

  nameOf(column) {
    const { positions, labels } = this.facts;
    if (positions === null) return say("head {n}", { n: column });
    return labels[column] === undefined ? say("position {n}", { n: column }) : `${labels[column]} ${column}`;
  }

  update() {
    const { facts } = this;
    this.host.dataset.theme = this.themes.shown(this.theme);
    this.themes.mark(this.turn, this.theme);
    this.measures.show(this.measure);
    this.heads.show(this.head);
    const columns = [...Array(facts.positions ?? facts.heads).keys()];
    const cells = facts.layers.map((_, layer) => columns.map((column) => this.cell(layer, column)));
    const all = this.all;
    const top = all.reduce((most, { effect }) => Math.max(most, Math.abs(effect)), 0);
    const table = divergingRamp(this.host.dataset.theme === "dark");
    const short = (column) => (facts.positions === null ? column : (facts.labels[column] ?? column));
    const titles = columns.map((column) => element("th", { scope: "col", title: this.nameOf(column) }, element("span", { textContent: short(column), className: typeof short(column) === "number" ? "" : "turned" })));
    const rows = cells.map((row, layer) => {
      const made = row.map(({ effect, head }, column) => {
        const cell = element("td", { title: effect === null ? "" : this.told({ effect, head, layer, column }) });
        if (effect !== null) cell.style.background = css(effect, top, "linear", table, true).fill;
        Object.assign(cell.dataset, { effect, head, layer, column });
        return cell;
      });
      return element("tr", {}, element("th", { scope: "row", textContent: say("layer {n}", { n: layer }), title: facts.layers[layer] }), ...made);
    });
    this.map.replaceChildren(element("table", {}, element("tr", {}, element("td", { textContent: facts.positions === null ? say("head") : "" }), ...titles), ...rows));
    const values = { low: digits(-top), high: digits(top) };
    this.legend.textContent = say("An effect is the share of the difference between the two runs that patching brings back: 1 = all, 0 = nothing. Colours from {low} (blue) to {high} (orange).", values);
    const strongest = all.sort((one, other) => other.effect - one.effect).slice(0, LISTED);
    this.most.replaceChildren(...strongest.map((each) => element("li", { textContent: this.told(each) })));
    this.read(null);
  }

  told({ effect, head, layer, column }) {
    const what = { effect: digits(effect), layer: say("layer {n}", { n: layer }), head: say("head {n}", { n: head }) };
    if (this.facts.positions === null) return say("{effect} · {layer} · {head}", what);
    return say("{effect} · {layer} · {head} · {position}", { ...what, position: this.nameOf(column) });
  }

  read(cell) {
    if (!cell?.layer || cell.effect === "null") this.reading.textContent = say("Point at a cell to read its effect.");
    else this.reading.textContent = this.told({ effect: Number(cell.effect), head: Number(cell.head), layer: Number(cell.layer), column: Number(cell.column) });
  }
}

const digits = (number) => number.toFixed(3).replace("-", "−");
