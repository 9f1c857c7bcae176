// The 3-D view: one head as steps as high as its weights, turned by dragging or by the arrow keys.

import CSS from "./surface.css" with { type: "text" };
import { sinkOf } from "../data/sink.js";
import { largest } from "../map/colour.js";
import { ColourBar } from "../map/legend.js";
import { titleOf } from "../map/title.js";
import { colourControl, scaleControl, SCALE_CHOICES, sinkControl, thresholdControl, zoomControl } from "../shell/controls.js";
import { element, resized } from "../shell/element.js";
import { say } from "../words.js";
import { layerArguments, optionArguments } from "./python.js";
import { limited, projection, Scene, START } from "./surface/scene.js";
import { View } from "./view.js";

const EDGE = 12; // pixels around the title of a saved picture
const MOST = 64; // steps per side; of more cells each step is the largest of a block
const STILL = 4; // pixels: less of a movement is a tap
const TURN = 0.12; // radians of an arrow key
const ZOOM = 1.2;

export class SurfaceView extends View {
  static id = "surface";
  static title = "3-D";
  static css = CSS;
  static follows = true; // another stack
  static why = () => null;

  constructor(app) {
    super(app);
    this.seen = { ...START };
    this.canvas = element("canvas", { tabIndex: 0, role: "img" });
    this.tip = element("div", { className: "tip", hidden: true });
    this.place = element("div", { className: "surface" }, this.canvas, this.tip);
    this.note = element("p", { className: "limit", role: "status" });
    this.bar = new ColourBar();
    const foot = element("div", { className: "foot" }, this.bar.element, this.note);
    this.element = element("section", { className: "view-surface", ariaLabel: say("3-D") }, this.place, foot);
    this.controls = this.buildControls();
    this.keys = this.buildKeys();
    this.listen();
    this.size = new ResizeObserver(() => this.draw());
    this.size.observe(this.place);
  }

  buildControls() {
    const { state } = this.app;
    this.scales = scaleControl(state, SCALE_CHOICES.slice(0, 3));
    this.colours = colourControl(state);
    this.threshold = thresholdControl(state);
    this.sink = sinkControl(this.app);
    const zoom = zoomControl(say("reset"), [
      [say("Smaller (−)"), () => this.zoom(1 / ZOOM)],
      [say("As at first (0)"), () => this.see(START)],
      [say("Larger (+)"), () => this.zoom(ZOOM)],
    ]);
    return element("div", { className: "controls-head" }, this.scales, this.colours, this.threshold, this.sink, zoom);
  }

  buildKeys() {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const does = say("turn; with Shift: the next step");
    const keys = Object.entries(steps).map(([key, [across, down]]) => {
      const act = ({ shiftKey }) => (shiftKey ? this.step(across, down) : this.turn(TURN * across, -TURN * down));
      return [key, [act, does]];
    });
    const larger = [() => this.zoom(ZOOM), say("larger, smaller")];
    const smaller = [() => this.zoom(1 / ZOOM), say("larger, smaller")];
    return { ...Object.fromEntries(keys), "+": larger, "=": larger, "-": smaller, 0: [() => this.see(START), say("as at first")] };
  }

  // ---- how it is seen

  see(seen) {
    this.seen = limited({ ...this.seen, ...seen });
    this.draw();
  }

  turn(around, up) {
    this.see({ turn: this.seen.turn - around, tilt: this.seen.tilt + up });
  }

  // at: the pixel that stays where it is; without it, the middle.
  zoom(factor, at) {
    const { zoom, pan } = this.seen;
    const then = limited({ ...this.seen, zoom: zoom * factor }).zoom;
    const from = at && this.view ? at.map((place, i) => place - this.view.centre[i]) : [0, 0];
    this.see({ zoom: then, pan: pan.map((part, i) => from[i] - (from[i] - part) * (then / zoom)) });
  }

  move(x, y) {
    const { pan } = this.seen;
    this.see({ pan: [pan[0] + x, pan[1] + y] });
  }

  listen() {
    const { canvas } = this;
    const fingers = new Map();
    let moved = 0;
    const spread = () => {
      const [one, other] = [...fingers.values()];
      return Math.hypot(one.x - other.x, one.y - other.y) || 1;
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      moved = 0;
      fingers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = fingers.get(event.pointerId);
      if (!before) return this.point([event.offsetX, event.offsetY]);
      const [x, y] = [event.offsetX - before.x, event.offsetY - before.y];
      const wide = fingers.size > 1 ? spread() : 1;
      fingers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
      moved += Math.hypot(x, y);
      if (fingers.size > 1) this.zoom(spread() / wide, [event.offsetX, event.offsetY]);
      else if (moved > STILL && event.shiftKey) this.move(x, y);
      else if (moved > STILL) this.turn(0.008 * x, 0.006 * y);
    });
    const end = (event) => {
      if (fingers.delete(event.pointerId) && event.type === "pointerup" && moved <= STILL) {
        this.point([event.offsetX, event.offsetY], true);
      }
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    canvas.addEventListener("dblclick", () => this.see(START));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const pixels = event.deltaMode ? event.deltaY * 16 : event.deltaY;
      this.zoom(Math.exp(-pixels / 400), [event.offsetX, event.offsetY]);
    }, { passive: false });
  }

  // ---- the cell

  // The step under the pointer; pin: it was clicked.
  async point(at, pin = false) {
    const found = this.scene?.pick(this.view, at);
    if (!found) {
      this.tip.hidden = true;
      return;
    }
    const same = this.under?.row === found.row && this.under.col === found.col;
    this.under = found;
    if (same && !pin) return this.showTip();
    const cell = await this.cellOf(found);
    if (!cell || this.under !== found) return;
    const [row, col] = cell;
    this.app.state.set(pin ? { row, col, pinRow: row, pinCol: col } : { row, col });
    this.showTip();
  }

  // The cells of a step: its rows and its columns, each as [first, past].
  cellsOf({ row, col }) {
    const { rows, cols, from } = this.known;
    return [blockOf(row, rows.length, rows.steps), blockOf(col, cols.length, cols.steps).map((place) => place + from)];
  }

  // The weights of some cells, each for itself.
  weightsOf([row0, row1], [col0, col1]) {
    const { stack, layer, head } = this.known;
    return stack.tile(layer, head, [row0, row1], [col0, col1], row1 - row0, col1 - col0, "max");
  }

  // The weight of a cell; undefined while the source is asked for it.
  weightOf(row, col) {
    const { known } = this;
    if (known.one?.row === row && known.one.col === col) return known.one.weight;
    const step = this.stepOf(row, col);
    const [[row0, row1], [col0, col1]] = this.cellsOf(step);
    if ((row1 - row0) * (col1 - col0) === 1) return this.scene.weight(step.row, step.col);
    const one = (known.one = { row, col, weight: undefined });
    const tell = ([weight]) => {
      one.weight = weight;
      if (this.known === known && known.one === one) this.draw();
    };
    this.weightsOf([row, row + 1], [col, col + 1]).then(tell, () => {}); // the page says why there is none
    return undefined;
  }

  // The cell of a step: of a block the one with the largest weight.
  async cellOf(step) {
    const [[row0, row1], [col0, col1]] = this.cellsOf(step);
    const across = col1 - col0;
    if ((row1 - row0) * across === 1) return [row0, col0];
    try {
      const weights = await this.weightsOf([row0, row1], [col0, col1]);
      const most = weights.indexOf(largest(weights));
      return most < 0 ? [row0, col0] : [row0 + Math.floor(most / across), col0 + (most % across)];
    } catch {
      return null; // the page says why
    }
  }

  // The step of a cell, or null.
  stepOf(row, col) {
    if (row === null || col === null || !this.known) return null;
    const { rows, cols, from } = this.known;
    if (col < from) return null;
    const of = (place, { length, steps }) => Math.min(steps - 1, Math.floor(((place + 1) * steps - 1) / length));
    return { row: of(row, rows), col: of(col - from, cols) };
  }

  step(across, down) {
    const { state, stack } = this.app;
    const { rows, cols } = this.known ?? {};
    if (!rows) return;
    const by = (count, { length, steps }) => count * Math.ceil(length / steps);
    const within = (at, length) => Math.max(0, Math.min(length - 1, at));
    const [row, col] = [state.row ?? state.pinRow ?? 0, state.col ?? state.pinCol ?? 0];
    state.set({ row: within(row + by(down, rows), stack.rows.length), col: within(col + by(across, cols), stack.cols.length) });
  }

  // The name and the weight of the chosen cell, above its step; if the step is a block, also the height of the step.
  showTip() {
    const { app, scene, view, chosen } = this;
    const { row, col } = this.cell;
    const weight = chosen && scene ? this.weightOf(row, col) : undefined;
    if (weight === undefined) {
      this.tip.hidden = true;
      return;
    }
    const name = (axis, token) => [element("bdi", { textContent: axis.labels[token] }), element("small", { textContent: ` ${token}` })];
    const number = element("b", { textContent: Number.isNaN(weight) ? say("masked") : app.digits(weight) });
    this.tip.replaceChildren(...name(app.stack.rows, row), " → ", ...name(app.stack.cols, col), " ", number);
    const [n, m] = this.cellsOf(chosen).map(([first, past]) => past - first);
    if (n * m > 1) {
      const most = app.digits(scene.weight(chosen.row, chosen.col));
      this.tip.append(element("small", { className: "block", textContent: say("the largest of {n} × {m} is {most}", { n, m, most }) }));
    }
    Object.assign(this.tip.dataset, { cell: `${row},${col}`, weight });
    this.tip.hidden = false;
    const [x, y] = view.at(scene.x(chosen.col + 0.5), scene.y(chosen.row + 0.5), scene.z(chosen.row, chosen.col));
    const [wide, room] = [this.tip.offsetWidth, this.place.clientWidth];
    this.tip.style.left = `${Math.max(0, Math.min(room - wide, x - wide / 2))}px`;
    this.tip.style.top = `${Math.max(0, y - this.tip.offsetHeight - 8)}px`;
  }

  get cell() {
    const { row, col, pinRow, pinCol } = this.app.state;
    return { row: row ?? pinRow, col: col ?? pinCol };
  }

  get chosen() {
    const { row, col } = this.cell;
    const step = this.stepOf(row, col);
    const { stack } = this.app;
    return step && { ...step, names: [stack.rows.labels[row], stack.cols.labels[col]] };
  }

  // ---- the display

  update(changed) {
    const { state } = this.app;
    const any = (...fields) => fields.some((field) => changed.has(field));
    this.scales.show(this.scale);
    this.colours.show(state.colours);
    this.threshold.show(state.threshold);
    this.sink.show(state.sink);
    if (!this.known || any("input", "stack", "layer", "head", "sink")) this.ask();
    else if (any("style", "scale", "threshold")) this.build();
    else this.draw();
  }

  get scale() {
    const { scale } = this.app.state;
    return scale === "row" ? "linear" : scale;
  }

  // Ask for the weights: each of a block, if there are many.
  ask() {
    const { stack, state: { layer, head, sink } } = this.app;
    const find = async (options) => {
      const sunk = sink ? await sinkOf(stack, [layer, head], options) : null;
      const from = sunk === null || sunk + 1 >= stack.cols.length ? 0 : sunk + 1; // what stands before it is masked for all
      const axis = (labels, first) => ({ labels, first, length: labels.length - first, steps: Math.min(MOST, labels.length - first) });
      const [rows, cols] = [axis(stack.rows.labels, 0), axis(stack.cols.labels, from)];
      const what = [[0, rows.length], [from, stack.cols.length], rows.steps, cols.steps, "max"];
      const weights = await stack.tile(layer, head, ...what, options);
      return { stack, layer, head, rows, cols, from, weights, sunk };
    };
    this.question(find, (known) => {
      this.known = known;
      this.build();
    });
  }

  build() {
    const { app } = this;
    const { rows, cols, from, weights, sunk } = this.known;
    const sideOf = ({ labels, first, length, steps }, title) => {
      const block = length / steps;
      const named = (label) => (block > 1 ? `${label} …` : label); // the first of a block
      const names = Array.from({ length: steps }, (_, i) => named(labels[first + Math.floor(i * block)]));
      return { names, length: steps, title };
    };
    const top = largest(weights);
    const sides = { rows: sideOf(rows, say("queries")), cols: sideOf(cols, say("keys")) };
    this.scene = new Scene({ ...sides, weights, top, threshold: app.state.threshold });
    this.bar.update({ top, scale: this.scale, table: app.style.table });
    const blocks = [rows, cols].map(({ length, steps }) => Math.ceil(length / steps));
    const notes = [];
    if (blocks.some((block) => block > 1)) notes.push(say("Each step is the largest of up to {n} × {m} weights.", { n: blocks[0], m: blocks[1] }));
    if (sunk !== null && from) notes.push(say("The sink is hidden; no weight changes."));
    if (app.layer.masked) notes.push(say("Grey: masked."));
    this.note.textContent = notes.join(" ");
    const size = say("{rows} queries, {cols} keys", { rows: rows.length, cols: cols.length });
    this.canvas.ariaLabel = say("Surface of {head}: {size}. Arrow keys turn it", { head: app.headName(app.state.layer, app.state.head), size });
    this.draw();
  }

  get look() {
    const { style } = this.app;
    const computed = getComputedStyle(this.canvas);
    const value = (name) => computed.getPropertyValue(name).trim();
    const own = { masked: value("--hatch"), maskedLine: value("--hatch-line"), edge: value("--surface-edge") };
    return { style: { ...style, ...own }, scale: this.scale };
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.place;
    if (!this.scene || !width || !height) return;
    this.view = projection(this.seen, this.scene.size, width, height);
    this.scene.draw(resized(this.canvas, width, height), this.view, this.chosen, this.look);
    if (this.chosen) this.showTip();
    else this.tip.hidden = true;
  }

  close() {
    super.close();
    this.size.disconnect();
  }

  // ---- export

  picture() {
    if (!this.scene) return null;
    const { app: { state, source, style }, place: { clientWidth: width, clientHeight: height } } = this;
    const title = titleOf(`${this.app.headName(state.layer, state.head)} · ${source.title}`, width - 2 * EDGE, style);
    const draw = (context) => {
      title.draw(context, EDGE, EDGE);
      context.translate(0, EDGE + title.height);
      this.scene.draw(context, projection(this.seen, this.scene.size, width, height), null, this.look);
    };
    return { width, height: height + EDGE + title.height, draw };
  }

  python() {
    const { stack, state } = this.app;
    const args = [...layerArguments(stack, state.layer), `head=${state.head}`];
    args.push(...optionArguments(stack, { ...state, sink: false }));
    return `import headwise.plot\n\nfigure = headwise.plot.surface3d(${args.join(", ")}, out="attention.pdf")\n`;
  }
}

// The cells of a step, [first, past], as the source divides them.
const blockOf = (step, length, steps) => [Math.floor((step * length) / steps), Math.floor(((step + 1) * length) / steps)];
