// The divergence of two inputs: a small grid with one cell per layer and head, computed when the page is idle.

import { css } from "../../map/colour.js";
import { divergence, Side } from "./difference.js";
import { element } from "../../shell/element.js";
import { say } from "../../words.js";

export class Divergences {
  // go(layer, head): called on a click.
  constructor(app, go) {
    Object.assign(this, { app, go, known: new Map() }); // compared stacks -> the divergences known so far
    this.grid = element("div", { className: "grid", role: "group", ariaLabel: say("Divergence of every head") });
    this.most = element("p", { className: "note", ariaLive: "polite" });
    const heading = element("h3", { textContent: say("Where do they differ most?") });
    this.element = element("div", { className: "where" }, heading, this.grid, this.most);
  }

  // left, right: stacks; rows, cols: their joint axes. Nothing is shown if their heads do not correspond.
  show(left, right, rows, cols) {
    this.stop();
    const heads = (stack) => stack.layers.map((layer) => layer.heads).join();
    this.element.hidden = left === right || heads(left) !== heads(right);
    if (this.element.hidden) return;
    const key = [...[left, right].map(({ input, place }) => `${input}/${place}`), rows.byPosition].join(" ");
    if (!this.known.has(key)) this.known.set(key, left.layers.map(({ heads: count }) => new Array(count).fill(null)));
    this.found = this.known.get(key);
    this.build(left);
    this.compute(left, right, rows, cols);
  }

  stop() {
    this.question?.abort();
  }

  async compute(left, right, rows, cols) {
    const { signal } = (this.question = new AbortController());
    const { found } = this;
    try {
      for (const [layer, heads] of found.entries()) {
        for (const head of heads.keys()) {
          if (heads[head]) continue;
          const [one, other] = [
            new Side(left, layer, head, rows.left, cols.left),
            new Side(right, layer, head, rows.right, cols.right),
          ];
          heads[head] = await divergence(one, other, rows, cols, { signal, idle: true });
          if (signal.aborted) return;
          this.paint(rows);
        }
      }
    } catch (error) {
      if (!signal.aborted) this.app.fail(error);
    }
    if (!signal.aborted) this.paint(rows);
  }

  build({ layers }) {
    const count = Math.max(...layers.map(({ heads }) => heads));
    this.grid.style.gridTemplateColumns = `auto repeat(${count}, minmax(9px, 22px))`;
    const mark = (text) => element("span", { textContent: text });
    const every = count > 16 ? 4 : 1;
    const parts = [mark("")];
    for (let head = 0; head < count; head++) parts.push(mark(head % every ? "" : head));
    this.buttons = layers.map(({ heads, number }, layer) => {
      const line = Array.from({ length: heads }, (_, head) => {
        const button = element("button", { type: "button", tabIndex: -1 });
        button.addEventListener("click", () => this.go(layer, head));
        return button;
      });
      parts.push(mark(number), ...line, ...Array.from({ length: count - heads }, () => mark("")));
      return line;
    });
    this.grid.replaceChildren(...parts);
    this.paint();
  }

  // Colours, names and the sentence below.
  paint(rows) {
    if (!this.found || this.element.hidden) return;
    this.rows = rows ?? this.rows;
    const { app: { style, state }, found, buttons } = this;
    const all = found.flatMap((heads, layer) => heads.map((each, head) => ({ layer, head, ...each })));
    const known = all.filter(({ nats }) => nats >= 0);
    const top = known.reduce((most, { nats }) => Math.max(most, nats), 0);
    for (const { layer, head, nats } of all) {
      const button = buttons[layer][head];
      const here = layer === state.layer && head === state.head;
      button.style.backgroundColor = nats >= 0 ? css(nats, top, "linear", style.table).fill : "";
      const name = this.app.plainHeadName(layer, head);
      button.title = nats >= 0 ? say("{head}: {n} nats", { head: name, n: digits(nats) }) : name;
      button.ariaLabel = button.title;
      button.ariaPressed = String(here);
      button.tabIndex = here ? 0 : -1;
    }
    const left = all.filter((each) => each.nats === undefined).length;
    if (left) this.most.textContent = say("comparing heads: {n} of {count}", { n: all.length - left, count: all.length });
    else if (!known.length) this.most.textContent = say("The two sides have no token in common.");
    else {
      const [{ layer, head, nats, rows: count }] = known.sort((one, other) => other.nats - one.nats);
      const shared = this.rows ? this.rows.same.reduce((sum, each) => sum + each, 0) : count;
      const from = count < shared ? say("estimated from {n} of {count}", { n: count, count: shared }) : count;
      const sentence =
        "Most: {head}, {n} nats. Mean Jensen–Shannon divergence of the rows in common ({rows}), others are left out; " +
        "0 = equal, 0.693 = no key in common. A token that only one side has is a key of its own.";
      const name = this.app.plainHeadName(layer, head);
      this.most.textContent = say(sentence, { head: name, n: digits(nats), rows: from });
    }
  }
}

const digits = (nats) => (nats < 5e-4 ? nats.toExponential(0) : nats.toFixed(3));
