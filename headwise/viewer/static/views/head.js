// The Head view: the map of one head, its colour scales, and the colour bar.

import CSS from "./head.css" with { type: "text" };
import { divergingRamp } from "../map/colour.js";
import { colourControl, scaleControl, SCALE_CHOICES, sinkControl, thresholdControl, zoomControl } from "../shell/controls.js";
import { element } from "../shell/element.js";
import { HeatMap, zoomKeys } from "../map/heatmap.js";
import { ColourBar, hiddenSaid } from "../map/legend.js";
import { noteOf, titleOf } from "../map/title.js";
import { layerArguments, optionArguments } from "./python.js";
import { say } from "../words.js";

const PAPER = { margin: 16, bar: 280, foot: 38 }; // of a saved picture, in pixels

export class HeadView {
  static id = "head";
  static title = "Head";
  static css = CSS;
  static follows = true; // another stack
  static why = () => null;

  constructor(app) {
    this.app = app;
    this.map = new HeatMap({
      onPoint: (row, col) => {
        this.pointed = true; // no need to reveal a cell under the pointer
        app.state.set({ row, col });
        this.pointed = false;
      },
      onPin: (pinRow, pinCol) => app.state.set({ pinRow, pinCol }),
      onSight: (sight) => app.state.set({ sight }),
      onTop: () => this.showLegend(),
      onNote: (note) => {
        this.note.textContent = note;
        this.showLegend();
      },
      onDrawn: () => (app.drawn = performance.now()),
    });
    this.controls = this.buildControls();
    this.element = element("section", { className: "view-head", ariaLabel: say("Head") }, this.map.element, this.legend);
    this.keys = zoomKeys(() => this.map);
  }

  buildControls() {
    const { state } = this.app;
    this.scales = scaleControl(state);
    this.colours = colourControl(state);
    this.sink = sinkControl(this.app);
    this.threshold = thresholdControl(state);
    const zoom = zoomControl(say("fit"), [
      [say("Zoom out (−)"), () => this.map.wider()],
      [say("The whole matrix (0)"), () => this.map.fit()],
      [say("Zoom in (+)"), () => this.map.closer()],
    ]);
    this.bar = new ColourBar();
    this.masked = element("span", { className: "masked" }, element("i", { className: "swatch-masked" }), say("masked"));
    this.blocked = element("span", { className: "blocked-edge" }, element("b", { textContent: "✕" }), ` ${say("blocked")}`);
    this.generated = element("span", { className: "generated" }, element("i"), say("generated"));
    this.signs = [this.masked, this.blocked, this.generated];
    this.hidden = element("span", { className: "hidden-sink" });
    this.about = element("span", { className: "about" });
    this.note = element("span", { className: "note" });
    this.legend = element("div", { className: "legend" }, this.bar.element, ...this.signs, this.hidden, this.about);
    return element("div", { className: "controls-head" }, this.scales, this.colours, this.sink, this.threshold, zoom, this.note);
  }

  update(changed) {
    const { app, map } = this;
    const { state, stack, layer } = app;
    const any = (...fields) => fields.some((field) => changed.has(field));
    if (any("style", "scale", "sink", "threshold")) {
      const { scale, sink, threshold } = state;
      map.restyle({ style: app.style, scale, sink, threshold });
    }
    if (any("input", "stack", "layer", "head")) this.showHead();
    if (any("row", "col", "pinRow", "pinCol", "found", "input", "stack")) {
      const { row, col, pinRow, pinCol } = state;
      map.mark({ row, col, pinRow, pinCol, found: app.found });
    }
    if (any("sight", "input", "stack")) map.lookAt(state.sight);
    if (any("row", "col") && !this.pointed) map.reveal(state.row, state.col);
    this.scales.show(state.scale);
    this.colours.show(state.colours);
    this.sink.show(state.sink);
    this.threshold.show(state.threshold);
    this.masked.hidden = !layer.masked;
    this.blocked.hidden = !map.marks.blocked?.length;
    this.generated.hidden = stack.rows.generated === null && stack.cols.generated === null;
    this.showLegend();
  }

  showHead() {
    const { app } = this;
    const { layer, head } = app.state;
    const { stack } = app;
    const shown = [app.state.input, app.state.stack, layer, head].join();
    if (shown === this.shown && stack === this.stack) return;
    [this.shown, this.stack] = [shown, stack];
    this.map.mark({ blocked: app.live?.blockedIn(layer, head) ?? [] });
    this.map.show(app.mapOf(layer, head));
  }

  showLegend() {
    const { app, map } = this;
    const { reach } = map;
    const table = reach === null ? app.style.table : divergingRamp(app.style.dark);
    this.bar.update({ top: map.top, scale: app.state.scale, table, reach });
    this.about.textContent = this.scaleSaid;
    this.hidden.textContent = this.hiddenNote;
    this.hidden.hidden = !this.hiddenNote;
  }

  // The meaning of the colours.
  get scaleSaid() {
    const { scale, threshold } = this.app.state;
    const colours = say(SCALE_CHOICES.find(([value]) => value === scale)[2]);
    const said = this.map.reach === null ? [colours] : [say("No weight is much more than an even share of the keys that its row sees")];
    if (threshold) said.push(say("weights below {n} are not drawn", { n: threshold }));
    if (this.map.labelsSaid) said.push(this.map.labelsSaid);
    return said.join(" · ");
  }

  // The note of a picture without the sink.
  get hiddenNote() {
    const { sink } = this.map;
    if (sink === null) return "";
    return hiddenSaid(sink);
  }

  // ---- export

  picture() {
    const { app, map, bar } = this;
    const { style, state, stack } = app;
    const [width, height] = map.size;
    const title = [app.headName(state.layer, state.head), stack.name === "self" ? "" : stack.name, app.source.title];
    const drawn = state.threshold ? say("weights below {n} are not drawn", { n: state.threshold }) : "";
    const notes = [app.layer.masked ? say("hatched: masked") : "", this.hiddenNote, drawn, map.labelsSaid].filter(Boolean).join(" · ");
    const wide = Math.max(width, PAPER.bar + bar.besideIn(style));
    const below = noteOf(notes, wide, style);
    const head = titleOf(title.filter(Boolean).join(" · "), wide, style);
    return {
      width: wide + 2 * PAPER.margin,
      height: head.height + height + PAPER.foot + below.height + 2 * PAPER.margin,
      draw: (context) => {
        context.save();
        context.translate(PAPER.margin, PAPER.margin);
        head.draw(context);
        context.translate(0, head.height);
        map.drawOn(context);
        context.translate(0, height + 12);
        bar.drawOn(context, 0, 0, PAPER.bar, style);
        below.draw(context, 0, 26);
        context.restore();
      },
    };
  }

  python() {
    const { app } = this;
    const { scale, head, sight, threshold } = app.state;
    const args = [...layerArguments(app.stack, app.state.layer), `head=${head}`];
    if (sight) {
      const [row, pastRow, col, pastCol] = sight.map((edge, i) => (i % 2 ? Math.ceil(edge) : Math.floor(edge)));
      args.push(`rows=slice(${row}, ${pastRow})`, `cols=slice(${col}, ${pastCol})`);
    }
    args.push(...optionArguments(app.stack, app.state));
    let row = scale === "row" ? "# only the page has per-row colours: this figure is linear\n" : "";
    if (threshold) row += "# only the page hides weights below a threshold: this figure has all\n";
    return `import headwise.plot\n\n${row}figure = headwise.plot.heatmap(${args.join(", ")}, out="attention.pdf")\n`;
  }
}
