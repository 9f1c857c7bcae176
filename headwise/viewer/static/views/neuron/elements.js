// The query, the key and their product, element by element, as bars up and down from a line. One element can be chosen,
// by the pointer or by keys; its numbers are told below.

import { element, resized } from "../../shell/element.js";
import { say } from "../../words.js";
import { digits } from "./numbers.js";

const HEIGHT = 54; // pixels of a strip
const NAMES = ["q", "k", "q × k"];

export class Elements {
  constructor() {
    this.at = null; // the chosen element
    this.strips = NAMES.map((name) => {
      const canvas = element("canvas", { role: "img" });
      const label = element("span", { className: "of" }, element("b", { textContent: name }), element("bdi"));
      return { name, canvas, label, most: element("span", { className: "most" }) };
    });
    this.told = element("p", { className: "told", ariaLive: "polite", id: "neuron-element" });
    const cells = this.strips.flatMap(({ label, canvas, most }) => [label, element("div", {}, canvas), most]);
    this.element = element("div", { className: "elements" }, ...cells, this.told);
    for (const { canvas } of this.strips) {
      const choose = (event) => this.choose(this.placeAt(canvas, event.offsetX));
      canvas.addEventListener("pointermove", choose);
      canvas.addEventListener("pointerdown", choose);
    }
    this.size = new ResizeObserver(() => this.draw());
    this.size.observe(this.element);
  }

  close() {
    this.size.disconnect();
  }

  // q, k: the vectors; names: of the tokens; colours: { plus, minus, line, accent, ink }.
  show({ q, k, names, colours }) {
    const products = q.map((number, d) => number * k[d]);
    this.numbers = [q, k, products];
    this.colours = colours;
    const said = [...names, say("{n} products", { n: q.length })];
    this.strips.forEach(({ label, most, canvas, name }, i) => {
      const largest = this.numbers[i].reduce((top, number) => Math.max(top, Math.abs(number)), 0);
      this.strips[i].largest = largest;
      label.lastChild.textContent = label.lastChild.title = said[i];
      most.textContent = `±${digits(Number(largest.toPrecision(3)))}`;
      canvas.ariaLabel = say("{name}: {n} numbers, from {low} to {high}", {
        name, n: q.length, low: digits(Math.min(...this.numbers[i])), high: digits(Math.max(...this.numbers[i])),
      });
    });
    if (this.at !== null && this.at >= q.length) this.at = null;
    this.tell();
    this.draw();
  }

  placeAt(canvas, x) {
    const count = this.numbers?.[0].length ?? 0;
    return Math.max(0, Math.min(count - 1, Math.floor((x / canvas.clientWidth) * count)));
  }

  choose(at) {
    if (at === this.at || !this.numbers) return;
    this.at = at;
    this.tell();
    this.draw();
  }

  step(by) {
    const count = this.numbers?.[0].length ?? 0;
    if (count) this.choose(this.at === null ? (by > 0 ? 0 : count - 1) : (this.at + by + count) % count);
  }

  // The numbers of the chosen element.
  tell() {
    const { at, numbers: [q, k, products] } = this;
    if (at === null) {
      this.told.textContent = say("Point at a bar, or press Shift with an arrow, to read its numbers.");
      return;
    }
    const sum = products.subarray(0, at + 1).reduce((total, product) => total + product, 0);
    const numbers = { d: at + 1, n: q.length, q: digits(q[at]), k: digits(k[at]), p: digits(products[at]), sum: digits(sum) };
    this.told.textContent = say("element {d} of {n}: {q} × {k} = {p}; the sum up to here is {sum}", numbers);
    this.told.title = `${q[at]} × ${k[at]} = ${products[at]}`;
  }

  draw() {
    if (!this.numbers) return;
    this.strips.forEach(({ canvas, largest }, i) => {
      const width = canvas.parentNode.clientWidth;
      if (width) this.drawStrip(resized(canvas, width, HEIGHT), this.numbers[i], largest, width);
    });
  }

  drawStrip(context, numbers, largest, width) {
    const { plus, minus, line, accent } = this.colours;
    const wide = width / numbers.length;
    const gap = wide > 4 ? 1 : 0;
    const middle = HEIGHT / 2;
    if (this.at !== null) {
      context.fillStyle = line;
      context.fillRect(this.at * wide, 0, Math.max(1, wide), HEIGHT);
    }
    context.fillStyle = line;
    context.fillRect(0, middle - 0.5, width, 1);
    numbers.forEach((number, d) => {
      const tall = largest ? (Math.abs(number) / largest) * (middle - 2) : 0;
      context.fillStyle = number < 0 ? minus : plus;
      context.fillRect(d * wide, number < 0 ? middle : middle - tall, Math.max(0.75, wide - gap), tall);
    });
    if (this.at === null) return;
    context.fillStyle = accent;
    context.fillRect(this.at * wide, HEIGHT - 2, Math.max(2, wide - gap), 2);
  }
}
