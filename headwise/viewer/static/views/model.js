// The whole model: every head as a small map, in its layer's row or sorted by a statistic, and the statistic's meaning.

import { divergingRamp } from "../map/colour.js";
import { paintRamp } from "../map/legend.js";
import { noteOf } from "../map/title.js";
import { choices, picker } from "../shell/controls.js";
import { element } from "../shell/element.js";
import { groupsOfHeads, HeadTiles, STEPS } from "../shell/thumbs.js";
import { layersArguments, optionArguments } from "./python.js";
import CSS from "./model.css" with { type: "text" };
import { say, whole } from "../words.js";

// Sizes of the maps, in pixels. A layer gets as few lines as possible with maps of at least SMALLEST.
const [SMALLEST, LARGEST, LISTED] = [44, 116, 88];
const DENSE = 60; // below this size the value is below the number of the head
const [FRAME, GAP, GROUP_GAP] = [6, 6, 12]; // around a map, between two maps, between groups that share keys
const LABEL = 94; // left of a layer, if there is room
const NARROW = 660; // below this width the label is above (as in model.css)
const TINT = 46; // per cent of the accent colour for the largest value

export class ModelView {
  static id = "model";
  static title = "Model";
  static css = CSS;
  static follows = true; // another stack
  static strip = false; // it shows all heads itself
  static hint = "Click a head, or press Enter, to open it";
  static why = () => null;

  constructor(app) {
    this.app = app;
    const { statistics } = app.source;
    this.stat = picker(say("Statistic"), statistics.map(({ key, name }) => [key, say(name)]), (stat) => app.state.set({ stat }));
    const orders = [["layers", say("by layer")], ["down", say("highest first")], ["up", say("lowest first")]];
    this.sort = choices(say("Order"), orders, (sort) => app.state.set({ sort }));
    this.low = element("span");
    this.high = element("span");
    this.ramp = element("i", { ariaHidden: "true" });
    this.scale = element("span", { className: "scale" }, this.low, this.ramp, this.high);
    this.controls = element("div", { className: "model-controls" }, this.stat, this.scale, this.sort);
    this.controls.hidden = !statistics.length;
    this.about = element("p", { className: "about" });
    this.legend = new Legend();
    this.grid = element("div", { className: "layers" });
    this.tiles = new HeadTiles(app, this.grid, (layer, head) => this.open(layer, head));
    const section = { className: "view-model", ariaLabel: say("Every head of every layer") };
    this.element = element("section", section, this.about, this.legend.element, this.grid);
    new ResizeObserver(() => this.resize()).observe(this.grid);
    const step = (key) => [() => this.tiles.step(...STEPS[key]), say("next head in this direction")];
    this.keys = Object.fromEntries(Object.keys(STEPS).map((key) => [key, step(key)]));
    this.keys.Enter = [() => this.open(app.state.layer, app.state.head), say("open this head")];
  }

  open(layer, head) {
    this.app.go({ layer, head, view: "head" });
  }

  update(changed) {
    const { state } = this.app;
    const fresh = this.stack !== this.app.stack;
    if (fresh) this.fill();
    if (fresh || changed.has("style")) this.legend.show(this.app.style);
    if (fresh || changed.has("stat")) this.showStatistic();
    if (fresh || changed.has("sort")) this.arrange();
    this.stat.show(state.stat);
    this.sort.show(state.sort);
    const current = this.tiles.mark();
    const moved = changed.has("layer") || changed.has("head");
    if (moved && !fresh) current?.scrollIntoView({ block: "nearest", container: "nearest" });
  }

  // ---- the tiles

  fill() {
    const { stack } = this.app;
    this.stack = stack;
    this.stats = stack.layers.map(({ stats }) => stats ?? null);
    this.tiles.clear();
    this.captions = new Map(); // tile -> { name, value }
    const tilesOf = ({ heads }, layer) => Array.from({ length: heads }, (_, head) => this.tile(layer, head));
    this.all = stack.layers.map(tilesOf);
    stack.layers.forEach((_, layer) => this.ask(stack, layer));
  }

  tile(layer, head) {
    const tile = this.tiles.make(layer, head);
    const caption = { name: element("span", { className: "name" }), value: element("b") };
    this.captions.set(tile, caption);
    tile.append(element("span", { className: "under" }, caption.name, caption.value));
    return tile;
  }

  async ask(stack, layer) {
    if (this.stats[layer]) return;
    try {
      const stats = await stack.stats(layer);
      if (stack !== this.stack || !stats) return;
      this.stats[layer] = stats;
      clearTimeout(this.telling); // several layers may arrive at once
      this.telling = setTimeout(() => {
        this.showStatistic();
        this.arrange();
        this.tiles.mark();
      });
    } catch {
      // the shell shows the reason; the numbers stay empty
    }
  }

  arrange() {
    const { sort } = this.app.state;
    const sorted = sort !== "layers" && this.app.source.statistics.length > 0;
    this.grid.classList.toggle("sorted", sorted);
    this.resize();
    for (const [tile, { name }] of this.captions) {
      const { layer, head } = tile.dataset;
      name.textContent = sorted ? `L${this.stack.layers[layer].number}·H${head}` : head;
    }
    if (!sorted) return this.grid.replaceChildren(...this.all.map((tiles, layer) => this.row(tiles, layer)));
    const sign = sort === "down" ? -1 : 1;
    const tiles = this.all.flat();
    const known = (tile) => this.valueOf(tile) !== null;
    const order = tiles.filter(known).sort((one, other) => sign * (this.valueOf(one) - this.valueOf(other)));
    this.grid.replaceChildren(...order, ...tiles.filter((tile) => !known(tile)));
  }

  resize() {
    const whole = this.grid.clientWidth;
    if (!whole || !this.stack) return;
    const sorted = this.grid.classList.contains("sorted");
    const room = sorted || whole < NARROW ? whole : whole - LABEL;
    const listed = () => sizeFor(room, Math.round(room / (LISTED + FRAME + GAP)) || 1, 1);
    const size = sorted ? listed() : Math.min(...this.stack.layers.map((facts) => sizeOf(facts, room)));
    this.grid.style.setProperty("--size", `${size}px`);
    this.grid.classList.toggle("dense", size < DENSE && !sorted);
  }

  row(tiles, layer) {
    const facts = this.stack.layers[layer];
    const { name, heads, kvHeads } = facts;
    const groups = groupsOfHeads(facts).map(([first, past], group) => {
      const some = element("div", { className: "tiles" }, ...tiles.slice(first, past));
      if (kvHeads === heads) return some;
      const kv = element("span", { className: "kv", textContent: `kv ${group}`, title: say("key/value head {n}", { n: group }) });
      return element("div", { className: "group" }, kv, some);
    });
    const path = name.split(/(?<=\.)/).flatMap((part) => [part, element("wbr")]); // a line may end after a dot
    const label = element(
      "div", { className: "label", title: name },
      element("span", { textContent: this.app.layerName(layer) }), element("bdi", {}, ...path),
    );
    const held = element("div", { className: "groups" }, ...groups);
    const row = element("div", { className: "layer", role: "group" }, label, held);
    row.ariaLabel = this.app.layerName(layer);
    return row;
  }

  // ---- the statistic

  get chosen() {
    return this.app.source.statistics.find(({ key }) => key === this.app.state.stat);
  }

  valueOf(tile) {
    const value = this.stats[tile.dataset.layer]?.[this.app.state.stat]?.[tile.dataset.head];
    return Number.isFinite(value) ? value : null;
  }

  showStatistic() {
    const { chosen } = this;
    const tiles = this.all.flat();
    const values = tiles.map((tile) => this.valueOf(tile)).filter((value) => value !== null);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const alike = short(low) === short(high); // as they are written: nothing is coloured
    for (const tile of tiles) {
      const value = this.valueOf(tile);
      const share = value === null || alike ? 0 : (value - low) / (high - low);
      tile.style.setProperty("--tint", `${(TINT * share).toFixed(1)}%`);
      this.captions.get(tile).value.textContent = value === null ? "–" : short(value);
      this.captions.get(tile).value.hidden = !chosen;
      this.tiles.name(tile, chosen && value !== null ? `${say(chosen.name)} ${short(value)}` : "");
    }
    this.scale.hidden = !values.length;
    const unit = ["share", "score", undefined].includes(chosen?.unit) ? "" : say(chosen.unit);
    const most = [short(high), unit].filter(Boolean).join(" ");
    this.low.textContent = alike ? "" : short(low);
    this.high.textContent = alike ? say("{value} in every head", { value: most }) : most;
    this.ramp.hidden = alike;
    this.ramp.style.setProperty("--most", `${TINT}%`);
    this.about.hidden = !chosen;
    if (chosen) this.about.textContent = [say(chosen.about), this.certainty()].filter(Boolean).join(" ");
  }

  // A note if numbers are missing or estimated.
  certainty() {
    const there = this.stats.filter(Boolean);
    const rows = Math.min(...there.map(({ estimated }) => estimated ?? Infinity));
    if (there.length < this.stats.length) return say("({n} of {count} layers so far.)", { n: there.length, count: this.stats.length });
    if (rows === Infinity) return "";
    const [some, all] = [rows, this.stack.rows.length].map(whole);
    return say("Estimated from {some} of {all} rows.", { some, all });
  }

  // ---- export

  // In the current layout, with every head, visible or not.
  async picture() {
    const { app, stack } = this;
    const tiles = this.all.flat();
    const cellsOf = ({ dataset: { layer, head } }) => app.thumbs.weights(stack, Number(layer), Number(head), false);
    const cells = tiles.map(cellsOf);
    const images = new Map((await Promise.all(cells)).map((each, i) => [tiles[i], app.thumbs.image(each)]));
    const around = this.element.getBoundingClientRect();
    const placeOf = (part) => {
      const { left, top, width, height } = part.getBoundingClientRect();
      return [left - around.left, top - around.top, width, height];
    };
    const parts = this.element.querySelectorAll(".about, .maps > span, .label > span, .kv, .under > *");
    const texts = [...parts].filter((part) => part.checkVisibility() && part !== this.about);
    const { scrollWidth: width, scrollHeight: height } = this.element;
    const [left, top, , room] = placeOf(this.about);
    const title = noteOf(this.about.hidden ? "" : this.title(), width - 2 * left, app.style);
    const more = Math.max(0, title.height - room); // the title may need more lines than its text on the page
    const draw = (context) => {
      title.draw(context, left, top);
      context.translate(0, more);
      for (const tile of tiles) {
        const [x, y, width, height] = placeOf(tile);
        context.fillStyle = inRgb(getComputedStyle(tile).backgroundColor);
        context.fillRect(x, y, width, height);
        const side = tile.firstElementChild.getBoundingClientRect();
        const [left, top] = [x + (width - side.width) / 2, y + (width - side.width) / 2];
        context.fillStyle = getComputedStyle(app.host).getPropertyValue("--hatch");
        context.fillRect(left, top, side.width, side.width);
        context.imageSmoothingEnabled = false;
        context.drawImage(canvasOf(images.get(tile)), left, top, side.width, side.width);
      }
      context.textBaseline = "middle";
      context.textAlign = "left";
      for (const part of texts) {
        const { fontWeight, fontSize, color } = getComputedStyle(part);
        let [x, y, , height] = placeOf(part);
        const swatch = part.querySelector("canvas");
        if (swatch) {
          context.drawImage(swatch, x, y + height / 2 - 5, swatch.width, 10);
          x += swatch.width + 7;
        }
        context.font = `${fontWeight} ${fontSize} ${app.style.font}`;
        context.fillStyle = color;
        context.fillText(part.textContent, x, y + height / 2);
      }
    };
    return { width, height: height + more, draw };
  }

  // The title of the picture, from the controls.
  title() {
    const { name, about } = this.chosen;
    const [low, high] = [this.low.textContent, this.high.textContent];
    const range = low ? say("from {low} to {high}", { low, high }) : high;
    return say("{name}, {text}. {about}", { name: say(name), text: range, about: say(about) });
  }

  python() {
    const options = optionArguments(this.stack, { ...this.app.state, sink: false }, "root");
    const args = [...layersArguments(this.stack, this.app.input), ...options];
    return `import headwise.plot\n\nfigure = headwise.plot.heads(${args.join(", ")}, out="heads.pdf")\n`;
  }
}

// What the colours of the small maps mean: the second line is there (by the style) while a head is coloured so.
class Legend {
  constructor() {
    const ramp = () => element("canvas", { width: 64, height: 1, ariaHidden: "true" });
    this.ramps = [ramp(), ramp()];
    const texts = [say("maps: from 0 to the head’s largest weight"), say("nearly uniform heads: below and above an even share")];
    const lines = this.ramps.map((canvas, i) => element("span", { className: i ? "even" : "" }, canvas, texts[i]));
    this.element = element("p", { className: "maps" }, ...lines);
  }

  show({ table, dark }) {
    paintRamp(this.ramps[0], table, false);
    paintRamp(this.ramps[1], divergingRamp(dark), true);
  }
}

// The size of the maps of a layer, so that its lines hold equal numbers.
function sizeOf({ heads, kvHeads }, room) {
  const [units, each] = kvHeads < heads ? [kvHeads, heads / kvHeads] : [heads, 1]; // heads that stay together
  for (let lines = 1; lines < units; lines++) {
    const size = sizeFor(room, Math.ceil(units / lines), each);
    if (size >= SMALLEST) return size;
  }
  return Math.max(SMALLEST, sizeFor(room, 1, each));
}

// The largest size at which a line holds `units` groups of `each` maps.
function sizeFor(room, units, each) {
  const gaps = (each - 1) * GAP * units + (units - 1) * (each > 1 ? GROUP_GAP : GAP);
  return Math.min(LARGEST, Math.floor((room - gaps) / (units * each)) - FRAME);
}

// A colour in a form that all SVG readers know; computed mixed colours have another form.
function inRgb(colour) {
  const context = new OffscreenCanvas(1, 1).getContext("2d");
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  const [red, green, blue] = context.getImageData(0, 0, 1, 1).data;
  return `rgb(${red}, ${green}, ${blue})`;
}

function canvasOf(image) {
  const canvas = new OffscreenCanvas(image.width, image.height);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// Three digits.
function short(value) {
  if (!Number.isFinite(value)) return "";
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(0);
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.1 ? 2 : 3);
}
