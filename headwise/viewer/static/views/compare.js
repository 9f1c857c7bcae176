// Compare: two heads over the tokens of both, side by side or as a difference. The left one is the current head of all
// views; the right one is of another text, another model, or simply another head.

import CSS from "./compare.css" with { type: "text" };
import { divergingRamp } from "../map/colour.js";
import { choices, said, scaleControl, SCALE_CHOICES, sinkControl } from "../shell/controls.js";
import { alone, difference, Side } from "./compare/difference.js";
import { element } from "../shell/element.js";
import { HeatMap, zoomKeys } from "../map/heatmap.js";
import { ColourBar, hiddenSaid } from "../map/legend.js";
import { titleOf } from "../map/title.js";
import { Union } from "./compare/union.js";
import { pythonOfDifference, pythonOfSides } from "./compare/python.js";
import { Divergences } from "./compare/divergences.js";
import { Opposite } from "./compare/opposite.js";
import { say } from "../words.js";
import { View } from "./view.js";

const FAR = 10; // cells that an arrow key moves with Shift
const SIDES = ["left", "right"];
const PAPER = { margin: 16, bar: 220, foot: 46, between: 24 }; // of a saved picture, in pixels

export class CompareView extends View {
  static id = "compare";
  static title = "Compare";
  static css = CSS;

  static why({ source }) {
    const layers = source.inputs.flatMap(({ stacks }) => stacks.flatMap((stack) => stack.layers));
    if (layers.length > 1 || layers[0].heads > 1) return null;
    return say('This page has only one head. To compare two runs: headwise.view({"before": seen, "after": later}).');
  }

  constructor(app) {
    super(app);
    this.opposite = new Opposite(app, () => this.update(new Set(["other"])));
    this.axes = new Map(); // the axes of left and right -> their joint axes, by tokens and by position
    this.at = {}; // row, col, pinRow, pinCol: entries of the axes of both, not tokens
    this.notes = {}; // the accuracy of each map
    this.tiles = {}; // the function that each map calls for weights
    this.build();
    const moves = say("move the cell over the tokens of both; with Shift by {n}", { n: FAR });
    const step = (down, right) => [(event) => this.step(down, right, event), moves];
    this.keys = {
      ArrowUp: step(-1, 0),
      ArrowDown: step(1, 0),
      ArrowLeft: step(0, -1),
      ArrowRight: step(0, 1),
      ...zoomKeys(() => this.maps[0]),
      d: [() => app.state.set({ compare: this.beside ? "difference" : "side" }), say("side by side, or the difference")],
      w: [() => this.opposite.swap(), say("swap the sides")],
      l: [() => this.opposite.link(!this.opposite.linked), say("the same layer and head on both sides, or not")],
    };
  }

  build() {
    const { app } = this;
    this.how = choices(say("Show"), [
      ["side", say("side by side")],
      ["difference", say("difference"), say("Right minus left")],
    ], (compare) => app.state.set({ compare }));
    this.align = choices(say("Align"), [
      ["tokens", say("tokens"), say("Tokens that both have, in order")],
      ["positions", say("positions"), say("Every position with the same one, as patching does")],
    ], (align) => app.state.set({ align }));
    this.scale = scaleControl(app.state);
    this.sink = sinkControl(app);
    const controls = [this.how, this.opposite.element, this.align, this.scale, this.sink];
    this.controls = element("div", { className: "compare-controls" }, ...controls);

    const on = (name) => ({
      onPoint: (row, col) => this.point(row, col),
      onPin: (pinRow, pinCol) => this.pin(pinRow, pinCol),
      onSight: (sight) => this.look(sight, name),
      onTop: () => this.colourAlike(),
      onNote: (note) => this.tellHow(name, note),
    });
    this.map = Object.fromEntries([...SIDES, "apart"].map((name) => [name, new HeatMap(on(name))]));
    this.captions = {};
    const figures = Object.entries(this.map).map(([side, map]) => {
      this.captions[side] = element("figcaption");
      const figure = element("figure", {}, this.captions[side], element("div", { className: "map" }, map.element));
      figure.dataset.side = side;
      return figure;
    });
    this.figures = element("div", { className: "figures" }, ...figures);
    this.bar = new ColourBar();
    this.reading = element("div", { className: "reading" });
    this.legend = element("p", { className: "note" });
    this.note = element("p", { className: "note" });
    this.where = new Divergences(app, (layer, head) => {
      this.opposite.linked = true;
      app.go({ layer, head });
      this.update(new Set(["other"]));
    });
    const below = element("div", { className: "said" }, this.reading, this.bar.element, this.legend, this.note);
    const parts = [this.where.element, this.figures, below];
    this.element = element("section", { className: "view-compare", ariaLabel: say("Compare") }, ...parts);
  }

  get beside() {
    return this.app.state.compare === "side";
  }

  // The visible maps.
  get shown() {
    return this.beside ? SIDES : ["apart"];
  }

  get maps() {
    return this.shown.map((name) => this.map[name]);
  }

  update(changed) {
    const { app, opposite } = this;
    const has = (...fields) => fields.some((field) => changed.has(field));
    if (has("style", "scale", "sink")) this.restyle();
    const { left, right } = opposite;
    const asked = JSON.stringify([left, right, app.state.compare, app.state.align, opposite.linked]);
    if (has("view") || asked !== this.asked) {
      this.asked = asked;
      this.showMaps();
    }
    this.scale.show(this.beside || app.state.scale === "root" ? app.state.scale : "linear");
    this.sink.show(app.state.sink);
    if (has("style", "layer", "head")) this.where.paint();
    if (has("found")) this.mark();
    if (!this.setting) {
      if (has("row", "col", "pinRow", "pinCol")) this.takeCell();
      if (has("row", "col") && !has("view")) this.reveal();
      if (has("sight")) this.takeSight();
    }
    if (app.state.other) app.state.set({ other: right }); // which follows the left if linked
  }

  hide() {
    super.hide();
    this.where.stop();
  }

  // The joint axis of two axes.
  both(one, other, byPosition) {
    if (!this.axes.has(one)) this.axes.set(one, new Map());
    const known = this.axes.get(one);
    if (!known.has(other)) known.set(other, {});
    return (known.get(other)[byPosition] ??= new Union(one, other, byPosition));
  }

  showMaps() {
    const { app, opposite } = this;
    const { left, right } = opposite;
    const [one, other] = [opposite.stackOf(left), opposite.stackOf(right)];
    const alike = one.rows.length === other.rows.length && one.cols.length === other.cols.length;
    const byPosition = alike && app.state.align === "positions";
    this.align.hidden = !alike || one === other;
    this.align.show(app.state.align);
    const rows = this.both(one.rows, other.rows, byPosition);
    const square = one.rows === one.cols && other.rows === other.cols;
    const cols = square ? rows : this.both(one.cols, other.cols, byPosition);
    const moved = rows !== this.rows || cols !== this.cols;
    Object.assign(this, { rows, cols, one, other, notes: {}, every: 1 });
    this.sides = {
      left: new Side(one, left.layer, left.head, rows.left, cols.left),
      right: new Side(other, right.layer, right.head, rows.right, cols.right),
    };
    opposite.show();
    this.how.show(app.state.compare);
    this.element.dataset.shown = app.state.compare;
    this.scale.offer(said(this.beside ? SCALE_CHOICES : SCALE_CHOICES.slice(0, 2)));
    for (const name of this.shown) this.showMap(name);
    if (moved) {
      this.takeCell();
      this.takeSight();
    } else {
      this.mark();
      for (const map of this.maps) map.lookAt(this.sight);
    }
    this.colourAlike();
    this.tell();
    this.where.show(one, other, rows, cols);
  }

  showMap(name) {
    const { rows, cols, sides, opposite, one, other } = this;
    const names = SIDES.map((side) => opposite.nameOf(opposite[side]));
    const apart = name === "apart";
    const what = say(apart ? "right minus left" : name);
    const of = apart ? `${names[1]} − ${names[0]}` : names[SIDES.indexOf(name)];
    this.captions[name].replaceChildren(element("b", { textContent: what }), " ", element("bdi", { textContent: of }));
    const sampled = (every) => this.sampled(name, every);
    const plain = rows.plain && cols.plain;
    if (apart) this.tiles[name] = difference(sides.left, sides.right, sampled);
    else if (plain) {
      const { stack, layer, head } = sides[name];
      this.tiles[name] = (...asked) => stack.tile(layer, head, ...asked);
    } else this.tiles[name] = alone(sides[name], sampled);
    const labels = apart ? "both" : name;
    this.map[name].show({
      rows: rows.axes[labels],
      cols: cols.axes[labels],
      tile: this.tiles[name],
      cells: Math.min(one.cells, other.cells),
      masked: !plain || masks(sides.left) || masks(sides.right),
      signed: apart,
      name: `${what}: ${of}`,
    });
  }

  restyle() {
    const { style, state: { scale, sink } } = this.app;
    for (const map of Object.values(this.map)) map.restyle({ style, scale, sink });
    this.colourAlike();
  }

  // One colour scale for both sides: to the larger of their largest weights.
  colourAlike() {
    const { style, state: { scale } } = this.app;
    const top = Math.max(...this.maps.map((map) => map.top));
    for (const map of this.maps) map.against(this.beside && top > 0 ? top : null);
    const signed = !this.beside;
    this.bar.update({ top, scale, table: signed ? divergingRamp(style.dark) : style.table, signed });
  }

  // ---- the current cell, pins and the visible part: entries here, tokens of the left side in the state

  set(given) {
    this.setting = true;
    this.app.state.set(given);
    this.setting = false;
  }

  point(row, col) {
    Object.assign(this.at, { row, col });
    this.set({ row: this.rows.tokenAt(row), col: this.cols.tokenAt(col) });
    this.mark();
  }

  pin(pinRow, pinCol) {
    Object.assign(this.at, { pinRow, pinCol });
    this.set({ pinRow: this.rows.tokenAt(pinRow), pinCol: this.cols.tokenAt(pinCol) });
    this.mark();
  }

  step(down, right, { shiftKey }) {
    const far = shiftKey ? FAR : 1;
    const clamp = (at, axis) => Math.max(0, Math.min(axis.length - 1, at));
    const { row, col } = this.at;
    if (row === null || col === null) this.point(row ?? 0, col ?? 0);
    else this.point(clamp(row + far * down, this.rows), clamp(col + far * right, this.cols));
    this.reveal();
  }

  takeCell() {
    const { row, col, pinRow, pinCol } = this.app.state;
    this.at = {
      row: this.rows.entryOf(row), col: this.cols.entryOf(col),
      pinRow: this.rows.entryOf(pinRow), pinCol: this.cols.entryOf(pinCol),
    };
    this.mark();
  }

  mark() {
    const { app: { found }, rows, cols, at } = this;
    const entries = (axis, tokens) => new Set(Array.from(tokens, (token) => axis.entryOf(token)));
    const there = found && { ...found, rows: entries(rows, found.rows), cols: entries(cols, found.cols) };
    for (const map of this.maps) map.mark({ ...at, found: there });
    this.read();
  }

  reveal() {
    this.maps[0].reveal(this.at.row, this.at.col); // the other one follows, by way of `look`
  }

  look(sight, from) {
    this.sight = sight;
    for (const name of this.shown) if (name !== from) this.map[name].lookAt(sight);
    const edges = this.edges(sight, "tokenPlace");
    this.set({ sight: edges && edges[0] < edges[1] && edges[2] < edges[3] ? edges : null });
  }

  takeSight() {
    this.sight = this.edges(this.app.state.sight, "entryPlace");
    for (const map of this.maps) map.lookAt(this.sight);
  }

  edges(sight, place) {
    return sight && sight.map((at, i) => (i < 2 ? this.rows : this.cols)[place](at));
  }

  // Both weights of the current cell, and their difference.
  read() {
    const { rows, cols, sides, at: { row, col } } = this;
    if (row === null || col === null) {
      this.forget();
      delete this.reading.dataset.cell;
      this.reading.replaceChildren(say("Point at a cell to read both weights."));
      return;
    }
    const cell = [[row, row + 1], [col, col + 1]];
    const find = (options) => Promise.all([sides.left.cells(...cell, options), sides.right.cells(...cell, options)]);
    this.question(find, ([[left], [right]]) => {
      this.showCell(rows.axes.both.labels[row], cols.axes.both.labels[col], left, right);
    });
  }

  showCell(from, to, left, right) {
    const { app, rows, cols, at: { row, col } } = this;
    const number = (side, weight) => {
      if (rows[side][row] < 0 || cols[side][col] < 0) return say("not there");
      return Number.isNaN(weight) ? say("masked") : app.digits(weight);
    };
    const by = right - left;
    const numbers = [
      [number("left", left), say("left")],
      [number("right", right), say("right")],
      [Number.isNaN(by) ? "–" : `${by < 0 ? "−" : "+"}${app.digits(Math.abs(by))}`, say("right − left")],
    ];
    const name = (label) => element("bdi", { textContent: label, title: label });
    this.reading.replaceChildren(
      element("span", { className: "cell" }, name(from), " → ", name(to)),
      ...numbers.map(([told, what]) => element("span", { className: "number" },
        element("b", { textContent: told }), element("small", { textContent: what }))),
    );
    Object.assign(this.reading.dataset, { cell: `${row},${col}`, left, right });
  }

  // ---- the notes

  // every: one of this many rows was computed.
  sampled(name, every) {
    this.every = every;
    this.tellHow(name, this.notes[name]);
  }

  tellHow(name, note) {
    this.notes[name] = note;
    const notes = this.shown.map((each) => this.notes[each]).filter((each) => each && each !== say("exact"));
    if (this.every > 1) notes.push(say("coarse: one of every {n} rows; zoom in for every cell", { n: this.every }));
    const hidden = this.shown.map((each) => this.map[each].sink).find((each) => each !== null);
    if (hidden !== undefined) notes.push(hiddenSaid(hidden));
    notes.push(...this.maps.map(({ labelsSaid }) => labelsSaid).filter(Boolean));
    this.note.textContent = [...new Set(notes)].join(" · ");
  }

  tell() {
    const { rows, cols, opposite: { left, right } } = this;
    const notes = [];
    if (JSON.stringify(left) === JSON.stringify(right)) notes.push(say("Both sides are the same head."));
    const [down, across] = [rows, cols].map((axis) => axis.told(!this.beside));
    if (rows === cols) notes.push(down);
    else notes.push(say("Rows: {rows} Columns: {cols}", { rows: down, cols: across }));
    const isMasked = SIDES.some((side) => masks(this.sides[side]));
    const hatched = isMasked ? [say("masked")] : [];
    if (!rows.plain || !cols.plain) hatched.push(say("token only on one side"));
    if (hatched.length) notes.push(say("Hatched: {what}.", { what: hatched.join(say(", or ")) }));
    this.legend.textContent = notes.join(" ");
  }

  // ---- export

  picture() {
    const { maps, shown, app: { style } } = this;
    const sizes = maps.map((map) => map.size);
    const titles = shown.map((name, i) => titleOf(this.captions[name].textContent, sizes[i][0], style));
    const head = Math.max(...titles.map(({ height }) => height));
    const across = sizes.reduce((sum, [each]) => sum + each + PAPER.between, -PAPER.between);
    const down = Math.max(...sizes.map(([, each]) => each));
    const draw = (context) => {
      context.save();
      context.translate(PAPER.margin, PAPER.margin);
      maps.forEach((map, i) => {
        context.save();
        titles[i].draw(context);
        context.translate(0, head);
        map.drawOn(context);
        context.restore();
        context.translate(sizes[i][0] + PAPER.between, 0);
      });
      context.restore();
      this.bar.drawOn(context, PAPER.margin, PAPER.margin + head + down + 12, PAPER.bar, style);
    };
    return { width: Math.max(across, PAPER.bar + this.bar.besideIn(style)) + 2 * PAPER.margin, height: down + head + PAPER.foot + 2 * PAPER.margin, draw };
  }

  python() {
    const { opposite: { left, right }, one, other, rows, cols } = this;
    const { scale, colours, sink } = this.app.state;
    const top = Math.max(...this.maps.map((map) => map.top));
    if (this.beside) return pythonOfSides({ left, right, one, other }, { scale, colours, sink, top });
    return pythonOfDifference({ left, right, one, other, rows, cols });
  }
}

const masks = ({ stack, layer }) => stack.layers[layer].masked;
