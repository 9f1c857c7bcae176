// Small multiples: the attention of the asked token in every head of the layer, each over the image. They share one
// colour scale, so that heads can be compared; a click chooses a head.

import { write } from "../../map/labels.js";
import { element, resized } from "../../shell/element.js";
import { say } from "../../words.js";
import { paintImage } from "./paint.js";

const SIDE = 104; // pixels of the longer side of a map
const GAP = 8;
const NAME = 16; // pixels of a map's name in a picture

export class HeadMaps {
  constructor(app) {
    this.app = app;
    this.heading = element("h2");
    this.grid = element("div", { className: "grid" });
    this.element = element("div", { className: "maps", hidden: true }, this.heading, this.grid);
    this.maps = []; // { head, weights, canvas, button }
  }

  // of: for each head the weights of the patches; null = nothing is asked. top: the weight at the ramp's end.
  show(layer, of, top) {
    const { app } = this;
    this.element.hidden = of === null;
    [this.layer, this.top] = [layer, top];
    if (of === null) return (this.maps = []);
    this.heading.textContent = say("Every head of layer {n}", { n: app.stack.layers[layer].number });
    while (this.maps.length > of.length) this.maps.pop();
    while (this.maps.length < of.length) this.maps.push(this.made(this.maps.length));
    of.forEach((weights, head) => (this.maps[head].weights = weights));
    const buttons = this.maps.map(({ button }) => button);
    if (this.grid.children.length !== buttons.length) this.grid.replaceChildren(...buttons);
    this.mark();
  }

  made(head) {
    const name = say("head {n}", { n: head });
    const canvas = element("canvas", { ariaHidden: "true" });
    const button = element("button", { type: "button" }, canvas, element("span", { textContent: name }));
    button.addEventListener("click", () => this.app.go({ layer: this.layer, head }));
    return { head, canvas, button };
  }

  mark() {
    const { head, heads } = this.app.state;
    for (const map of this.maps) {
      const chosen = map.head === head || heads.some(([layer, other]) => layer === this.layer && other === map.head);
      map.button.ariaPressed = String(chosen);
    }
  }

  size(rows, cols, photo) {
    const [wide, high] = photo ? [photo.width, photo.height] : [cols, rows];
    const by = SIDE / Math.max(wide, high);
    return [Math.max(1, Math.round(wide * by)), Math.max(1, Math.round(high * by))];
  }

  // how: what paintImage needs beside the weights.
  draw(how) {
    this.how = { ...how, top: this.top };
    const [width, height] = this.size(how.rows, how.cols, how.photo);
    for (const { canvas, weights } of this.maps) {
      paintImage(resized(canvas, width, height), width, height, { ...this.how, weights });
    }
  }

  // The maps in a picture of this width: { height, draw(context) }.
  picture(room) {
    if (!this.maps.length || !this.how) return { height: 0, draw: () => {} };
    const { style } = this.app;
    const [width, height] = this.size(this.how.rows, this.how.cols, this.how.photo);
    const across = Math.max(1, Math.floor((room + GAP) / (width + GAP)));
    const step = height + NAME + GAP;
    const draw = (context) => {
      this.maps.forEach(({ weights, head }, place) => {
        context.save();
        context.translate((place % across) * (width + GAP), GAP + Math.floor(place / across) * step);
        paintImage(context, width, height, { ...this.how, weights });
        write(context, say("head {n}", { n: head }), 0, height + 12, { font: `12px ${style.font}`, colour: style.faint });
        context.restore();
      });
    };
    return { height: GAP + Math.ceil(this.maps.length / across) * step, draw };
  }
}
