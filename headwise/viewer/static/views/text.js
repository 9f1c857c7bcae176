// The tokens as running text, coloured by the attention that one of them gives to the others or gets from them; for
// short texts also as lines between two columns. Level, direction and heads are in the state, shared by all views.

import CSS from "./text.css" with { type: "text" };
import { sinkOf } from "../data/sink.js";
import { largest } from "../map/colour.js";
import { choices, said, thresholdSlider } from "../shell/controls.js";
import { element } from "../shell/element.js";
import { figurePython, listPython } from "./text/python.js";
import { Asking, AskingControls } from "./text/asking.js";
import { Caption } from "./text/caption.js";
import { attentionOf, chosenHeads, groupsOf, matrixOf } from "./text/grouping.js";
import { Lines } from "./text/lines.js";
import { RunningText, codesOf, paletteOf } from "./text/running.js";
import { textPicture } from "./text/picture.js";
import { say } from "../words.js";

const LINES = 80; // lines between more tokens are unreadable
// The weight at the ramp's end is at least this, so that a text of small weights stays pale.
const CALM = { linear: 0.25, root: 1, log: 1 };
const SHORT = 80; // texts of up to this many tokens are written larger
const LEVELS = [["tokens", "tokens"], ["words", "words"], ["sentences", "sentences"]];
const FORMS = [["text", "text", "Running text"], ["lines", "lines", "Lines between two columns"]];
const ARROWS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"];

export class TextView {
  static id = "text";
  static title = "Text";
  static css = CSS;
  static follows = true; // another stack

  static why({ stack }) {
    if (stack.rows.patches && stack.cols.patches) return say("The tokens are patches of an image: see the Image view.");
    return null;
  }

  constructor(app) {
    this.app = app;
    this.asking = new Asking(app);
    this.caption = new Caption(app, say("Point at a token to see its attention; click to pin it."));
    this.place = element("div", { className: "texts" });
    this.lines = new Lines({
      point: (side, token) => this.asking.pointing(() => this.asking.pointFrom(side, token)),
      pin: (side, token) => this.asking.pointing(() => this.asking.pinFrom(side, token, this[side].of)),
      edge: (...edge) => this.pinEdge(...edge),
    });
    this.element = element("section", { className: "view-text", ariaLabel: say("Text") }, this.caption.element, this.place);
    this.asks = new AskingControls(app);
    this.levels = choices(say("Read as"), said(LEVELS), (level) => app.state.set({ level }));
    this.forms = choices(say("Drawn as"), said(FORMS), (form) => this.draw(form));
    this.threshold = thresholdSlider((threshold) => app.state.set({ threshold }));
    const bar = [this.asks.directions, this.levels, this.forms, this.asks.scales, this.asks.sink, this.threshold];
    this.controls = element("div", { className: "text-controls" }, ...bar);
    this.keys = {
      g: [() => this.asking.turn(), say("attention that a token gives, or gets")],
      w: [() => this.turnLevel(), say("tokens, words or sentences")],
      l: [() => this.draw(this.form === "text" ? "lines" : "text"), say("lines between two columns, or running text")],
      Enter: [() => this.hold(), say("pin the token, or unpin it")],
    };
    const does = say("next token; if one is pinned, the weight of the next token");
    for (const key of ARROWS) this.keys[key] = [() => this.step(key), does];
  }

  // ---- the selection

  get rows() {
    return groupsOf(this.app.stack.rows, this.app.state.level);
  }

  get cols() {
    return groupsOf(this.app.stack.cols, this.app.state.level);
  }

  turnLevel() {
    const at = LEVELS.findIndex(([level]) => level === this.app.state.level);
    this.app.state.set({ level: LEVELS[(at + 1) % LEVELS.length][0] });
  }

  draw(form) {
    const why = form === "lines" && this.whyNoLines();
    if (why) return this.app.say(why);
    this.app.state.set({ form });
  }

  // Lines only if they are readable.
  get form() {
    return this.whyNoLines() ? "text" : this.app.state.form;
  }

  whyNoLines() {
    const { rows, cols, app } = this;
    const most = Math.max(rows.labels.length, cols.labels.length);
    if (most > LINES) {
      const values = { most: LINES, level: say(rows.level), n: most };
      return say("Lines are for up to {most} {level} per side. This text has {n}.", values);
    }
    if (rows.of.length * cols.of.length > app.stack.cells) return say("This text is too long for lines.");
    return null;
  }

  // A line: both of its tokens, and its head.
  pinEdge(pinRow, pinCol, place) {
    const [layer, head] = this.chosen[place];
    this.app.go({ layer, head, pinRow, pinCol, heads: this.chosen.filter((_, at) => at !== place) });
  }

  hold() {
    const { asked, sides: [side] } = this.asking;
    if (asked !== null) this.asking.pin(side, asked, this[side].of);
  }

  // Arrow keys move through the text; between lines, left and right change the column.
  step(key) {
    const { asking } = this;
    const held = asking.pinned !== null;
    const side = asking.sides[held ? 1 : 0];
    const { running } = this.blocks.find((each) => each.side === "both" || each.side === side);
    if (this.form === "text") return running.step(key);
    if (key === "ArrowLeft" || key === "ArrowRight") {
      const other = key === "ArrowLeft" ? "rows" : "cols";
      return asking.pointFrom(other, Math.min(asking.asked ?? 0, this[other].of.length - 1));
    }
    const groups = this[side];
    const group = groups.of[(held ? asking.probe : asking.asked) ?? 0] + (key === "ArrowUp" ? -1 : 1);
    if (groups.labels[group] !== undefined) asking.point(side, groups.of.indexOf(group));
  }

  // ---- the display

  update(changed) {
    const { app, rows, cols } = this;
    const { state, stack } = app;
    if (this.stack !== stack) this.build();
    if (changed.has("style")) this.palette = paletteOf(app.style);
    const why = this.whyNoLines();
    this.asks.show();
    this.levels.show(state.level);
    this.threshold.show(state.threshold);
    this.forms.show(this.form);
    const button = this.forms.lastElementChild;
    button.disabled = Boolean(why);
    button.title = why ?? say(FORMS[1][2]);
    this.element.classList.toggle("short", Math.max(stack.rows.length, stack.cols.length) <= SHORT);
    const drawn = this.form === "lines" ? [this.lines.element] : this.blocks.map(({ block }) => block);
    if (drawn.some((each) => each.parentNode !== this.place)) this.place.replaceChildren(...drawn);
    this.mark(rows, cols);
    if (changed.size > 1 || !changed.has("found")) this.ask(rows, cols);
  }

  build() {
    const { stack } = this.app;
    const text = (side, axis, name) => {
      const point = (token) => this.asking.point(side, token);
      const pin = (token) => this.asking.pin(side, token, this[side === "both" ? this.asking.sides[0] : side].of);
      const running = new RunningText(axis, name, { point, pin, pointing: (act) => this.asking.pointing(act) });
      running.element.setAttribute("aria-describedby", this.caption.words.id);
      const heading = side === "both" ? [] : [element("h2", { textContent: name })];
      return { side, running, block: element("div", { className: "block" }, ...heading, running.element) };
    };
    this.stack = stack;
    this.blocks =
      stack.rows === stack.cols
        ? [text("both", stack.rows, say("Text"))]
        : [text("rows", stack.rows, say("Queries")), text("cols", stack.cols, say("Keys"))];
    const divided = (axis) => ["words", "sentences"].some((level) => axis[level].labels.length < axis.length);
    this.levels.hidden = !divided(stack.rows) && !divided(stack.cols);
  }

  mark(rows, cols) {
    for (const { side, running } of this.blocks) {
      this.asking.markIn(running, side, side === "cols" ? cols : rows);
      running.find(this.app.found?.[side === "cols" ? "cols" : "rows"]);
    }
  }

  // Ask for the weights that caption and colours need, and show them. The old display stays until they arrive.
  async ask(rows, cols) {
    this.question?.abort();
    const { signal } = (this.question = new AbortController());
    const { stack, state } = this.app;
    const { direction } = state;
    const heads = chosenHeads(state);
    const [groups, others] = this.asking.gives ? [rows, cols] : [cols, rows];
    const group = this.asking.asked === null ? null : groups.of[this.asking.asked];
    try {
      const [sink, weights, matrices] = await Promise.all([
        state.sink ? sinkOf(stack, heads[0], { signal }) : null,
        group === null ? null : attentionOf(stack, heads, rows, cols, direction, group, { signal }),
        this.form === "lines" ? this.matrices(stack, heads, rows, cols, signal) : null,
      ]);
      const sunk = sink === null ? null : cols.of[sink];
      if (!signal.aborted) this.show({ heads, rows, cols, groups, others, group, direction, weights, matrices, sunk });
    } catch (error) {
      if (!signal.aborted) this.app.fail(error);
    }
  }

  // The weights of whole heads, kept while they are shown, so that pointing at a token needs no new ones.
  async matrices(stack, heads, rows, cols, signal) {
    const key = JSON.stringify([heads, rows.level]);
    if (this.kept?.stack !== stack || this.kept.key !== key) {
      const all = await Promise.all(heads.map((head) => matrixOf(stack, head, rows, cols, { signal })));
      this.kept = { stack, key, all };
    }
    return this.kept.all;
  }

  show(found) {
    const { app, asking, palette } = this;
    const { rows, cols, others, weights, matrices, heads, group } = found;
    const sunk = asking.gives ? found.sunk : null; // it is a column
    const { stack, style, state: { scale, threshold } } = app;
    const [askedSide] = asking.sides;
    const pinned = asking.pinned !== null;
    const most = weights ? largest(weights.map((weight, place) => (place === sunk ? 0 : weight))) : 0;
    const top = most && Math.max(CALM[scale] ?? CALM.linear, most);
    const codes = weights && codesOf(weights, top, scale, sunk, threshold);
    for (const { side, running } of this.blocks) {
      const groups = side === "cols" ? cols : rows;
      running.paint(side === askedSide ? null : codes, palette, groups);
    }
    const probe = asking.probe === null ? null : others.of[asking.probe];
    this.caption.show({ ...found, sunk, probe, top, pinned });
    if (!matrices) return;
    this.chosen = heads;
    const names = heads.map((pair) => app.headName(...pair));
    const at = group === null ? null : { side: askedSide, group, pinned };
    const sides = { rows: { groups: rows, axis: stack.rows }, cols: { groups: cols, axis: stack.cols } };
    const blocked = heads.map((pair) => (rows.level === "tokens" && app.live?.blockedIn(...pair)) || []);
    this.lines.show({ ...sides, matrices, names, at, sunk: found.sunk, blocked, style, scale });
  }

  hide() {
    this.question?.abort();
  }

  close() {
    this.hide();
    this.lines.close();
  }

  // ---- export

  picture() {
    if (this.form === "lines") return this.lines.picture();
    return textPicture(this.blocks.map(({ block }) => block), this.caption, this.app.style);
  }

  python() {
    const { app, asking: { asked } } = this;
    const heads = chosenHeads(app.state);
    if (asked === null) return null;
    if (heads.length === 1 && app.state.level === "tokens") return figurePython(app, asked);
    return listPython(app, heads, asked, app.state.level);
  }
}
