// The colour bar: the weights of the colours of a map, with ticks.

import { SCALES, picture } from "./colour.js";
import { element } from "../shell/element.js";

const STEPS = 256;
const PLACES = [0, 0.25, 0.5, 0.75, 1]; // of the ticks along the bar
const THICK = 9;

export class ColourBar {
  constructor() {
    this.canvas = element("canvas", { width: STEPS, height: 1 });
    this.ticks = element("span", { className: "ticks" });
    this.of = element("span", { className: "of", textContent: "of each row’s largest" });
    this.element = element("span", { className: "colour-bar", role: "img" }, this.canvas, this.ticks, this.of);
  }

  // top: the weight at the ramp's end, null = unknown. table: the colours. signed: from -top to top.
  update({ top, scale, table, signed = false }) {
    Object.assign(this, { top, scale, table, signed });
    this.canvas.getContext("2d").putImageData(this.ramp(STEPS), 0, 0);
    const texts = this.texts();
    this.ticks.replaceChildren(...texts.map((textContent) => element("span", { textContent })));
    this.of.hidden = !this.perRow;
    const ends = texts.length ? `from ${texts[0]} to ${texts.at(-1)}` : "";
    const of = this.perRow ? " of each row’s largest weight" : "";
    this.element.ariaLabel = `Colours: ${ends}${of}, ${this.name} scale`;
  }

  get perRow() {
    return this.scale === "row" && !this.signed;
  }

  get name() {
    return this.signed && this.scale !== "root" ? "linear" : SCALES[this.scale].name;
  }

  texts() {
    if (this.perRow) return PLACES.map((place) => `${100 * place} %`);
    if (!(this.top > 0)) return [];
    if (this.signed) {
      const { back } = SCALES[this.scale === "root" ? "root" : "linear"];
      return PLACES.map((place) => {
        const far = 2 * place - 1;
        return (far > 0 ? "+" : far < 0 ? "−" : "") + digits(this.top * back(Math.abs(far)));
      });
    }
    const texts = PLACES.map((place) => digits(this.top * SCALES[this.scale].back(place)));
    if (this.scale === "log") texts[0] = `≤ ${texts[0]}`;
    return texts;
  }

  ramp(width) {
    const [low, high] = this.signed ? [-1, 1] : [0, 1];
    const even = Float32Array.from({ length: width }, (_, i) => low + ((high - low) * i) / (width - 1));
    return picture(even, 1, width, 1, "linear", this.table, this.signed);
  }

  // For a saved picture; takes 24 pixels of height.
  drawOn(context, x, y, width, { font, faint }) {
    const bar = element("canvas", { width: STEPS, height: 1 });
    bar.getContext("2d").putImageData(this.ramp(STEPS), 0, 0);
    context.drawImage(bar, x, y, width, THICK);
    context.font = `400 11px ${font}`;
    context.fillStyle = faint;
    context.textBaseline = "middle";
    context.direction = "ltr";
    for (const [i, text] of this.texts().entries()) {
      context.textAlign = ["left", "center", "center", "center", "right"][i];
      context.fillText(text, x + PLACES[i] * width, y + THICK + 9);
    }
    context.textAlign = "left";
    if (this.perRow) context.fillText(this.of.textContent, x + width + 10, y + THICK / 2);
  }
}

const digits = (weight) =>
  weight === 0 ? "0" : weight >= 1e-3 ? String(Number(weight.toPrecision(2))) : weight.toExponential(1);
