// A model in the page: the native encoder, compiled to WebAssembly (headwise/native/wasm/page.cpp), with the weights that
// headwise/viewer/carried.py laid out. It draws nothing: a worker runs it, or node.

import { Refusal } from "./refusal.js";

const DTYPES = { float32: 0, int8: 3 }; // as in headwise.h
const STATISTICS = ["entropy", "distance", "previous", "first_visible", "keys_needed", "strongest"]; // as the facts call them

export class Encoder {
  // wasm: the bytes of encoder.wasm; facts, bytes: the results of carried.py.
  static async load(wasm, facts, bytes) {
    let made;
    try {
      made = await WebAssembly.instantiate(wasm);
    } catch ({ message: why }) {
      throw new Refusal("WebAssembly with SIMD is missing here ({why}).", { why });
    }
    return new Encoder(made.instance.exports, facts, bytes);
  }

  constructor(engine, facts, bytes) {
    Object.assign(this, { engine, facts });
    const at = engine.room(bytes.length);
    if (!at) throw new Refusal("There is no memory for the model.");
    new Uint8Array(engine.memory.buffer).set(bytes, at);
    const { dim, heads, hidden, activation, layers, words, positions, types } = facts;
    const sizes = [dim, heads, hidden, activation, layers, words, positions, types];
    const read = engine.load(at, DTYPES[facts.dtype], facts.strip, ...sizes, facts.scale);
    if (read !== bytes.length) throw new Refusal("The file is damaged: its model is not complete.");
  }

  // The hidden states [T, dim] of a text of T tokens. Of each layer: q and k [heads, T, dim / heads] as floats; of each
  // row [heads, T] the log-sum-exp `lse` and the statistics `rows`; the statistics of each head, `stats`. `gates` [layers * heads]: factors on what each head attended to; 0 = off, null = all are on.
  run(ids, gates = null) {
    const { engine } = this;
    const { dim, heads, layers, positions } = this.facts;
    const tokens = ids.length;
    if (tokens < 1 || tokens > positions) throw new Error(`The model reads 1 to ${positions} tokens. Received: ${tokens}.`);
    const at = this.found(engine.begin(tokens));
    this.view(Int32Array, at, tokens).set(ids);
    this.view(Float32Array, at + Math.ceil(tokens / 4) * 16, layers * heads).set(gates ?? Array(layers * heads).fill(1));
    const code = engine.run();
    if (code) throw new Error(`The encoder refuses ${tokens} tokens: ${this.text(engine.error(code))}.`);
    const hidden = this.view(Float32Array, engine.hidden(), tokens * dim).slice();
    return { hidden, layers: Array.from({ length: layers }, (_, layer) => this.layer(layer, tokens)) };
  }

  layer(number, tokens) {
    const { dim, heads } = this.facts;
    const [vectors, ofRows] = [tokens * dim, heads * tokens];
    const all = this.view(Float32Array, this.found(this.engine.look(number)), 2 * vectors + 7 * ofRows).slice();
    const [q, k] = [0, 1].map((part) => all.subarray(part * vectors, (part + 1) * vectors));
    const part = (i) => all.subarray(2 * vectors + i * ofRows, 2 * vectors + (i + 1) * ofRows);
    const rows = Object.fromEntries(STATISTICS.map((name, i) => [name, part(i)]));
    const keys = part(STATISTICS.length);
    return { q, k, lse: this.lse(q, k, rows.strongest, keys), rows, stats: statsOf(rows, heads, tokens) };
  }

  // From the largest weight of each row and its score: large scores have too few digits in float32.
  lse(q, k, weights, keys) {
    const { dim, heads, scale } = this.facts;
    const [depth, tokens] = [dim / heads, weights.length / heads];
    return new Float64Array(weights.length).map((_, i) => {
      const key = (i - (i % tokens) + keys[i]) * depth;
      let score = 0;
      for (let d = 0; d < depth; d++) score += q[i * depth + d] * k[key + d];
      return scale * score - Math.log(weights[i]);
    });
  }

  view(Kind, at, length) {
    return new Kind(this.engine.memory.buffer, at, length);
  }

  found(address) {
    if (!address) throw new Refusal("There is no memory for a text of this length.");
    return address;
  }

  text(at) {
    const bytes = new Uint8Array(this.engine.memory.buffer, at);
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
  }
}

// A number for each head, as the columns of headwise/records/statistics have it: the mean over the rows (of the weight on
// the token before: over those that have one), or the largest.
function statsOf(rows, heads, tokens) {
  const of = (name, head, first) => rows[name].subarray(head * tokens + first, (head + 1) * tokens);
  const number = (name, head) => {
    if (name === "strongest") return Math.max(...of(name, head, 0));
    const some = of(name, head, name === "previous" ? 1 : 0);
    return some.length ? some.reduce((sum, x) => sum + x, 0) / some.length : null;
  };
  const ofHeads = (name) => Array.from({ length: heads }, (_, head) => number(name, head));
  return Object.fromEntries(Object.keys(rows).map((name) => [name, ofHeads(name)]));
}
