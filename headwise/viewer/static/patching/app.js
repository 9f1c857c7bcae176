// The page of a patching experiment: the effects as a map, a row for each layer, a column for each position or head.

import PAGE from "../page.css" with { type: "text" };
import STYLE from "./patching.css" with { type: "text" };
import { css, divergingRamp } from "../map/colour.js";
import { choices, languageSwitch, picker, button } from "../shell/controls.js";
import { element, listed, styled } from "../shell/element.js";
import { ColourBar } from "../map/legend.js";
import { Theme } from "../shell/theme.js";
import { aboutSaid, say } from "../words.js";

const LISTED = 10;
const RELIABLE = 0.7; // the correlation from which attribution stands for patching; experiments/patching.py has it too

export class PatchingApp {
  constructor(host, facts) {
    Object.assign(this, { host, facts, theme: "auto", measure: "effects", head: "most", pinned: null });
    this.top = largest(facts.effects); // one scale: of either measure, and of every head
    this.root = host.attachShadow({ mode: "open" });
    styled(this.root, [PAGE, ColourBar.css, STYLE]);
    const said = new URLSearchParams(location.hash.slice(1));
    if (["light", "dark"].includes(said.get("theme"))) this.theme = said.get("theme");
    this.themes = new Theme(() => this.update());
    this.turn = button({ icon: "auto" }, say("Theme"), () => this.set({ theme: this.themes.after(this.theme) }));
    const measures = [["effects", say("patched")], ["attributed", say("attribution"), say("Approximated by one backward pass")]];
    this.measures = choices(say("Measure"), measures, (measure) => this.set({ measure }));
    this.measures.hidden = !facts.attributed;
    const heads = Array.from({ length: facts.heads }, (_, head) => [head, say("head {n}", { n: head })]);
    this.heads = picker(say("Effect of"), [["most", say("the head with the largest effect")], ...heads], (head) => this.set({ head }));
    this.heads.hidden = facts.positions === null || !facts.heads;
    this.reading = element("p", { className: "reading", role: "status" });
    this.map = element("div", { className: "map", tabIndex: 0, role: "region", ariaLabel: say("Effects") });
    this.most = element("ol");
    this.bar = new ColourBar();
    this.legend = element("p", { className: "about" });
    const section = element("section", { className: "patching" },
      element("div", { className: "patching-bar" }, this.measures, this.heads), this.reading, this.map, this.bar.element, this.legend,
      element("h2", { textContent: say("Largest effects") }), this.most);
    this.root.append(element("div", { className: "app" }, this.header(), element("main", { className: "patching-stage" }, section)));
    const cellOf = (event) => event.composedPath()[0].closest?.("td[data-effect]") ?? null;
    this.map.addEventListener("pointerover", (event) => this.read(cellOf(event)));
    this.map.addEventListener("pointerleave", () => this.read(null));
    this.map.addEventListener("click", (event) => this.pin(cellOf(event)));
    this.update();
  }

  header() {
    const { facts } = this;
    const numbers = { clean: digits(facts.clean), corrupted: digits(facts.corrupted) };
    const said = [say("metric: clean {clean}, corrupted {corrupted}", numbers)];
    if (facts.correlation !== null) said.push(say("correlation with attribution patching: {r}", { r: digits(facts.correlation) }));
    if (facts.correlation !== null && !(facts.correlation >= RELIABLE)) said.push(say("attribution is unreliable here"));
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
    if (this.facts.positions === null) return say("head {n}", { n: column });
    const token = this.tokenOf(column);
    return token === undefined ? say("position {n}", { n: column }) : `${token} ${column}`;
  }

  // "owl | pig" where the corrupted input has another token.
  tokenOf(column) {
    const { labels, others } = this.facts;
    return others.length && others[column] !== labels[column] ? `${labels[column]} | ${others[column]}` : labels[column];
  }

  update() {
    const { facts } = this;
    this.host.dataset.theme = this.themes.shown(this.theme);
    this.themes.mark(this.turn, this.theme);
    this.measures.show(this.measure);
    this.heads.show(this.head);
    const columns = [...Array(facts.positions ?? facts.heads).keys()];
    const cells = facts.layers.map((_, layer) => columns.map((column) => this.cell(layer, column)));
    const { all, top } = this;
    const table = divergingRamp(this.host.dataset.theme === "dark");
    const short = (column) => (facts.positions === null ? this.nameOf(column) : (this.tokenOf(column) ?? column));
    const titles = columns.map((column) => element("th", { scope: "col", title: this.nameOf(column) }, element("span", { textContent: short(column), className: typeof short(column) === "number" ? "" : "turned" })));
    const rows = cells.map((row, layer) => {
      const made = row.map(({ effect, head }, column) => {
        const cell = element("td", { title: effect === null ? "" : this.told({ effect, head, layer, column }) });
        if (effect !== null) {
          const { fill, ink } = css(Math.max(-top, Math.min(top, effect)), top, "linear", table, true);
          cell.style.background = fill;
          cell.style.color = ink;
          cell.append(element("span", {}, element("small", { textContent: digits(effect, 2) })));
        }
        Object.assign(cell.dataset, { effect, head, layer, column });
        return cell;
      });
      return element("tr", {}, element("th", { scope: "row", textContent: say("layer {n}", { n: layer }), title: facts.layers[layer] }), ...made);
    });
    const made = element("table", {}, element("tr", {}, element("td"), ...titles), ...rows);
    made.style.maxWidth = `${columns.length * 80 + 80}px`;
    this.map.replaceChildren(made);
    this.bar.update({ top, scale: "linear", table, signed: true });
    const beyond = this.measure === "attributed" && largest(facts.attributed) > top;
    this.legend.textContent = [
      say("An effect is the share of the difference between the two runs that patching brings back: 1 = all, 0 = nothing."),
      this.facts.heads ? "" : say("Of the residual stream before a layer."),
      beyond ? say("Attribution has the colours of patching; beyond them it has the last one.") : "",
      facts.others.length ? say("One | other: the token of the clean and of the corrupted input.") : "",
    ].filter(Boolean).join(" ");
    const strongest = all.sort((one, other) => other.effect - one.effect).slice(0, LISTED);
    this.most.replaceChildren(...strongest.map((each) => element("li", { textContent: this.told(each) })));
    this.read(null);
  }

  told({ effect, head, layer, column }) {
    const what = { effect: digits(effect), layer: say("layer {n}", { n: layer }), head: say("head {n}", { n: head }) };
    if (this.facts.positions === null) return say("{effect} · {layer} · {head}", what);
    if (!this.facts.heads) return say("{effect} · {layer} · {position}", { ...what, position: this.nameOf(column) });
    return say("{effect} · {layer} · {head} · {position}", { ...what, position: this.nameOf(column) });
  }

  // A pinned cell is read until it is clicked again; the place stays when other effects are shown.
  pin(cell) {
    const place = cell && `${cell.dataset.layer},${cell.dataset.column}`;
    this.pinned = place === this.pinned ? null : place;
    this.read(cell);
  }

  read(pointed) {
    const [layer, column] = this.pinned?.split(",") ?? [];
    const pinned = this.map.querySelector(`td[data-layer="${layer}"][data-column="${column}"]`);
    for (const each of this.map.querySelectorAll("td.pinned")) each.classList.remove("pinned");
    pinned?.classList.add("pinned");
    const cell = (pinned ?? pointed)?.dataset;
    if (!cell || cell.effect === "null") this.reading.textContent = say("Point at a cell to read its effect; click to keep it.");
    else this.reading.textContent = this.told({ effect: Number(cell.effect), head: Number(cell.head), layer: Number(cell.layer), column: Number(cell.column) });
  }
}

const largest = (effects) => effects.flat(2).reduce((most, effect) => Math.max(most, Math.abs(effect ?? 0)), 0);

// Never "−0.000".
const digits = (number, places = 3) => (Number(number.toFixed(places)) || 0).toFixed(places).replace("-", "−");
