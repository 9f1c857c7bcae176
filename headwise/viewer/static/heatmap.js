// The large map of one head: cells, token labels along both sides, a cross over the cell in question, zoom and pan.
//
// plates[0] is the whole map, pooled where a text is longer than FULL tokens; plates[1] is then the part in sight, once
// it is looked at closer than the first can show.

const FULL = 1024; // up to this many tokens the whole map has every cell
const LABEL = 12; // pixels of a label's line
const WIDEST = 44; // pixels of a cell in a short text that is not zoomed
const CLOSEST = 72;
// Labels that stand upright over a column: one letter, or characters that are never turned.
const UPRIGHT =
  /^(.|[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Emoji_Presentation}]+)$/u;

class HeatMap {
  constructor(canvas, onCell) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.onCell = onCell;
    this.cursor = null;
    this.view = { x: 0, y: 0, z: 1 }; // the leftmost column, the uppermost row, pixels per cell
    this.plates = [];
    this.listen();
    new ResizeObserver(() => this.resize()).observe(canvas);
  }

  setText(labels, family) {
    this.labels = labels;
    this.family = family;
    this.plates = [];
    this.fitted = true;
    this.resize();
  }

  // tile: as in source.js, for one layer and head.
  async setHead(tile) {
    this.tile = tile;
    const size = Math.min(this.count, FULL);
    const weights = await tile([0, this.count], [0, this.count], size, size);
    if (tile !== this.tile) return; // another head was asked for meanwhile
    this.top = largest(weights);
    this.plates = [{ weights, rows: [0, this.count], cols: [0, this.count], height: size, width: size }];
    this.recolour();
  }

  recolour(style = this.style) {
    this.style = style; // { scale, table, paper, ink, faint, accent, hatch }
    for (const plate of this.plates) {
      plate.canvas ??= new OffscreenCanvas(plate.width, plate.height);
      const image = picture(plate.weights, plate.height, plate.width, this.top, style.scale, style.table);
      plate.canvas.getContext("2d").putImageData(image, 0, 0);
    }
    this.draw();
    this.sharpen();
  }

  get count() {
    return this.labels.length;
  }

  // ---- the view

  resize() {
    if (!this.labels || !this.canvas.clientWidth) return;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    this.canvas.width = width * devicePixelRatio;
    this.canvas.height = height * devicePixelRatio;
    this.context.font = this.font(700);
    const widest = Math.max(...this.labels.map((label) => this.context.measureText(label).width));
    const gutter = Math.ceil(Math.max(48, Math.min(widest, 0.24 * width, 120))) + 10;
    this.plot = { left: gutter, top: gutter, width: width - gutter - 2, height: height - gutter - 2 };
    const fit = Math.min(WIDEST, this.plot.width / this.count, this.plot.height / this.count);
    this.fit = fit * devicePixelRatio > 3 ? Math.floor(fit * devicePixelRatio) / devicePixelRatio : fit; // even cells
    this.moveTo(this.fitted ? { x: 0, y: 0, z: this.fit } : this.view);
  }

  moveTo({ x, y, z }) {
    z = Math.max(this.fit, Math.min(z, Math.max(this.fit, CLOSEST)));
    this.fitted = z === this.fit;
    const clamp = (at, span) => Math.max(0, Math.min(at, this.count - span / z));
    this.view = { x: clamp(x, this.plot.width), y: clamp(y, this.plot.height), z };
    this.canvas.style.touchAction = this.fitted ? "manipulation" : "none";
    this.draw();
    this.sharpen();
  }

  zoom(factor, at = { x: this.plot.left + this.plot.width / 2, y: this.plot.top + this.plot.height / 2 }) {
    const { x, y, z } = this.view;
    const closer = Math.max(this.fit, Math.min(z * factor, Math.max(this.fit, CLOSEST)));
    const keep = 1 / z - 1 / closer; // what stands under `at` stays there
    this.moveTo({ x: x + (at.x - this.plot.left) * keep, y: y + (at.y - this.plot.top) * keep, z: closer });
  }

  reset() {
    this.moveTo({ x: 0, y: 0, z: this.fit });
  }

  // Rows and columns in sight, [first, past the last].
  get sight() {
    const { x, y, z } = this.view;
    const span = (at, size) => [Math.floor(at), Math.min(this.count, Math.ceil(at + size / z))];
    return { rows: span(y, this.plot.height), cols: span(x, this.plot.width) };
  }

  sharpen() {
    clearTimeout(this.sharpening);
    const base = this.plates[0];
    if (!base || base.width === this.count) return;
    this.plates.length = 1;
    if (this.view.z * devicePixelRatio <= base.width / this.count) return;
    this.sharpening = setTimeout(async () => {
      const { tile, view } = this;
      const { rows, cols } = this.sight;
      const pixels = ([from, to]) => Math.min(to - from, Math.ceil((to - from) * view.z * devicePixelRatio));
      const [height, width] = [pixels(rows), pixels(cols)];
      const weights = await tile(rows, cols, height, width);
      if (tile !== this.tile || view !== this.view) return;
      const canvas = new OffscreenCanvas(width, height);
      const image = picture(weights, height, width, this.top, this.style.scale, this.style.table);
      canvas.getContext("2d").putImageData(image, 0, 0);
      this.plates[1] = { weights, rows, cols, height, width, canvas };
      this.draw();
    }, 80);
  }

  // ---- the cell in question

  point(row, col) {
    this.cursor = { row, col };
    this.draw();
    this.onCell(row, col);
  }

  step(down, right) {
    const clamp = (at) => Math.max(0, Math.min(this.count - 1, at));
    const { row, col } = this.cursor ?? { row: 0, col: 0 };
    this.point(clamp(row + down), clamp(col + right));
    this.reveal();
  }

  reveal() {
    const { x, y, z } = this.view;
    const into = (at, cell, size) => Math.max(cell + 1 - size / z, Math.min(at, cell));
    const { row, col } = this.cursor;
    this.moveTo({ x: into(x, col, this.plot.width), y: into(y, row, this.plot.height), z });
  }

  cellAt(event) {
    const { x, y, z } = this.view;
    const col = Math.floor(x + (event.offsetX - this.plot.left) / z);
    const row = Math.floor(y + (event.offsetY - this.plot.top) / z);
    const inside = event.offsetX >= this.plot.left && event.offsetY >= this.plot.top;
    return inside && row < this.count && col < this.count ? { row, col } : null;
  }

  // Where a cell's middle is drawn, in pixels of the canvas.
  centreOf(row, col) {
    const { x, y, z } = this.view;
    return [this.plot.left + (col + 0.5 - x) * z, this.plot.top + (row + 0.5 - y) * z];
  }

  listen() {
    const { canvas } = this;
    let drag = null;
    const hover = (event) => {
      const cell = this.cellAt(event);
      if (cell && (cell.row !== this.cursor?.row || cell.col !== this.cursor?.col)) this.point(cell.row, cell.col);
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      hover(event);
      if (this.fitted) return;
      drag = { x: event.offsetX, y: event.offsetY, view: this.view };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return hover(event);
      const { x, y, z } = drag.view;
      this.moveTo({ x: x - (event.offsetX - drag.x) / z, y: y - (event.offsetY - drag.y) / z, z });
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (drag = null));
    canvas.addEventListener("wheel", (event) => {
      if (this.fitted && event.deltaY > 0) return; // nothing farther off: the page may scroll
      event.preventDefault();
      const pixels = event.deltaMode ? event.deltaY * 16 : event.deltaY;
      this.zoom(Math.exp(-pixels / 400), { x: event.offsetX, y: event.offsetY });
      hover(event);
    }, { passive: false });
  }

  // ---- drawing

  font(weight = 400) {
    return `${weight} ${LABEL}px ${this.family}`;
  }

  draw() {
    if (this.drawing || !this.plates.length) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = 0;
      this.drawNow();
    });
  }

  drawNow() {
    const { context, plot, style } = this;
    const { x, y, z } = this.view;
    const { rows, cols } = this.sight;
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, this.canvas.clientWidth, this.canvas.clientHeight);
    const width = Math.min(plot.width, (this.count - x) * z);
    const height = Math.min(plot.height, (this.count - y) * z);

    context.save();
    context.beginPath();
    context.rect(plot.left, plot.top, width, height);
    context.clip();
    context.fillStyle = style.hatch; // what masked cells let through
    context.fillRect(plot.left, plot.top, width, height);
    context.translate(plot.left - x * z, plot.top - y * z);
    context.imageSmoothingEnabled = false;
    for (const { canvas, rows: [row, pastRow], cols: [col, pastCol] } of this.plates) {
      context.drawImage(canvas, col * z, row * z, (pastCol - col) * z, (pastRow - row) * z);
    }
    if (z >= 12) this.drawGrid(rows, cols);
    if (z >= 34) this.drawNumbers(rows, cols);
    if (this.cursor) this.drawCross();
    context.restore();

    this.drawLabels(rows, plot.top - y * z, plot.top, plot.height, this.cursor?.row, (text, at) => {
      context.fillText(text, plot.left - 7, at);
    });
    this.drawLabels(cols, plot.left - x * z, plot.left, plot.width, this.cursor?.col, (text, at, room) => {
      context.save();
      context.translate(at, plot.top - 7);
      const upright = UPRIGHT.test(text) && context.measureText(text).width <= room;
      context.textAlign = upright ? "center" : "left";
      if (!upright) context.rotate(-Math.PI / 2);
      context.fillText(text, 0, upright ? -LABEL / 2 : 0);
      context.restore();
    });
    context.font = this.font();
    context.fillStyle = style.faint;
    context.textAlign = "right";
    context.fillText("to →", plot.left - 11, plot.top - LABEL - 18);
    context.fillText("from ↓", plot.left - 11, plot.top - 16);
  }

  drawGrid([row0, row1], [col0, col1]) {
    const { context, view: { z } } = this;
    context.fillStyle = this.style.paper;
    for (let col = col0; col <= col1; col++) context.fillRect(col * z - 0.5, row0 * z, 1, (row1 - row0) * z);
    for (let row = row0; row <= row1; row++) context.fillRect(col0 * z, row * z - 0.5, (col1 - col0) * z, 1);
  }

  drawNumbers([row0, row1], [col0, col1]) {
    const { context, view: { z }, style, top } = this;
    const plate = this.plates[this.plates.length - 1];
    if (plate.width < plate.cols[1] - plate.cols[0]) return; // pooled: no cell's own weight
    context.font = `${LABEL - 1}px ${this.family}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let row = Math.max(row0, plate.rows[0]); row < Math.min(row1, plate.rows[1]); row++) {
      for (let col = Math.max(col0, plate.cols[0]); col < Math.min(col1, plate.cols[1]); col++) {
        const weight = plate.weights[(row - plate.rows[0]) * plate.width + col - plate.cols[0]];
        if (!(weight >= 0.005)) continue;
        context.fillStyle = css(weight, top, style.scale, style.table).ink;
        context.fillText(weight.toFixed(2).replace(/^0/, ""), (col + 0.5) * z, (row + 0.5) * z + 0.5);
      }
    }
  }

  drawCross() {
    const { context, cursor: { row, col }, style, view: { z } } = this;
    const span = this.count * z;
    context.fillStyle = style.accent;
    context.globalAlpha = 0.55;
    for (const edge of z < 6 ? [z / 2] : [0, z]) {
      context.fillRect(col * z + edge - 0.5, 0, 1, row * z);
      context.fillRect(col * z + edge - 0.5, (row + 1) * z, 1, span);
      context.fillRect(0, row * z + edge - 0.5, col * z, 1);
      context.fillRect((col + 1) * z, row * z + edge - 0.5, span, 1);
    }
    context.globalAlpha = 1;
    const side = Math.max(z, 4); // a cell too small to see still gets a frame
    const [left, top] = [(col + 0.5) * z - side / 2, (row + 0.5) * z - side / 2];
    for (const [wider, colour] of [[3, style.paper], [1, style.accent]]) {
      context.strokeStyle = colour;
      context.lineWidth = 2;
      context.strokeRect(left - wider + 0.5, top - wider + 0.5, side + 2 * wider - 1, side + 2 * wider - 1);
    }
  }

  // Every so many labels that they do not touch; the marked one always, and none beside it that it would touch.
  drawLabels([first, past], origin, low, size, marked, place) {
    const { context, style, view: { z } } = this;
    const every = Math.max(1, Math.ceil((LABEL + 1) / z));
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.direction = "ltr";
    const draw = (i) => {
      const at = origin + (i + 0.5) * z;
      if (at < low - 1 || at > low + size + 1) return;
      context.font = this.font(i === marked ? 700 : 400);
      context.fillStyle = i === marked ? style.accent : style.ink;
      place(this.short(this.labels[i]), at, every * z + 2);
    };
    for (let i = Math.ceil(first / every) * every; i < past; i += every) {
      if (marked === undefined || Math.abs(i - marked) * z > LABEL) draw(i);
    }
    if (marked >= first && marked < past) draw(marked);
  }

  short(label) {
    const room = this.plot.left - 10;
    if (this.context.measureText(label).width <= room) return label;
    const letters = Array.from(label);
    while (letters.length > 1 && this.context.measureText(`${letters.join("")}…`).width > room) letters.pop();
    return `${letters.join("")}…`;
  }
}
