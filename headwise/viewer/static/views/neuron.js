// The Neuron view: one weight, step by step, from the elements of its query and key. The pair is the current cell.

import CSS from "./neuron.css" with { type: "text" };
import { button, picker } from "../shell/controls.js";
import { download, element } from "../shell/element.js";
import { tooLong } from "./long.js";
import { say } from "../words.js";
import { Elements } from "./neuron/elements.js";
import { KeyList } from "./neuron/keys.js";
import { digits } from "./neuron/numbers.js";
import { stepsOf, stepsTable } from "./neuron/steps.js";
import { workbookOf } from "./neuron/worksheet.js";
import { layerArguments } from "./python.js";
import { View } from "./view.js";

const FAR = 10; // keys that an arrow moves with Ctrl
const OFFERED = 2000; // tokens that a list offers

export class NeuronView extends View {
  static id = "neuron";
  static title = "Neuron";
  static css = CSS;
  static follows = true; // another stack
  static why = ({ stack }) => (stack.rows.long || stack.cols.long ? tooLong(stack) : null);

  constructor(app) {
    super(app);
    this.title = element("h2", { className: "pair", ariaLive: "polite" });
    this.accuracy = element("p", { className: "accuracy" });
    this.elements = new Elements();
    this.steps = stepsTable();
    this.keyList = new KeyList((col) => this.go({ col }));
    const parts = [this.title, this.accuracy, this.elements.element, element("div", { className: "below" }, this.steps, this.keyList.element)];
    this.element = element("section", { className: "view-neuron", ariaLabel: say("Neuron") }, ...parts);
    this.queries = picker(say("Query"), [], (row) => this.go({ row: Number(row) }));
    this.keysOffered = picker(say("Key"), [], (col) => this.go({ col: Number(col) }));
    const what = say("The computation of this weight as a workbook with live formulas (w)");
    this.worksheet = button({ icon: "save", text: say("Open as worksheet") }, what, () => this.save());
    this.controls = element("div", { className: "text-controls" }, this.queries, this.keysOffered, this.worksheet);
    const query = say("previous query, next query; with Shift: element of q and k");
    const key = say("previous key, next key");
    this.keys = {
      ArrowLeft: [(event) => this.sideways(-1, event), query],
      ArrowRight: [(event) => this.sideways(1, event), query],
      ArrowUp: [(event) => this.step("col", event.ctrlKey ? -FAR : -1), key],
      ArrowDown: [(event) => this.step("col", event.ctrlKey ? FAR : 1), key],
      w: [() => this.save(), say("open as worksheet")],
    };
  }

  // ---- the selection

  // The query and the key: of the current cell, the pinned one, or chosen here.
  get row() {
    const { row, pinRow } = this.app.state;
    return row ?? pinRow ?? Math.min(1, this.app.stack.rows.length - 1);
  }

  get col() {
    const { col, pinCol } = this.app.state;
    return col ?? pinCol ?? this.strongest();
  }

  // The key with the largest weight; the first one often gets much from every query, so another one if there is.
  strongest() {
    const weights = (this.terms?.steps ?? []).map(({ weight }, col) => (col ? weight : 0));
    return Math.max(0, weights.indexOf(Math.max(...weights)));
  }

  go(given) {
    this.app.state.set({ row: this.row, col: this.col, ...given });
  }

  step(field, by) {
    const { rows, cols } = this.app.stack;
    const last = (field === "row" ? rows : cols).length - 1;
    this.go({ [field]: Math.max(0, Math.min(last, this[field] + by)) });
  }

  sideways(by, event) {
    if (event.shiftKey) this.elements.step(by);
    else this.step("row", by);
  }

  // ---- the display

  update(changed) {
    const { stack, state, style } = this.app;
    if (this.stack !== stack) {
      this.stack = stack;
      const offer = (list, { labels }) => {
        list.hidden = labels.length > OFFERED;
        if (!list.hidden) list.offer(labels.map((label, i) => [i, `${label} ${i}`]));
      };
      offer(this.queries, stack.rows);
      offer(this.keysOffered, stack.cols);
    }
    if (changed.has("style") || !this.colours) this.colours = coloursOf(style);
    const asked = [state.layer, state.head, this.row].join();
    if (this.known?.stack === stack && this.known.asked === asked) return this.show();
    this.ask(asked);
  }

  ask(asked) {
    const { stack, state: { layer, head } } = this.app;
    this.question((options) => stack.terms(layer, head, this.row, options), (terms) => {
      this.known = { stack, asked, terms };
      this.show();
    });
  }

  get terms() {
    return this.known?.terms;
  }

  show() {
    const { app, terms, row, col, colours } = this;
    const { rows, cols } = app.stack;
    const step = terms.steps[col];
    const name = (axis, token) => [element("bdi", { textContent: axis.labels[token], title: axis.labels[token] }), element("small", { textContent: ` ${token}` })];
    const weight = element("b", { textContent: digits(step.weight), title: String(step.weight) });
    const head = element("small", { textContent: app.headName(app.state.layer, app.state.head) });
    this.title.replaceChildren(...name(rows, row), " → ", ...name(cols, col), " ", weight, " ", head);
    Object.assign(this.title.dataset, { cell: `${row},${col}`, weight: step.weight });
    if (app.source.live?.milliseconds) this.accuracy.textContent = say("q and k are those of the model in this page.");
    else this.accuracy.textContent = app.source.tolerance
      ? say("q and k are rounded in this file: the weight is within {tolerance}.", { tolerance: app.source.tolerance })
      : say("Exact q and k, from the server.");
    this.queries.show(row);
    this.keysOffered.show(col);
    const names = [`${rows.labels[row]} ${row}`, `${cols.labels[col]} ${col}`];
    this.elements.show({ q: terms.q, k: terms.keyOf(col), names, colours });
    this.steps.show(stepsOf(terms, step, terms.steps.filter(({ allowed }) => allowed).length));
    this.keyList.show(terms, cols.labels, col, colours);
  }

  close() {
    super.close();
    this.elements.close();
  }

  // ---- export

  async save() {
    const { app, terms, row, col } = this;
    if (!terms) return;
    const { rows, cols } = app.stack;
    const title = `${app.headName(app.state.layer, app.state.head)}: ${rows.labels[row]} → ${cols.labels[col]}`;
    try {
      const name = `${app.saving.name()}-${row}-${col}.xlsx`;
      download(workbookOf(terms, { title, query: rows.labels[row], keys: cols.labels, col }), name);
      app.say(say("Saved as {name}.", { name }));
    } catch (error) {
      app.fail(error);
    }
  }

  python() {
    const { app: { stack, state }, row, col } = this;
    const args = layerArguments(stack, state.layer).concat(`head=${state.head}`, `row=${row}`, `col=${col}`);
    if (stack.example) args.push(`example=${stack.example}`);
    return `import headwise\n\nsheet = headwise.worksheet.of_weight(${args.join(", ")})\nsheet.write("attention.xlsx")\n`;
  }
}

// Orange above zero, blue below, and the other colours of the page.
function coloursOf({ dark, line, accent, ink }) {
  const [plusRgb, minusRgb] = dark ? [[240, 127, 60], [86, 180, 233]] : [[213, 94, 0], [0, 114, 178]];
  const css = (rgb) => `rgb(${rgb.join(" ")})`;
  return { plusRgb, minusRgb, plus: css(plusRgb), minus: css(minusRgb), line, accent, ink };
}
