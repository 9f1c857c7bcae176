// Labels, words and sentences of the tokens of a WordPiece vocabulary: the rules of headwise/text/labels.py and groups.py, where they are
// explained. `points` are the code points of a text, into which offsets point.

const LONGEST = 64; // the number of code points of a token that its label shows
const WHITE = "\\t-\\r\\x1c- \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"; // as Python has it
const PICTURES = { "\n": "⏎", "\r": "␍", "\t": "⇥" };
const SPACE = new RegExp(`(?<![^${WHITE}⏎␍⇥]) | (?![^${WHITE}⏎␍⇥])`, "gu");
const BY_ITSELF = /^[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{323af}\u3041-\u309f]/u;

export function labelsOf(points, { names, offsets, special }) {
  const characterAt = characters(points);
  const touched = offsets.map(([start, end], i) =>
    special[i] ? [] : [...new Set(characterAt.slice(start, Math.min(end, start + LONGEST)))],
  );
  const [sharing, seen] = [new Map(), new Map()];
  const count = (counts, span) => counts.set(span, (counts.get(span) ?? 0) + 1);
  for (const span of touched.flat()) count(sharing, span);
  return names.map((name, i) => {
    if (special[i]) return name;
    const [spans, [start, end]] = [touched[i], offsets[i]];
    for (const span of spans) count(seen, span);
    const part = (span) => (sharing.get(span) > 1 ? `(${seen.get(span)}/${sharing.get(span)})` : "");
    const written = spans.map((span) => visible(points, span) + part(span));
    const inked = (span) => /[^ \n\r\t]/.test(textOf(points, span));
    const first = spans.findIndex(inked);
    if (first < 0) return showSpaces(written.join(""));
    const marked = textOf(points, [spans[first][0], spans[first][0] + 2]) === "##";
    const before = /^##[^#]/.test(name) && seen.get(spans[first]) === 1 && !marked ? "##" : "";
    const after = end - start > LONGEST ? "…" : "";
    return showSpaces(before + written.slice(first, spans.findLastIndex(inked) + 1).join("") + after);
  });
}

// The text between each token and the token before it, and the text or label of each token.
export function piecesOf(points, { labels, offsets }) {
  let end = 0;
  const cut = offsets.map(([start, stop], i) => {
    const before = end;
    end = Math.max(end, stop);
    if (before <= start && start < stop) return [textOf(points, [before, start]), textOf(points, [start, stop])];
    if (stop <= before) return ["", labels[i]];
    return ["", labels[i].slice(0, labels[i].indexOf(")") + 1) + textOf(points, [before, stop])];
  });
  return { gaps: cut.map(([gap]) => gap), pieces: cut.map(([, piece]) => piece) };
}

// Which word each token is in, and the labels of the words.
export function wordsOf(points, all) {
  const { offsets, special, numbers } = all;
  const characterAt = characters(points);
  let word = -1;
  const index = offsets.map(([start], i) => {
    const isNew = () => begins(points, characterAt, offsets[i - 1][1], start, numbers[i] === numbers[i - 1]);
    return i === 0 || special[i] || special[i - 1] || isNew() ? ++word : word;
  });
  return grouped(points, all, index);
}

// Which sentence each token is in, and the labels of the sentences. A special token that is no mask ends a sentence.
export function sentencesOf(points, all, words) {
  const { labels, offsets, special } = all;
  const ends = sentenceEnds(points.join("")).map(([, end]) => end);
  let parts = 0;
  const numbers = words.labels.map((_, word) => {
    const first = words.index.indexOf(word);
    if (special[first]) parts += !/mask/i.test(labels[first]);
    return special[first] ? `special ${first}` : `${parts} ${ends.filter((end) => end <= offsets[first][0]).length}`;
  });
  const known = [...new Set(numbers)];
  return grouped(points, all, words.index.map((word) => known.indexOf(numbers[word])));
}

// The groups of tokens with the same number, and their labels.
function grouped(points, { labels, offsets, special }, index) {
  const spans = Array.from({ length: Math.max(...index) + 1 }, () => []);
  index.forEach((group, i) => spans[group].push(i));
  const labelOf = (span) => {
    if (special[span[0]]) return span.map((i) => labels[i]).join("");
    const text = textOf(points, [offsets[span[0]][0], Math.max(...span.map((i) => offsets[i][1]))]);
    const shown = [...text.split(new RegExp(`[${WHITE}]+`)).filter(Boolean).join(" ")];
    const printed = shown.every(isPrintable) ? shown : [...new Set(characters(shown))].map((each) => visible(shown, each));
    return printed.join("").replace(/^ +| +$/g, "");
  };
  return { index, labels: spans.map(labelOf) };
}

const MARK = `(?<mark>[.!?…]+)["'”’»)\\]]*(?=[${WHITE}]|$|${BY_ITSELF.source.slice(1)})[${WHITE}]*`;
const STOP = `[。！？｡．।॥؟۔][。！？｡．।॥؟۔!?…]*[”’」』）】》〉\\]"')]*[${WHITE}]*`;
const END = new RegExp(`${MARK}|${STOP}|\\n[${WHITE}]*`, "gu");
const NEVER_LAST = /^(mrs?|ms|dr|prof|st|mt|ft|rev|hon|gen|col|capt|lt|sgt|gov|sen|rep|pres|vs|cf|approx|al)$/i;
const BEFORE_NUMBERS = /^(nos?|figs?|eqs?|sec|ch|vol|pp|art|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)$/i;

// Where sentences end: [places in the string, places in its code points].
function sentenceEnds(text) {
  const cased = /[\p{Uppercase}\p{Lt}]/u.test(text) || !/\p{Lowercase}/u.test(text);
  const ends = [];
  for (const { 0: found, index, groups } of text.matchAll(END)) {
    const isEnd = groups.mark === undefined || isLast(text, ends.at(-1)?.[0] ?? 0, index, found, groups.mark, cased);
    if (isEnd) ends.push([index + found.length, [...text.slice(0, index + found.length)].length]);
  }
  return ends;
}

function isLast(text, start, at, found, mark, cased) {
  if (found.includes("\n")) return true;
  const [, next] = /^["'“‘«(\[]*(\S?)/u.exec(text.slice(at + found.length));
  if (cased && /^\p{Lowercase}/u.test(next)) return false;
  if (mark !== ".") return true;
  const word = /[\p{L}\p{N}]*$/u.exec(text.slice(start, at))[0];
  const isInitial = /^\p{L}$/u.test(word) && !BY_ITSELF.test(word);
  const isItem = /^\p{N}+$/u.test(word) && text.slice(start, at).trim() === word;
  return !(isInitial || isItem || (BEFORE_NUMBERS.test(word) && /^\p{N}/u.test(next)) || NEVER_LAST.test(word));
}

// Whether a token begins a word, at `start` after a token that ends at `end`. `same`: the tokenizer has both in one word.
function begins(points, characterAt, end, start, same) {
  const [last, first] = [characterAt[end - 1], characterAt[start]];
  if (last === first) return false;
  if (new RegExp(`[${WHITE}]`).test(textOf(points, [end, start]))) return true;
  const [a, b] = [kind(points[last[0]]), kind(points[first[0]])];
  const [isA, isB] = [a, b].map((each) => "LN".includes(each));
  if (isA && a === b) return false;
  if (!same || a === "H" || b === "H") return true;
  if (a === b) return /^[\p{Ps}\p{Pi}]/u.test(points[first[0]]); // an opening bracket or quote
  return !((isA && isB) || isInside(points, last[0]) || isInside(points, first[0]));
}

function isInside(points, at) {
  const [a, b] = [points[at - 1], points[at + 1]].map((each) => each && kind(each));
  const joining = { L: "'’._·", N: ".,_" }[a] ?? "";
  return a === b && joining.includes(points[at]);
}

function kind(point) {
  const kinds = { H: BY_ITSELF, L: /[\p{L}\p{M}]/u, N: /\p{N}/u, P: /\p{P}/u, S: /\p{S}/u, Z: /\p{Z}/u, C: /./su };
  return Object.keys(kinds).find((each) => kinds[each].test(point));
}

// For each code point the [start, end] of the character that it belongs to: the same array for all that are in one.
function characters(points) {
  const spans = [];
  let start = 0;
  for (let end = 1; end <= points.length; end++) {
    if (end < points.length && joins(points[start], points[end - 1], points[end], end - start)) continue;
    for (const span = [start, end]; start < end; start++) spans.push(span);
  }
  return spans;
}

function joins(first, last, following, length) {
  if (first in PICTURES) return false;
  if (/^[\p{M}\u200d\u{1f3fb}-\u{1f3ff}\u{e0020}-\u{e007f}]/u.test(following)) return true;
  if (last === "\u200d" && /^\p{So}/u.test(following)) return true;
  return length === 1 && /^[\u{1f1e6}-\u{1f1ff}]{2}/u.test(first + following); // two letters make a flag
}

const textOf = (points, [start, end]) => points.slice(start, end).join("");
const isPrintable = (point) => point === " " || !/[\p{C}\p{Z}]/u.test(point);
const showSpaces = (text) => text.replace(/[\n\r\t]/g, (each) => PICTURES[each]).replace(SPACE, "␣");

// A character, or a sign for one that cannot be seen.
function visible(points, [start, end]) {
  const text = textOf(points, [start, end]);
  if (end - start > 1 || isPrintable(text)) return text;
  return PICTURES[text] ?? `<U+${text.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`;
}
