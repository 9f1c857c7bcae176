// A matrix of steps as high as its weights, seen from any side, drawn by the painter's algorithm: in a parallel projection
// the cells of a grid, taken row by row from the far side to the near one, never hide one that comes later.
//
// Coordinates: x along the keys and y along the queries, from -1 to 1 for the longer side; z is up.

import { css } from "../../map/colour.js";
import { fontOf, shorten, write } from "../../map/labels.js";

const TALL = 0.85; // the highest step
const [LOWEST, HIGHEST] = [0.15, Math.PI / 2 - 0.02]; // of the height of the eye, in radians
const LABEL = 11; // pixels
const WIDEST = 96; // pixels of a label
const TICKS = 4;
const NAMES = 88; // pixels for them on each side
export const START = { turn: 0.56, tilt: 0.66, zoom: 1, pan: [0, 0] };

// How a scene of this size on the ground is seen: `turn` around the vertical axis, `tilt` of the eye above the ground, `zoom`,
// and `pan`, [right, down] in pixels. At a zoom of 1 it fits with its names, however it is turned.
export function projection({ turn, tilt, zoom, pan }, [sx, sy], width, height) {
  const [sin, cos, up, over] = [Math.sin(turn), Math.cos(turn), Math.cos(tilt), Math.sin(tilt)];
  const around = Math.hypot(sx, sy);
  const margin = Math.min(NAMES, 0.15 * width);
  const tall = 2 * around * over + TALL * up;
  const unit = zoom * Math.max(20, Math.min((width - 2 * margin) / (2 * around), (height - margin) / tall));
  const [x0, y0] = [width / 2 + pan[0], height / 2 - 0.3 * margin + (TALL * up * unit) / 2 + pan[1]];
  const at = (x, y, z) => {
    const [across, deep] = [x * cos - y * sin, x * sin + y * cos];
    return [x0 + unit * across, y0 + unit * (deep * over - z * up)];
  };
  // Whether a side that faces this direction on the ground is seen, because it faces the eye.
  const seen = (x, y) => x * sin + y * cos > 1e-9;
  return { at, seen, centre: [x0 - pan[0], y0 - pan[1]] };
}

export const limited = ({ turn, tilt, zoom, pan }) => ({
  turn,
  pan,
  tilt: Math.max(LOWEST, Math.min(HIGHEST, tilt)),
  zoom: Math.max(0.5, Math.min(8, zoom)),
});

export class Scene {
  // rows, cols: { names, length: cells }; weights: by rows, NaN = masked; top: of the highest step; threshold: lower steps
  // are flat.
  constructor({ rows, cols, weights, top, threshold }) {
    Object.assign(this, { rows, cols, weights, top, threshold });
    const longest = Math.max(rows.length, cols.length);
    // A few rows of many columns still have some depth.
    this.size = [cols.length, rows.length].map((count) => Math.max(0.3, count / longest));
  }

  weight(row, col) {
    return this.weights[row * this.cols.length + col];
  }

  z(row, col) {
    const weight = this.weight(row, col);
    return weight >= this.threshold && this.top > 0 ? (TALL * weight) / this.top : 0; // false for NaN
  }

  x(col) {
    return this.size[0] * ((2 * col) / this.cols.length - 1);
  }

  y(row) {
    return this.size[1] * ((2 * row) / this.rows.length - 1);
  }

  // The faces of all steps from the far side to the near one: take(row, col, corners, kind), kind "top", "x" or "y" side.
  faces(view, take) {
    const { seen } = view;
    const [right, front] = [seen(1, 0), seen(0, 1)];
    const [rows, cols] = [order(this.rows.length, front), order(this.cols.length, right)];
    for (const row of rows) {
      for (const col of cols) {
        const z = this.z(row, col);
        const [x0, x1, y0, y1] = [this.x(col), this.x(col + 1), this.y(row), this.y(row + 1)];
        const [x, y] = [right ? x1 : x0, front ? y1 : y0];
        // Below the next step towards the eye a wall cannot be seen.
        const besideX = this.neighbour(row, col + (right ? 1 : -1));
        const besideY = this.neighbour(row + (front ? 1 : -1), col);
        if (z > besideX && (seen(1, 0) || seen(-1, 0))) {
          take(row, col, [[x, y0, besideX], [x, y1, besideX], [x, y1, z], [x, y0, z]], "x");
        }
        if (z > besideY && (seen(0, 1) || seen(0, -1))) {
          take(row, col, [[x0, y, besideY], [x1, y, besideY], [x1, y, z], [x0, y, z]], "y");
        }
        take(row, col, [[x0, y0, z], [x1, y0, z], [x1, y1, z], [x0, y1, z]], "top");
      }
    }
  }

  neighbour(row, col) {
    const there = row >= 0 && row < this.rows.length && col >= 0 && col < this.cols.length;
    return there ? this.z(row, col) : 0;
  }

  // The step at a pixel, { row, col }, or null: of all faces there the last one drawn.
  pick(view, [px, py]) {
    let found = null;
    this.faces(view, (row, col, corners) => {
      if (contains(corners.map((corner) => view.at(...corner)), px, py)) found = { row, col };
    });
    return found;
  }

  // ---- drawing

  // chosen: { row, col, names } or null, names: those of its row and its column; look: { style, scale }.
  draw(context, view, chosen, look) {
    this.drawFrame(context, view, look.style);
    const lines = Math.max(this.rows.length, this.cols.length) <= 40;
    const colours = new Map(); // the colours of a step, for its three faces
    context.lineJoin = "round";
    this.faces(view, (row, col, corners, kind) => {
      const key = row * this.cols.length + col;
      if (!colours.has(key)) colours.set(key, this.coloursOf(row, col, look));
      const on = chosen?.row === row && chosen.col === col;
      path(context, corners.map((corner) => view.at(...corner)));
      context.fillStyle = colours.get(key)[kind];
      context.fill();
      context.strokeStyle = on ? look.style.accent : lines ? colours.get(key).edge : context.fillStyle;
      context.lineWidth = on ? 2 : lines ? 0.5 : 0.4; // the same colour closes the gaps between faces
      context.stroke();
    });
    this.drawNames(context, view, chosen, look.style);
  }

  coloursOf(row, col, { style, scale }) {
    const weight = this.weight(row, col);
    if (Number.isNaN(weight)) return { top: style.masked, x: style.masked, y: style.masked, edge: style.maskedLine };
    const { fill } = css(weight, this.top, scale, style.table);
    const shade = (by) => `rgb(${fill.match(/[\d.]+/g).map((part) => Math.round(part * by)).join(" ")})`;
    return { top: fill, x: shade(0.8), y: shade(0.9), edge: style.edge };
  }

  // The ground, and the lines of the heights on both far walls.
  drawFrame(context, view, style) {
    const [sx, sy] = this.size;
    const [right, front] = [view.seen(1, 0), view.seen(0, 1)];
    const [x, y] = [right ? -sx : sx, front ? -sy : sy]; // of the far walls
    context.strokeStyle = style.line;
    context.lineWidth = 1;
    this.ticks().forEach(({ z }) => {
      path(context, [[-x, y, z], [x, y, z], [x, -y, z]].map((corner) => view.at(...corner)), false);
      context.stroke();
    });
    for (const [px, py] of [[x, y], [-x, y], [x, -y]]) {
      path(context, [[px, py, 0], [px, py, TALL]].map((corner) => view.at(...corner)), false);
      context.stroke();
    }
  }

  ticks() {
    if (!(this.top > 0)) return [{ z: 0, text: "0" }];
    const step = niceStep(this.top / TICKS);
    const count = Math.floor(this.top / step + 1e-9);
    return Array.from({ length: count + 1 }, (_, i) => ({ z: (TALL * i * step) / this.top, text: String(Number((i * step).toPrecision(3))) }));
  }

  // The names of tokens along both near edges, pointing outwards, as many as fit; and the heights.
  drawNames(context, view, chosen, style) {
    const [sx, sy] = this.size;
    const [x, y] = [view.seen(1, 0) ? sx : -sx, view.seen(0, 1) ? sy : -sy]; // of the near edges
    this.drawAxis(context, view, style, this.cols, (col) => [this.x(col + 0.5), y], [0, Math.sign(y)], chosen?.col, chosen?.names[1]);
    this.drawAxis(context, view, style, this.rows, (row) => [x, this.y(row + 0.5)], [Math.sign(x), 0], chosen?.row, chosen?.names[0]);
    // The heights, at the outer end of a far wall.
    const [left, other] = [[-x, y], [x, -y]].map(([px, py]) => view.at(px, py, 0)).sort((a, b) => a[0] - b[0]);
    const ground = left[0] < other[0] ? left : other;
    const look = { font: fontOf(style, false, LABEL), colour: style.faint };
    const rise = view.at(0, 0, 0)[1] - view.at(0, 0, 1)[1];
    let last = Infinity;
    for (const { z, text } of this.ticks()) {
      const at = ground[1] - z * rise;
      if (!z || last - at < LABEL) continue;
      write(context, text, ground[0] - 6, at, { ...look, align: "right" });
      last = at;
    }
  }

  // names along one edge: place(i) on the ground, outwards: the direction that they point to; chosen: the step that is
  // marked, with the name `called`.
  drawAxis(context, view, style, { names, length, title }, place, outwards, chosen, called) {
    const [from, to] = [place(0), place(Math.max(1, length - 1))].map(([x, y]) => view.at(x, y, 0));
    const apart = [to[0] - from[0], to[1] - from[1]].map((way) => way / Math.max(1, length - 1));
    const base = view.at(0, 0, 0);
    const tip = view.at(...outwards, 0);
    const way = [tip[0] - base[0], tip[1] - base[1]];
    const far = Math.hypot(...way) || 1;
    const [ux, uy] = way.map((part) => part / far);
    const room = Math.abs(apart[0] * uy - apart[1] * ux); // between two names
    const every = Math.max(1, Math.ceil((LABEL + 2) / Math.max(room, 1e-6)));
    const leftwards = ux < 0;
    const angle = Math.atan2(uy, ux) + (leftwards ? Math.PI : 0);
    let widest = 0;
    for (let i = 0; i < length; i++) {
      const marked = i === chosen;
      if (!marked && (i % every || (chosen !== undefined && Math.abs(i - chosen) < every))) continue;
      const [px, py] = view.at(...place(i), 0);
      context.save();
      context.translate(px + 7 * ux, py + 7 * uy);
      context.rotate(angle);
      const font = (context.font = fontOf(style, marked, LABEL));
      const text = shorten(context, marked ? called : names[i], WIDEST);
      widest = Math.max(widest, context.measureText(text).width);
      write(context, text, 0, 0, { font, colour: marked ? style.accent : style.ink, align: leftwards ? "right" : "left" });
      context.restore();
    }
    const [mx, my] = view.at(...place((length - 1) / 2), 0);
    const align = ux < -0.3 ? "right" : ux > 0.3 ? "left" : "center";
    const look = { font: fontOf(style, false, LABEL), colour: style.faint, align };
    write(context, title, mx + (widest + 18) * ux, my + (widest + 18) * uy, look);
  }
}

// 0 to count - 1, so that the last one is nearest to the eye.
function order(count, ascending) {
  const found = Array.from({ length: count }, (_, i) => i);
  return ascending ? found : found.reverse();
}

function path(context, points, closed = true) {
  context.beginPath();
  points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
  if (closed) context.closePath();
}

// Whether a pixel is within a convex face.
function contains(points, x, y) {
  let sign = 0;
  for (let i = 0; i < points.length; i++) {
    const [ax, ay] = points[i];
    const [bx, by] = points[(i + 1) % points.length];
    const side = Math.sign((bx - ax) * (y - ay) - (by - ay) * (x - ax));
    if (side && sign && side !== sign) return false;
    sign ||= side;
  }
  return sign !== 0;
}

// The smallest of 1, 2, 2.5, 5, 10 … of a power of ten that is not below.
function niceStep(least) {
  const ten = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 2.5, 5, 10].map((step) => step * ten).find((step) => step >= least - 1e-12);
}
