// Labels, words and sentences of the tokens of a WordPiece vocabulary, for a text that a reader types: those of headwise/text,
// but for characters of several code points, rare marks and abbreviations. `points` are the code points of the text, into which
// offsets point.

const LONGEST = 64; // the number of code points of a token that its label shows
const HAN = "\\u3005-\\u3007\\u3400-\\u4dbf\\u4e00-\\u9fff\\uf900-\\ufaff\\u{20000}-\\u{323af}\\u3041-\\u309f"; // words by themselves
const WORD = new RegExp(`(?:(?![${HAN}])[\\p{L}\\p{M}\\p{N}])+|\\S`, "gu"); // BERT has don ' t

export function labelsOf(points, { names, offsets, special }) {
  return names.map((name, i) => {
    if (special[i]) return name;
    const [start, end] = offsets[i];
    const shown = textOf(points, [start, Math.min(end, start + LONGEST)]).replace(/\p{C}/gu, "");
    return `${/^##[^#]/.test(name) && start ? "##" : ""}${shown}${end - start > LONGEST ? "…" : ""}`;
  });
}

// The text between each token and the token before it, and the text or label of each token.
export function piecesOf(points, { labels, offsets }) {
  let end = 0;
  const cut = offsets.map(([start, stop], i) => {
    const before = end;
    end = Math.max(end, stop);
    return before <= start && start < stop ? [textOf(points, [before, start]), textOf(points, [start, stop])] : ["", labels[i]];
  });
  return { gaps: cut.map(([gap]) => gap), pieces: cut.map(([, piece]) => piece) };
}

export const wordsOf = (points, all) => grouped(points, all, points.join("").matchAll(WORD));

export function sentencesOf(points, all) {
  return grouped(points, all, new Intl.Segmenter(undefined, { granularity: "sentence" }).segment(points.join("")));
}

// Which part of the text each token is in, and the labels of those parts; a special token is a group by itself. `parts`: with an
// `index` in the string, ascending.
function grouped(points, { labels, offsets, special }, parts) {
  const starts = new Set(Array.from(parts, ({ index }) => index));
  const begins = []; // for each code point the number of the part
  let [at, part] = [0, 0];
  for (const point of points) {
    part += starts.has(at);
    begins.push(part);
    at += point.length;
  }
  const spans = [];
  let last = null;
  const index = offsets.map(([start], i) => {
    const now = special[i] ? `special ${i}` : begins[start];
    if (now !== last) spans.push([]);
    last = now;
    return spans.at(-1).push(i) && spans.length - 1;
  });
  const labelOf = (span) => {
    if (special[span[0]]) return labels[span[0]];
    const text = textOf(points, [offsets[span[0]][0], offsets[span.at(-1)][1]]);
    return text.split(/\s+/).filter(Boolean).join(" ").replace(/\p{C}/gu, "");
  };
  return { index, labels: spans.map(labelOf) };
}

const textOf = (points, [start, end]) => points.slice(start, end).join("");
