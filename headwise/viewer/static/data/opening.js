// The suggestions for a stack: its strongest readable pairs, from the facts, and heads with a known pattern, from their
// statistics. A list of { kind, layer, head, value } or, for a pair, { kind: "pair", layer, head, row, col, value,
// keys }; only for what exists, the strongest pair first.

const MOST = 5;
const CLEAR = 0.4; // the share from which a head has a pattern
const FEW = 8; // with fewer keys a uniform head has that share too: a causal one gives the first of 6 tokens 0.41
const FARTHER = 1.2; // the farthest head looks at least this many times as far as the mean of all heads

// For each pattern: the field of the statistics in which its head has the largest value, and whether that value is a
// pattern.
const PATTERNS = [
  { kind: "previous", field: "previous", exists: (value) => value >= CLEAR },
  { kind: "sink", field: "first_visible", exists: (value) => value >= CLEAR },
  { kind: "induction", field: "induction", exists: (value) => value >= CLEAR },
  { kind: "reach", field: "distance", without: "first_visible", exists: (value, mean) => value >= FARTHER * mean },
];

export function worthALook({ pairs, layers, cols }) {
  const [first, ...more] = pairs.map(({ weight, ...pair }) => ({ kind: "pair", value: weight, ...pair }));
  const known = cols.length >= FEW && layers.every(({ stats }) => stats);
  const patterns = known ? PATTERNS.map((each) => largestOf(layers, each)) : [];
  return [first, ...patterns, ...more].filter(Boolean).slice(0, MOST);
}

function largestOf(layers, { kind, field, without, exists }) {
  const all = layers.flatMap(({ stats }, layer) => stats[field].map((value, head) => ({ kind, layer, head, value })));
  const known = all.filter(({ value }) => value !== null);
  const mean = known.reduce((sum, { value }) => sum + value, 0) / known.length;
  const fits = known.filter(({ layer, head }) => !without || !(layers[layer].stats[without][head] >= CLEAR));
  const best = fits.sort((one, other) => other.value - one.value)[0];
  return best && exists(best.value, mean) ? best : null;
}

// The selection with which a page opens: the strongest pair of the first input, pinned; null if there is none.
export function openingOf({ inputs: [{ stacks }] }) {
  const strength = ([{ weight, keys }]) => weight * Math.log(weight * keys);
  const there = stacks.filter(({ pairs }) => pairs.length);
  const best = there.sort((one, other) => strength(other.pairs) - strength(one.pairs))[0];
  if (!best) return null;
  const [{ layer, head, row, col }] = best.pairs;
  return { input: 0, stack: best.place, layer, head, row: null, col: null, pinRow: row, pinCol: col };
}
