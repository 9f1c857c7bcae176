// Computes weights in a thread of its own, so that the page never waits. It gets each layer once, then questions.

import { Weights } from "./weights.js";

const layers = new Map();
const blocks = new Map();

self.onmessage = ({ data: { id, key, facts, rows, cols, given, ask, what } }) => {
  for (const [name, buffer] of given) blocks.set(name, buffer);
  try {
    if (!layers.has(key)) layers.set(key, new Weights(facts, rows, cols, (name) => blocks.get(name)));
    const work = layers.get(key)[ask](...what);
    let step = work.next();
    while (!step.done) step = work.next();
    self.postMessage({ id, value: step.value }, [step.value.buffer]);
  } catch (error) {
    self.postMessage({ id, error: String(error.message ?? error) });
  }
};

self.postMessage("ready");
