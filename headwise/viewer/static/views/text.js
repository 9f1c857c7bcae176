// The tokens as running text, coloured by the attention that one of them gives to the others or gets from them. Level,
// direction and heads are in the state, shared by all views.

import CSS from "./text.css" with { type: "text" };
import { element } from "../shell/element.js";
import { GroupedView } from "./text/grouped.js";
import { chosenHeads } from "./text/grouping.js";
import { codesOf, paletteOf } from "./text/running.js";
import { textPicture } from "./text/picture.js";
import { tooLong } from "./long.js";
import { say } from "../words.js";

const TOP = 1; // the weight at the ramp's end: one shade is the same weight for every token, head and text
const SHORT = 80; // texts of up to this many tokens are written larger
const ARROWS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"];

export class TextView extends GroupedView {
  static id = "text";
  static title = "Text";
  static hint = "Point at a token to read a weight";
  static css = CSS;
  static follows = true; // another stack

  static why({ stack }) {
    if (stack.rows.long || stack.cols.long) return tooLong(stack);
    if (stack.rows.patches && stack.cols.patches) return say("The tokens are patches of an image: see the Image view.");
    return null;
  }

  constructor(app) {
    super(app, say("Point at a token to see its attention; click to pin it."));
    this.place = element("div", { className: "texts" });
    this.element = element("section", { className: "view-text", ariaLabel: say("Text") }, this.caption.element, this.place);
    const bar = [this.asks.directions, this.levels, this.asks.scales, this.asks.sink, this.threshold];
    this.controls = element("div", { className: "text-controls" }, ...bar);
    this.keys = {
      g: [() => this.asking.turn(), say("attention that a token gives, or gets")],
      w: [() => this.turnLevel(), say("tokens, words or sentences")],
      l: [() => app.state.set({ view: "lines" }), say("lines between two columns: the Lines view")],
      Enter: [() => this.hold(), say("pin the token, or unpin it")],
    };
    const does = say("next token; if one is pinned, the weight of the next token");
    for (const key of ARROWS) this.keys[key] = [() => this.step(key), does];
  }

  // ---- the selection

  // Arrow keys move through the text.
  step(key) {
    const side = this.asking.sides[this.asking.pinned === null ? 0 : 1];
    this.blocks.find((each) => each.side === "both" || each.side === side).running.step(key);
  }

  // ---- the display

  update(changed) {
    const { app, rows, cols } = this;
    const { state, stack } = app;
    if (this.stack !== stack) this.build();
    if (changed.has("style")) this.palette = paletteOf(app.style);
    this.controlsShow();
    this.element.classList.toggle("short", Math.max(stack.rows.length, stack.cols.length) <= SHORT);
    this.mark(rows, cols);
    if (changed.size > 1 || !changed.has("found")) this.ask(rows, cols, chosenHeads(state));
  }

  build() {
    const { stack } = this.app;
    const text = (side, axis, name) => {
      const pin = (token) => this.asking.pin(side, token, this[side === "both" ? this.asking.sides[0] : side].of);
      const running = this.asking.textOf(side, axis, name, pin, this.caption);
      const heading = side === "both" ? [] : [element("h2", { textContent: name })];
      return { side, running, block: element("div", { className: "block" }, ...heading, running.element) };
    };
    this.stack = stack;
    this.blocks =
      stack.rows === stack.cols
        ? [text("both", stack.rows, say("Text"))]
        : [text("rows", stack.rows, say("Queries")), text("cols", stack.cols, say("Keys"))];
    this.place.replaceChildren(...this.blocks.map(({ block }) => block));
  }

  mark(rows, cols) {
    for (const { side, running } of this.blocks) {
      this.asking.markIn(running, side, side === "cols" ? cols : rows);
      running.find(this.app.found?.[side === "cols" ? "cols" : "rows"]);
    }
  }

  show(given) {
    const { app, asking: { sides: [askedSide] }, palette } = this;
    const found = this.captioned(given);
    const { rows, cols, weights, sunk } = found;
    const { state: { scale, threshold } } = app;
    const codes = weights && codesOf(weights, TOP, scale, sunk, threshold);
    for (const { side, running } of this.blocks) {
      const groups = side === "cols" ? cols : rows;
      running.paint(side === askedSide ? null : codes, palette, groups);
    }
    this.caption.show({ ...found, top: weights ? TOP : 0 });
  }

  // ---- export

  picture() {
    return textPicture(this.blocks.map(({ block }) => block), this.caption, this.app.style);
  }
}
