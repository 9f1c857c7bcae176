// Attention rollout of one output token, from the top layer down to the input (Abnar & Zuidema 2020), as
// headwise.analyses.rollout computes it: Â = rownorm(½ · mean over the heads of A + ½ · I), and row `token` of
// Â_L … Â_1, one vector-matrix product per layer.

import { say } from "../../words.js";

const MOST = { embedded: 5e9, server: 2e10 }; // cells of all heads and layers; more would take many minutes
const STRIP = { embedded: 6e6, server: 2e8 }; // cells of one question: a page computes it without a pause, a server in parts
const QUICK = 3e8; // cells; more are estimated first
export const SOME = 256; // rows of each layer in an estimate
const LOST = 2e-5; // largest rounding error of a sum

// A sentence if this is too much to compute, else null.
export function tooMuch({ rows, layers }, kind) {
  const cells = cellsOf({ rows, layers });
  if (cells <= MOST[kind]) return null;
  const sentence =
    "Rollout over {layers} layers of {tokens} tokens needs {cells} weights, more than this page computes ({most}). " +
    "In Python: headwise.analyses.rollout(seen, rows=…).";
  const [needed, most] = [cells.toExponential(1), MOST[kind].toExponential(0)];
  return say(sentence, { layers: layers.length, tokens: rows.length, cells: needed, most });
}

// The shares of all tokens in `token`, L + 1 vectors: above the top layer only itself, … , at the end the input tokens.
// `tell(found, part, estimated)`: the vectors so far, the progress of the next one, 0 … 1, and how many of them are only
// estimated. What takes long is estimated first, and then replaced from the top down.
export async function rollout(stack, token, { kind, signal, tell }) {
  const start = new Float32Array(stack.rows.length);
  start[token] = 1;
  const through = async (step, told) => {
    const found = [start];
    for (let layer = stack.layers.length - 1; layer >= 0; layer--) {
      const question = { stack, layer, cells: STRIP[kind], signal, tell: (part) => told(found, part) };
      found.push(await step(question, found.at(-1)));
    }
    return found;
  };
  const rough = cellsOf(stack) > QUICK ? await through(estimated, tell) : [];
  const found = await through(exact, (found, part) => {
    const left = rough.slice(found.length);
    tell([...found, ...left], part, left.length);
  });
  tell(found, 1);
  return found;
}

const cellsOf = ({ rows, layers }) => layers.reduce((sum, { heads }) => sum + heads * rows.length ** 2, 0);

// above · Â. A row of A sums to 1, so Â is ½ A + ½ I, except with a learned sink or in empty rows. The sums of the rows
// are asked for only if the sum of the result shows that this is needed.
async function exact(question, above) {
  let shares = above;
  let mixed = await mix(question, shares);
  if (total(above) - total(mixed) > LOST) {
    const totals = await rowTotals(question, above);
    shares = above.map((share, i) => (2 * share) / (1 + totals[i]));
    mixed = await mix(question, shares);
  }
  return mixed.map((share, i) => (share + shares[i]) / 2);
}

// The same from some rows of A.
async function estimated(question, above) {
  const mixed = await mix(question, sample(above));
  const grown = total(above) / total(mixed);
  return grown < Infinity ? mixed.map((share, i) => (grown * share + above[i]) / 2) : above;
}

// The shares of SOME rows instead of all: the large ones as they are, and of the others those at equal distances along
// their sum, so that a row is as likely as its share is large.
export function sample(shares, some = SOME) {
  const each = total(shares) / some;
  let [sum, next] = [0, each / 2];
  return shares.map((share) => {
    if (share >= each) return share;
    sum += share;
    const before = next;
    while (sum > next) next += each;
    return next - before;
  });
}

const total = (shares) => shares.reduce((sum, share) => sum + share, 0);

// shares · the mean over the heads of A.
async function mix({ stack, layer, cells, signal, tell }, shares) {
  const places = Array.from(shares.keys()).filter((i) => shares[i] > 0);
  const step = Math.max(1, Math.floor(cells / (shares.length * stack.layers[layer].heads)));
  const sum = new Float64Array(shares.length);
  for (let first = 0; first < places.length; first += step) {
    tell(first / places.length);
    const strip = new Float32Array(shares.length);
    for (const i of places.slice(first, first + step)) strip[i] = shares[i];
    const part = await stack.mix(layer, strip, { signal });
    signal.throwIfAborted();
    part.forEach((share, i) => (sum[i] += share));
  }
  return Float32Array.from(sum);
}

// The sum of each row of the mean over the heads of A, for rows with a share.
async function rowTotals({ stack, layer, cells, signal, tell }, shares) {
  const { length } = shares;
  const { heads } = stack.layers[layer];
  const [low, past] = [shares.findIndex((share) => share > 0), shares.findLastIndex((share) => share > 0) + 1];
  const totals = new Float32Array(length);
  const step = Math.max(1, Math.floor(cells / length));
  for (let head = 0; head < heads; head++) {
    tell(head / heads);
    for (let row = low; row < past; row += step) {
      const rows = [row, Math.min(past, row + step)];
      const means = await stack.tile(layer, head, rows, [0, length], rows[1] - row, 1, "mean", { signal });
      signal.throwIfAborted();
      means.forEach((mean, i) => (totals[row + i] += ((mean || 0) * length) / heads)); // NaN: an empty row
    }
  }
  return totals;
}

// The default token: the last one of a causal stack, which attends to all others, else the first, which is [CLS] in
// encoders.
export async function usualToken(stack, signal) {
  const last = stack.rows.length - 1;
  if (!last || !stack.layers[0].masked) return 0;
  const first = await stack.tile(0, 0, [0, 1], [0, last + 1], 1, last + 1, "max", { signal });
  return first.subarray(1).every(Number.isNaN) ? last : 0;
}
