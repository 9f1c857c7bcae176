// Some heads side by side, in a small output of a notebook: all maps show the same cell, and share one colour scale.

import HEAD from "./head.css" with { type: "text" };
import CSS from "./maps.css" with { type: "text" };
import { HeatMap } from "../map/heatmap.js";
import { ColourBar } from "../map/legend.js";
import { element } from "../shell/element.js";
import { say } from "../words.js";

export class MapsView {
  static id = "maps";
  static title = "Maps";
  static css = HEAD + CSS; // maps and colour bars look as in the Head view
  static why = () => null;

  constructor(app) {
    this.app = app;
    this.maps = app.small.heads.map((head) => this.build(head));
    this.bar = new ColourBar();
    this.masked = element("span", { className: "masked" }, element("i", { className: "swatch-masked" }), ` ${say("masked")}`);
    const figures = element("div", { className: `maps${this.maps.length > 1 ? " several" : ""}` }, ...this.maps.map(({ figure }) => figure));
    const legend = element("div", { className: "legend" }, this.bar.element, this.masked);
    this.element = element("section", { className: "view-maps", ariaLabel: say("Maps") }, figures, legend);
  }

  build(head) {
    const { state } = this.app;
    const map = new HeatMap({
      onPoint: (row, col) => state.set({ row, col }),
      onPin: (pinRow, pinCol) => state.set({ pinRow, pinCol }),
      onTop: () => this.scaleTogether(),
    });
    for (const event of ["focus", "pointerenter"]) {
      map.canvas.addEventListener(event, () => state.set({ head })); // the footer tells the weight of this head
    }
    const name = element("figcaption", { textContent: this.app.headName(state.layer, head) });
    return { head, map, figure: element("figure", {}, name, map.element) };
  }

  update(changed) {
    const { app, maps } = this;
    const { state, layer, style } = app;
    const any = (...fields) => fields.some((field) => changed.has(field));
    for (const { head, map, figure } of maps) {
      if (any("style", "scale", "sink")) map.restyle({ style, scale: state.scale, sink: state.sink });
      if (any("input", "stack", "layer")) map.show(app.mapOf(state.layer, head));
      const { row, col, pinRow, pinCol } = state;
      map.mark({ row, col, pinRow, pinCol });
      figure.classList.toggle("current", head === state.head && maps.length > 1);
    }
    this.masked.hidden = !layer.masked;
    this.scaleTogether();
  }

  scaleTogether() {
    if (!this.bar) return; // a map is being built
    const top = Math.max(...this.maps.map(({ map }) => map.top || 0));
    if (!top) return;
    for (const { map } of this.maps) map.against(top);
    this.bar.update({ top, scale: this.app.state.scale, table: this.app.style.table });
  }
}
