// The caption of a coloured text or image: the asked token, the heads, and the largest weights.

import CSS from "./caption.css" with { type: "text" };
import { element, filled } from "../../shell/element.js";
import { write } from "../../map/labels.js";
import { ColourBar } from "../../map/legend.js";
import { linesOf } from "../../map/title.js";
import { topPlaces } from "./grouping.js";
import { say } from "../../words.js";

const TOP = 5; // number of listed tokens
const FONT = 13; // pixels of letters in a picture, and of a line
const LINE = 19;
const BAR = 200; // pixels of the colour bar there

export class Caption {
  static css = CSS;

  // hint: the text while no token is asked.
  constructor(app, hint) {
    this.app = app;
    this.hint = hint;
    this.title = element("p", { className: "title" });
    this.list = element("ol", { className: "top" });
    this.note = element("p", { className: "note" });
    this.bar = new ColourBar();
    const words = element("div", { className: "words", id: `caption-${count++}`, ariaLive: "polite" });
    words.append(this.title, this.list, this.note);
    this.words = words;
    this.element = element("div", { className: "attention-caption" }, words, this.bar.element);
  }

  // found: { heads, direction, groups and group: the asked group (null = none), others, weights: one for each of the
  // others, sunk: the index hidden as the sink, probe: the index of the weight to show, pinned, notes: [sentence], top:
  // the weight at the ramp's end }.
  show(found) {
    const { heads, direction, groups, group, others, weights, sunk, probe, pinned, notes = [] } = found;
    const { digits } = this.app;
    this.bar.element.hidden = group === null;
    this.words.dataset.asked = group ?? "";
    delete this.words.dataset.weight;
    if (group === null) {
      this.title.replaceChildren(this.hint, " ", small(this.headsSaid(heads)));
      this.list.replaceChildren();
      this.note.replaceChildren();
      return;
    }
    const gives = direction === "gives";
    this.title.replaceChildren(
      ...filled(gives ? say("{token} gives most to") : say("{token} gets most from"), { token: named(groups, group) }), " ",
      small(this.headsSaid(heads) + (pinned ? ` · ${say("pinned: Esc unpins")}` : "")),
    );
    this.list.replaceChildren(...topPlaces(weights, TOP, sunk).map((place) => {
      const item = element("li", {}, named(others, place), " ", element("b", { textContent: digits(weights[place]) }));
      Object.assign(item.dataset, { place, weight: weights[place] });
      return item;
    }));
    this.title.title = this.title.textContent;
    if (!this.list.childElementCount) this.list.append(element("li", { textContent: say("none: the mask forbids all") }));
    const said = [];
    if (probe !== null) {
      const [asked, read] = [named(groups, group), named(others, probe)];
      const weight = weights[probe];
      this.words.dataset.weight = weight;
      const number = element("b", { textContent: Number.isNaN(weight) ? say("masked") : digits(weight) });
      said.push(element("span", {}, number, " ", gives ? asked : read, " → ", gives ? read : asked));
    }
    if (sunk !== null) {
      const weight = element("b", { textContent: digits(weights[sunk] || 0) });
      const hidden = small(` ${say("is hidden as the sink; no other weight changes")}`);
      said.push(element("span", {}, named(others, sunk), " ", weight, hidden));
    }
    this.note.replaceChildren(...said, ...notes.map(small));
    const { style, state } = this.app;
    this.bar.update({ top: found.top, scale: state.scale === "row" ? "linear" : state.scale, table: style.table });
  }

  // The heads, in words.
  headsSaid(heads) {
    if (heads.length === 1) return this.app.headName(...heads[0]);
    const names = heads.map(([layer, head]) => `${this.app.stack.layers[layer].number}.${head}`);
    return say("mean of {n} heads: {heads}", { n: heads.length, heads: names.join(", ") });
  }

  // The caption for a picture of this width: { height, draw(context, x, y) }.
  picture(width) {
    const { style } = this.app;
    const font = `${FONT}px ${style.font}`;
    const measuring = document.createElement("canvas").getContext("2d");
    measuring.font = font;
    const coloured = !this.bar.element.hidden;
    const spaced = (part) => part.map((piece, i) => (i ? ` ${piece}` : piece));
    const lines = this.parts.flatMap((part) => linesOf(measuring, spaced(part), width));
    const draw = (context, x, y) => {
      lines.forEach((line, i) => write(context, line, x, y + LINE * (i + 0.5), { font, colour: i ? style.faint : style.ink }));
      if (coloured) this.bar.drawOn(context, x, y + LINE * lines.length + 5, Math.min(BAR, width), style);
    };
    return { height: LINE * lines.length + (coloured ? 44 : 10), draw };
  }

  // The text as lines of unbreakable pieces. Names keep their own direction.
  get parts() {
    const textOf = (node) => [...node.childNodes].map((child) => {
      if (!child.childNodes.length) return child.textContent;
      return child.tagName === "BDI" ? `\u2068${child.textContent}\u2069` : textOf(child);
    }).join("");
    const pieces = (node) => [...node.children].map(textOf);
    const list = pieces(this.list).map((text, i, all) => (i < all.length - 1 ? `${text} ·` : text));
    return [[textOf(this.title)], list, pieces(this.note)];
  }
}

let count = 0; // of captions, for unique ids

const small = (textContent) => element("small", { textContent });

function named(groups, place) {
  const label = groups.labels[place];
  const name = element("bdi", { textContent: label, title: label });
  const isNumber = label === String(place); // a token without text
  return groups.level === "tokens" && !isNumber ? element("span", { className: "name" }, name, " ", small(String(place))) : name;
}
