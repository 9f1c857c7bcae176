// The panel "What to look at first": what the selection shows, in words, and a few suggested heads and pairs.

import { fewKnown, worthALook } from "../data/opening.js";
import { percent, say, whole } from "../words.js";
import { button } from "./controls.js";
import { element, filled } from "./element.js";

const NUMBER = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 }); // never 4.5e+2, as toPrecision writes

export class Opening {
  constructor(app) {
    this.app = app;
    this.said = element("div", { className: "seen" });
    this.list = element("ul", { ariaLabel: say("Worth a look") });
    const close = button({ icon: "close" }, say("Hide what to look at (i)"), () => {
      app.state.set({ hints: false });
      app.header.hints.focus();
    });
    this.element = element("section", { className: "opening", ariaLabel: say("What you see") }, this.said, this.list, close);
  }

  // Whether there is anything to show in this stack.
  get any() {
    return this.isLate || this.items.length > 0 || fewKnown(this.app.stack) !== null;
  }

  // Whether this is still to be found, in a run of a model in the page.
  get isLate() {
    return this.app.stack.layers.some(({ supports }) => supports === null);
  }

  get items() {
    const { stack } = this.app;
    const isOn = ({ layer, head }) => !this.app.live?.isOff(layer, head);
    if (this.stack !== stack) [this.stack, this.known] = [stack, worthALook(stack).filter(isOn)];
    return this.known;
  }

  forget() {
    this.stack = null;
  }

  update(changed) {
    const { app, items } = this;
    const { layer, head, pinRow, pinCol, view, hints } = app.state;
    this.element.style.visibility = this.isLate ? "hidden" : ""; // it keeps its place
    if (this.isLate) return;
    const ofHead = app.View.strip !== false; // not a view of all heads
    this.element.hidden = !hints || !this.any;
    if (this.element.hidden) return;
    if (this.listed !== items || changed.has("style")) this.fill();
    const isShown = (item) =>
      item.layer === layer && item.head === head && (item.kind !== "pair" || (item.row === pinRow && item.col === pinCol));
    const at = items.findIndex(isShown);
    [...this.list.children].forEach(({ firstChild }, i) => (firstChild.ariaCurrent = ofHead && i === at ? "true" : null));
    const lines = at < 0 || !ofHead ? [] : this.linesOf(items[at], view);
    this.said.replaceChildren(...[...this.warning, ...lines].map((line) => element("p", {}, ...line)));
    this.said.hidden = !this.said.firstChild;
    this.list.hidden = !items.length;
  }

  fill() {
    this.listed = this.items;
    this.list.replaceChildren(...this.items.map((item) => {
      const made = element("button", { type: "button", title: this.app.plainHeadName(item.layer, item.head) });
      made.dataset.kind = item.kind;
      made.append(...this.nameOf(item), " ", element("small", { textContent: percent(item.value) }));
      made.addEventListener("click", () => this.choose(item));
      return element("li", {}, made);
    }));
  }

  // Whether so few tokens are known that no pair of them is suggested: one line, or none.
  get warning() {
    const few = fewKnown(this.app.stack);
    const values = few && { n: whole(few.unknown), all: whole(few.all) };
    return few ? [[say("The model knows {n} of the {all} tokens as [UNK] only: its attention says little about this text.", values)]] : [];
  }

  // Views of all heads cannot show one of them.
  choose({ layer, head, row = null, col = null }) {
    const { app } = this;
    const view = app.View.strip === false ? "head" : app.state.view;
    app.go({ view, layer, head, heads: [], row: null, col: null, pinRow: row, pinCol: col, sight: null });
  }

  nameOf({ kind, row, col }) {
    if (kind === "pair") return [...this.token("rows", row), " → ", ...this.token("cols", col)];
    return [{ previous: say("previous token"), sink: say("sink"), induction: say("induction") }[kind]];
  }

  // Up to three lines on a suggestion, each a list of texts and nodes.
  linesOf(item, view) {
    const { kind, layer, head, row, col, value, keys, queries } = item;
    const name = element("b", { textContent: this.app.plainHeadName(layer, head) });
    const share = element("b", { textContent: percent(item.value) });
    if (kind !== "pair") {
      const sentences = SENTENCES[kind].slice(0, view === "head" ? 2 : 1);
      return sentences.map((sentence) => filled(say(sentence), { head: name, share, n: queries }));
    }
    const [from] = this.token("rows", row);
    const [to] = this.token("cols", col);
    const lines = [filled(say("{head}: {from} looks at {to}, {share}."), { head: name, from, to, share })];
    const even = { times: NUMBER.format(value * keys), n: keys, share: percent(1 / keys) };
    lines.push([say("That is {times} times an even share: {share} for each of the {n} tokens that it can see.", even)]);
    if (view === "head") lines.push([say("A row of the map is a token that looks, a column one that is looked at.")]);
    return lines;
  }

  // A token without text or a name of its own is named by its number.
  token(side, place) {
    const axis = this.app.stack[side];
    const own = axis.labels[place];
    const label = axis.text || axis.patches || !/^\d+$/.test(own) ? own : say("position {n}", { n: own });
    return [element("bdi", { textContent: label, title: `${label} ${place}` })];
  }
}

// The meaning of each pattern, and the look of its map.
const SENTENCES = {
  previous: [
    "{head} gives {share} to the token just before, on average over {n} queries.",
    "In the map: a line beside the diagonal.",
  ],
  sink: [
    "{head} gives {share} to the first token that can be seen, on average over {n} queries: a sink.",
    "In the map: a strong column at the left.",
  ],
  induction: [
    "{head} gives {share} to what followed earlier occurrences of the same token, on average over {n} queries.",
    "In the map: lines parallel to the diagonal where the text repeats itself.",
  ],
};
