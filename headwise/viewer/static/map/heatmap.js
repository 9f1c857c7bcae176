// The map of one head: a canvas for every cell of Q x K, from the whole matrix down to one cell.
//
//   map = new HeatMap({ onPoint(row, col), onPin(row, col), onSight(sight), onTop(top), onNote(text), onDrawn() })
//   map.element                put it into a box that has a size; the map fills the box and follows its size
//   map.restyle({ style, scale, sink, threshold })    style: app.style; sink: hide it; smaller weights than the threshold
//                              are not drawn. Before the first show, then on every change
//                              (signed maps know "linear" and "root"; other scales are drawn as linear)
//   map.show({ rows, cols, tile, cells, weights, masked, signed, name })
//       What to draw. rows, cols: axes (labels; optionally special, unknown and generated).
//       tile(rows, cols, height, width, how, { signal }): as stack.tile, of one layer and head. cells: stack.cells.
//       weights: how many the mask allows, if that is known.
//       masked: whether there may be masked cells. signed: values from -1 to 1 (a difference), on the diverging ramp.
//       name: for screen readers. If the axes are the same as before, zoom and marks stay.
//   map.mark({ row, col, pinRow, pinCol, found, blocked })    the current cell, the pins (null = none), app.found, and
//                              the cells that edits block, [row, col]
//   map.reveal(row, col)       pan until that cell is visible (for arrow keys; not for cells from onPoint)
//   map.lookAt(sight)          null = the whole, or [row, pastRow, col, pastCol]
//   map.closer(), map.wider(), map.fit()    for keys and buttons; they call onSight, as wheel, drag and pinch do
//   map.against(top)           scale colours to this weight; null = to the map's own largest weight
//   map.top, map.topOf(row)    largest weight, or difference, without the hidden sink; the weight at the ramp's
//                              end in that row
//   map.reach                  if the head is nearly uniform, colours show even shares, from 1 - reach to 1 + reach; else null
//   map.sink                   the hidden column, null = none
//   map.labelsSaid             that labels are left out, in words; "" = all are drawn
//   map.size, map.drawOn(context)    [width, height] of the visible part, and a function that draws it, for picture()
//   map.centreOf(row, col)     the centre of a cell, in pixels of the element
//   map.settled()              a promise, resolved when the visible part is exact and drawn
//
// onPoint: the pointer is over that cell, or over a label (the other is then the marked one, or null). onPin: a click
// sets these pins. onSight: the visible part has changed to this. onTop: the largest weight, or the hidden column, has
// changed. onNote: how exact the picture is, in words. onDrawn: the first complete picture of a new head is drawn. Only
// actions of the reader are reported, not calls of mark and lookAt; reveal reports where it had to pan.

import { drawCells } from "./cells.js";
import { element } from "../shell/element.js";
import { listen } from "./gestures.js";
import { gutterFor, stepOf, widthsOf } from "./labels.js";
import { drawOver } from "./overlay.js";
import { Plates } from "./plates.js";
import { Side, fit, lookAt, sightOf } from "./viewport.js";
import { say, whole } from "../words.js";

const RESTS = 70; // ms without a move until the picture is computed for the visible part
const STILL = 3; // pixels that the pointer may move while it zooms
const NEAR = 48; // pixels of a cell after a double click
const FINE = 3; // pixels of a saved picture per pixel of the page

const CLOSER = 1.5; // zoom factor of keys and buttons

// The keys of a view that has a map; `mapOf()` is the map.
export function zoomKeys(mapOf) {
  const closer = [() => mapOf().closer(), say("zoom in")];
  const wider = [() => mapOf().wider(), say("zoom out")];
  return { "+": closer, "=": closer, "-": wider, 0: [() => mapOf().fit(), say("the whole matrix")] };
}

export class HeatMap {
  constructor(on) {
    this.on = on;
    this.canvas = element("canvas", { role: "img", tabIndex: 0 });
    this.element = element("div", { className: "heat-map" }, this.canvas);
    this.context = this.canvas.getContext("2d");
    [this.rows, this.cols] = [new Side(), new Side()];
    this.marks = { row: null, col: null, pinRow: null, pinCol: null, found: null };
    this.limit = null; // see against
    this.plates = new Plates({ changed: () => this.progressed(), failed: () => this.progressed() });
    listen(this.canvas, this.gestures());
    new ResizeObserver(() => this.resize()).observe(this.canvas);
  }

  restyle({ style, scale, sink, threshold = 0 }) {
    const font = this.style?.font;
    Object.assign(this, { style, scale, sinkHidden: sink, threshold });
    this.recolour();
    if (font !== style.font) this.resize();
  }

  recolour() {
    const { style, scale, sinkHidden: sink, limit: against, threshold } = this;
    this.plates.colour({ table: style.table, dark: style.dark, scale, sink, against, threshold });
    this.sharpen();
    this.draw();
  }

  show(what) {
    const same = this.what && this.what.rows === what.rows && this.what.cols === what.cols;
    const sight = same ? sightOf(this.rows, this.cols) : null;
    this.what = what;
    this.canvas.ariaLabel = what.name;
    [this.rows.count, this.cols.count] = [what.rows.labels.length, what.cols.labels.length];
    Object.assign(this, { fresh: true, asked: false });
    if (!same) this.layOut(sight);
    if (this.width) this.ask(same);
  }

  ask(keep) {
    this.asked = true;
    const { tile, cells, weights, masked, signed = false } = this.what;
    const pixels = [this.rows, this.cols].map(({ room }) => Math.ceil(room * devicePixelRatio));
    this.plates.zoomTo(this.pixelsPerCell);
    this.plates.show({ rows: this.rows.count, cols: this.cols.count, tile, cells, weights, masked, signed }, pixels, keep);
    this.sharpen();
    this.progressed();
  }

  against(top) {
    if (top === this.limit) return;
    this.limit = top;
    if (this.style) this.recolour();
  }

  mark(marks) {
    this.marks = { ...this.marks, ...marks };
    this.draw();
  }

  get top() {
    return this.plates.own;
  }

  // Pixels for a horizontal column label, if all labels have room, and for numbers; 0 = labels are rotated.
  get level() {
    const [width] = this.widthsOfColumns;
    return this.cols.z >= width + 6 || this.what.cols.numbers ? width + 3 : 0;
  }

  // That labels are left out, in words: those that are drawn would else read as the text. Numbers tell it themselves.
  get labelsSaid() {
    if (!this.width) return "";
    const steps = [[this.what.rows, stepOf(this.rows)], [this.what.cols, stepOf(this.cols, this.level || undefined)]];
    const n = Math.max(...steps.map(([axis, step]) => (axis.numbers ? 1 : step)));
    return n > 1 ? say("Labels name one token in {n}; zoom in for all", { n }) : "";
  }

  get reach() {
    return this.plates.reach;
  }

  get sink() {
    return this.plates.sink;
  }

  topOf(row) {
    return this.plates.topOf(row);
  }

  // ---- the visible part

  resize() {
    if (!this.what || !this.style || !this.canvas.clientWidth) return;
    this.layOut(this.width ? sightOf(this.rows, this.cols) : (this.wanted ?? null));
    if (!this.asked) this.ask(false);
    this.drawNow(); // at once: a resized canvas is empty
  }

  layOut(sight) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !this.style) return;
    Object.assign(this, { width, height });
    this.canvas.width = Math.round(width * devicePixelRatio);
    this.canvas.height = Math.round(height * devicePixelRatio);
    const [widthOfRows] = widthsOf(this.context, this.what.rows, this.style);
    this.widthsOfColumns = widthsOf(this.context, this.what.cols, this.style);
    this.cols.low = gutterFor(widthOfRows, width);
    this.rows.low = gutterFor(this.widthsOfColumns[1], height);
    this.cols.room = Math.max(40, width - this.cols.low - 2);
    this.rows.room = Math.max(40, height - this.rows.low - 2);
    fit(this.rows, this.cols);
    this.lookAt(sight);
  }

  lookAt(sight) {
    this.wanted = sight;
    if (!this.width) return; // no size yet
    const now = sightOf(this.rows, this.cols);
    if (sight && String(now) === String(sight)) return;
    lookAt(sight, this.rows, this.cols);
    this.moved();
  }

  // at: the fixed point, in pixels. As long as it stays the same, so do its cells: if the map's ends push them aside
  // for a while, they come back.
  zoom(factor, at = this.middle) {
    if (!this.anchor || Math.hypot(at.x - this.anchor.at.x, at.y - this.anchor.at.y) > STILL) {
      this.anchor = { at, row: this.rows.placeAt(at.y), col: this.cols.placeAt(at.x) };
    }
    this.cols.zoom(factor, this.anchor.col, at.x);
    this.rows.zoom(factor, this.anchor.row, at.y);
    this.tellMoved();
  }

  closer() {
    this.zoom(CLOSER);
  }

  wider() {
    this.zoom(1 / CLOSER);
  }

  // The point to which keys and buttons zoom: the marked cell, if it is visible, else the centre.
  get middle() {
    this.anchor = null;
    const middle = (side, cell) => {
      const inSight = cell !== null && cell >= side.sight[0] && cell + 1 <= side.sight[1];
      return inSight ? side.place(cell + 0.5) : side.low + side.span / 2;
    };
    return { x: middle(this.cols, this.marks.col), y: middle(this.rows, this.marks.row) };
  }

  fit() {
    lookAt(null, this.rows, this.cols);
    this.tellMoved();
  }

  reveal(row, col) {
    const before = String(sightOf(this.rows, this.cols));
    if (row !== null) this.rows.reveal(row);
    if (col !== null) this.cols.reveal(col);
    if (String(sightOf(this.rows, this.cols)) !== before) this.tellMoved();
  }

  tellMoved() {
    this.moved();
    this.on.onSight?.(sightOf(this.rows, this.cols));
  }

  moved() {
    const whole = this.rows.whole && this.cols.whole;
    this.canvas.style.touchAction = whole ? "pan-x pan-y" : "none"; // a finger scrolls the page, or pans the map
    this.sharpen();
    this.draw();
  }

  sharpen() {
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      this.resting = 0;
      if (!this.width) return;
      this.plates.zoomTo(this.pixelsPerCell);
      this.plates.look(this.rows.cells, this.cols.cells, this.pixelsPerCell);
      this.progressed();
    }, RESTS);
  }

  get pixelsPerCell() {
    return [this.rows.z * devicePixelRatio, this.cols.z * devicePixelRatio];
  }

  progressed() {
    const { own, sink, reach } = this.plates;
    if (own !== this.told?.own || sink !== this.told.sink || reach !== this.told.reach) {
      this.told = { own, sink, reach };
      this.on.onTop?.(own);
    }
    this.on.onNote?.(this.note);
    this.draw();
  }

  get note() {
    const { sampled, only, done, failed } = this.plates.progress;
    if (failed) return say("could not be computed");
    if (done < 1 && !sampled) return say("computing …");
    if (done < 1) {
      const rows = { n: whole(sampled.n), count: whole(sampled.count) };
      if (only) return say("sampled: {n} of {count} rows · zoom in for exact weights", rows);
      return say("sampled: {n} of {count} rows · refining {share} %", { ...rows, share: Math.floor(100 * done) });
    }
    const [down, across] = this.pixelsPerCell.map((pixels) => Math.max(1, Math.ceil(1 / pixels - 1e-6)));
    const pooled = this.what?.signed
      ? say("exact · each dot is the largest of up to {rows} × {cols} differences", { rows: down, cols: across })
      : say("exact · each dot is the largest of up to {rows} × {cols} weights", { rows: down, cols: across });
    return down * across > 1 ? pooled : say("exact");
  }

  async settled() {
    for (let work; work !== this.plates.settled || this.resting || this.frame; ) {
      work = this.plates.settled;
      await work;
      await new Promise(requestAnimationFrame);
    }
  }

  // ---- actions of the reader

  gestures() {
    const cellAt = ({ x, y }) => [this.rows.cellAt(y), this.cols.cellAt(x)];
    return {
      point: (at) => {
        const [row, col] = cellAt(at);
        const { marks } = this;
        const overCell = row !== null && col !== null;
        this.canvas.dataset.over = overCell ? "cell" : row === null && col === null ? "" : "label";
        if (overCell && (row !== marks.row || col !== marks.col)) this.on.onPoint?.(row, col);
        if (overCell) return;
        if (row !== null && at.x < this.cols.low && row !== marks.row) this.on.onPoint?.(row, marks.col);
        if (col !== null && at.y < this.rows.low && col !== marks.col) this.on.onPoint?.(marks.row, col);
      },
      tap: (at) => {
        const [row, col] = cellAt(at);
        const { pinRow, pinCol } = this.marks;
        if (row !== null && col !== null) {
          const again = row === pinRow && col === pinCol;
          this.on.onPin?.(again ? null : row, again ? null : col);
        } else if (row !== null && at.x < this.cols.low) this.on.onPin?.(row === pinRow ? null : row, pinCol);
        else if (col !== null && at.y < this.rows.low) this.on.onPin?.(pinRow, col === pinCol ? null : col);
      },
      double: (at) => {
        const [row, col] = cellAt(at);
        if (row === null || col === null) return;
        if (this.rows.z >= NEAR && this.cols.z >= NEAR) return this.fit();
        const around = ({ room }, cell) => [cell + 0.5 - room / NEAR / 2, cell + 0.5 + room / NEAR / 2];
        lookAt([...around(this.rows, row), ...around(this.cols, col)], this.rows, this.cols);
        this.tellMoved();
      },
      pan: ({ x, y }) => {
        this.anchor = null;
        this.rows.moveTo(this.rows.at - y / this.rows.z);
        this.cols.moveTo(this.cols.at - x / this.cols.z);
        this.tellMoved();
      },
      zoom: (factor, at) => this.zoom(factor, at),
      frame: (from, to) => {
        this.framed = from && { from, to };
        this.draw();
      },
      framed: (from, to) => {
        const span = (side, a, b) => {
          const cells = [a, b].map((pixel) => side.placeAt(pixel)).sort((one, other) => one - other);
          return [Math.max(0, Math.floor(cells[0])), Math.min(side.count, Math.ceil(cells[1]))];
        };
        const [rows, cols] = [span(this.rows, from.y, to.y), span(this.cols, from.x, to.x)];
        if (rows[0] >= rows[1] || cols[0] >= cols[1]) return;
        lookAt([...rows, ...cols], this.rows, this.cols);
        this.tellMoved();
      },
      pans: () => !(this.rows.whole && this.cols.whole),
      zoomsOut: () => !(this.rows.whole && this.cols.whole),
    };
  }

  // ---- drawing

  draw() {
    if (this.frame || !this.width) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.drawNow();
    });
  }

  drawNow() {
    const { context, plates, style } = this;
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.save();
    context.beginPath();
    context.rect(this.cols.low, this.rows.low, this.cols.span, this.rows.span);
    context.clip();
    drawCells(context, this, devicePixelRatio);
    context.restore();
    drawOver(context, this);
    if (this.framed) {
      const { from, to } = this.framed;
      context.strokeStyle = style.accent;
      context.lineWidth = 1.5;
      context.strokeRect(from.x, from.y, to.x - from.x, to.y - from.y);
    }
    if (this.fresh && plates.complete) {
      this.fresh = false;
      this.on.onDrawn?.();
    }
  }

  get size() {
    return [Math.ceil(this.cols.low + this.cols.span + 2), Math.ceil(this.rows.low + this.rows.span + 2)];
  }

  drawOn(context) {
    const { cols, rows, plates } = this;
    const cells = element("canvas", { width: Math.round(cols.span * FINE), height: Math.round(rows.span * FINE) });
    const fine = cells.getContext("2d");
    fine.scale(FINE, FINE);
    fine.translate(-cols.low, -rows.low);
    plates.zoomTo([rows.z * FINE, cols.z * FINE]);
    drawCells(fine, this, FINE);
    plates.zoomTo(this.pixelsPerCell);
    context.drawImage(cells, cols.low, rows.low, cols.span, rows.span);
    const { row, col } = this.marks;
    this.mark({ row: null, col: null }); // the position of the pointer is not part of a picture
    drawOver(context, this);
    this.mark({ row, col });
  }

  centreOf(row, col) {
    return [this.cols.place(col + 0.5), this.rows.place(row + 0.5)];
  }
}
