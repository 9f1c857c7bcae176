// A model that the page carries. A worker runs it on what a reader types; each run becomes a source (data/source.js), as a run on
// a server does.

import WORKER from "./worker.js" with { type: "text" };
import { isOff } from "../data/edits.js";
import { embeddedSource, launch } from "../data/source.js";
import { say } from "../words.js";

const COMPARED = 1.2e6; // weights that are compared with those of float32: of long texts, those of their first rows

export class Carried {
  // facts: those of the page; recorded: its source, as Python computed it.
  constructor(facts, recorded, blockOf) {
    this.facts = facts;
    this.ready = this.start(recorded, blockOf);
    this.turn = this.ready.catch(() => {}); // each question waits for the one before
  }

  async start(recorded, blockOf) {
    await new Promise((shown) => setTimeout(shown)); // the recorded text first
    const [wasm, weights] = ["wasm", "weights"].map(blockOf);
    const { tokenizer, ...facts } = this.facts.model;
    const shown = this.facts.inputs[0].stacks[0].layers.map(({ number }) => number);
    this.worker = await launch(WORKER, ({ id, insights }) => insights && id === this.last && this.learn(insights)).catch(() => {
      throw new Error(say("this browser allows no worker."));
    });
    await this.worker.ask({ load: { wasm, weights, facts: { ...facts, shown }, tokenizer } }, [wasm, weights]);
    const { prompt, dtype } = this.facts.live;
    if (dtype !== "int8") return;
    const run = await this.sourceOf({ prompt, edits: [], position: null });
    this.distance = await distanceBetween(recorded, run);
    run.close();
  }

  // The source of a text with heads off. Questions that were aborted before their turn are never asked.
  run = (asked, { signal } = {}) => {
    const answer = this.turn.then(async () => {
      await this.ready.catch(({ message: why }) => {
        throw new Error(say("The model does not run in this browser, so the page shows the recorded text only: {why}", { why }));
      });
      signal?.throwIfAborted();
      return this.sourceOf(asked);
    });
    this.turn = answer.catch(() => {});
    return answer;
  };

  // 0 for each head that is off, 1 for the others; null if none is off.
  gatesOf(edits) {
    if (!edits.length) return null;
    const { layers, heads } = this.facts.model;
    const isHere = ({ kind, layer, heads: of }) => kind === "ablate" && !(layer >= layers) && ![of].flat().some((head) => head >= heads);
    if (!edits.every(isHere)) throw new Error(say("This page can only switch off heads, and only those of its model."));
    return Array.from({ length: layers * heads }, (_, i) => Number(!isOff(edits, Math.floor(i / heads), i % heads)));
  }

  async sourceOf({ prompt, edits, position }) {
    const { id, axis, layers, predictions, milliseconds } = await this.worker.ask({ text: prompt, gates: this.gatesOf(edits) });
    const insights = new Promise((learn) => Object.assign(this, { last: id, learn }));
    const { model, live: first, inputs: [{ stacks: [stack] }] } = this.facts;
    const blocks = new Map();
    const groupOf = (block, name) => blocks.set(name, block) && { bits: 32, wide: true, block: name };
    const told = stack.layers.map((layer, place) => ({
      ...layer, supports: null, groups: layers[place].blocks.map((block, head) => groupOf(block, `${place}.${head}`)),
      stats: Object.fromEntries(this.facts.statistics.map(({ key }) => [key, layers[place].stats[key] ?? Array(model.heads).fill(null)])),
    }));
    const { distance } = this;
    const live = { ...first, run: String(id), prompt, edits, position, predictions, milliseconds, distance };
    const made = edits.length ? null : this.facts.made?.replace(JSON.stringify(first.prompt), () => JSON.stringify(prompt)) ?? null;
    const inputs = [{ name: prompt, stacks: [{ ...stack, rows: 0, cols: 0, layers: told, relevance: null, pairs: [] }] }];
    const source = embeddedSource({ ...this.facts, axes: [axis], inputs, live, made }, (name) => blocks.get(name));
    return Object.assign(source, { insights });
  }
}

// How far the weights of two sources of one text are apart: the mean and the largest distance.
async function distanceBetween(...sources) {
  const [one, other] = sources.map(({ inputs: [{ stacks: [stack] }] }) => stack);
  const [count, keys] = [one.layers.reduce((sum, { heads }) => sum + heads, 0), one.cols.length];
  const rows = Math.min(one.rows.length, Math.ceil(COMPARED / (count * keys)));
  let [sum, most] = [0, 0];
  for (const [layer, { heads }] of one.layers.entries()) {
    for (let head = 0; head < heads; head++) {
      const tileOf = (stack) => stack.tile(layer, head, [0, rows], [0, keys], rows, keys, "max");
      const [ours, theirs] = await Promise.all([one, other].map(tileOf));
      ours.forEach((weight, i) => {
        const far = Math.abs(weight - theirs[i]);
        [sum, most] = [sum + far, Math.max(most, far)];
      });
    }
  }
  return { mean: sum / (count * rows * keys), most };
}
