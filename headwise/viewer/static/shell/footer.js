// The bottom of the page: the current cell and its weight, in every view; and the status line.

import { element, icon } from "./element.js";
import { say } from "../words.js";

const HINT = "Point at a cell or a token to read a weight";
const SHORT_MS = 120; // if the answer takes longer, the tokens are shown without a weight until then
const SAID_MS = 8000; // how long a message that is not an error stays

export class Footer {
  constructor(app) {
    this.app = app;
    this.cell = element("output", { id: "cell", className: "cell", ariaLive: "polite" });
    this.status = element("p", { className: "status", role: "status" });
    this.alert = element("p", { className: "alert", role: "alert" });
    this.element = element("footer", {}, this.cell, this.status, this.alert);
  }

  update(changed) {
    const fields = ["view", "input", "stack", "layer", "head", "row", "col", "pinRow", "pinCol"];
    if (fields.some((field) => changed.has(field))) this.read();
  }

  // Ask for the weight of the current cell: the cell under the pointer, else the pinned cell.
  async read() {
    const { layer, head, row: atRow, col: atCol, pinRow, pinCol } = this.app.state;
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    const [row, col] = [atRow ?? pinRow, atCol ?? pinCol];
    if (row === null || col === null) return this.show(row, col);
    delete this.cell.dataset.cell; // the weight shown is of the previous cell
    const late = setTimeout(() => this.show(row, col), SHORT_MS);
    try {
      const what = [layer, head, [row, row + 1], [col, col + 1], 1, 1, "max", { signal: asking.signal }];
      const [weight] = await this.app.stack.tile(...what);
      if (asking === this.asking) this.show(row, col, weight);
    } catch {
      if (asking === this.asking) this.show(row, col); // the shell says why
    } finally {
      clearTimeout(late);
    }
  }

  show(row, col, weight) {
    const { app, cell } = this;
    const { rows, cols } = app.stack;
    const name = (axis, token) => [
      element("bdi", { textContent: axis.labels[token], title: axis.labels[token] }),
      element("small", { textContent: axis.labels[token] === String(token) ? "" : ` ${token}` }), // not "0 0"
    ];
    const place = element("span", { className: "place", textContent: app.headName(app.state.layer, app.state.head) });
    delete cell.dataset.weight;
    delete cell.dataset.cell;
    const parts = [];
    if (row === null && col === null) parts.push(element("span", { textContent: app.View.hint === "" ? "" : say(app.View.hint ?? HINT) }));
    else {
      const words = row === null ? name(cols, col) : name(rows, row);
      if (row !== null && col !== null) words.push(" → ", ...name(cols, col));
      parts.push(element("span", { className: "pair" }, ...words));
    }
    if (weight !== undefined) {
      const masked = Number.isNaN(weight);
      cell.dataset.weight = masked ? 0 : weight;
      cell.dataset.cell = `${row},${col}`;
      const { layer, head } = app.state;
      const blocked = masked && app.live?.blockedIn(layer, head).some((cell) => cell[0] === row && cell[1] === col);
      const said = blocked ? say("blocked") : masked ? say("masked") : app.digits(weight);
      parts.unshift(element("b", { textContent: said }));
    } else if (row !== null && col !== null) parts.unshift(element("b", { textContent: "…" }));
    cell.replaceChildren(...parts, place);
  }

  // ---- the status line

  say(sentence) {
    clearTimeout(this.saying);
    this.status.textContent = sentence;
    this.alert.replaceChildren();
    if (sentence) this.saying = setTimeout(() => (this.status.textContent = ""), SAID_MS);
  }

  fail(sentence) {
    if (this.alert.firstChild?.textContent === sentence) return;
    clearTimeout(this.saying);
    this.status.textContent = "";
    const close = element("button", { type: "button", className: "plain", ariaLabel: say("Dismiss") }, icon("close"));
    close.addEventListener("click", () => this.alert.replaceChildren());
    this.alert.replaceChildren(element("span", { textContent: sentence }), close);
  }
}
