// The Lines view: a column of queries, a column of keys, and the weights between them as lines, of one head or several at
// once. Which token is asked and pinned is in the state, shared by all views.

import CSS from "./lines.css" with { type: "text" };
import { picker } from "../shell/controls.js";
import { element } from "../shell/element.js";
import { tooLong } from "./long.js";
import { say, whole } from "../words.js";
import { coloursOf } from "./lines/colours.js";
import { Columns } from "./lines/columns.js";
import { Swatches } from "./lines/swatches.js";
import { GroupedView } from "./text/grouped.js";
import { chosenHeads, matrixOf } from "./text/grouping.js";
import { linesPython } from "./text/python.js";

const CELLS = 4e6; // weights of all chosen heads that are kept

export class LinesView extends GroupedView {
  static id = "lines";
  static title = "Lines";
  static css = CSS;
  static follows = true; // another stack
  static why = ({ stack }) => (stack.rows.long || stack.cols.long ? tooLong(stack) : null);

  constructor(app) {
    super(app, say("Point at a token on either side to see its weights; click to pin it."));
    this.swatches = new Swatches(app);
    this.note = element("p", { className: "limit", role: "status" });
    this.columns = new Columns({
      point: (side, token) => this.asking.pointing(() => this.asking.pointFrom(side, token)),
      pin: (side, token) => this.asking.pointing(() => this.asking.pinFrom(side, token, this[side].of)),
      edge: (...edge) => this.pinEdge(...edge),
      drawn: () => this.showNote(),
    });
    const parts = [this.caption.element, this.swatches.element, this.note, this.columns.element];
    this.element = element("section", { className: "view-lines", ariaLabel: say("Lines") }, ...parts);
    this.layers = picker(say("Layer"), [], (layer) => this.goTo(Number(layer)));
    const bar = [this.layers, this.levels, this.asks.scales, this.threshold, this.asks.sink];
    this.controls = element("div", { className: "text-controls" }, ...bar);
    app.frame.addEventListener("scroll", () => this.columns.scrolled(), { capture: true, signal: app.closing.signal });
    const turn = (by) => this.goTo((app.state.layer + by + app.stack.layers.length) % app.stack.layers.length);
    const step = [() => turn(-1), () => turn(1)];
    this.keys = {
      "[": [step[0], say("previous layer, next layer; the chosen heads come along")],
      "]": [step[1], say("previous layer, next layer; the chosen heads come along")],
      a: [() => this.swatches.all(), say("all heads of the layer")],
      o: [() => this.swatches.only([app.state.layer, app.state.head]), say("only the current head")],
      w: [() => this.turnLevel(), say("tokens, words or sentences")],
      Enter: [() => this.hold(), say("pin the token, or unpin it")],
    };
    const does = say("next token; left, right: the other column; if one is pinned, the weight of the next token");
    for (const key of ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"]) this.keys[key] = [() => this.step(key), does];
  }

  // ---- the selection

  // Change the layer. The heads with the same numbers are chosen in it.
  goTo(layer) {
    const { layer: from, heads } = this.app.state;
    this.app.go({ layer, heads: heads.map(([place, head]) => [place === from ? layer : place, head]) });
  }

  // A line: both of its tokens, and its head.
  pinEdge(pinRow, pinCol, place) {
    const [layer, head] = this.chosen[place];
    this.app.go({ layer, head, pinRow, pinCol, heads: this.chosen.filter((_, at) => at !== place) });
  }

  step(key) {
    const { asking } = this;
    const held = asking.pinned !== null;
    const side = asking.sides[held ? 1 : 0];
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
    const heads = chosenHeads(state);
    if (this.stack !== stack) {
      this.stack = stack;
      this.layers.offer(stack.layers.map(({ number }, layer) => [layer, number]));
      this.layers.hidden = stack.layers.length < 2;
    }
    this.layers.show(state.layer);
    this.controlsShow();
    this.swatches.show();
    this.why = this.tooMany(heads);
    this.columns.element.hidden = Boolean(this.why);
    this.showNote();
    if (changed.size === 1 && changed.has("found")) return;
    const { why } = this;
    const more = async (options) => ({ matrices: why ? null : await this.matrices(stack, heads, rows, cols, options) });
    this.ask(rows, cols, heads, more);
  }

  // Why there are no lines, or null.
  tooMany(heads) {
    const { rows, cols, cells } = this.app.stack;
    const count = rows.length * cols.length;
    if (count > cells) return say("This text is too long for lines: {n} weights. See the Head view.", { n: whole(count) });
    if (count * heads.length <= CELLS) return null;
    return say("Lines of so long a text are for up to {n} heads at once.", { n: Math.floor(CELLS / count) });
  }

  // Says what is not drawn.
  showNote() {
    const left = this.columns?.left;
    const more = say("Only the strongest lines are drawn, {n} are not. Point at a token to see all of its lines.", {
      n: left && whole(left),
    });
    this.note.textContent = this.why ?? (left ? more : "");
  }

  // The weights of whole heads, kept while they are shown, so that pointing at a token needs no new ones.
  async matrices(stack, heads, rows, cols, options) {
    if (this.kept?.stack !== stack || this.kept.level !== rows.level) this.kept = { stack, level: rows.level, all: new Map() };
    const { all } = this.kept;
    const names = heads.map((pair) => pair.join());
    for (const name of all.keys()) if (!names.includes(name)) all.delete(name);
    return Promise.all(heads.map(async (head, i) => {
      if (!all.has(names[i])) all.set(names[i], await matrixOf(stack, head, rows, cols, options));
      return all.get(names[i]);
    }));
  }

  show(found) {
    const { app, asking } = this;
    const { rows, cols, matrices, heads, group } = found;
    const { stack, style, state: { scale, threshold } } = app;
    this.caption.show(this.captioned(found));
    this.caption.bar.element.hidden = true; // the colours are those of heads
    if (!matrices) return;
    this.chosen = heads;
    const names = heads.map((pair) => app.headName(...pair));
    const at = group === null ? null : { side: asking.sides[0], group, pinned: asking.pinned !== null };
    const sides = { rows: { groups: rows, axis: stack.rows }, cols: { groups: cols, axis: stack.cols } };
    const blocked = heads.map((pair) => (rows.level === "tokens" && app.live?.blockedIn(...pair)) || []);
    const colours = coloursOf(heads, style.dark);
    const along = scale === "row" ? "linear" : scale;
    this.columns.show({ ...sides, matrices, names, colours, at, sunk: found.sunk, blocked, threshold, style, scale: along });
  }

  close() {
    super.close();
    this.columns.close();
  }

  // ---- export

  picture() {
    return this.why || !this.columns.shown ? null : this.columns.picture();
  }

  python() {
    const { app, asking, rows } = this;
    const heads = chosenHeads(app.state);
    const together = heads.every(([layer]) => layer === app.state.layer) && rows.level === "tokens"; // as a figure draws them
    return together ? linesPython(app, heads, asking.asked) : super.python();
  }
}
