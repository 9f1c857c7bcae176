// The picture of the Flow view: a row for every layer, from the top down to the input; a column for every token.

import { picture } from "../../map/colour.js";
import { lettersOf, shorten } from "../../map/labels.js";

const LABEL = 12; // pixels of a label's line
const WIDEST = 72; // maximum width of a token's column, in pixels
const ROOM = 92; // maximum height of a rotated label, in pixels
const BINS = 2048; // maximum columns; in a longer text each is the largest of several tokens
const UPRIGHT = /^[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Emoji_Presentation}]+$/u;
const MARK = 8; // pixels of the corner that marks a cell beyond the scale
const TRIED = 40; // the largest tokens that may get a label if there is no room for all

// The layout. names: of the rows.
export function frameOf(context, { names, labels, font, width }) {
  context.font = `700 ${LABEL}px ${font}`;
  const widest = (texts) => texts.reduce((most, text) => Math.max(most, context.measureText(text).width), 0);
  const left = Math.ceil(widest(names)) + 12;
  const wide = Math.min(WIDEST, (width - left - 6) / labels.length);
  const widestLabel = Math.ceil(widest(labels));
  const level = widestLabel <= wide - 4; // labels are horizontal
  const count = names.length;
  const high = Math.max(12, Math.min(28, Math.floor(420 / count)));
  const top = 4;
  const height = top + count * high + 10 + (level ? LABEL + 2 : Math.min(ROOM, widestLabel));
  return { left, top, wide, high, width, height, count, level, across: labels.length * wide };
}

// The row and the token at a pixel, or null.
export function cellAt({ left, top, wide, high, count, across }, { offsetX, offsetY }) {
  const inside = offsetX >= left && offsetX < left + across && offsetY >= top && offsetY < top + count * high;
  return inside ? [Math.floor((offsetY - top) / high), Math.floor((offsetX - left) / wide)] : null;
}

// The rows as an image with one pixel per cell. values: of each row; tops: the values at the ramp's end; hidden tokens
// are transparent.
export function bandOf({ values, tops, hidden, scale, table }) {
  const bins = Math.min(hidden.length, BINS);
  const shares = new Float32Array(values.length * bins).fill(NaN);
  values.forEach((row, y) => {
    row.forEach((value, i) => {
      const bin = y * bins + Math.floor((i * bins) / hidden.length);
      const share = tops[y] > 0 ? Math.min(1, Math.max(0, value) / tops[y]) : 0;
      if (!hidden[i] && !(shares[bin] >= share)) shares[bin] = share;
    });
  });
  const canvas = Object.assign(document.createElement("canvas"), { width: bins, height: values.length });
  canvas.getContext("2d").putImageData(picture(shares, values.length, bins, 1, scale, table), 0, 0);
  return canvas;
}

// what: { band, names, labels, hidden, marked (whether the followed token is beyond the scale, of each row), style, token (of the flow), row, col (under the pointer, col may be null),
// order (tokens by their values in that row), found (a Set, or null) }
export function drawFlow(context, frame, what) {
  const { left, top, wide, high, count, across } = frame;
  const { band, names, style, token, row, col } = what;
  const known = band.height * high;
  context.fillStyle = style.hatch;
  context.fillRect(left, top, across, known);
  context.imageSmoothingEnabled = false;
  context.drawImage(band, left, top, across, known);
  context.fillStyle = style.paper;
  if (wide >= 9) for (let i = 1; i < what.labels.length; i++) context.fillRect(left + i * wide - 0.5, top, 1, known);
  for (let y = 1; y < count; y++) context.fillRect(left, top + y * high - 0.5, across, 1);
  context.strokeStyle = style.line;
  context.lineWidth = 1;
  context.strokeRect(left - 0.5, top - 0.5, across + 1, count * high + 1);

  context.textBaseline = "middle";
  context.textAlign = "right";
  context.direction = "ltr";
  names.forEach((name, y) => {
    context.font = `${y === row ? 700 : 400} ${LABEL}px ${style.font}`;
    context.fillStyle = y === row ? style.accent : style.faint;
    context.fillText(name, left - 7, top + (y + 0.5) * high);
  });

  context.fillStyle = style.paper;
  what.marked.forEach((is, y) => {
    if (!is) return;
    const side = Math.min(MARK, high / 2);
    const [right, above] = [left + (token + 0.5) * wide + Math.max(wide, 4) / 2 - 2, top + y * high + 2];
    context.beginPath();
    context.moveTo(right - side, above);
    context.lineTo(right, above);
    context.lineTo(right, above + side);
    context.closePath();
    context.fill();
  });

  const box = (y, i) => {
    const side = Math.max(wide, 4); // a frame even around a cell too small to see
    context.strokeRect(left + (i + 0.5) * wide - side / 2, top + y * high + 1, side, high - 2);
  };
  context.lineWidth = 2;
  context.strokeStyle = style.accent;
  box(0, token);
  if (col !== null) {
    context.globalAlpha = 0.5;
    context.fillStyle = style.accent;
    context.fillRect(left + (col + 0.5) * wide - 0.5, top, 1, count * high);
    context.globalAlpha = 1;
    box(row, col);
  }
  drawLabels(context, frame, what);
}

// All labels if there is room, else the most important: the token under the pointer, that of the flow, and the largest.
function drawLabels(context, { left, top, wide, high, count, level }, what) {
  const { labels, hidden, style, token, col, order, found } = what;
  const all = wide >= LABEL + 1;
  const wanted = all ? labels.keys() : [col, token, ...(found ?? []), ...order.slice(0, TRIED)];
  const below = top + count * high + 6;
  const fontOf = (weight) => `${weight} ${LABEL}px ${style.font}`;
  const taken = [];
  for (const i of wanted) {
    const at = left + (i + 0.5) * wide;
    if (i === null || (!all && taken.some((other) => Math.abs(other - at) < LABEL + 2))) continue;
    taken.push(at);
    const marked = i === col || i === token;
    context.font = fontOf(marked || found?.has(i) ? 700 : 400);
    context.fillStyle = hidden[i] ? style.faint : marked ? style.accent : style.ink;
    drawLabel(context, labels[i], at, below, level);
  }
}

// Rotated upwards, except a single letter, and Chinese, which runs down.
function drawLabel(context, label, x, y, level) {
  const letters = lettersOf(label);
  const isUpright = letters.length === 1 || UPRIGHT.test(label);
  context.save();
  context.translate(x, y);
  context.textBaseline = level || isUpright ? "top" : "middle";
  context.textAlign = level || isUpright ? "center" : "right";
  if (level) context.fillText(label, 0, 0);
  else if (isUpright) {
    const most = Math.floor(ROOM / LABEL);
    const drawn = letters.length > most ? [...letters.slice(0, most - 1), "…"] : letters;
    drawn.forEach((letter, i) => context.fillText(letter, 0, i * (LABEL + 1)));
  } else {
    context.rotate(-Math.PI / 2);
    context.fillText(shorten(context, label, ROOM), 0, 0);
  }
  context.restore();
}
