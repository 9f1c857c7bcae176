// An axis as running text: one span per token, in paragraphs, with colours, pointer and keys.
//
// For a screen reader it is a list with one selected token; for the Tab key it is one stop.

import { along, css } from "../../map/colour.js";
import { element } from "../../shell/element.js";
import { say } from "../../words.js";

// A longer paragraph is cut at the next sentence, with a sign, so that the browser can skip hidden parts.
const PART = 2000;
const STEPS = 64; // of the colours of a text
const LEAST = 0.02; // weights below this place on the scale are not coloured
const PLAIN = -1;
const MASKED = -2;
const SUNK = -3;

// For each weight its index in the palette, or PLAIN, MASKED, SUNK. sunk: the index hidden as a sink; threshold: smaller
// weights are not coloured.
export function codesOf(weights, top, scale, sunk = null, threshold = 0) {
  return Int16Array.from(weights, (weight, place) => {
    if (place === sunk) return SUNK;
    if (Number.isNaN(weight)) return MASKED;
    const t = along(weight, top, scale);
    return t < LEAST || weight < threshold ? PLAIN : Math.round(t * (STEPS - 1));
  });
}

export function paletteOf({ table }) {
  return Array.from({ length: STEPS }, (_, step) => css(step / (STEPS - 1), 1, "linear", table));
}

const TOKEN = element("span", { className: "token", role: "option" });
const GAP = element("span", { className: "gap" });

export class RunningText {
  // on: { point(token), pin(token), pointing(act) }: the first two are called for pointer and keys; calls for the
  // pointer are made inside the third.
  constructor(axis, name, on) {
    this.axis = axis;
    this.spans = [];
    this.gaps = []; // the spaces between two tokens of a paragraph: coloured if both are in one group
    this.element = element("div", { className: "running", role: "listbox", ariaLabel: name, tabIndex: 0 });
    this.build();
    this.codes = new Int16Array(axis.length).fill(PLAIN);
    this.marked = { asked: [], probe: [] };
    this.listen(on);
  }

  // ---- the text

  build() {
    const { axis } = this;
    let paragraph = null;
    let count = 0;
    let sentence = null;
    const begin = () => {
      paragraph = element("div", { className: "paragraph", role: "group", dir: "auto" });
      this.element.append(paragraph);
      count = 0;
    };
    const breakLines = (lines) => {
      for (let i = 1; i < lines; i++) this.element.append(element("div", { className: "empty", ariaHidden: "true" }));
      if (lines) paragraph = null;
    };
    for (let token = 0; token < axis.length; token++) {
      const { before, lines, text, after } = this.pieceOf(token);
      breakLines(this.element.childElementCount ? lines : 0);
      if (token === axis.generated) {
        this.element.append(element("div", { className: "generated", ariaHidden: "true", textContent: say("generated") }));
        paragraph = null;
      }
      const begins = axis.sentences.index[token] !== sentence;
      sentence = axis.sentences.index[token];
      const cut = count >= PART && (begins || count >= 2 * PART);
      if (cut) paragraph = null;
      if (!paragraph) begin();
      paragraph.classList.toggle("continued", cut || paragraph.matches(".continued"));
      let gap = null;
      if (before && (count || (axis.text && !cut))) {
        gap = GAP.cloneNode();
        gap.textContent = before;
        paragraph.append(gap);
      }
      const span = TOKEN.cloneNode();
      span.textContent = text;
      span.token = token;
      if (axis.special[token] || !axis.text) span.classList.add("chip");
      if (axis.special[token]) span.dir = "ltr"; // a special token must not change the direction of the paragraph
      if (axis.unknown[token]) {
        span.classList.add("unknown");
        span.title = say("not in the vocabulary: the model reads [UNK]");
      }
      if (axis.generated !== null && token >= axis.generated) span.classList.add("own");
      paragraph.append(span);
      this.spans.push(span);
      if (!(axis.pieces?.[token] ?? text).trim()) paragraph.append(document.createElement("wbr")); // behind a space that is a sign
      this.gaps.push(gap);
      count++;
      breakLines(after);
    }
    if (axis.cut) {
      const textContent = say("… {n} more tokens did not fit into the model", { n: axis.cut });
      this.element.append(element("div", { className: "cut", ariaHidden: "true", textContent }));
    }
  }

  // The text of a token, the white space before it, and the numbers of line ends before and after it.
  pieceOf(token) {
    const { gaps, pieces, labels, text } = this.axis;
    if (!text) return { before: " ", lines: 0, text: labels[token], after: 0 };
    const inked = pieces[token].trim();
    const lead = inked ? pieces[token].slice(0, pieces[token].indexOf(inked)) : "";
    const rest = pieces[token].slice(lead.length + inked.length);
    const [before, after] = [gaps[token] + lead, rest];
    const newlines = (space) => space.split("\n").length - 1;
    const drawn = inked || labels[token]; // the label of a white space token is a visible sign
    const indent = before.slice(before.lastIndexOf("\n") + 1);
    return { before: indent, lines: newlines(before), text: drawn, after: newlines(after) };
  }

  // ---- colours

  // codes: of each group, from codesOf; null = no colours. groups: from groupsOf.
  paint(codes, palette, groups) {
    const anew = palette !== this.palette;
    this.element.classList.toggle("grouped", groups.level !== "tokens");
    [this.palette, this.groups] = [palette, groups];
    this.spans.forEach((span, token) => {
      const code = codes ? codes[groups.of[token]] : PLAIN;
      if (code !== this.codes[token] || (anew && code >= 0)) this.colour(span, code);
      this.codes[token] = code;
      const gap = this.gaps[token];
      if (!gap) return;
      const within = groups.of[token] === groups.of[token - 1] ? code : PLAIN;
      if (within !== (gap.code ?? PLAIN) || (anew && within >= 0)) this.colour(gap, within);
      gap.code = within;
    });
  }

  colour(span, code) {
    span.style.backgroundColor = code >= 0 ? this.palette[code].fill : "";
    span.style.color = code >= 0 ? this.palette[code].ink : "";
    span.classList.toggle("masked", code === MASKED);
    span.classList.toggle("sunk", code === SUNK);
  }

  // Frame the asked token ("asked") or the probe ("probe"), with its whole group; null = none.
  mark(kind, token, groups) {
    for (const span of this.marked[kind]) span.classList.remove(kind, `${kind}-first`, `${kind}-last`);
    this.marked[kind] = [];
    if (kind === "asked") this.element.querySelector("[aria-selected]")?.removeAttribute("aria-selected");
    if (token === null) return;
    for (const [first, past] of groups.runs(groups.of[token])) {
      for (let i = first; i < past; i++) {
        if (i > first && this.gaps[i]) this.marked[kind].push(this.gaps[i]);
        this.marked[kind].push(this.spans[i]);
      }
      this.spans[first].classList.add(`${kind}-first`);
      this.spans[past - 1].classList.add(`${kind}-last`);
    }
    for (const span of this.marked[kind]) span.classList.add(kind);
    if (kind === "asked") this.spans[token].ariaSelected = "true";
  }

  // Mark the matches of a search: a set of tokens, or nothing.
  find(tokens) {
    if (tokens === this.found) return;
    this.found = tokens;
    for (const span of this.element.querySelectorAll(".found")) span.classList.remove("found");
    for (const token of tokens ?? []) this.spans[token].classList.add("found");
  }

  // The token of the keyboard cursor, null = none.
  moveTo(token) {
    if (token === this.at) return;
    this.element.querySelector("[id]")?.removeAttribute("id");
    this.at = token;
    if (token === null) return this.element.removeAttribute("aria-activedescendant");
    this.spans[token].id = `token-${this.number}-${token}`;
    this.element.setAttribute("aria-activedescendant", this.spans[token].id);
  }

  reveal() {
    if (this.at !== null) this.spans[this.at].scrollIntoView({ block: "nearest", container: "nearest" });
  }

  // ---- actions of the reader

  listen({ point, pin, pointing }) {
    this.number = count++;
    this.at = null;
    const tokenAt = (event) => event.target.token;
    let last = null;
    this.element.addEventListener("pointermove", (event) => {
      const token = tokenAt(event);
      if (token !== undefined && token !== last) pointing(() => point(token));
      last = token;
    });
    this.element.addEventListener("pointerleave", () => (last = null));
    this.element.addEventListener("click", (event) => {
      const token = tokenAt(event);
      if (token !== undefined) pointing(() => pin(token));
    });
    this.element.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || this.reached(event.key) === undefined) return;
      this.step(event.key);
      event.preventDefault();
      event.stopPropagation();
    });
    this.step = (key) => point(this.reached(key));
  }

  // The next token for a key, undefined for other keys.
  reached(key) {
    const end = this.spans.length - 1;
    if (key === "Home") return 0;
    if (key === "End") return end;
    if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(key)) return undefined;
    if (this.at === null) return 0;
    if (key === "ArrowUp" || key === "ArrowDown") return this.beside(key === "ArrowUp" ? -1 : 1);
    const leftward = getComputedStyle(this.spans[this.at].parentNode).direction === "rtl";
    const by = (key === "ArrowRight") === leftward ? -1 : 1;
    return Math.max(0, Math.min(end, this.at + by));
  }

  // The token above or below.
  beside(by) {
    const middle = (span) => {
      const { left, right, top, bottom } = span.getBoundingClientRect();
      return { x: (left + right) / 2, y: (top + bottom) / 2, height: bottom - top };
    };
    const here = middle(this.spans[this.at]);
    let found = this.at;
    let best = Infinity;
    let line = null;
    for (let token = this.at + by; this.spans[token]; token += by) {
      const there = middle(this.spans[token]);
      if (by * (there.y - here.y) < here.height / 2) continue; // on the same line
      line ??= there.y;
      if (Math.abs(there.y - line) > here.height / 2) break; // a line too far
      if (Math.abs(there.x - here.x) < best) [found, best] = [token, Math.abs(there.x - here.x)];
    }
    return found;
  }
}

let count = 0; // of texts, for unique ids of tokens
