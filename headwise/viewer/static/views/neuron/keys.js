// The keys of the row: of each the products as colours, the score, its exponential and the weight. A click chooses a key.
// If there are many keys, only the keys with the largest weights are listed.

import { element } from "../../shell/element.js";
import { say } from "../../words.js";
import { digits, short } from "./numbers.js";

const MOST = 64; // keys that are listed

// Which keys are listed, in the order of the text: all, or those with the largest weights and the chosen one.
export function listedOf(steps, chosen) {
  const all = steps.map((_, col) => col);
  if (all.length <= MOST) return all;
  const largest = all.sort((a, b) => steps[b].weight - steps[a].weight).slice(0, MOST);
  if (!largest.includes(chosen)) largest.push(chosen);
  return largest.sort((a, b) => a - b);
}

export class KeyList {
  constructor(choose) {
    this.note = element("p", { className: "limit" });
    const heads = [say("key"), "q × k", say("score"), "exp", say("weight")];
    const head = element("div", { className: "line head", ariaHidden: "true" }, ...heads.map((textContent) => element("span", { textContent })));
    this.list = element("div", { className: "list", role: "listbox", ariaLabel: say("The keys of this row") });
    this.list.addEventListener("click", (event) => {
      const { col } = event.target.closest("[data-col]")?.dataset ?? {};
      if (col !== undefined) choose(Number(col));
    });
    this.element = element("div", { className: "keys" }, this.note, head, this.list);
  }

  // terms: of termsOf; labels: of the keys; chosen: a key; colours: { plus, minus }.
  show(terms, labels, chosen, colours) {
    const listed = listedOf(terms.steps, chosen);
    const all = terms.steps.length;
    const some = say("The {n} keys with the largest weights of {all}, and the chosen one; the sum is over all.", { n: MOST, all });
    this.note.textContent = listed.length === all ? "" : some;
    const key = listed.join();
    if (this.shown !== terms || this.listed !== key || this.colours !== colours) {
      [this.shown, this.listed, this.colours] = [terms, key, colours];
      const most = largestProduct(terms, listed);
      const lines = listed.map((col) => this.line(terms, col, labels[col], most, colours));
      if (terms.sink !== null) lines.push(this.sinkLine(terms));
      this.list.replaceChildren(...lines);
    }
    for (const line of this.list.children) {
      const on = line.dataset.col === String(chosen);
      line.ariaSelected = String(on);
      if (on) this.reveal(line);
    }
  }

  // Scroll the list alone: what stands above it stays in sight.
  reveal(line) {
    const { list } = this;
    const [outer, inner] = [list, line].map((each) => each.getBoundingClientRect());
    if (inner.top < outer.top) list.scrollTop += inner.top - outer.top;
    else if (inner.bottom > outer.bottom) list.scrollTop += inner.bottom - outer.bottom;
  }

  line(terms, col, label, most, colours) {
    const { score, exp, weight } = terms.steps[col];
    const name = element("span", { className: "name" }, element("bdi", { textContent: label, title: label }), element("small", { textContent: ` ${col}` }));
    const made = element("div", { className: "line", role: "option" }, name, strip(terms, col, most, colours), ...numbersOf(score, exp, weight));
    Object.assign(made.dataset, { col, weight });
    made.ariaLabel = `${label} ${col}: ${digits(weight)}`;
    if (score === -Infinity) made.classList.add("masked");
    return made;
  }

  sinkLine({ sink, highest, sum, empty }) {
    const exp = Math.exp(sink - highest);
    const name = element("span", { className: "name" }, element("i", { textContent: say("the learned sink") }));
    const parts = [name, element("span"), ...numbersOf(sink, exp, empty ? 0 : exp / sum)];
    return element("div", { className: "line sink", role: "option", ariaDisabled: "true", ariaLabel: say("the learned sink") }, ...parts);
  }
}

function numbersOf(score, exp, weight) {
  const bar = element("i");
  bar.style.width = `${100 * weight}%`;
  return [
    element("span", { className: "number", textContent: short(score), title: String(score) }),
    element("span", { className: "number", textContent: short(exp), title: String(exp) }),
    element("span", { className: "number share", title: String(weight) }, bar, element("b", { textContent: short(weight) })),
  ];
}

function largestProduct({ q, keyOf, dim }, listed) {
  let most = 0;
  for (const col of listed) {
    const key = keyOf(col);
    for (let d = 0; d < dim; d++) most = Math.max(most, Math.abs(q[d] * key[d]));
  }
  return most;
}

// The products as one line of pixels, as strong as they are large.
function strip({ q, keyOf, dim }, col, most, { plusRgb, minusRgb }) {
  const image = new ImageData(dim, 1);
  const key = keyOf(col);
  for (let d = 0; d < dim; d++) {
    const product = q[d] * key[d];
    image.data.set([...(product < 0 ? minusRgb : plusRgb), most ? (255 * Math.abs(product)) / most : 0], 4 * d);
  }
  const canvas = element("canvas", { width: dim, height: 1, ariaHidden: "true" });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
