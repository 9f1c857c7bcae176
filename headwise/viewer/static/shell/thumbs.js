// Thumbnails of heads: the whole map of a head, pooled to a few cells. They are computed for visible heads, after all
// other questions, and kept. And the tiles that show them: buttons in the strip and in the Model view.

import { divergingRamp, largest, picture } from "../map/colour.js";
import { inEvenShares } from "../map/even.js";
import { element } from "./element.js";
import { say } from "../words.js";

const SIDE = 48; // maximum cells of a thumbnail along one side
const QUICK = 2 ** 20; // heads with more cells are sampled from a few rows
const AT_ONCE = 3;

export class Thumbs {
  constructor(app) {
    this.app = app;
    this.known = new WeakMap(); // stack -> Map of "layer.head" -> the promise of its cells
    this.shown = new Map(); // button -> { stack, layer, head, cells }
    this.waiting = new Set(); // visible buttons whose picture is missing or outdated
    this.running = 0;
    const near = { scrollMargin: "120px" };
    this.sight = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        const fact = this.shown.get(target);
        if (!fact) continue;
        fact.inSight = isIntersecting;
        if (isIntersecting && !fact.painted) this.waiting.add(target);
        else this.waiting.delete(target);
      }
      this.fill();
    }, near);
  }

  // Show a head on a button.
  show(button, stack, layer, head) {
    this.shown.set(button, { stack, layer, head, inSight: false, painted: false });
    this.sight.observe(button);
  }

  drop(buttons) {
    for (const button of buttons) {
      this.sight.unobserve(button);
      this.shown.delete(button);
      this.waiting.delete(button);
    }
  }

  close() {
    this.sight.disconnect();
    this.waiting.clear();
  }

  // The cells of a head's thumbnail: { weights, height, width, cols }, NaN where a whole block is masked.
  weights(stack, layer, head, idle = true) {
    if (!this.known.has(stack)) this.known.set(stack, new Map());
    const heads = this.known.get(stack);
    const place = `${layer}.${head}`;
    if (!heads.has(place)) {
      const [rows, cols] = [stack.rows.length, stack.cols.length];
      const [height, width] = [Math.min(rows, SIDE), Math.min(cols, SIDE)];
      const how = rows * cols > Math.min(QUICK, stack.cells) ? "sample" : "max";
      const asked = stack.tile(layer, head, [0, rows], [0, cols], height, width, how, { idle });
      const cells = asked.then((weights) => ({ weights, height, width, cols }));
      cells.catch(() => heads.delete(place)); // so that it can be asked again
      heads.set(place, cells);
    }
    return heads.get(place);
  }

  async fill() {
    while (this.waiting.size && this.running < AT_ONCE) {
      const [button] = this.waiting;
      this.waiting.delete(button);
      const fact = this.shown.get(button);
      this.running++;
      try {
        fact.cells ??= await this.weights(fact.stack, fact.layer, fact.head);
        this.paint(button, fact);
      } catch {
        button.dataset.failed = ""; // the shell shows the reason
      } finally {
        this.running--;
      }
    }
  }

  paint(button, fact) {
    const { weights, height, width } = fact.cells;
    fact.canvas ??= element("canvas", { width, height });
    fact.canvas.getContext("2d").putImageData(this.image(fact.cells), 0, 0);
    button.classList.toggle("even", this.inEvenShares(fact.cells) !== null);
    if (!fact.canvas.isConnected) button.prepend(fact.canvas);
    fact.painted = true;
    button.dataset.ready = "";
    button.classList.toggle("coarse", Math.max(height, width) < SIDE / 2);
  }

  // The thumbnail in the current colours: an ImageData, transparent where masked.
  image(cells) {
    const { height, width } = cells;
    const even = this.inEvenShares(cells);
    if (even) return picture(even.shares, height, width, even.reach, "linear", divergingRamp(this.app.style.dark), true);
    const shown = this.shownOf(cells);
    return picture(shown, height, width, largest(shown), this.app.state.scale, this.app.style.table);
  }

  shownOf({ weights, width }) {
    return this.app.state.sink ? withoutSink(weights, width) : weights;
  }

  // The thumbnail in even shares if it is coloured so, because its head is nearly uniform; else null.
  inEvenShares(cells) {
    const { scale } = this.app.state;
    return scale === "linear" || scale === "root" ? inEvenShares(this.shownOf(cells), cells.width, cells.cols) : null;
  }

  // Colours or scale have changed: redraw the visible thumbnails now, the others when they become visible.
  restyle() {
    for (const [button, fact] of this.shown) {
      fact.painted = false;
      if (!fact.inSight) continue;
      if (fact.cells) this.paint(button, fact);
      else this.waiting.add(button);
    }
    this.fill();
  }
}

// A thumbnail without the column of the sink: the first column in which anything is allowed.
function withoutSink(weights, width) {
  const first = weights.findIndex((weight, i) => i < width && !Number.isNaN(columnTop(weights, width, i)));
  return weights.map((weight, i) => (i % width === first ? NaN : weight));
}

function columnTop(weights, width, column) {
  let top = NaN;
  for (let i = column; i < weights.length; i += width) if (!(top >= weights[i])) top = weights[i];
  return top;
}

// The tiles of the heads of a stack. Tab reaches one of them, and arrow keys the others from there.
export class HeadTiles {
  // open(layer, head): called on a click and on Enter.
  constructor(app, place, open) {
    this.app = app;
    this.tiles = new Map(); // "layer.head" -> button
    this.notes = new Map();
    this.marked = [];
    const headOf = (event) => event.target.closest?.("button.tile");
    place.addEventListener("click", (event) => {
      const tile = headOf(event);
      if (!tile) return;
      const [layer, head] = [Number(tile.dataset.layer), Number(tile.dataset.head)];
      if (event.shiftKey) app.choose(layer, head);
      else open(layer, head);
    });
    place.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (!step || !headOf(event) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.step(...step);
    });
  }

  make(layer, head) {
    const tile = element("button", { type: "button", className: "tile", tabIndex: -1 });
    tile.dataset.layer = layer;
    tile.dataset.head = head;
    this.tiles.set(`${layer}.${head}`, tile);
    this.app.thumbs.show(tile, this.app.stack, layer, head);
    this.name(tile);
    return tile;
  }

  clear() {
    this.app.thumbs.drop(this.tiles.values());
    this.tiles.clear();
    this.notes.clear();
    this.marked = [];
  }

  // The name of a tile, followed by `note`.
  name(tile, note = this.notes.get(tile)) {
    this.notes.set(tile, note);
    const place = [Number(tile.dataset.layer), Number(tile.dataset.head)];
    const name = this.app.headName(...place);
    const chosen = tile.classList.contains("chosen") ? say("also chosen") : "";
    tile.classList.toggle("off", Boolean(this.app.live?.isOff(...place)));
    tile.title = [name, note].filter(Boolean).join(" · ");
    tile.ariaLabel = [name.replace(" · ", say(", ")), note, chosen].filter(Boolean).join(say(", "));
  }

  // Mark the current head and the chosen ones.
  mark() {
    const { layer, head, heads } = this.app.state;
    for (const tile of this.marked) {
      tile.classList.remove("chosen");
      tile.ariaCurrent = null;
      tile.tabIndex = -1;
    }
    const chosen = heads.map((pair) => this.tiles.get(pair.join("."))).filter(Boolean);
    for (const tile of chosen) tile.classList.add("chosen");
    const current = this.tiles.get(`${layer}.${head}`);
    if (current) {
      current.ariaCurrent = "true";
      current.tabIndex = 0;
    }
    for (const tile of [...this.marked, ...chosen]) this.name(tile);
    this.marked = [...chosen, current].filter(Boolean);
    return current;
  }

  // Move to the tile beside the current one.
  step(down, right) {
    const { layer, head } = this.app.state;
    const from = this.tiles.get(`${layer}.${head}`);
    const next = from && beside(from, this.tiles.values(), down, right);
    if (!next) return;
    this.app.go({ layer: Number(next.dataset.layer), head: Number(next.dataset.head) });
    next.focus();
  }
}

// The heads of a layer in groups that share keys: [[first, past the last], …]; one group if none do.
export function groupsOfHeads({ heads, kvHeads }) {
  const count = kvHeads < heads ? kvHeads : 1;
  return Array.from({ length: count }, (_, group) => [(group * heads) / count, ((group + 1) * heads) / count]);
}

export const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

// The next tile in a direction: to the side within the line; up or down, the horizontally nearest in the next line.
function beside(from, tiles, down, right) {
  const here = middle(from);
  const found = [];
  for (const tile of tiles) {
    const there = middle(tile);
    const [dx, dy] = [there.x - here.x, there.y - here.y];
    const [ahead, aside] = down ? [dy * down, Math.abs(dx)] : [dx * right, Math.abs(dy)];
    if (ahead >= 1 && (down || aside < here.height / 2)) found.push({ tile, ahead, aside });
  }
  const nearest = Math.min(...found.map(({ ahead }) => ahead));
  const next = found.filter(({ ahead }) => ahead < nearest + (down ? here.height / 2 : 1));
  return next.sort((one, other) => one.aside - other.aside)[0]?.tile;
}

function middle(tile) {
  const { left, top, width, height } = tile.getBoundingClientRect();
  return { x: left + width / 2, y: top + height / 2, height };
}
