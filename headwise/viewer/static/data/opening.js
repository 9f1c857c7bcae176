// The suggestions for a stack: its strongest readable pairs, from the facts, and heads with a known pattern, from what
// supports it. A list of { kind, layer, head, value, queries } or, for a pair, { kind: "pair",
// layer, head, row, col, value, keys }; only for what exists, the strongest pair first.

const MOST = 5;
const CLEAR = 0.4; // the share from which a head has a pattern
const FEW = 5; // an insight needs as many queries,
const TIMES = 2; // and this multiple of what a head scores by chance
const UNKNOWN = 0.3; // with more tokens than this that the model does not know, pairs of the others mean little

// For each pattern: the statistic in which its head has the largest value.
const PATTERNS = { previous: "previous", sink: "first_visible", induction: "induction" };

export function worthALook(stack) {
  const { layers } = stack;
  const [first, ...more] = pairsOf(stack).map(({ weight, ...pair }) => ({ kind: "pair", value: weight, ...pair }));
  const known = layers.every(({ supports }) => supports);
  const patterns = known ? Object.keys(PATTERNS).map((kind) => largestOf(layers, kind)) : [];
  return [first, ...patterns, ...more].filter(Boolean).slice(0, MOST);
}

// Whether a head of the stack has a sink, as far as is known.
export const hasSink = ({ layers }) => !layers.every(({ supports }) => supports) || Boolean(largestOf(layers, "sink"));

// How many tokens the model does not know, if they are many, { unknown, all }; else null.
export function fewKnown({ rows, cols }) {
  if (rows.long || cols.long) return null; // its tokens are not looked at
  const all = [...new Set([rows, cols])].flatMap((axis) => axis.unknown);
  const unknown = all.filter(Boolean).length;
  return unknown > UNKNOWN * all.length ? { unknown, all: all.length } : null;
}

// Take what is found later than the weights, in a run of a model in the page (model/insights.js).
export function learn({ inputs: [{ stacks: [stack] }] }, { pairs, supports }) {
  stack.pairs = pairs;
  stack.layers.forEach((layer, place) => {
    layer.supports = supports[place];
    layer.stats.induction = supports[place].induction?.values ?? layer.stats.induction;
  });
}

const pairsOf = (stack) => (fewKnown(stack) ? [] : stack.pairs);

function largestOf(layers, kind) {
  const field = PATTERNS[kind];
  const all = layers.flatMap(({ supports: { [field]: found } }, layer) => {
    const { values = [], chance, queries } = found ?? {};
    const heads = values.map((value, head) => ({ kind, layer, head, value, queries: queries[head] }));
    return heads.filter(({ value, head, queries: n }) => n >= FEW && value >= Math.max(CLEAR, TIMES * chance[head % chance.length]));
  });
  return all.sort((one, other) => other.value - one.value)[0];
}

// The selection with which a page opens: the strongest pair of the first input, pinned; null if there is none. Two
// inputs of models of one shape are there to be compared.
export function openingOf({ inputs }) {
  const [first, second, ...more] = inputs.map(({ stacks }) => JSON.stringify(stacks.map(({ layers }) => layers.map(({ heads }) => heads))));
  const pair = pairOf(inputs[0]);
  return first === second && !more.length ? { ...pair, view: "compare" } : pair;
}

function pairOf({ stacks }) {
  const strength = ({ pairs: [{ weight, keys }] }) => weight * Math.log(weight * keys);
  const there = stacks.filter((stack) => pairsOf(stack).length);
  const best = there.sort((one, other) => strength(other) - strength(one))[0];
  if (!best) return null;
  const [{ layer, head, row, col }] = best.pairs;
  return { input: 0, stack: best.place, layer, head, row: null, col: null, pinRow: row, pinCol: col };
}
