// What is worth a look in a run of the model in the page: the rules of headwise/viewer/pairs.py and statistics.py, where they are
// explained, for tokens that all see one another.

const CELLS = 1e7; // weights that are examined for pairs; in longer texts, evenly spread rows
const [LEAST, TIMES_EVEN, FAR, KEPT, NEAR] = [0.15, 3, 5, 4, 0.25];
const MARKS = /^[␣▁ĠĊ ⏎␍⇥]+|[␣▁ĠĊ ⏎␍⇥]+$/g;
const LETTER = /[\p{L}\p{N}]/u;

// `layers`: those of Encoder.run(); `linking`: words that mean little alone. Returns the `pairs` of the stack, and what `supports`
// the patterns of each layer. Pauses after each layer.
export function* insightsOf(axis, ids, layers, { heads, dim, scale, linking }) {
  const tokens = ids.length;
  const worth = worthOf(axis, new Set(linking));
  const step = Math.ceil(tokens / Math.max(1, Math.floor(CELLS / layers.length / (heads * tokens))));
  const rows = Array.from({ length: tokens }, (_, i) => i).filter((i) => i % step === step >> 1);
  const followers = followersOf(axis, ids);
  const [pairs, supports] = [[], []];
  for (const [place, layer] of layers.entries()) {
    const induction = [];
    for (let head = 0; head < heads; head++) {
      const weights = weightsOf(layer, head, tokens, dim / heads, scale);
      const [score, pair] = strongest(weights, worth, rows, tokens);
      if (score > 0) pairs.push([score, { layer: place, head, ...pair }]);
      induction.push(meanOf([...followers].map(([row, cols]) => cols.reduce((sum, col) => sum + weights[row * tokens + col], 0))));
    }
    const patterns = { previous: patternOf(axis, layer.rows.previous, heads, 1), first_visible: patternOf(axis, layer.rows.first_visible, heads, 0) };
    supports.push({ ...patterns, induction: followers.size ? { values: induction, ...chanceOf(followers, tokens, heads) } : null });
    yield;
  }
  return { pairs: distinct(pairs), supports };
}

function weightsOf({ q, k, lse }, head, tokens, depth, scale) {
  const out = new Float32Array(tokens * tokens);
  for (let i = 0, at = 0; i < tokens; i++) {
    const query = (head * tokens + i) * depth;
    for (let j = 0; j < tokens; j++, at++) {
      const key = (head * tokens + j) * depth;
      let score = 0;
      for (let d = 0; d < depth; d++) score += q[query + d] * k[key + d];
      out[at] = Math.exp(scale * score - lse[head * tokens + i]);
    }
  }
  return out;
}

// How much a pair of a query and a key says to a reader: [tokens, tokens], 0 = nothing.
function worthOf({ labels, special, unknown, words }, linking) {
  const bare = labels.map((label) => label.replace(MARKS, "").replace(/^##/, ""));
  const single = bare.map((label) => [...label].length === 1 && LETTER.test(label));
  const able = labels.map((_, i) => !special[i] && !unknown[i]);
  const isWord = (label, i) => LETTER.test(label) && !(single[i] && label < "\x80") && !linking.has(label.toLowerCase());
  const found = bare.map((label, i) => able[i] && isWord(label, i));
  const readable = found.some(Boolean) ? found : single.map((alone, i) => alone && able[i]);
  const names = bare.map((label) => label.toLowerCase());
  const count = labels.length;
  return Float32Array.from({ length: count * count }, (_, at) => {
    const [i, j] = [Math.floor(at / count), at % count];
    const far = Math.abs(words.index[i] - words.index[j]);
    return j && readable[i] && readable[j] && names[i] !== names[j] ? far / (far + FAR) : 0; // 0: the sink, too
  });
}

// The strongest readable pair of a head: [its score, the pair].
function strongest(weights, worth, rows, tokens) {
  const [ofKey, ofDistance, counts] = [tokens, 2 * tokens, 2 * tokens].map((length) => new Float64Array(length));
  for (const i of rows) {
    for (let j = 0; j < tokens; j++) {
      ofKey[j] += weights[i * tokens + j];
      ofDistance[j - i + tokens] += weights[i * tokens + j];
      counts[j - i + tokens]++;
    }
  }
  let best = [0, null];
  for (const i of rows) {
    for (let j = 0; j < tokens; j++) {
      const weight = weights[i * tokens + j];
      if (!worth[i * tokens + j] || weight < LEAST || weight * tokens < TIMES_EVEN) continue;
      const at = j - i + tokens;
      const others = (sum, count) => (sum - weight) / Math.max(1, count - 1);
      const usual = Math.max(others(ofKey[j], rows.length), others(ofDistance[at], counts[at]), 1 / tokens);
      const score = worth[i * tokens + j] * weight * Math.log(weight / usual);
      if (score > best[0]) best = [score, { row: i, col: j, weight, keys: tokens }];
    }
  }
  return best;
}

function distinct(pairs) {
  const kept = [];
  for (const [score, pair] of pairs.sort(([one], [other]) => other - one)) {
    const isNew = kept.every(([, { row, col }]) => row !== pair.row || col !== pair.col);
    if (isNew && score >= NEAR * (kept[0]?.[0] ?? score)) kept.push([score, pair]);
  }
  return kept.slice(0, KEPT).map(([, pair]) => pair);
}

// What supports a pattern of one key a query: the means of `ofRows` [heads, tokens] over queries that the model knows.
function patternOf({ unknown }, ofRows, heads, first) {
  const tokens = unknown.length;
  const rows = unknown.flatMap((is, i) => (i < first || is || (first && unknown[i - 1]) ? [] : [i]));
  const values = Array.from({ length: heads }, (_, head) => meanOf(rows.map((i) => ofRows[head * tokens + i])));
  return { values, queries: values.map(() => rows.length), chance: [1 / tokens] };
}

// For each query whose token occurs earlier: the keys that followed the token there.
function followersOf({ special, unknown }, ids) {
  const [places, found] = [new Map(), new Map()];
  ids.forEach((id, i) => {
    if (special[i] || unknown[i] || unknown[i + 1]) return;
    const before = places.get(id) ?? [];
    if (i - before[0] >= 2) found.set(i, before.map((place) => place + 1).filter((col) => col < i));
    places.set(id, [...before, i]);
  });
  return found;
}

// By chance: equal weights, or, if it is more, queries that all look at the same key.
function chanceOf(followers, tokens, heads) {
  const asked = new Map();
  for (const col of [...followers.values()].flat()) asked.set(col, (asked.get(col) ?? 0) + 1);
  const even = meanOf([...followers.values()].map((cols) => cols.length / tokens));
  return { queries: Array(heads).fill(followers.size), chance: [Math.max(even, Math.max(...asked.values()) / followers.size)] };
}

const meanOf = (numbers) => (numbers.length ? numbers.reduce((sum, x) => sum + x, 0) / numbers.length : null);
