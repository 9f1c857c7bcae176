// Titles and notes of a saved picture, on as many lines as they need, so that none is cut.

import { fontOf, lettersOf, write } from "./labels.js";

const UNSPACED = "\\p{sc=Han}\\p{sc=Hira}\\p{sc=Kana}"; // a line may end behind these letters, except before a sign
const PIECES = new RegExp(`\\s*(?:[${UNSPACED}]\\p{P}*|[^\\s${UNSPACED}]+)`, "gu");

// A text in a picture of this width: its height, and a function that draws it at a place.
export const titleOf = (text, width, style) => setIn(text, width, { font: fontOf(style, true, 14), colour: style.ink, line: 20, below: 10 });
export const noteOf = (text, width, style) => setIn(text, width, { font: fontOf(style, false, 11), colour: style.faint, line: 16, below: 2 });

function setIn(text, width, { font, colour, line, below }) {
  const measuring = document.createElement("canvas").getContext("2d");
  measuring.font = font;
  const lines = linesOf(measuring, text.match(PIECES) ?? [], width);
  const draw = (context, x = 0, y = 0) => {
    lines.forEach((each, i) => write(context, each, x, y + line * (i + 0.5), { font, colour }));
  };
  return { height: lines.length && line * lines.length + below, draw };
}

// Pieces of a text, each with the space before it, as lines of `width` pixels in the font of the context. A piece that is
// longer than a line is cut between letters.
export function linesOf(context, pieces, width) {
  const fits = (text) => context.measureText(text).width <= width;
  const lines = [];
  for (const piece of pieces.flatMap((each) => (fits(each.trim()) ? [each] : lettersOf(each)))) {
    if (lines.length && fits(`${lines.at(-1)}${piece}`)) lines.push(`${lines.pop()}${piece}`);
    else lines.push(piece.trimStart());
  }
  return lines;
}
