// The colour bar: the weights of the colours of a map, with ticks.

import CSS from "./legend.css" with { type: "text" };
import { SCALES, picture } from "./colour.js";
import { write } from "./labels.js";
import { element } from "../shell/element.js";
import { percent, say } from "../words.js";

const STEPS = 256;
const PLACES = [0, 0.25, 0.5, 0.75, 1]; // the places of the ticks along the bar
const THICK = 9;

export class ColourBar {
  static css = CSS;

  constructor() {
    this.canvas = element("canvas", { width: STEPS, height: 1 });
    this.ticks = element("span", { className: "ticks" });
    this.of = element("span", { className: "of" });
    this.element = element("span", { className: "colour-bar", role: "img" }, this.canvas, this.ticks, this.of);
  }

  // top: the weight at the ramp's end, null = unknown. table: the colours. signed: from -top to top. reach: colours show
  // even shares, from 1 - reach to 1 + reach (even.js); else null. of: if colours are relative to a weight, what it is.
  update({ top, scale, table, signed = false, reach = null, of = "" }) {
    if (reach !== null) [signed, scale, of] = [true, "linear", say("× an even share: nearly uniform, so relative to uniform")];
    if (signed && scale !== "root") scale = "linear"; // differences have no other scales
    if (scale === "row") of = say("of each row’s largest");
    Object.assign(this, { top, scale, table, signed, reach });
    this.of.textContent = of;
    paintRamp(this.canvas, table, signed);
    const texts = this.texts();
    this.ticks.replaceChildren(...texts.map((textContent) => element("span", { textContent })));
    this.of.hidden = !of;
    const ends = texts.length ? say("from {low} to {high}", { low: texts[0], high: texts.at(-1) }) : "";
    const weights = [ends, of].filter(Boolean).join(" ");
    this.element.ariaLabel = say("Colours: {weights}, {scale} scale", { weights, scale: say(SCALES[scale].name) });
  }

  texts() {
    const { back } = SCALES[this.scale];
    if (this.reach !== null) return PLACES.map((place) => Number((1 + this.reach * (2 * place - 1)).toPrecision(3)).toString());
    if (this.of.textContent) return PLACES.map((place) => percent(back(place)));
    if (!(this.top > 0)) return [];
    if (this.signed) {
      return PLACES.map((place) => {
        const far = 2 * place - 1;
        return (far > 0 ? "+" : far < 0 ? "−" : "") + digits(this.top * back(Math.abs(far)));
      });
    }
    const texts = PLACES.map((place) => digits(this.top * back(place)));
    if (this.scale === "log") texts[0] = `≤ ${texts[0]}`;
    return texts;
  }

  // Pixels that a saved picture needs beside the bar.
  besideIn({ font }) {
    const context = document.createElement("canvas").getContext("2d");
    context.font = `400 11px ${font}`;
    return this.of.textContent ? 10 + Math.ceil(context.measureText(this.of.textContent).width) : 0;
  }

  // For a saved picture; takes 24 pixels of height.
  drawOn(context, x, y, width, { font, faint }) {
    context.drawImage(this.canvas, x, y, width, THICK);
    const look = { font: `400 11px ${font}`, colour: faint };
    for (const [i, text] of this.texts().entries()) {
      const align = ["left", "center", "center", "center", "right"][i];
      write(context, text, x + PLACES[i] * width, y + THICK + 9, { ...look, align });
    }
    if (this.of.textContent) write(context, this.of.textContent, x + width + 10, y + THICK / 2, look);
  }
}

// Paint the colours of a table, from its first or, signed, from its lowest, along a canvas of one row.
export function paintRamp(canvas, table, signed) {
  const [low, high] = signed ? [-1, 1] : [0, 1];
  const even = Float32Array.from({ length: canvas.width }, (_, i) => low + ((high - low) * i) / (canvas.width - 1));
  canvas.getContext("2d").putImageData(picture(even, 1, canvas.width, 1, "linear", table, signed), 0, 0);
}

// The note of a picture without the sink, a column.
export function hiddenSaid(sink) {
  if (sink) return say("first token attended to ({n}) hidden · values unchanged, not renormalised", { n: sink });
  return say("first token hidden · values unchanged, not renormalised");
}

const digits = (weight) =>
  weight === 0 ? "0" : weight >= 1e-4 ? String(Number(weight.toPrecision(2))) : weight.toExponential(1);
