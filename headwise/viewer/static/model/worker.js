// Runs the model of a page in a thread of its own, so that the page never waits. It gets the model once, then texts: it answers
// with queries and keys of every layer, and with what follows; then, unless another text has come, with what is worth a look.

import { Encoder } from "./encoder.js";
import { Similarities, probabilitiesOf } from "./follows.js";
import { insightsOf } from "./insights.js";
import { Tokenizer } from "./tokenizer.js";

let model = null;
let last = null; // the number of the last question

self.onmessage = async ({ data: { id, load, text, gates } }) => {
  last = id;
  try {
    if (load) return self.postMessage({ id, value: await Model.load(load).then((loaded) => void (model = loaded)) });
    const { axis, ids, layers, ...value } = model.run(text, gates);
    const given = layers.map(({ stats, ...layer }) => ({ stats, blocks: model.blocksOf(layer) }));
    self.postMessage({ id, value: { id, axis, layers: given, ...value } }, given.flatMap(({ blocks }) => blocks));
    await look(id, insightsOf(axis, ids, layers, model.facts));
  } catch (error) {
    self.postMessage({ id, error: error.said ?? [error.message] });
  }
};

// A layer at a time, so that another text need not wait.
async function look(id, layers) {
  for (let step = {}; ; step = layers.next()) {
    if (step.done) return self.postMessage({ id, insights: step.value });
    await new Promise((later) => setTimeout(later));
    if (id !== last) return;
  }
}

class Model {
  static async load({ wasm, weights, facts, tokenizer }) {
    const encoder = await Encoder.load(wasm, facts, new Uint8Array(weights));
    return new Model(encoder, new Tokenizer(tokenizer), facts);
  }

  constructor(encoder, tokenizer, facts) {
    Object.assign(this, { encoder, tokenizer, facts });
    if (facts.sentences) this.similarities = new Similarities((text, gates) => this.states(this.read(text), gates).hidden, facts);
  }

  read(text) {
    return this.tokenizer.read(text, this.facts.longest);
  }

  states({ ids }, gates) {
    const begun = performance.now();
    const found = this.encoder.run(ids, gates);
    return { ...found, milliseconds: performance.now() - begun };
  }

  // gates: null, or 0 for each head that is off. What the text gives without edits is kept.
  run(text, gates) {
    const read = this.read(text);
    if (this.plain?.text !== text) this.plain = { text, ...this.states(read, null) };
    const found = gates ? this.states(read, gates) : this.plain;
    const { head, labels, shown } = this.facts;
    const [plain, edited] = [this.plain.hidden, found.hidden];
    const similarities = this.similarities?.of(plain, edited, gates) ?? null;
    const predictions = head ? probabilitiesOf({ ...head, labels }, plain, edited) : similarities;
    return { ...read, layers: shown.map((number) => found.layers[number]), milliseconds: found.milliseconds, predictions };
  }

  // The block of each head, as the page's own weights.js reads floats: the log-sum-exp of its rows, its queries, its keys.
  blocksOf({ q, k, lse }) {
    const { heads } = this.facts;
    const [rows, size] = [lse.length / heads, q.length / heads];
    return Array.from({ length: heads }, (_, head) => {
      const block = new ArrayBuffer(8 * rows + 8 * size);
      new Float64Array(block, 0, rows).set(lse.subarray(head * rows, (head + 1) * rows));
      const vectors = new Float32Array(block, 8 * rows);
      [q, k].forEach((each, part) => vectors.set(each.subarray(head * size, (head + 1) * size), part * size));
      return block;
    });
  }
}

self.postMessage("ready");
