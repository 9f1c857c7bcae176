// Token labels along the sides of a map: as many as fit, upright if their script is, and always the marked ones. Draws
// on any 2d context, including the one that writes SVG.
//
// axis: labels, and if known special, unknown, generated. side: see viewport.js. edge: the start of the map, in
// pixels. marks: { cell, pin: tokens or null, found: Set of tokens or null }.

const LINE = 12; // pixels of a label's line
const GAP = 8; // between labels and map
const WIDEST = 150; // maximum pixels of a label
const SPACE = 3; // minimum pixels between labels
const MEASURED = 400;
const FEW = 50; // up to this many labels all get the room they need

// Characters that are never rotated, and letters of right-to-left scripts.
const UPRIGHT =
  /[\p{sc=Han}\p{sc=Hira}\p{sc=Kana}\p{sc=Hang}\p{sc=Bopo}\p{Extended_Pictographic}\p{RI}\u3000-\u303f\uff00-\uffef]/u;
const RIGHT_TO_LEFT =
  /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/u;
const GRAPHEMES = new Intl.Segmenter(undefined, { granularity: "grapheme" });

export function drawRows(context, axis, side, edge, marks, style) {
  for (const i of drawn(side, marks)) {
    const pen = penFor(context, axis, i, marks, style);
    pen(shorten(context, axis.labels[i], edge - GAP - 4), edge - GAP, side.place(i + 0.5), "right");
  }
  for (const [from, past] of generated(axis, side)) {
    context.fillStyle = style.accent;
    context.fillRect(edge - 5, from, 2, past - from);
  }
}

// level: the pixels of a label if labels are horizontal; 0 = they are rotated.
export function drawColumns(context, axis, side, edge, marks, style, level) {
  const [room, foot] = [edge - GAP - 4, edge - GAP];
  for (const i of drawn(side, marks, level || LINE)) {
    const pen = penFor(context, axis, i, marks, style);
    const [label, at] = [axis.labels[i], side.place(i + 0.5)];
    if (level) pen(shorten(context, label, Math.max(side.z, level)), at, foot - LINE / 2, "center");
    else if (UPRIGHT.test(label) || lettersOf(label).length === 1) drawStacked(context, label, at, foot, room, pen);
    else turned(context, at, foot, -1, () => pen(shorten(context, label, room), 0, 0, "left"));
  }
  for (const [from, past] of generated(axis, side)) {
    context.fillStyle = style.accent;
    context.fillRect(from, edge - 5, past - from, 2);
  }
}

// Pixels that the labels of an axis take, [horizontal, rotated]. In a long text the longest labels are cut; at most
// MEASURED labels are measured.
export function widthsOf(context, { labels, numbers }, style) {
  context.font = fontOf(style, true);
  const each = Math.ceil(labels.length / MEASURED);
  // The last of very many numbers is the longest, and must not be cut.
  const some = numbers ? labels.slice(-1) : labels.filter((_, i) => i % each === 0);
  const most = (measure) => {
    const widths = some.map(measure).sort((a, b) => a - b);
    return Math.min(WIDEST, Math.ceil(widths[Math.ceil(widths.length * (widths.length > FEW ? 0.95 : 1)) - 1]));
  };
  const height = (label) => stackOf(context, label).reduce((sum, part) => sum + part.height, 0);
  return [
    most((label) => context.measureText(label).width),
    most((label) => (UPRIGHT.test(label) ? height(label) : context.measureText(label).width)),
  ];
}

// Pixels beside the map for labels of this width.
export const gutterFor = (width, room) => Math.ceil(Math.max(44, Math.min(width, 0.26 * room))) + GAP + 6;

export const fontOf = (style, bold = false, size = LINE) => `${bold ? 700 : 400} ${size}px ${style.font}`;

// Draw a line of text that is not a label.
export function write(context, text, x, y, { font, colour, align = "left" }) {
  Object.assign(context, { font, fillStyle: colour, textAlign: align, textBaseline: "middle", direction: "ltr" });
  context.fillText(text, x, y);
}

// ---- the selection of labels

// size: pixels of a label along the side of the map.
function drawn(side, { cell, pin }, size = LINE) {
  const [first, past] = side.cells;
  const every = stepOf(side, size);
  const middle = side.low + side.room / 2;
  const inSight = (i) => i >= first && i < past && Math.abs(side.place(i + 0.5) - middle) <= side.room / 2 + 1;
  const apart = (i, others) => others.every((j) => Math.abs(i - j) * side.z >= size + 1);
  const marked = [];
  for (const i of [cell, pin]) if (i !== null && inSight(i) && apart(i, marked)) marked.push(i);
  const others = [];
  for (let i = Math.ceil(first / every) * every; i < past; i += every) {
    if (inSight(i) && apart(i, marked)) others.push(i);
  }
  return [...others, ...marked];
}

// One label in how many has room. size: pixels of a label along the side of the map.
export const stepOf = (side, size = LINE) => roundStep((size + SPACE) / side.z);

// The smallest of 1, 2, 5, 10, 20 … that is at least this number.
function roundStep(least) {
  const ten = 10 ** Math.max(0, Math.floor(Math.log10(least)));
  return [1, 2, 5, 10].map((step) => step * ten).find((step) => step >= least);
}

// The visible range of generated tokens: none or one, [from, past] in pixels.
function generated({ generated: first }, side) {
  if (first === null || first === undefined) return [];
  const [from, past] = [Math.max(side.low, side.place(first)), side.low + side.span];
  return from < past ? [[from, past]] : [];
}

// ---- one label

// A function that draws the label of token i, or a part of it, in the style of this token.
function penFor(context, { special, unknown }, i, { cell, pin, found }, style) {
  const [isCell, isPin, isFound] = [i === cell, i === pin, Boolean(found?.has(i))];
  context.font = fontOf(style, isCell || isPin || isFound);
  context.textBaseline = "middle";
  return (text, x, y, align) => {
    const width = context.measureText(text).width;
    const left = x - { left: 0, center: width / 2, right: width }[align];
    if (isPin) {
      context.fillStyle = style.accent;
      context.fillRect(left - 3, y - LINE / 2 - 1, width + 6, LINE + 2);
    }
    context.fillStyle = isPin ? style.paper : isCell || isFound ? style.accent : special?.[i] ? style.faint : style.ink;
    context.textAlign = align;
    context.direction = readsLeftwards(text) ? "rtl" : "ltr";
    context.fillText(text, x, y);
    if (isFound) context.fillRect(left, y + LINE / 2, width, 1);
    else if (unknown?.[i]) {
      for (let dot = left; dot < left + width; dot += 3) context.fillRect(dot, y + LINE / 2, 1.5, 1.5);
    }
  };
}

function readsLeftwards(text) {
  const letter = /\p{L}/u.exec(text);
  return Boolean(letter && RIGHT_TO_LEFT.test(letter[0]));
}

export const lettersOf = (text) => Array.from(GRAPHEMES.segment(text), ({ segment }) => segment);

// The label, cut with an ellipsis if it is wider than `room` pixels in the font of the context.
export function shorten(context, label, room) {
  if (context.measureText(label).width <= room) return label;
  const letters = lettersOf(label).slice(0, Math.ceil(room));
  while (letters.length > 1 && context.measureText(`${letters.join("")}…`).width > room) letters.pop();
  return `${letters.join("")}…`;
}

function turned(context, x, y, quarters, draw) {
  context.save();
  context.translate(x, y);
  context.rotate((quarters * Math.PI) / 2);
  draw();
  context.restore();
}

// From top to bottom, down to `foot`: upright letters, and the text between them rotated as in vertical writing.
function drawStacked(context, label, x, foot, room, pen) {
  const parts = stackOf(context, label);
  const total = () => parts.reduce((sum, part) => sum + part.height, 0);
  if (total() > room) {
    while (parts.length > 1 && total() > room - LINE) parts.pop();
    parts.push({ text: "…", upright: false, height: LINE });
  }
  let y = foot - total();
  for (const { text, upright, height } of parts) {
    if (upright) pen(text, x, y + height / 2, "center");
    else turned(context, x, y + height / 2, 1, () => pen(text, 0, 0, "center"));
    y += height;
  }
}

function stackOf(context, label) {
  const letters = lettersOf(label);
  if (letters.length === 1) return [{ text: label, upright: true, height: LINE + 1 }];
  const parts = [];
  for (const text of letters) {
    const upright = UPRIGHT.test(text);
    const last = parts.at(-1);
    if (!upright && last && !last.upright) last.text += text;
    else parts.push({ text, upright });
  }
  for (const part of parts) part.height = part.upright ? LINE + 1 : context.measureText(part.text).width + 1;
  return parts;
}
