// The joint axis of two texts: entries, each a token of the left text, of the right one, or of both (see align.js).
// Places on it are counted in entries, places on the left text's own axis in tokens.

import { align } from "./align.js";
import { say } from "../../words.js";

export class Union {
  // one, other: the axes of left and right; byPosition: as for `align`.
  constructor(one, other, byPosition = false) {
    Object.assign(this, { one, other, byPosition, ...align(one.labels, other.labels, { byPosition }) }); // length, left, right, same, plain, whole
    this.own = new Int32Array(one.length); // the entry of each token of the left text
    this.left.forEach((token, entry) => token >= 0 && (this.own[token] = entry));
    const of = (labels, token) => (token < 0 ? "·" : labels[token]);
    this.axes = {
      left: this.axis((entry) => of(one.labels, this.left[entry])),
      right: this.axis((entry) => of(other.labels, this.right[entry])),
      both: this.axis((entry) => this.labelAt(entry)),
    };
  }

  // The axis for a HeatMap.
  axis(labelOf) {
    const { left, right, one, other, length } = this;
    const each = (give) => Array.from({ length }, (_, entry) => give(entry));
    const is = (field, entry) => (left[entry] < 0 ? other[field][right[entry]] : one[field][left[entry]]);
    const mark = (field) => each((entry) => Boolean(is(field, entry)));
    const generated = one.generated === null ? null : this.own[one.generated];
    return { labels: each(labelOf), length, special: mark("special"), unknown: mark("unknown"), generated };
  }

  // "street | road" if different tokens share an entry; ◂ only left, ▸ only right.
  labelAt(entry) {
    const [token, match] = [this.left[entry], this.right[entry]];
    if (match < 0) return `◂ ${this.one.labels[token]}`;
    if (token < 0) return `▸ ${this.other.labels[match]}`;
    return this.one.labels[token] === this.other.labels[match] ? this.one.labels[token] : `${this.one.labels[token]} | ${this.other.labels[match]}`;
  }

  tokenAt(entry) {
    return entry === null || this.left[entry] < 0 ? null : this.left[entry];
  }

  entryOf(token) {
    return token === null ? null : this.own[token];
  }

  // The same conversion for real numbers, places between entries.
  tokenPlace(at) {
    const entry = Math.floor(at);
    let before = 0;
    for (let u = 0; u < Math.min(entry, this.length); u++) before += this.left[u] >= 0;
    return before + (this.left[entry] >= 0 ? at - entry : 0);
  }

  entryPlace(at) {
    const token = Math.floor(at);
    return token >= this.own.length ? this.length : this.own[token] + at - token;
  }

  // The alignment as a sentence. `marked`: with the signs of `labelAt`, if the labels have them.
  told(marked = true) {
    const { left, right, same, length } = this;
    const count = (test) => left.reduce((sum, _, entry) => sum + (test(entry) ? 1 : 0), 0);
    if (this.byPosition) {
      const differ = count((entry) => this.one.labels[entry] !== this.other.labels[entry]);
      return say("By position: {n} of {count} tokens differ.", { n: differ, count: length });
    }
    const common = count((entry) => same[entry]);
    if (common === length) return say("The same {n} tokens on both sides.", { n: length });
    const parts = [common === 1 ? say("1 token in common") : say("{n} tokens in common", { n: common })];
    const found = [
      [count((entry) => !same[entry] && left[entry] >= 0 && right[entry] >= 0), marked ? "{n} replaced (one | other)" : "{n} replaced"],
      [count((entry) => right[entry] < 0), marked ? "{n} only left (◂)" : "{n} only left"],
      [count((entry) => left[entry] < 0), marked ? "{n} only right (▸)" : "{n} only right"],
    ];
    for (const [number, how] of found) if (number) parts.push(say(how, { n: number }));
    const told = say("{parts}.", { parts: parts.join(say(", ")) });
    if (this.whole) return told;
    return `${told} ${say("The texts are too long: only the common beginning and end are aligned.")}`;
  }
}
