// Two columns of tokens, queries on the left and keys on the right, and a line for every weight between them, in a colour
// for each head: the head view that BertViz made known (Vig 2019). Of a long text only what is in sight is drawn.

import { along, largest } from "../../map/colour.js";
import { shorten, write } from "../../map/labels.js";
import { element, resized } from "../../shell/element.js";
import { say } from "../../words.js";

const LINE = 20; // pixels of a token's line
const FONT = 13;
const NUMBER = 48; // pixels of a weight at the outer edge
const WIDEST = 860;
const MARGIN = 12; // around a saved picture
const SPARE = 300; // pixels above and below what is in sight, drawn ahead
const LARGEST = 4000; // pixels: a lower canvas is drawn as a whole
const CROSS = 5; // half the size of the cross on a blocked edge
const NEAR = 5; // pixels from a line within which a click means it
const LEAST = 0.02; // below this place on the scale no line is drawn
const STUCK = ".tabs, .attention-caption, footer";
const BEYOND = 3; // names of tokens out of sight, at each edge
const MOST = 5000; // lines that are drawn, the strongest
const FULL = 4; // even shares of the keys from which a line is drawn in full, so that a nearly uniform head is pale

export class Columns {
  // on: { point(side, token), pin(side, token), leave() }, with side "rows" or "cols"; edge(row, col, head) with the tokens
  // of a line between single tokens, and the place of its head among those shown; drawn(): there are other lines.
  constructor(on) {
    this.canvas = element("canvas", { tabIndex: 0, role: "img", ariaLabel: say("Lines between two columns") });
    this.beyond = ["up", "down"].map((way) => element("div", { className: `beyond ${way}`, hidden: true }));
    this.element = element("div", { className: "columns" }, this.canvas, ...this.beyond);
    this.drawn = []; // the drawn lines, the strongest last: { head: its index among the heads, row, col: groups, weight, t }
    this.inSight = null; // if set, only lines of this token are drawn: { side, group }
    this.on = on;
    this.listen(on);
    this.size = new ResizeObserver(() => this.draw());
    this.size.observe(this.element);
  }

  close() {
    this.size.disconnect();
  }

  // rows, cols: { groups, axis }; matrices: of each head, by rows; names, colours: of the heads; at: { side, group, pinned }
  // or null; sunk: the column hidden as the sink, or null; blocked: of each head the edges that edits block, [row, col];
  // threshold: smaller weights have no line; style, scale: of the colours.
  show(shown) {
    const before = this.shown;
    const same = ["side", "group", "pinned"].every((key) => before?.at?.[key] === shown.at?.[key]);
    const whole = !before || before.rows.groups !== shown.rows.groups;
    this.shown = shown;
    if (shown.at?.pinned || !same) this.inSight = shown.at;
    const { rows: { groups: { level } }, names } = shown;
    const about = say("Lines between two columns of {level}, {heads}", { level: say(level), heads: names.join(", ") });
    this.canvas.ariaLabel = say("{about}; the largest weights are listed above", { about });
    this.collect();
    this.draw();
    if (shown.at && !same && (whole || shown.at.pinned)) this.reveal(shown.at.group);
  }

  // Scroll to a token that is out of sight.
  reveal(group) {
    const y = this.middleOf(group);
    const [first, last] = this.sight(this.height);
    if (y >= first + LINE / 2 && y <= last - LINE / 2) return;
    const scrolls = (box) => box.scrollHeight > box.clientHeight && getComputedStyle(box).overflowY !== "visible";
    let box = this.element.parentElement;
    while (box && !scrolls(box)) box = box.parentElement;
    (box ?? document.scrollingElement).scrollTop += y - (first + last) / 2;
  }

  // The weight of a head, NaN if it is masked or hidden.
  weightOf(head, row, col) {
    if (col === this.shown.sunk) return NaN;
    return this.shown.matrices[head][row * this.shown.cols.groups.labels.length + col];
  }

  // The lines to draw.
  collect() {
    const { rows, cols, matrices, scale, threshold } = this.shown;
    const [down, across] = [rows, cols].map(({ groups }) => groups.labels.length);
    const only = (side, count) => (this.inSight?.side === side ? [this.inSight.group, this.inSight.group + 1] : [0, count]);
    const [[row0, row1], [col0, col1]] = [only("rows", down), only("cols", across)];
    const each = (take) => {
      for (let head = 0; head < matrices.length; head++) {
        for (let row = row0; row < row1; row++) {
          for (let col = col0; col < col1; col++) {
            const weight = this.weightOf(head, row, col);
            if (weight > 0 && weight >= threshold) take(weight, head, row, col);
          }
        }
      }
    };
    let top = Math.min(1, FULL / across);
    each((weight) => (top = Math.max(top, weight)));
    const found = [];
    each((weight, head, row, col) => {
      const t = along(weight, top, scale);
      if (t >= LEAST) found.push({ head, row, col, weight, t });
    });
    found.sort((a, b) => a.t - b.t); // the strongest on top
    this.left = Math.max(0, found.length - MOST); // lines that are not drawn
    this.drawn = found.slice(this.left);
    this.on.drawn();
  }

  // ---- drawing

  draw() {
    const width = Math.min(WIDEST, this.element.clientWidth);
    if (!this.shown || !width) return;
    const height = this.measure(this.canvas.getContext("2d"), width);
    this.element.style.height = `${height}px`;
    const [from, past] = (this.range = this.rangeToDraw(height));
    this.canvas.style.top = `${from}px`;
    const context = resized(this.canvas, width, past - from);
    context.translate(0, -from);
    this.drawOn(context, from, past);
    this.showBeyond();
  }

  // The strongest lines of the asked token that end out of sight: at that edge the names where they go.
  showBeyond() {
    const [first, last] = this.sight(this.height);
    const [other, side] = this.inSight?.side === "cols" ? ["row", "rows"] : ["col", "cols"];
    const told = new Set();
    const ends = (this.inSight ? this.drawn.toReversed() : []).filter((line) => !told.has(line[other]) && told.add(line[other]));
    this.beyond.forEach((box, down) => {
      const out = ends.filter((line) => (down ? this.middleOf(line[other]) > last : this.middleOf(line[other]) < first));
      box.hidden = !out.length;
      box.dataset.side = side;
      box.style.top = `${down ? last : first}px`;
      box.replaceChildren(...out.slice(0, BEYOND).map((line) => {
        const { labels, level } = this.shown[side].groups;
        const [label, place] = [labels[line[other]], String(line[other])];
        const name = level === "tokens" && label !== place ? `${label} ${place}` : label;
        const made = element("button", { type: "button", tabIndex: -1, title: say("Scroll to {name}", { name }) });
        made.append(down ? "↓ " : "↑ ", element("bdi", { textContent: name }), ` ${short(line.weight)}`);
        made.addEventListener("click", () => this.reveal(line[other]));
        return made;
      }));
    });
  }

  // The pixels to draw, from and past: all of them, or those in sight and some more.
  rangeToDraw(height) {
    if (height <= LARGEST) return [0, height];
    const [first, last] = this.sight(height);
    return [Math.max(0, first - SPARE), Math.min(height, last + SPARE)];
  }

  // The pixels in sight: within the window and what scrolls around the columns, and not under what stays at their edges.
  sight(height) {
    let [top, bottom] = [0, innerHeight];
    for (let box = this.element.parentNode; box instanceof Element; box = box.parentNode) {
      if (getComputedStyle(box).overflowY === "visible") continue;
      const edges = box.getBoundingClientRect();
      [top, bottom] = [Math.max(top, edges.top), Math.min(bottom, edges.bottom)];
    }
    for (const box of this.element.getRootNode().querySelectorAll(STUCK)) {
      const edges = box.getBoundingClientRect();
      if (getComputedStyle(box).position !== "sticky" || !edges.height) continue;
      if (edges.top <= top + 1) top = Math.max(top, edges.bottom);
      else if (edges.bottom >= bottom - 1) bottom = Math.min(bottom, edges.top);
    }
    const own = this.element.getBoundingClientRect().top;
    const within = (y) => Math.max(0, Math.min(height, y - own));
    return [within(top), within(bottom)];
  }

  // Called when another part of the columns is in sight.
  scrolled() {
    if (!this.range || !this.element.isConnected) return;
    const [first, last] = this.sight(this.height);
    if (first < this.range[0] || last > this.range[1]) this.draw();
    else this.showBeyond();
  }

  // The layout for a given width. Returns the height.
  measure(context, width) {
    const { rows, cols } = this.shown;
    context.font = this.font(700);
    const widest = (side, heading) => {
      const { labels } = side.groups;
      let most = context.measureText(heading).width;
      for (const label of labels.length > 400 ? labels.filter((text) => text.length > 6) : labels) {
        most = Math.max(most, context.measureText(label).width);
      }
      return most;
    };
    this.headings = [say("looks from"), say("looks at")];
    const number = width < 500 ? NUMBER - 8 : NUMBER;
    const room = (side, heading) => Math.ceil(Math.min(widest(side, heading) + 14, 0.36 * width - number)) + number;
    this.plot = { left: room(rows, this.headings[0]), right: width - room(cols, this.headings[1]), top: LINE + 4 };
    this.number = number;
    this.width = width;
    this.height = this.plot.top + LINE * Math.max(rows.groups.labels.length, cols.groups.labels.length) + 4;
    return this.height;
  }

  drawOn(context, from = 0, past = this.height) {
    const { style, rows, cols } = this.shown;
    const { plot } = this;
    const look = { font: this.font(400, 12), colour: style.faint };
    write(context, this.headings[0], plot.left - 7, LINE / 2, { ...look, align: "right" });
    write(context, this.headings[1], plot.right + 7, LINE / 2, look);
    this.drawLines(context, from, past);
    const others = this.inSight && this.others();
    for (const [side, { groups }] of [["rows", rows], ["cols", cols]]) {
      const first = Math.max(0, Math.floor((from - plot.top) / LINE));
      const last = Math.min(groups.labels.length, Math.ceil((past - plot.top) / LINE));
      for (let group = first; group < last; group++) this.drawLabel(context, side, group, others);
    }
  }

  drawLines(context, from, past) {
    const { blocked, colours } = this.shown;
    const { left, right } = this.plot;
    for (const { head, row, col, t } of this.drawn) {
      const shift = this.shiftOf(head);
      const [start, end] = [this.middleOf(row) + shift, this.middleOf(col) + shift];
      if (Math.max(start, end) < from || Math.min(start, end) > past) continue;
      context.globalAlpha = 0.1 + 0.85 * t;
      context.strokeStyle = colours[head];
      context.lineWidth = 0.6 + 3.4 * t;
      curve(context, left, start, right, end);
    }
    context.globalAlpha = 1;
    blocked.forEach((edges, head) => {
      for (const [row, col] of edges) if (this.isInSight(row, col)) this.drawBlocked(context, row, col, head);
    });
  }

  // A thin line with a cross where an edge is blocked.
  drawBlocked(context, row, col, head) {
    const { left, right } = this.plot;
    const [from, to] = [row, col].map((group) => this.middleOf(group) + this.shiftOf(head));
    const [x, y] = [(left + right) / 2, (from + to) / 2];
    context.strokeStyle = this.shown.style.error;
    context.lineWidth = 1;
    curve(context, left, from, right, to);
    context.lineWidth = 2.5;
    context.beginPath();
    for (const down of [CROSS, -CROSS]) {
      context.moveTo(x - CROSS, y - down);
      context.lineTo(x + CROSS, y + down);
    }
    context.stroke();
  }

  drawLabel(context, side, group, others) {
    const { style, rows, cols } = this.shown;
    const { plot, width, number } = this;
    const { axis, groups } = side === "rows" ? rows : cols;
    const asked = this.inSight?.side === side && this.inSight.group === group;
    const onLeft = side === "rows";
    const [left, right] = onLeft ? [number, plot.left] : [plot.right, width - number];
    const y = this.middleOf(group);
    const told = others && side !== this.inSight.side && this.drawWeights(context, others, group, left, right, onLeft);
    const faint = groups.level === "tokens" && axis.special?.[group] && !asked && !told;
    const font = (context.font = this.font(asked ? 700 : 400));
    const label = shorten(context, groups.labels[group], right - left - 13);
    const look = { font, colour: faint ? style.faint : style.ink, align: onLeft ? "right" : "left" };
    write(context, label, onLeft ? right - 7 : left + 7, y, look);
    if (asked) {
      context.strokeStyle = style.accent;
      context.lineWidth = 2;
      context.strokeRect(left + 1, y - LINE / 2 + 1, right - left - 2, LINE - 2);
    }
  }

  // Behind a token that the asked one attends to, or that attends to it: a field for each head, as strong as its weight;
  // and at the outer edge the weight, the mean of the heads. Returns whether there is one.
  drawWeights(context, { weights, top }, group, left, right, onLeft) {
    const { style, scale, matrices, colours, threshold } = this.shown;
    const y = this.middleOf(group);
    const each = weights[group];
    const wide = (right - left - 2) / matrices.length;
    let seen = false;
    each.forEach((weight, head) => {
      if (!(weight >= threshold) || !(along(weight, top, scale) >= LEAST)) return;
      seen = true;
      context.globalAlpha = 0.08 + 0.5 * along(weight, top, scale);
      context.fillStyle = colours[head];
      context.fillRect(left + 1 + head * wide, y - LINE / 2 + 1, wide, LINE - 2);
    });
    context.globalAlpha = 1;
    if (!seen) return false;
    const mean = each.reduce((sum, weight) => sum + (weight || 0), 0) / each.length;
    const look = { font: this.font(400, 11), colour: style.ink, align: onLeft ? "left" : "right" };
    write(context, short(mean), onLeft ? 0 : this.width, y, look);
    return true;
  }

  // The weights that the selected token gives or gets: of each other one, of every head.
  others() {
    const { matrices, rows, cols } = this.shown;
    const { side, group } = this.inSight;
    const count = (side === "rows" ? cols : rows).groups.labels.length;
    const weights = Array.from({ length: count }, (_, other) => {
      const [row, col] = side === "rows" ? [group, other] : [other, group];
      return matrices.map((_, head) => this.weightOf(head, row, col));
    });
    return { weights, top: largest(weights.flat()) };
  }

  // Pixels by which the lines of a head are apart: heads keep their order, so colour is not the only sign.
  shiftOf(head) {
    const apart = 2 * (head - (this.shown.matrices.length - 1) / 2);
    return Math.max(-LINE / 3, Math.min(LINE / 3, apart));
  }

  isInSight(row, col) {
    return !this.inSight || this.inSight.group === (this.inSight.side === "rows" ? row : col);
  }

  middleOf(group) {
    return this.plot.top + (group + 0.5) * LINE;
  }

  font(weight = 400, size = FONT) {
    return `${weight} ${size}px ${this.shown.style.font}`;
  }

  // The picture of all tokens, with the heads above it.
  picture() {
    const { names, colours, style } = this.shown;
    const head = 22 * names.length + 8;
    const draw = (context) => {
      context.save();
      context.translate(MARGIN, MARGIN);
      names.forEach((name, i) => {
        context.fillStyle = colours[i];
        context.fillRect(0, 22 * i + 7, 14, 8);
        write(context, name, 21, 22 * i + 11, { font: this.font(), colour: style.ink });
      });
      context.translate(0, head);
      this.drawOn(context);
      context.restore();
    };
    return { width: this.width + 2 * MARGIN, height: this.height + head + 2 * MARGIN, draw };
  }

  // ---- actions of the reader

  // The line under the pointer, as an entry of `drawn`; null if there is none, or if it is not of single tokens.
  lineAt({ x, y }) {
    if (this.shown?.rows.groups.level !== "tokens") return null;
    const { left, right } = this.plot;
    const along = (x - left) / (right - left);
    if (!(along > 0.02 && along < 0.98)) return null;
    const share = stepOf(along);
    const far = ({ row, col, head }) => {
      return Math.abs(this.middleOf(row) * (1 - share) + this.middleOf(col) * share + this.shiftOf(head) - y);
    };
    const near = this.drawn.filter((line) => far(line) <= NEAR).sort((a, b) => far(a) - far(b));
    return near[0] ?? null;
  }

  listen({ point, pin, edge }) {
    const placeOf = ({ offsetX: x, offsetY }) => ({ x, y: offsetY + (this.range?.[0] ?? 0) });
    const labelAt = ({ x, y }) => {
      if (!this.shown) return null;
      const side = x < this.width / 2 ? "rows" : "cols";
      const { of, labels } = this.shown[side].groups;
      const group = Math.floor((y - this.plot.top) / LINE);
      const beside = side === "rows" ? x <= this.plot.left : x >= this.plot.right;
      return beside && group >= 0 && group < labels.length ? { side, group, token: of.indexOf(group) } : null;
    };
    this.canvas.addEventListener("pointermove", (event) => {
      const place = placeOf(event);
      const label = labelAt(place);
      const line = label ? null : this.lineAt(place);
      this.canvas.style.cursor = label || line ? "pointer" : "default";
      this.canvas.title = line ? this.told(line) : "";
      if (!label) return;
      const { at } = this.shown;
      if (at?.side === label.side && at.group === label.group && !this.inSight) this.lookAt(at); // the same as before
      else point(label.side, label.token);
    });
    this.canvas.addEventListener("click", (event) => {
      const label = labelAt(placeOf(event));
      if (label) return pin(label.side, label.token);
      const line = this.lineAt(placeOf(event));
      if (line) edge(line.row, line.col, line.head);
    });
    this.canvas.addEventListener("pointerleave", () => {
      if (this.shown && !this.shown.at?.pinned) this.lookAt(null);
    });
  }

  // A line in words.
  told({ head, row, col, weight }) {
    const { rows, cols, names } = this.shown;
    return `${rows.groups.labels[row]} → ${cols.groups.labels[col]}  ${short(weight)}  ${names[head]}`;
  }

  // All lines, or those of one token.
  lookAt(at) {
    this.inSight = at;
    if (!this.element.isConnected) return;
    this.collect();
    this.draw();
  }
}

const short = (weight) => (weight >= 0.0005 || weight === 0 ? weight.toFixed(3) : weight.toExponential(0));

function curve(context, left, from, right, to) {
  const middle = (left + right) / 2;
  context.beginPath();
  context.moveTo(left, from);
  context.bezierCurveTo(middle, from, middle, to, right, to);
  context.stroke();
}

// How far down a line is, as a share of its height, at a share of its width: `curve` has its control points in the
// middle, so x = 1.5t(1 - t) + t³ and y = 3t² - 2t³, with t between 0 and 1.
function stepOf(x) {
  let [low, high] = [0, 1];
  for (let i = 0; i < 24; i++) {
    const t = (low + high) / 2;
    if (1.5 * t * (1 - t) + t ** 3 < x) low = t;
    else high = t;
  }
  return 3 * low ** 2 - 2 * low ** 3;
}
