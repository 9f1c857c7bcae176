// A text as the model's tokenizer in Python reads it, from what headwise/viewer/carried_tokenizer.py describes. Words are found
// and cut by @huggingface/tokenizers 0.2.0, © Hugging Face, Apache License 2.0. It returns no offsets, and its Unicode is that of
// the browser: so each character is normalised alone, and Python's tables come first.

import { Refusal } from "./refusal.js";
import { labelsOf, piecesOf, sentencesOf, wordsOf } from "./tokens.js";
import { Tokenizer as Library } from "./tokenizers.min.mjs";

const HAN = /[\u{20000}-\u{2a6df}\u{2a700}-\u{2b81f}\u{2b920}-\u{2ceaf}\u{2f800}-\u{2fa1f}]/u; // those that the library forgets
const PRIVATE = 0xf0000; // two planes of characters that are always left out: so others may stand here

export class Tokenizer {
  // Throws an Error if this browser reads one of the probes otherwise than Python did.
  constructor({ settings, signs, names, removed, alone, probes, checksum }) {
    this.signs = signs; // whether special tokens in a text are read as such
    const { model } = (this.library = new Library({ ...settings, model: { ...settings.model, vocab: {} } }, {}));
    const [normal, known] = [(character) => this.normalise(character, removed, alone), new Map()];
    this.normal = (character) => known.get(character) ?? known.set(character, normal(character)).get(character);
    names.forEach((name, id) => model.tokens_to_ids.set([...name].map((each) => this.standIn(each)).join(""), id));
    this.unknown = model.tokens_to_ids.get(settings.model.unk_token);
    let sum = 0;
    for (const text of [names.join(" "), ...probes]) {
      const numbers = [...Array.from(text, (each) => each.codePointAt(0)), ...this.tokens(text).ids];
      for (const number of numbers) sum = (Math.imul(31, sum) + number) >>> 0;
    }
    if (sum === checksum) return;
    throw new Refusal("This browser divides texts into tokens differently from Python ({why}): try another one.", { why: `${sum}, ${checksum}` });
  }

  // The ids of a text's tokens, of its beginning if there are more than `longest`, and its axis of the page
  // (headwise/viewer/facts.py).
  read(text, longest) {
    const { points, tail, ...all } = this.tokens(text);
    all.labels = labelsOf(points, all);
    const cut = Math.max(0, all.ids.length - longest);
    const fitted = (list) => list.filter((_, i) => i < longest - tail || i >= list.length - tail || !cut);
    const fit = Object.fromEntries(Object.entries(all).map(([name, list]) => [name, fitted(list)]));
    const { ids, offsets, labels, special } = fit;
    const unknown = ids.map((id) => id === this.unknown);
    const groups = { words: wordsOf(points, fit), sentences: sentencesOf(points, fit) };
    const plain = { text: text !== "", seconds: null, generated: null, patches: null, image: null, imageNote: null };
    return { ids, offsets, axis: { labels, ...piecesOf(points, fit), special, unknown, ...groups, cut, ...plain } };
  }

  // Offsets count code points, as in Python. `tail`: the special tokens after the text.
  tokens(text) {
    const { added_tokens_map: added, all_special_ids: signs, model, post_processor, splitter_unnormalized } = this.library;
    const [points, found] = [[...text], []];
    let at = 0;
    for (const section of this.signs ? splitter_unnormalized.split(text) : [text]) {
      const end = at + [...section].length;
      const words = this.signs && added.has(section) ? [[{ name: section, offset: [at, end] }]] : this.words(points, at, end);
      for (const pieces of words) found.push(...pieces);
      at = end;
    }
    const { tokens } = post_processor(Object.keys(found).map(Number), null, true);
    const all = tokens.map((each) => found[each] ?? { name: each, offset: [0, 0] });
    const ids = all.map(({ name }) => model.tokens_to_ids.get(name));
    const special = ids.map((id) => id !== this.unknown && signs.includes(id));
    const tail = tokens.length - 1 - tokens.findLastIndex((each) => each in found);
    const [names, offsets] = ["name", "offset"].map((key) => all.map((each) => each[key]));
    return { points, names, ids, offsets, special, tail };
  }

  // The pieces of each word of points[start:end].
  *words(points, start, end) {
    const [letters, origins] = [[], []];
    for (let i = start; i < end; i++) for (const letter of this.normal(points[i])) letters.push(letter) && origins.push(i);
    let at = 0;
    for (const word of this.library.pre_tokenizer(letters.join(""))) {
      while (!word.startsWith(letters[at])) at++; // a space
      const [pieces, past] = [this.library.model([word]), at + [...word].length];
      yield pieces.map((name, i) => {
        const first = at;
        at = pieces.length === 1 ? past : at + [...name].length - (i ? "##".length : 0);
        return { name, offset: [origins[first], origins[at - 1] + 1] };
      });
    }
  }

  // What is read in place of a character. Those that are newer than Python's tables are letters: others stand for them.
  normalise(character, removed, alone) {
    const code = character.codePointAt(0);
    if (isIn(removed, code)) return "";
    const normal = this.library.normalizer(character);
    if (isIn(alone, code) || HAN.test(character)) return ` ${normal || character} `;
    const isLetter = normal !== "" && this.library.pre_tokenizer(`a${normal}a`).length === 1;
    return isLetter || normal.startsWith(" ") ? normal : elsewhere(code);
  }

  standIn(character) {
    const other = elsewhere(character.codePointAt(0));
    return this.normal(character) === other ? other : character;
  }
}

const elsewhere = (code) => String.fromCodePoint(PRIVATE + (code % 0x20000));
const isIn = (bounds, code) => bounds.findLastIndex((bound) => bound <= code) % 2 === 0; // [first, end, first, end, …]
