// Flow: the shares of the tokens in one output token, layer by layer down to the input: rollout, or relevance if
// gradients were kept. In the picture rows are layers and columns tokens; the text shows the row under the pointer.

import CSS from "./flow.css" with { type: "text" };
import { largest } from "../map/colour.js";
import { choices, scaleControl, SCALE_CHOICES, sinkControl } from "../shell/controls.js";
import { element, filled, resized } from "../shell/element.js";
import { rollout, SOME, tooMuch, usualToken } from "./flow/rollout.js";
import { bandOf, cellAt, drawFlow, frameOf } from "./flow/picture.js";
import { write } from "../map/labels.js";
import { ColourBar } from "../map/legend.js";
import { titleOf } from "../map/title.js";
import { Shares, nameOf } from "./flow/shares.js";
import { tooLong } from "./long.js";
import { View } from "./view.js";
import { percent, say } from "../words.js";

const LISTED = 8; // tokens listed in a saved picture
const KEPT = 24; // flows kept in memory
const NARROW = 520; // pixels; names are short below this width
const BAR = 260; // width of the colour bar there
const SAVED = 960; // width of a saved picture, in pixels, and the space around its title
const EDGE = 8;

export class FlowView extends View {
  static id = "flow";
  static title = "Flow";
  static css = CSS;
  static strip = false; // it shows all heads itself

  static why(app) {
    const { name, kind, rows, cols } = app.stack;
    if (rows.long || cols.long) return tooLong(app.stack);
    if (kind === "cross") {
      const sentence = "Flow needs self-attention. The layers of this stack ({name}) are cross-attention. Choose another stack.";
      return say(sentence, { name });
    }
    if (rows.length === cols.length) return null;
    const size = { rows: rows.length, cols: cols.length };
    return say("Flow needs as many rows as columns. This stack has {rows} rows and {cols} columns.", size);
  }

  constructor(app) {
    super(app);
    this.known = new Map(); // place -> a computed flow
    this.flow = null; // { token, found: [of each layer, the share of each token], part, kind }
    this.layer = null; // the row of the picture under the pointer, null = that of the input

    this.kind = choices(say("Method"), [
      ["rollout", say("rollout"), say("Abnar & Zuidema 2020: the product of attention plus identity over the layers")],
      ["relevance", say("relevance"), say("Chefer et al. 2021: attention weighted by the gradient of the loss")],
    ], (flow) => app.state.set({ flow }));
    this.scaling = choices(say("Colours"), [
      ["each", say("scale per layer"), say("The strongest colour is the largest value of the other tokens in each layer")],
      ["alike", say("one scale"), say("The strongest colour is the largest value of the other tokens in all layers")],
    ], (bands) => app.state.set({ bands }));
    this.scales = scaleControl(app.state, SCALE_CHOICES.slice(0, 3));
    this.sink = sinkControl(app, say("Ignore the first token and the special tokens in the colours"));
    const controls = [this.kind, this.scaling, this.scales, this.sink];
    this.controls = element("div", { className: "flow-controls" }, ...controls);

    this.heading = element("h2");
    this.note = element("p", { className: "note" });
    this.reading = element("p", { className: "reading" });
    this.canvas = element("canvas", { role: "img" });
    this.bar = new ColourBar();
    this.beyond = element("span", { className: "beyond" }, element("i"), say("the followed token, beyond the scale"));
    this.legend = element("div", { className: "legend" }, this.bar.element, this.beyond);
    this.shares = new Shares({
      point: (col) => app.state.set({ col }),
      follow: (token) => this.follow(token),
    });
    this.element = element(
      "section",
      { className: "view-flow", ariaLabel: say("Flow") },
      element("div", { className: "head" }, element("div", {}, this.heading, this.note), this.reading),
      element("div", { className: "layers" }, this.canvas),
      this.legend,
      this.shares.element,
    );
    this.listen();
    this.keys = {
      ArrowUp: [() => this.step(-1, 0), say("layer above")],
      ArrowDown: [() => this.step(1, 0), say("layer below")],
      ArrowLeft: [() => this.step(0, -1), say("token to the left")],
      ArrowRight: [() => this.step(0, 1), say("token to the right")],
      Enter: [() => this.follow(this.app.state.col), say("follow this token")],
      e: [() => app.state.set({ bands: this.each ? "alike" : "each" }), say("a scale per layer, or one scale")],
    };
  }

  get stack() {
    return this.app.stack;
  }

  get axis() {
    return this.stack.cols;
  }

  update(changed) {
    const { state } = this.app;
    const has = (...fields) => fields.some((field) => changed.has(field));
    if (this.shown !== this.stack) {
      this.shown = this.stack;
      this.layer = null;
      this.shares.build(this.axis);
      this.compute();
    } else if (has("row", "pinRow", "flow", "view")) this.compute();
    else if (has("style", "scale", "sink", "bands", "col", "pinCol", "found")) this.draw();
    this.kind.show(this.asked);
    const relevance = this.kind.querySelector("[data-value=relevance]");
    relevance.disabled = !this.stack.relevance;
    if (relevance.disabled) {
      const needs = "Relevance needs gradients: watch the model with values=True, gradients=True and call backward() inside.";
      relevance.title = say(needs);
    }
    this.sink.show(state.sink);
    this.scaling.show(this.each ? "each" : "alike");
    this.scales.show(this.scale);
  }

  // ---- the flow of a token

  get asked() {
    return this.stack.relevance ? this.app.state.flow : "rollout";
  }

  compute() {
    this.forget();
    const { app, stack, asked } = this;
    if (asked === "relevance") {
      const { row, layers } = stack.relevance;
      return this.show({ kind: asked, token: row, found: layers.map((each) => Float32Array.from(each)), part: 1 });
    }
    const refusal = tooMuch(stack, app.source.kind);
    if (refusal) return this.show({ kind: asked, refusal });
    const find = async ({ signal }) => {
      const token = app.state.pinRow ?? app.state.row ?? (await usualToken(stack, signal));
      signal.throwIfAborted();
      const place = [stack.input, stack.place, token].join("/");
      if (!this.known.has(place)) {
        const tell = (found, part, estimated = 0) => this.show({ kind: asked, token, found: [...found], part, estimated });
        const found = await rollout(stack, token, { kind: app.source.kind, signal, tell });
        this.known.set(place, { kind: asked, token, found, part: 1 });
        if (this.known.size > KEPT) this.known.delete(this.known.keys().next().value);
      }
      return this.known.get(place);
    };
    this.question(find, (flow) => this.show(flow), (error) => this.show({ kind: asked, refusal: error.message }));
  }

  show(flow) {
    this.flow = flow;
    this.draw();
  }

  // The number of rows of the complete picture, and their names.
  get count() {
    return this.stack.layers.length + 1;
  }

  nameOf(row) {
    if (row === this.count - 1) return say("input");
    const layer = this.app.layerName(this.count - 2 - row);
    return this.narrow ? layer : say("after {layer}", { layer });
  }

  // The values shown: shares; for relevance without the 1 with which every token starts.
  valuesOf(row) {
    const { found, kind, token } = this.flow;
    if (kind === "rollout" || row === 0) return found[row];
    const beyond = found[row].slice();
    beyond[token] -= 1;
    return beyond;
  }

  get hidden() {
    const { special, length } = this.axis;
    return Array.from({ length }, (_, i) => this.app.state.sink && (i === 0 || Boolean(special[i])));
  }

  // The value at the ramp's end of each row: the largest of the other tokens, as a token's share of itself is large. Where
  // it is beyond that, it is marked.
  get tops() {
    const { hidden, flow: { found, token } } = this;
    const tops = found.map((_, row) => largest(this.valuesOf(row).filter((__, i) => !hidden[i] && i !== token)));
    const most = Math.max(...tops);
    return tops.map((top, row) => (row === 0 ? 1 : this.each ? top : most));
  }

  // For each row, whether the followed token is beyond the scale.
  get marked() {
    const { hidden, tops, flow: { found, token } } = this;
    return found.map((_, row) => !hidden[token] && this.valuesOf(row)[token] > tops[row] * 1.001);
  }

  showLegend() {
    const { each, tops, app: { style: { table } } } = this;
    const of = each ? say("of each layer’s largest share, without the followed token") : "";
    this.bar.update({ top: tops.at(-1), scale: this.scale, table, of });
    this.beyond.hidden = !this.marked.includes(true);
  }

  get scale() {
    const { scale } = this.app.state;
    return scale === "row" ? "linear" : scale;
  }

  // The row that the text and the list show: the row under the pointer, or the last one computed so far.
  get row() {
    return Math.min(this.layer ?? this.count - 1, this.flow.found.length - 1);
  }

  // ---- actions of the reader

  get each() {
    return this.app.state.bands === "each";
  }

  follow(token) {
    if (token !== null && this.asked === "rollout") this.app.state.set({ pinRow: token, row: token });
  }

  point(row, col) {
    this.layer = row;
    if (col === this.app.state.col) this.draw();
    else this.app.state.set({ col });
  }

  step(down, right) {
    if (!this.flow?.found) return;
    const clamp = (at, count) => Math.max(0, Math.min(count - 1, at));
    const { col } = this.app.state;
    const row = this.layer ?? this.count - 1;
    const next = col === null ? this.flow.token : clamp(col + right, this.axis.length);
    this.point(clamp(row + down, this.count), next);
  }

  listen() {
    const { canvas } = this;
    const at = (event) => (this.frame && this.flow?.found ? cellAt(this.frame, event) : null);
    canvas.addEventListener("pointermove", (event) => {
      const cell = at(event);
      if (cell && (cell[0] !== this.layer || cell[1] !== this.app.state.col)) this.point(...cell);
    });
    canvas.addEventListener("pointerleave", () => this.point(null, this.app.state.col));
    canvas.addEventListener("click", (event) => at(event) && this.follow(at(event)[1]));
    new ResizeObserver(() => this.draw()).observe(canvas.parentNode);
  }

  // ---- drawing

  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = 0;
      if (this.flow && this.shown === this.stack) this.drawNow();
    });
  }

  drawNow() {
    const { flow, canvas } = this;
    const there = Boolean(flow.found);
    canvas.parentNode.hidden = this.shares.element.hidden = this.legend.hidden = !there;
    this.say();
    if (!there) return;
    const width = canvas.parentNode.clientWidth;
    if (!width) return;
    this.narrow = width < NARROW;
    this.frame = this.frameFor(canvas.getContext("2d"), width);
    drawFlow(resized(canvas, width, this.frame.height), this.frame, this.drawn());
    this.read();
    this.showLegend();
    this.showShares();
  }

  // The cell under the pointer.
  read() {
    const { app: { state: { col } }, axis, row } = this;
    if (col === null) return this.reading.replaceChildren();
    const number = element("b", { textContent: this.app.digits(this.valuesOf(row)[col]) });
    const where = ` ${row === this.count - 1 ? say("in the input") : this.nameOf(row)}`;
    this.reading.replaceChildren(number, " ", nameOf(axis.labels[col], col), where);
    this.reading.dataset.cell = `${row},${col}`;
    this.reading.dataset.value = this.valuesOf(row)[col];
  }

  // Heading, progress and notes.
  say() {
    const { flow, app } = this;
    if (flow.refusal) {
      this.heading.textContent = say("Flow");
      this.note.textContent = flow.refusal;
      return;
    }
    const { labels } = this.axis;
    const about = flow.kind === "rollout" ? say("What {token} is made of") : say("What {token} depends on");
    this.heading.replaceChildren(...filled(about, { token: nameOf(labels[flow.token], flow.token) }));
    const notes = [];
    if (flow.estimated) notes.push(say("estimated from {n} rows of each layer until it is exact", { n: SOME }));
    if (flow.part < 1) {
      const left = flow.estimated || this.count - flow.found.length;
      const part = flow.part ? `${say(", ")}${percent(flow.part)}` : "";
      const progress = { layer: app.layerName(left - 1), n: this.count - left, count: this.count - 1, part };
      notes.push(say("computing {layer} ({n} of {count}{part})", progress));
    } else if (flow.kind === "rollout") {
      notes.push(say("rollout over {n} layers", { n: this.count - 1 }));
    } else notes.push(say("relevance over {n} layers, without the initial 1 of the token itself", { n: this.count - 1 }));
    if (app.source.live?.edits.some(({ kind }) => kind === "ablate")) notes.push(say("heads that are off count like the others"));
    if (app.state.sink) notes.push(say("first and special tokens hidden · values unchanged"));
    if (flow.kind === "rollout") notes.push(say("click a token to follow it"));
    else notes.push(say("for the token from which the loss was computed"));
    this.note.textContent = notes.join(" · ");
    this.element.dataset.part = String(flow.part);
    this.element.dataset.token = String(flow.token);
  }

  get names() {
    return Array.from({ length: this.count }, (_, row) => this.nameOf(row));
  }

  frameFor(context, width) {
    return frameOf(context, { names: this.names, labels: this.axis.labels, font: this.app.style.font, width });
  }

  drawn() {
    const { app: { style, state, found }, axis: { labels }, flow: { token }, names, hidden, row, band, marked } = this;
    const shown = { band, names, labels, hidden, marked, style, token, row, col: state.col };
    return { ...shown, order: this.order(), found: found?.cols };
  }

  get band() {
    const { tops, hidden, flow, scale, app: { style } } = this;
    const made = [flow.found.length, scale, this.each, style.dark, this.app.state.colours, this.app.state.sink].join();
    if (this.made !== made || this.bandOf !== flow) {
      const values = flow.found.map((_, row) => this.valuesOf(row));
      Object.assign(this, { made, bandOf: flow, image: bandOf({ values, tops, hidden, scale, table: style.table }) });
    }
    return this.image;
  }

  // Tokens by their values in the current row, without hidden ones.
  order() {
    const { hidden } = this;
    const values = this.valuesOf(this.row);
    const places = Array.from(values.keys()).filter((i) => !hidden[i]);
    return places.sort((one, other) => values[other] - values[one]);
  }

  showShares() {
    const { app: { style, state, found }, axis: { labels }, flow: { kind, token }, row, scale, hidden } = this;
    const values = this.valuesOf(row);
    const order = this.order();
    const isRollout = kind === "rollout";
    this.shares.show({
      heading: say("{row}, by {measure}", {
        row: row === this.count - 1 ? say("The input") : this.nameOf(row), measure: say(isRollout ? "share" : kind),
      }),
      ...{ labels, values, scale, style, hidden, order, token },
      top: this.tops[row],
      digits: this.app.digits,
      col: state.col,
      found: found?.cols,
      title: isRollout ? say("Follow this token") : "",
      whole: isRollout,
    });
    const most = order.slice(0, 3).map((i) => `${labels[i]} ${i}: ${this.app.digits(values[i])}`);
    const told = { kind: say(kind), token: `${labels[token]} ${token}`, row: this.nameOf(row), most: most.join(say(", ")) };
    this.canvas.ariaLabel = say("{kind} of {token}, {row}; largest: {most}", told);
  }

  // ---- export

  picture() {
    if (!this.flow?.found) return null;
    const frame = this.frameFor(new OffscreenCanvas(1, 1).getContext("2d"), SAVED);
    const { app: { style, input }, axis: { labels }, flow } = this;
    const values = this.valuesOf(this.row);
    const listed = this.order().slice(0, LISTED).filter((i) => values[i] > 0);
    const title = say("{kind} of {token}", { kind: say(flow.kind), token: `${labels[flow.token]} ${flow.token}` });
    const above = titleOf(`${title} · ${input.name}`, SAVED - 2 * EDGE, style);
    const [head, line, bar] = [above.height + EDGE, 18, 34];
    const [width, height] = [SAVED, head + frame.height + bar + line * (listed.length + 2)];
    const draw = (context) => {
      context.fillStyle = style.paper;
      context.fillRect(0, 0, width, height);
      const put = (text, x, y, font, colour) => write(context, text, x, y, { font: `${font} ${style.font}`, colour });
      above.draw(context, EDGE, EDGE);
      context.save();
      context.translate(0, head);
      drawFlow(context, frame, this.drawn());
      context.restore();
      this.bar.drawOn(context, frame.left, head + frame.height + 6, BAR, style);
      const below = head + frame.height + bar + line / 2;
      put(say("largest, {row}", { row: this.nameOf(this.row) }), frame.left, below, "12px", style.faint);
      listed.forEach((i, place) => {
        put(this.app.digits(values[i]), frame.left, below + line * (place + 1), "12px", style.ink);
        put(`${labels[i]} ${i}`, frame.left + 64, below + line * (place + 1), "12px", style.ink);
      });
    };
    return { width, height, draw };
  }

  python() {
    if (!this.flow?.found) return null;
    const { stack, flow } = this;
    const what = flow.kind;
    const lines = [`records = ${recordsOf(stack)}`];
    if (what === "relevance") lines.push("# watched with values=True, gradients=True, and backward() called inside");
    lines.push(`found = headwise.analyses.${what}(records, rows=${flow.token})[${stack.example}, 0]`);
    if (what === "relevance") lines.push(`found[${flow.token}] -= 1  # the initial 1 of the token itself`);
    lines.push(
      `for token in found.argsort(descending=True)[:${LISTED}].tolist():`,
      `    print(f"{found[token]:.4f}  token {token}")`,
    );
    return lines.join("\n");
  }
}

// The Python code for a stack's records: [seen[0], seen[1], seen[2]] or shorter.
function recordsOf({ layers }) {
  const parts = layers.map(({ expression }) => /^(.*)\[(\d+)\]$/.exec(expression));
  const [seen, from] = [parts[0]?.[1], Number(parts[0]?.[2])];
  const isEven = parts.every((part, i) => part?.[1] === seen && Number(part[2]) === from + i);
  if (layers.length < 3 || !isEven) return `[${layers.map(({ expression }) => expression).join(", ")}]`;
  return `[${seen}[i] for i in range(${from ? `${from}, ` : ""}${from + layers.length})]`;
}
