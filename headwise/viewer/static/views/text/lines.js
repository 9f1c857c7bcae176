// The classic head view: a column of queries, a column of keys, and a line for every weight between them, in a colour
// for each head. Drawn on a canvas; for short texts.

import { along, css, largest } from "../../map/colour.js";
import { shorten } from "../../map/labels.js";
import { element, resized } from "../../shell/element.js";
import { say } from "../../words.js";

const LINE = 20; // pixels of a token's line
const FONT = 13;
const WIDEST = 720;
const MARGIN = 12; // around a saved picture
const CROSS = 5; // half the size of the cross on a blocked edge
const NEAR = 5; // pixels from a line within which a click means it
const LEAST = 0.02; // below this place on the scale no line is drawn
// Colours for all kinds of colour vision (Okabe & Ito), in order of use, on a light and on a dark page.
const HEADS = {
  light: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a7a7a"],
  dark: ["#56b4e9", "#e69f00", "#2fc79a", "#e08fbd", "#f07f3c", "#f0e442", "#a8a8a8"],
};

export class Lines {
  // on: { point(side, token), pin(side, token) }, with side "rows" or "cols"; edge(row, col, head) with the tokens of a
  // line between single tokens, and the place of its head among those shown.
  constructor(on) {
    this.canvas = element("canvas", { tabIndex: 0, role: "img", ariaLabel: say("Lines between two columns") });
    this.element = element("div", { className: "lines" }, this.canvas);
    this.drawn = []; // the visible lines: { head: its index among the heads, row, col: groups, weight }
    this.inSight = null; // if set, only lines of this token are drawn: { side, group }
    this.listen(on);
    this.size = new ResizeObserver(() => this.draw());
    this.size.observe(this.element);
  }

  close() {
    this.size.disconnect();
  }

  // rows, cols: { groups, axis }; matrices: of each head, by rows; names: of the heads; at: { side, group, pinned } or
  // null; sunk: the column hidden as the sink, or null; blocked: of each head the edges that edits block, [row, col]; style,
  // scale: of the colours.
  show(shown) {
    const before = this.shown;
    const same = ["side", "group", "pinned"].every((key) => before?.at?.[key] === shown.at?.[key]);
    const whole = !before || (before.rows.groups !== shown.rows.groups && !this.inSight);
    this.shown = shown;
    if (shown.at?.pinned || (!same && !whole)) this.inSight = shown.at;
    const across = shown.cols.groups.labels.length;
    const unsunk = (matrix) => matrix.map((weight, place) => (place % across === shown.sunk ? NaN : weight));
    if (shown.sunk !== null) shown.matrices = shown.matrices.map(unsunk);
    const { rows: { groups: { level } }, names } = shown;
    const about = { level: say(level), heads: names.join(", ") };
    this.canvas.ariaLabel = say("Lines between two columns of {level}, {heads}; the largest weights are listed above", about);
    this.draw();
  }

  // ---- drawing

  draw() {
    const width = Math.min(WIDEST, this.element.clientWidth);
    if (!this.shown || !width) return;
    const height = this.measure(this.canvas.getContext("2d"), width);
    this.drawOn(resized(this.canvas, width, height));
  }

  // The layout for a given width. Returns the height.
  measure(context, width) {
    const { rows, cols, names } = this.shown;
    context.font = this.font(700);
    const widthOf = (label) => context.measureText(label).width;
    const widest = (side) => Math.max(...[say("looks from"), ...side.groups.labels].map(widthOf));
    const room = (side) => Math.ceil(Math.min(widest(side), 0.36 * width)) + 12;
    this.legend = [];
    let [x, y] = [0, FONT];
    names.forEach((name, head) => {
      const wide = 26 + context.measureText(name).width;
      if (x && x + wide > width) [x, y] = [0, y + LINE];
      this.legend.push({ name, head, x, y });
      x += wide;
    });
    this.head = y + LINE + 8;
    this.plot = { left: room(rows), right: width - room(cols), top: this.head + LINE };
    this.width = width;
    this.height = this.plot.top + LINE * Math.max(rows.groups.labels.length, cols.groups.labels.length) + 4;
    return this.height;
  }

  drawOn(context) {
    const { style, rows, cols, at } = this.shown;
    const { plot } = this;
    context.direction = "ltr";
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.font = this.font();
    for (const { name, head, x, y } of this.legend) {
      context.fillStyle = this.colour(head);
      context.fillRect(x, y - 2, 14, 4);
      context.fillStyle = style.ink;
      context.fillText(name, x + 19, y);
    }
    context.fillStyle = style.faint;
    context.textAlign = "right";
    context.fillText(say("looks from"), plot.left - 6, this.head + LINE / 2);
    context.textAlign = "left";
    context.fillText(say("looks at"), plot.right + 6, this.head + LINE / 2);
    this.drawLines(context);
    const others = at && this.inSight && this.means();
    for (const [side, groups] of [["rows", rows.groups], ["cols", cols.groups]]) {
      groups.labels.forEach((label, group) => this.drawLabel(context, side, group, label, others));
    }
  }

  drawLines(context) {
    const { rows, cols, matrices, scale, blocked } = this.shown;
    const across = cols.groups.labels.length;
    const lines = [];
    let top = 0; // of the visible lines
    matrices.forEach((matrix, head) => {
      for (let row = 0; row < rows.groups.labels.length; row++) {
        for (let col = 0; col < across; col++) {
          const weight = matrix[row * across + col];
          if (!(weight > 0) || !this.isInSight(row, col)) continue;
          lines.push({ head, row, col, weight });
          top = Math.max(top, weight);
        }
      }
    });
    for (const line of lines) line.t = along(line.weight, top, scale);
    this.drawn = lines.filter(({ t }) => t >= LEAST);
    this.drawn.sort((a, b) => a.t - b.t); // the strongest on top
    const { left, right } = this.plot;
    for (const { head, row, col, t } of this.drawn) {
      const shift = this.shiftOf(head);
      const [from, to] = [this.middleOf(row) + shift, this.middleOf(col) + shift];
      context.globalAlpha = 0.1 + 0.85 * t;
      context.strokeStyle = this.colour(head);
      context.lineWidth = 0.6 + 3.4 * t;
      curve(context, left, from, right, to);
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

  drawLabel(context, side, group, label, means) {
    const { style, rows, cols, scale } = this.shown;
    const { plot, width } = this;
    const { axis, groups } = side === "rows" ? rows : cols;
    const asked = this.inSight?.side === side && this.inSight.group === group;
    const [left, right] = side === "rows" ? [0, plot.left] : [plot.right, width];
    const y = this.middleOf(group);
    let ink = style.ink;
    if (means && side !== this.inSight.side && along(means.weights[group] || 0, means.top, scale) >= LEAST) {
      const painted = css(means.weights[group], means.top, scale, style.table);
      context.fillStyle = painted.fill;
      context.fillRect(left + 1, y - LINE / 2 + 1, right - left - 2, LINE - 2);
      ink = painted.ink;
    } else if (groups.level === "tokens" && axis.special[group]) ink = style.faint;
    context.font = this.font(asked ? 700 : 400);
    context.fillStyle = ink;
    context.textAlign = side === "rows" ? "right" : "left";
    context.fillText(shorten(context, label, right - left - 12), side === "rows" ? right - 6 : left + 6, y);
    if (asked) {
      context.strokeStyle = style.accent;
      context.lineWidth = 2;
      context.strokeRect(left + 1, y - LINE / 2 + 1, right - left - 2, LINE - 2);
    }
  }

  // The mean over the heads of the weights that the selected token gives or gets.
  means() {
    const { matrices, rows, cols } = this.shown;
    const across = cols.groups.labels.length;
    const { side, group } = this.inSight;
    const others = side === "rows" ? cols : rows;
    const place = (other) => (side === "rows" ? group * across + other : other * across + group);
    const weights = Float64Array.from(others.groups.labels, (_, other) => {
      return matrices.reduce((sum, matrix) => sum + (matrix[place(other)] || 0), 0) / matrices.length;
    });
    return { weights, top: largest(weights) };
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

  colour(head) {
    const all = HEADS[this.shown.style.dark ? "dark" : "light"];
    return all[head % all.length];
  }

  font(weight = 400) {
    return `${weight} ${FONT}px ${this.shown.style.font}`;
  }

  picture() {
    const draw = (context) => {
      context.save();
      context.translate(MARGIN, MARGIN);
      this.drawOn(context);
      context.restore();
    };
    return { width: this.width + 2 * MARGIN, height: this.height + 2 * MARGIN, draw };
  }

  // ---- actions of the reader

  // The line under the pointer, as an entry of `drawn`; null if there is none, or if it is not of single tokens.
  lineAt({ offsetX, offsetY }) {
    if (this.shown?.rows.groups.level !== "tokens") return null;
    const { left, right } = this.plot;
    const along = (offsetX - left) / (right - left);
    if (!(along > 0.02 && along < 0.98)) return null;
    const share = stepOf(along);
    const far = ({ row, col, head }) => {
      const shift = this.shiftOf(head);
      return Math.abs(this.middleOf(row) * (1 - share) + this.middleOf(col) * share + shift - offsetY);
    };
    const near = this.drawn.filter((line) => far(line) <= NEAR).sort((a, b) => far(a) - far(b));
    return near[0] ?? null;
  }

  listen({ point, pin, edge }) {
    const labelAt = ({ offsetX, offsetY }) => {
      if (!this.shown) return null;
      const side = offsetX < this.width / 2 ? "rows" : "cols";
      const { of, labels } = this.shown[side].groups;
      const group = Math.floor((offsetY - this.plot.top) / LINE);
      const beside = side === "rows" ? offsetX <= this.plot.left : offsetX >= this.plot.right;
      return beside && group >= 0 && group < labels.length ? { side, group, token: of.indexOf(group) } : null;
    };
    this.canvas.addEventListener("pointermove", (event) => {
      const label = labelAt(event);
      this.canvas.style.cursor = label || this.lineAt(event) ? "pointer" : "default";
      if (!label) return;
      const { at } = this.shown;
      if (at?.side === label.side && at.group === label.group && !this.inSight) this.lookAt(at); // the same as before
      else point(label.side, label.token);
    });
    this.canvas.addEventListener("click", (event) => {
      const label = labelAt(event);
      if (label) return pin(label.side, label.token);
      const line = this.lineAt(event);
      if (line) edge(line.row, line.col, line.head);
    });
    this.canvas.addEventListener("pointerleave", () => {
      if (this.shown && !this.shown.at?.pinned) this.lookAt(null);
    });
  }

  // All lines, or those of one token.
  lookAt(at) {
    this.inSight = at;
    if (this.element.isConnected) this.draw();
  }
}

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
