// The overlay of a heat map: values, lines between cells, pins, the cross over the current cell, labels.
//
// `map` is a HeatMap; everything is drawn as lines and text, on any 2d context.

import { css } from "./colour.js";
import { drawColumns, drawRows, fontOf, write } from "./labels.js";
import { say } from "../words.js";

const GRID = 12; // cells of at least this many pixels have lines between them,
const VALUES = 34; // show their weights,
const LONGER = 58; // and show them with three decimals

export function drawOver(context, map) {
  const { rows, cols, style, what, marks } = map;
  const smaller = Math.min(rows.z, cols.z);
  context.save();
  context.beginPath();
  context.rect(cols.low - 1, rows.low - 1, cols.span + 2, rows.span + 2);
  context.clip();
  if (smaller >= GRID) drawGrid(context, map);
  if (smaller >= VALUES) drawValues(context, map);
  drawGenerated(context, map);
  drawBlocked(context, map);
  drawPins(context, map);
  drawCross(context, map);
  context.restore();
  context.strokeStyle = style.line;
  context.lineWidth = 1;
  context.strokeRect(cols.low - 0.5, rows.low - 0.5, cols.span + 1, rows.span + 1);

  const found = marks.found ?? {};
  drawRows(context, what.rows, rows, cols.low, { cell: marks.row, pin: marks.pinRow, found: found.rows }, style);
  const marked = { cell: marks.col, pin: marks.pinCol, found: found.cols };
  drawColumns(context, what.cols, cols, rows.low, marked, style, map.level);
  const look = { font: fontOf(style), colour: style.faint, align: "right" };
  write(context, say("to →"), cols.low - 14, rows.low - 30, look);
  write(context, say("from ↓"), cols.low - 14, rows.low - 14, look);
}

function drawGrid(context, { rows, cols, style }) {
  context.fillStyle = style.paper;
  const [[row, pastRow], [col, pastCol]] = [rows.cells, cols.cells];
  for (let x = col + 1; x < pastCol; x++) context.fillRect(cols.place(x) - 0.5, rows.low, 1, rows.span);
  for (let y = row + 1; y < pastRow; y++) context.fillRect(cols.low, rows.place(y) - 0.5, cols.span, 1);
}

function drawValues(context, { rows, cols, plates, sink, style, threshold }) {
  const decimals = cols.z >= LONGER ? 3 : 2;
  const least = 0.5 / 10 ** decimals;
  context.font = fontOf(style, false, 11);
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.direction = "ltr";
  const [[row, pastRow], [col, pastCol]] = [rows.cells, cols.cells];
  for (let i = row; i < pastRow; i++) {
    for (let j = col; j < pastCol; j++) {
      const weight = j === sink ? undefined : plates.weight(i, j);
      if (!(Math.abs(weight) >= Math.max(least, threshold))) continue; // also masked or unknown
      context.fillStyle = css(...plates.colourOf(weight, i)).ink;
      const text = weight.toFixed(decimals).replace(/^(-?)0/, "$1").replace("-", "−");
      context.fillText(text, cols.place(j + 0.5), rows.place(i + 0.5) + 0.5);
    }
  }
}

// The line before the first generated token.
function drawGenerated(context, { rows, cols, style, what }) {
  context.fillStyle = style.accent;
  context.globalAlpha = 0.6;
  if (what.rows.generated) context.fillRect(cols.low, rows.place(what.rows.generated) - 0.5, cols.span, 1);
  if (what.cols.generated) context.fillRect(cols.place(what.cols.generated) - 0.5, rows.low, 1, rows.span);
  context.globalAlpha = 1;
}

// A cross over each blocked cell. It keeps a size that can be seen, however small the cell.
function drawBlocked(context, { rows, cols, style, marks: { blocked = [] } }) {
  for (const [row, col] of blocked) {
    const [x, y] = [cols.place(col + 0.5), rows.place(row + 0.5)];
    const reach = Math.max(4, Math.min(12, 0.3 * Math.min(rows.z, cols.z)));
    context.beginPath();
    for (const down of [reach, -reach]) {
      context.moveTo(x - reach, y - down);
      context.lineTo(x + reach, y + down);
    }
    for (const [width, colour] of [[5, style.paper], [2.5, style.error]]) {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.stroke();
    }
  }
}

// Lines along both sides of the pinned row and column; their colours do not change.
function drawPins(context, { rows, cols, style, marks }) {
  context.fillStyle = style.accent;
  if (marks.pinRow !== null) {
    for (const at of edges(rows)) context.fillRect(cols.low, rows.place(marks.pinRow) + at - 1, cols.span, 2);
  }
  if (marks.pinCol !== null) {
    for (const at of edges(cols)) context.fillRect(cols.place(marks.pinCol) + at - 1, rows.low, 2, rows.span);
  }
}

// The places of lines along a cell: on both sides of it, or through it if it is thin.
const edges = ({ z }) => (z < 6 ? [z / 2] : [0, z]);

// Lines along the current row and column, but not across the cell itself; and a frame around it.
function drawCross(context, { rows, cols, style, marks: { row, col } }) {
  const [x, y] = [col === null ? null : cols.place(col), row === null ? null : rows.place(row)];
  context.fillStyle = style.accent;
  context.globalAlpha = 0.5;
  if (x !== null) {
    const bottom = rows.low + rows.span;
    for (const at of edges(cols).map((edge) => x + edge - 0.5)) {
      context.fillRect(at, rows.low, 1, (y ?? bottom) - rows.low);
      if (y !== null) context.fillRect(at, y + rows.z, 1, Math.max(0, bottom - y - rows.z));
    }
  }
  if (y !== null) {
    const right = cols.low + cols.span;
    for (const at of edges(rows).map((edge) => y + edge - 0.5)) {
      context.fillRect(cols.low, at, (x ?? right) - cols.low, 1);
      if (x !== null) context.fillRect(x + cols.z, at, Math.max(0, right - x - cols.z), 1);
    }
  }
  context.globalAlpha = 1;
  if (x === null || y === null) return;
  const [width, height] = [Math.max(cols.z, 4), Math.max(rows.z, 4)]; // a frame even around a cell too small to see
  const [left, top] = [x + (cols.z - width) / 2, y + (rows.z - height) / 2];
  context.lineWidth = 2;
  for (const [wider, colour] of [[3, style.paper], [1, style.accent]]) {
    context.strokeStyle = colour;
    context.strokeRect(left - wider + 0.5, top - wider + 0.5, width + 2 * wider - 1, height + 2 * wider - 1);
  }
}
