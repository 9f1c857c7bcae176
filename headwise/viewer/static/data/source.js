// The source of the page's numbers: the queries and keys in the file, or the local server.
//
// Both answer the same question,
//
//   await stack.tile(layer, head, [row, pastRow], [col, pastCol], height, width, how, { signal, idle })
//
// with height x width weights (Float32Array, by rows). Each is the "max" or "mean" of its block of cells, or the
// largest of the block's middle row ("sample", a coarse picture at little cost); NaN where the mask forbids the whole
// block. Blocks are split evenly: height and width are at most the number of cells. `layer` is an index into
// stack.layers. A question that fails rejects with a sentence for the reader. stack.terms(layer, head, row) tells what a row
// is computed from (terms.js).

import WORKER from "./worker.js" with { type: "text" };
import { termsOf } from "./terms.js";
import { Weights } from "./weights.js";
import { say } from "../words.js";

const SLICE_MS = 8; // without a worker: compute this long, then let the browser update

// blockOf(name): the ArrayBuffer of a block, asked for once.
export function embeddedSource(facts, blockOf) {
  const blocks = new Map();
  const kept = (name) => {
    if (!blocks.has(name)) blocks.set(name, blockOf(name));
    return blocks.get(name);
  };
  const engine = launch(WORKER).then((worker) => askWeights(worker, blockOf), () => inSlices(kept));
  const answers = async (...question) => (await engine).ask(...question);
  const queue = new Queue(1);
  const source = sourceOf(facts, 4e6, (stack, layer) => ({
    tile: (what, options) => queue.ask(() => answers(stack, layer, "tile", what), options),
    mix: (vector, options) => queue.ask(() => answers(stack, layer, "mix", [vector]), options),
    terms: (what, options) => queue.ask(() => answers(stack, layer, "terms", what), options),
    stats: async () => stack.layers[layer].stats,
  }));
  source.close = () => {
    queue.close();
    engine.then(({ stop }) => stop());
  };
  return source;
}

// base: the address of the server's page, with its token. `source.live`: for a model on which prompts are run, the
// shown run (liveSource); otherwise null.
export function serverSource(facts, base) {
  const queue = new Queue(6); // the number of connections that browsers open to one host
  return sourceOf(facts, 1e6, (stack, layer) => {
    const run = facts.live ? { run: facts.live.run } : {};
    const where = { ...run, input: stack.input, stack: stack.place, layer };
    return {
      tile: ([head, rows, cols, height, width, how], options = {}) => {
        const asked = { ...where, head, rows: rows.join("-"), cols: cols.join("-"), height, width, how };
        return queue.ask(() => numbers(fetchFrom(base, "tile", asked, { signal: options.signal })), options);
      },
      mix: (vector, options = {}) => {
        const posted = { method: "POST", body: Float32Array.from(vector), signal: options.signal };
        return queue.ask(() => numbers(fetchFrom(base, "mix", where, posted)), options);
      },
      terms: ([head, row], options = {}) => {
        const found = () => fetchFrom(base, "terms", { ...where, head, row }, { signal: options.signal });
        return queue.ask(async () => new Float64Array(await (await found()).arrayBuffer()), options);
      },
      stats: async () => {
        const known = stack.layers[layer];
        known.stats ??= await queue.ask(async () => (await fetchFrom(base, "stats", where)).json(), { idle: true });
        return known.stats;
      },
    };
  });
}

// The source of a run of a model with a prompt and edits; its `live` has what the model predicts. The page of the
// server sends `asked`, { prompt, edits, position }, and gets the facts of that run.
export async function liveSource(base, asked, { signal } = {}) {
  const body = JSON.stringify(asked);
  const answer = await fetchFrom(base, "run", {}, { method: "POST", body, signal });
  return serverSource(await answer.json(), base);
}

function sourceOf(facts, cells, answersOf) {
  const axes = facts.axes.map(axisOf);
  const stackOf = (input) => (each, place) => {
    const stack = { ...each, input, place, cells, rows: axes[each.rows], cols: axes[each.cols] };
    const answers = stack.layers.map((_, layer) => answersOf(stack, layer));
    stack.tile = (layer, head, rows, cols, height, width, how, options) =>
      answers[layer].tile([head, rows, cols, height, width, how], options);
    stack.mix = (layer, vector, options) => answers[layer].mix(vector, options);
    stack.terms = async (layer, head, row, options) => termsOf(await answers[layer].terms([head, row], options), stack.cols.length);
    stack.stats = (layer) => answers[layer].stats();
    return stack;
  };
  const inputs = facts.inputs.map(({ name, stacks }, input) => ({ name, stacks: stacks.map(stackOf(input)) }));
  const { title, about, made, tolerance, statistics, source: kind, live = null, small = null } = facts;
  return { title, about, made, tolerance, statistics, kind, live, small, inputs };
}

// An axis of very many tokens has only its length, and labels if its positions have names. Each of its tokens is a word
// and a sentence of its own. `long`: views that show each token have nothing to show. `numbers`: the names of its positions
// are their numbers, or times, which grow.
function axisOf(axis) {
  if (axis.labels && !axis.count) {
    const numbers = axis.text === false && axis.labels.every((label) => /^[\d.]+( s)?$/.test(label));
    return { ...axis, length: axis.labels.length, long: false, numbers };
  }
  const { count, first, ...known } = axis;
  const [labels, index] = [axis.labels ?? new Array(count), new Uint32Array(count)];
  for (let i = 0; i < count; i++) index[i] = i;
  if (!axis.labels) for (let i = 0; i < count; i++) labels[i] = `${first + i}`;
  const [no, none] = [new Array(count).fill(false), new Array(count).fill("")];
  const each = { index, labels };
  const own = { labels, gaps: none, pieces: labels, special: no, unknown: no, words: each, sentences: each };
  return { ...known, ...own, length: count, long: true, numbers: !axis.labels };
}

// ---- in the page itself

// A worker that answers questions, once it runs: { ask(message, transferred), stop }. What it adds to an answer later goes to
// hear(). Rejects if the browser allows no worker because of a strict policy.
export async function launch(script, hear = null) {
  const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const waiting = new Map();
  let count = 0;
  const rejectAll = (error) => {
    for (const { reject } of waiting.values()) reject(error);
    waiting.clear();
  };
  try {
    const worker = new Worker(address);
    await new Promise((resolve, reject) => {
      worker.onmessage = resolve; // the first message says that it runs
      worker.onerror = (event) => {
        event.preventDefault();
        reject(event);
      };
    });
    worker.onmessage = ({ data }) => {
      const asked = waiting.get(data.id);
      if (!waiting.delete(data.id)) hear?.(data);
      else if (data.error) asked.reject(new Error(say(...[data.error].flat())));
      else asked.resolve(data.value);
    };
    worker.onerror = (event) => {
      event.preventDefault();
      rejectAll(new Error(`The weights cannot be computed here: ${event.message}`));
    };
    const ask = (message, transferred = []) =>
      new Promise((resolve, reject) => {
        waiting.set(count, { resolve, reject });
        worker.postMessage({ id: count++, ...message }, transferred);
      });
    const stop = () => {
      worker.terminate();
      rejectAll(closed());
    };
    return { ask, stop };
  } finally {
    URL.revokeObjectURL(address);
  }
}

function askWeights({ ask: post, stop }, blockOf) {
  const told = new Set(); // the blocks that the worker has
  const ask = (stack, layer, method, what) => {
    const facts = stack.layers[layer];
    const given = new Map();
    for (const name of blocksOf(facts, method, what)) {
      if (!told.has(name)) given.set(name, blockOf(name));
      told.add(name);
    }
    const key = `${stack.input}/${stack.place}/${layer}`;
    const { dim, scale, softcap, planes, bias, sinks, groups, heads, kvHeads } = facts;
    const known = { dim, scale, softcap, planes, bias, sinks, groups, heads, kvHeads };
    const message = { key, facts: known, rows: stack.rows.length, cols: stack.cols.length, given, ask: method, what };
    return post(message, [...given.values()]);
  };
  return { ask, stop };
}

const closed = () => new DOMException("This view was closed.", "AbortError");

// The blocks that a question needs: of one group of heads for a tile or a row's terms, of all of them for a mix.
function blocksOf({ heads, kvHeads, groups, planes, bias }, ask, [head]) {
  const needed = ask !== "mix" ? [groups[Math.floor((head * kvHeads) / heads)]] : groups;
  const names = needed.map(({ block }) => block);
  for (const plane of planes ?? []) names.push(`plane${plane}`);
  if (bias) names.push(bias.block);
  return names;
}

// Compute without a worker, a few rows at a time.
function inSlices(blockOf) {
  const layers = new Map();
  let stopped = false;
  const ask = async (stack, layer, method, what) => {
    const facts = stack.layers[layer];
    if (!layers.has(facts)) layers.set(facts, new Weights(facts, stack.rows.length, stack.cols.length, blockOf));
    const work = layers.get(facts)[method](...what);
    for (let until = performance.now() + SLICE_MS; ; ) {
      const { done, value } = work.next();
      if (done) return value;
      if (performance.now() < until) continue;
      await new Promise((resume) => setTimeout(resume));
      if (stopped) throw closed();
      until = performance.now() + SLICE_MS;
    }
  };
  const stop = () => {
    stopped = true;
    layers.clear();
  };
  return { ask, stop };
}

// ---- on a server

async function fetchFrom(base, path, asked, options) {
  let answer;
  try {
    answer = await fetch(`${base}${path}?${new URLSearchParams(asked)}`, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer: it was stopped or is busy. Start it again with headwise view … --serve");
  }
  if (answer.ok) return answer;
  const { error } = await answer.json().catch(() => ({}));
  throw new Error(error ?? `The server answered ${answer.status}.`);
}

const numbers = async (answer) => new Float32Array(await (await answer).arrayBuffer());

// ---- the queue

// At most `lanes` questions at a time; idle ones after all others. A question aborted before its turn is never asked.
class Queue {
  constructor(lanes) {
    this.free = lanes;
    this.waiting = { now: [], idle: [] };
  }

  ask(work, { signal, idle } = {}) {
    if (this.closed) return Promise.reject(closed());
    return new Promise((resolve, reject) => {
      this.waiting[idle ? "idle" : "now"].push({ work, signal, resolve, reject });
      this.next();
    });
  }

  close() {
    this.closed = true;
    for (const jobs of Object.values(this.waiting)) for (const { reject } of jobs.splice(0)) reject(closed());
  }

  async next() {
    if (!this.free) return;
    const job = this.waiting.now.shift() ?? this.waiting.idle.shift();
    if (!job) return;
    if (job.signal?.aborted) {
      job.reject(job.signal.reason);
      return this.next();
    }
    this.free--;
    try {
      job.resolve(await job.work());
    } catch (error) {
      job.reject(error);
    }
    this.free++;
    this.next();
  }
}
