// The known weights of one head, as plates: tables of weights for rectangles of cells, each with its picture.
//
// `whole` covers everything. If that has too many cells to keep, it is pooled, and `part` covers the visible cells in
// more detail. If there are more cells than are computed at once, a picture of a sample of the rows comes first; then the
// exact one is filled in from the top, strip by strip. If that would take minutes, more rows are sampled instead, up to one
// for each line of the picture.

import { firstAllowed } from "../data/sink.js";
import { divergingRamp } from "./colour.js";
import { isNearlyEven, reachOf } from "./even.js";
import { paint, sizeOf } from "./painting.js";

const KEPT = 2 ** 21; // a rectangle of at most this many cells is kept cell by cell
const COARSE = 128; // minimum rows of a coarse picture
const FIRST = 32; // the same if one row has more cells than are computed at once: fewer than in thumbs.js
const MORE = 4; // the next sample has this many times as many rows
const MOST_WEIGHTS = 2 ** 31; // a picture of more weights stays a sample
const STRIP = 1 / 4; // the first strip, as a share of the cells computed at once; the size of later strips is such that
const [SOON, LATE] = [80, 250]; // each takes this many ms: few questions, and no long wait for other questions
const MARGIN = 0.2; // this share of the visible part is added around it, so that short pans need no computation
const ROW_TOPS = 32; // maximum cells for the largest weight of every row, in multiples of the cells computed at once

export class Plates {
  // changed(): there is more to draw. failed(error): a question failed.
  constructor({ changed, failed }) {
    Object.assign(this, { changed, failed, what: null, before: [], zoom: [1, 1], mostWeights: MOST_WEIGHTS });
    this.style = { table: null, scale: "linear", sink: false, against: null, dark: false, threshold: 0 };
    this.forget();
  }

  forget() {
    for (const controller of [this.asking, this.looking]) controller?.abort();
    Object.assign(this, { whole: null, part: null, next: null, wholeDone: null, partDone: null });
    Object.assign(this, { own: 0, most: 0, least: Infinity, sink: null, broken: false });
  }

  // what: { rows, cols (numbers), tile, cells, weights (that the mask allows; all, if left out), masked, signed }. pixels: [down, across], of the device. With `keep`
  // the previous plates are drawn until there are new ones.
  show(what, pixels, keep) {
    this.before = keep ? this.list().filter(({ canvas }) => canvas) : [];
    this.forget();
    Object.assign(this, { what, pixels, diverging: divergingRamp(this.style.dark) });
    this.asking = new AbortController();
    this.wholeDone = this.run(this.fillWhole(pixels, this.asking.signal), this.asking.signal);
  }

  // Compute these rows and columns at the resolution of that many device pixels per cell.
  look(rows, cols, zoom) {
    if (!this.whole) return;
    const enough = (plate) => plate && covers(plate, rows, cols) && fineEnough(plate, zoom);
    if (enough(this.whole)) {
      this.looking?.abort();
      this.next = this.partDone = null;
    } else if (!enough(this.next ?? this.part)) {
      this.looking?.abort();
      this.looking = new AbortController();
      const around = [widen(rows, this.what.rows), widen(cols, this.what.cols)];
      this.partDone = this.run(this.fillPart(...around, zoom, this.looking.signal), this.looking.signal);
    }
  }

  // Resolved when the visible part is exact.
  get settled() {
    return this.partDone ?? this.wholeDone ?? Promise.resolve();
  }

  async run(work, signal) {
    try {
      await work;
    } catch (error) {
      if (signal.aborted) return;
      [this.before, this.broken] = [[], true];
      this.failed(error);
    }
  }

  // ---- questions

  async fillWhole(pixels, signal) {
    const { rows, cols } = this.what;
    if (this.style.sink) this.sink = this.what.masked ? await firstAllowed(this.what.tile, rows, cols, { signal }) : 0;
    this.whole = this.plate([0, rows], [0, cols], [pixels[0] / rows, pixels[1] / cols]);
    await this.fill(this.whole, signal);
  }

  async fillPart(rows, cols, zoom, signal) {
    this.next = this.plate(rows, cols, zoom);
    await this.fill(this.next, signal);
    [this.part, this.next] = [this.next, null];
    this.changed();
  }

  // An empty plate. Each of its rows stands for `block` rows of cells.
  plate(rows, [col, pastCol], zoom) {
    const length = rows[1] - rows[0];
    const exact = length * (pastCol - col) <= KEPT;
    const from = col;
    if (!exact && this.sink !== null) col = Math.max(col, this.sink + 1); // pooled weights must not contain those of the sink
    const block = exact ? 1 : Math.max(1, Math.floor(1 / zoom[0]));
    const height = Math.ceil(length / block);
    const width = exact ? pastCol - col : Math.min(pastCol - col, Math.ceil((pastCol - col) * zoom[1]));
    const weights = new Float32Array(height * width).fill(NaN);
    const [tops, keys] = [new Float32Array(height), new Float32Array(height)];
    return { rows, cols: [col, pastCol], from, block, height, width, weights, tops, keys, past: 0, stale: true };
  }

  async fill(plate, signal) {
    const { tile, cells } = this.what;
    const { rows, cols, block, height, width } = plate;
    const [length, across] = [rows[1] - rows[0], cols[1] - cols[0]];
    plate.only = Math.min(length * across, this.what.weights ?? Infinity) > this.mostWeights; // never exact
    if (length * across > cells) {
      const first = across > cells ? FIRST : Math.max(COARSE, Math.floor(cells / across));
      for (let few = Math.min(height, first); ; few = Math.min(height, MORE * few)) {
        await this.sample(plate, few, signal);
        if (few === height || !plate.only) break;
      }
    }
    if (plate.only) return this.changed();
    const strip = async (y, past) => {
      if (plate === this.whole) await this.partDone; // the visible part comes first
      const part = [rows[0] + y * block, Math.min(rows[1], rows[0] + past * block)];
      plate.weights.set(await tile(part, cols, past - y, width, "max", { signal }), y * width);
      signal.throwIfAborted();
      this.know(plate, y, past);
    };
    const blocks = Math.floor(length / block); // whole blocks, so that strips have the same blocks as the plate
    await this.inStrips(blocks, block * across, strip);
    if (blocks < height) await strip(blocks, height);
    plate.coarse = null;
    if (this.style.scale === "row" && plate !== this.whole) await this.findTops(plate, signal);
    this.changed();
  }

  // The picture of few rows of a plate, evenly spread.
  async sample(plate, few, signal) {
    const { rows, cols, width } = plate;
    const weights = await this.what.tile(rows, cols, few, width, "sample", { signal });
    signal.throwIfAborted();
    const [tops, keys] = [new Float32Array(few), new Float32Array(few)];
    plate.coarse = { ...plate, coarse: null, block: (rows[1] - rows[0]) / few, height: few, weights, tops, keys };
    this.know(plate.coarse, 0, few);
  }

  // Call ask(from, past) for strips of rows, one after the other.
  async inStrips(rows, cells, ask) {
    let strip = Math.max(1, Math.floor((STRIP * this.what.cells) / cells));
    for (let y = 0, past; y < rows; y = past) {
      past = Math.min(rows, y + strip);
      const asked = performance.now();
      await ask(y, past);
      const took = performance.now() - asked;
      strip = took < SOON ? 2 * strip : took > LATE ? Math.ceil(strip / 2) : strip;
    }
  }

  // Rows of a plate have arrived.
  know(plate, from, past) {
    const { tops, keys, width, weights } = plate;
    const hidden = this.hiddenIn(plate);
    const before = this.reach;
    const isWhole = plate === this.whole || plate === this.whole.coarse;
    const [outside, each] = [plate.cols[0] - plate.from, (plate.cols[1] - plate.cols[0]) / width]; // keys
    for (let y = from; y < past; y++) {
      let [top, low, seen] = [0, Infinity, 0];
      for (let x = 0, at = y * width; x < width; x++, at++) {
        const size = this.what.signed ? Math.abs(weights[at]) : weights[at];
        if (size !== size) continue;
        seen++;
        if (x === hidden) continue;
        if (size > top) top = size;
        if (size < low) low = size;
      }
      keys[y] = isWhole ? outside + seen * each : this.inWhole(plate, y, "keys");
      if (isWhole && seen) {
        this.most = Math.max(this.most, top * keys[y]);
        this.least = Math.min(this.least, low * keys[y]);
      }
      if (top > this.own) {
        this.own = top;
        if (this.style.against === null) this.stale();
      }
      tops[y] = Math.max(top, this.inWhole(plate, y, "tops")); // of the whole row, not only its visible part
    }
    plate.past = past;
    if (this.reach !== before) this.stale();
    if (!plate.stale) paint(this, plate, from, past);
    this.before = [];
    this.changed();
  }

  hiddenIn({ cols, width }) {
    return this.sink !== null && width === cols[1] - cols[0] ? this.sink - cols[0] : -1;
  }

  // The largest weight of every row of a plate that does not cover all columns.
  async findTops(plate, signal) {
    const { cols, cells, tile } = this.what;
    const { rows, height, block } = plate;
    if (block > 1 || (rows[1] - rows[0]) * cols > ROW_TOPS * cells) return; // then the largest weight of the block is used
    const first = this.sink === null ? 0 : this.sink + 1;
    await this.inStrips(height, cols, async (y, past) => {
      const tops = await tile([rows[0] + y, rows[0] + past], [first, cols], past - y, 1, "max", { signal });
      plate.tops.set(tops.map((top) => top || 0), y);
    });
    plate.stale = true;
  }

  // The largest weight ("tops") or the number of keys ("keys") of a row of a plate, as far as `whole` knows it.
  inWhole(plate, y, what) {
    const { whole } = this;
    if (plate === whole || plate === whole.coarse) return 0;
    for (const each of [whole, whole.coarse]) {
      const line = each ? Math.floor((plate.rows[0] + y * plate.block) / each.block) : Infinity;
      if (line < each?.past) return each[what][line];
    }
    return 0;
  }

  // ---- pictures

  // style: { table, scale, sink: hide it, against: the weight at the ramp's end or null, dark }
  colour(style) {
    const was = this.style;
    this.style = style;
    if (!this.what) return;
    if (was.dark !== style.dark) this.diverging = divergingRamp(style.dark);
    if (was.sink !== style.sink) return this.show(this.what, this.pixels, true);
    if (was.scale !== style.scale && style.scale === "row") {
      this.looking?.abort();
      this.part = this.next = this.partDone = null; // ask again, for the largest weights of its rows too
    }
    this.stale();
  }

  // Make pictures for this many device pixels per cell.
  zoomTo(zoom) {
    this.zoom = zoom;
    for (const plate of this.known()) {
      const { height, width } = sizeOf(plate, this.zoom);
      if (plate.canvas?.height !== height || plate.canvas.width !== width) plate.stale = true;
    }
  }

  get top() {
    return this.style.against ?? this.own;
  }

  // If the map is nearly uniform, and so drawn relative to even shares: how far from 1 its colours reach. Else null.
  get reach() {
    const { style: { scale, against }, what, most, least } = this;
    if (!what || what.signed || against !== null || (scale !== "linear" && scale !== "root")) return null;
    return isNearlyEven(most, what.cols) ? reachOf(least, most) : null;
  }

  // The colour of a weight, as arguments of `css`.
  colourOf(weight, row) {
    const { style: { scale, table }, what: { signed }, reach } = this;
    if (reach !== null) return [weight * this.of("keys", row) - 1, reach, "linear", this.diverging, true];
    return [weight, this.topOf(row), scale, signed ? this.diverging : table, signed];
  }

  known() {
    const { whole, next, part } = this;
    return [whole?.coarse, whole, part?.coarse, part, next?.coarse, next].filter((plate) => plate?.past);
  }

  // The plates to draw, from bottom to top, each with its picture.
  list() {
    for (const plate of this.known()) {
      if (!plate.stale) continue;
      const { height, width } = sizeOf(plate, this.zoom);
      plate.canvas = new OffscreenCanvas(width, height);
      plate.stale = false;
      paint(this, plate, 0, plate.past);
    }
    return this.before.length ? this.before : this.known();
  }

  stale() {
    for (const plate of this.known()) plate.stale = true;
  }

  // The weight of one cell (NaN: masked); undefined if only that of a block is known.
  weight(row, col) {
    for (const plate of [this.whole, this.next, this.part]) {
      if (!plate || plate.block > 1 || plate.width < plate.cols[1] - plate.cols[0]) continue;
      const [y, x] = [row - plate.rows[0], col - plate.cols[0]];
      if (y >= 0 && y < plate.past && x >= 0 && x < plate.width) return plate.weights[y * plate.width + x];
    }
    return undefined;
  }

  // The weight at the ramp's end in this row.
  topOf(row) {
    return this.style.scale !== "row" || this.what.signed ? this.top : (this.of("tops", row) ?? this.top);
  }

  // A number that a plate knows of this row: "tops" or "keys".
  of(what, row) {
    for (const plate of [this.part, this.next, this.whole].flatMap((each) => [each, each?.coarse])) {
      const y = plate ? Math.floor((row - plate.rows[0]) / plate.block) : -1;
      if (y >= 0 && y < plate.past) return plate[what][y];
    }
    return undefined;
  }

  // Whether there is a picture of everything, exact or coarse.
  get complete() {
    const { whole } = this;
    return Boolean(whole && !this.before.length && (whole.coarse?.past || whole.past === whole.height));
  }

  // The progress of the visible plate: { sampled: how many of how many rows, or null, only: it stays a sample,
  // done: 0 to 1, failed }
  get progress() {
    const plate = this.next ?? (this.partDone ? this.part : this.whole);
    const sampled = plate?.coarse ? { n: plate.coarse.height, count: plate.rows[1] - plate.rows[0] } : null;
    const done = plate ? plate.past / plate.height : 0;
    return { sampled, only: Boolean(plate?.only), done, failed: this.broken };
  }
}

const covers = (plate, rows, cols) =>
  plate.rows[0] <= rows[0] && rows[1] <= plate.rows[1] && plate.from <= cols[0] && cols[1] <= plate.cols[1];

const fineEnough = ({ block, width, cols }, zoom) =>
  [1 / block, width / (cols[1] - cols[0])].every((cells, i) => cells >= 0.8 * Math.min(1, zoom[i]));

function widen([first, past], count) {
  const margin = Math.ceil(MARGIN * (past - first));
  return [Math.max(0, first - margin), Math.min(count, past + margin)];
}
