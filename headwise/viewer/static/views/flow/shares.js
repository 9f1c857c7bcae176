// Shares of the tokens of a text: the running text coloured by them, and a list of the largest.

import { element } from "../../shell/element.js";
import { groupsOf } from "../text/grouping.js";
import { RunningText, codesOf, paletteOf } from "../text/running.js";
import { say } from "../../words.js";

const LISTED = 8;
const [HIDDEN] = codesOf([0], 1, "linear", 0); // the code of a token that is hidden as a sink

export class Shares {
  // on.point(token), on.follow(token): called for the reader's pointer and keys.
  constructor(on) {
    this.on = on;
    this.heading = element("h3");
    this.text = element("div", { className: "text" }, this.heading);
    this.list = element("ol");
    this.rest = element("p", { className: "note" });
    const heading = element("h3", { textContent: say("Largest") });
    const largest = element("div", { className: "largest" }, heading, this.list, this.rest);
    this.element = element("div", { className: "shares" }, this.text, largest);
    for (const [type, act] of [["pointerover", on.point], ["click", on.follow]]) {
      this.list.addEventListener(type, (event) => {
        const { token } = event.target.closest("[data-token]")?.dataset ?? {};
        if (token !== undefined) act(Number(token));
      });
    }
  }

  build(axis) {
    const { point, follow } = this.on;
    const on = { point, pin: follow, pointing: (act) => act() };
    this.running = new RunningText(axis, say("The tokens, coloured by their shares"), on);
    this.groups = groupsOf(axis, "tokens");
    this.text.replaceChildren(this.heading, this.running.element);
  }

  // what: { heading, labels, values, top (the value at the ramp's end), scale, style, digits, hidden (of each token),
  // order (tokens by value), token (of the flow), col (under the pointer, or null), found (a Set, or nothing),
  // title (of the list's buttons), whole (whether the sum of the values means something) }
  show(what) {
    this.heading.textContent = what.heading;
    this.shade(what);
    this.listLargest(what);
  }

  shade({ values, top, scale, style, hidden, token, col, found }) {
    const { running, groups } = this;
    if (this.table !== style.table) [this.table, this.palette] = [style.table, paletteOf(style)];
    const codes = codesOf(values.map((value) => Math.max(0, value)), top, scale);
    hidden.forEach((is, i) => is && (codes[i] = HIDDEN));
    running.paint(codes, this.palette, groups);
    running.mark("probe", col, groups);
    running.mark("asked", token, groups);
    running.moveTo(col ?? token);
    running.find(found);
  }

  listLargest({ labels, values, digits, order, col, title, whole }) {
    const listed = order.slice(0, LISTED).filter((i) => values[i] > 0);
    if (col !== null && !listed.includes(col)) listed.push(col); // also the one under the pointer
    const rest = listed.reduce((left, i) => left - values[i], values.reduce((sum, value) => sum + value, 0));
    this.rest.textContent = whole && rest > 5e-4 ? say("all other tokens together {share}", { share: digits(rest) }) : "";
    const made = listed.map((i) => [i, values[i], i === col].join()).join(";");
    if (made === this.made) return; // keep the button under the pointer or in focus
    this.made = made;
    const focused = this.element.getRootNode().activeElement?.dataset.token;
    const most = values[listed[0]] || 1;
    const lines = listed.map((i) => {
      const bar = element("i");
      bar.style.width = `${100 * Math.min(1, Math.max(0, values[i]) / most)}%`;
      const number = element("b", { textContent: digits(values[i]) });
      const line = element("button", { type: "button", title }, nameOf(labels[i], i), number, bar);
      line.dataset.token = i;
      line.ariaCurrent = String(i === col);
      return element("li", {}, line);
    });
    this.list.replaceChildren(...lines);
    if (focused) this.list.querySelector(`[data-token="${focused}"]`)?.focus();
  }
}

// A token's label and index.
export function nameOf(label, place) {
  const number = label === String(place) ? "" : ` ${place}`; // a token without text is a number itself
  return element("span", { className: "name" }, element("bdi", { textContent: label, title: label }), number);
}
