// Attention between tokens, words or sentences, as the mean of the chosen heads.
//
// As headwise.records.grouped(how="sum") (Clark et al. 2019, section 4.1): the weights to the tokens of a word are
// summed, the rows of its tokens are averaged. A masked cell counts as 0; NaN where the mask forbids all cells.

export const LEVELS = ["tokens", "words", "sentences"];

const known = new WeakMap(); // axis -> level -> groups

// The tokens of an axis at a level: { level, labels, of: the group of each token, runs(group): its tokens,
// [[first, past the last], …], sizes }.
export function groupsOf(axis, level) {
  if (!known.has(axis)) known.set(axis, {});
  return (known.get(axis)[level] ??= level === "tokens" ? tokensOf(axis) : divided(axis, level));
}

function tokensOf({ labels }) {
  const of = Uint32Array.from(labels, (_, token) => token);
  return { level: "tokens", labels, of, sizes: of.map(() => 1), runs: (token) => [[token, token + 1]] };
}

function divided(axis, level) {
  const { index, labels } = axis[level];
  const of = Uint32Array.from(index);
  const sizes = new Uint32Array(labels.length);
  for (const group of of) sizes[group]++;
  const runs = (group) => {
    const found = [];
    for (let first = of.indexOf(group), left = sizes[group]; left; first = of.indexOf(group, first)) {
      let past = first;
      while (past < of.length && of[past] === group) past++;
      found.push([first, past]);
      left -= past - first;
      first = past;
    }
    return found;
  };
  return { level, labels, of, sizes, runs };
}

// The current head and the chosen ones, [layer, head], each once.
export function chosenHeads({ layer, head, heads }) {
  return [[layer, head], ...heads.filter((pair) => pair[0] !== layer || pair[1] !== head)];
}

// The weights from one group of rows to each group of columns (direction "gives"), or from each group of rows to one
// group of columns ("gets"): a Float64Array. Only these rows or columns are requested.
export async function attentionOf(stack, heads, rows, cols, direction, group, options) {
  const gives = direction === "gives";
  const [asked, others] = gives ? [rows, cols] : [cols, rows];
  const all = others.of.length;
  const sums = new Float64Array(others.labels.length).fill(NaN);
  const questions = heads.flatMap(([layer, head]) => asked.runs(group).map((run) => ({ layer, head, run })));
  await Promise.all(questions.map(async ({ layer, head, run }) => {
    const question = gives ? [run, [0, all], 1, all] : [[0, all], run, all, 1];
    const weights = await stack.tile(layer, head, ...question, "mean", options);
    weights.forEach((weight, token) => add(sums, others.of[token], weight * (run[1] - run[0])));
  }));
  return sums.map((sum, other) => sum / heads.length / (gives ? asked.sizes[group] : others.sizes[other]));
}

// All weights of one head between groups, by rows. For short texts: it requests every cell.
export async function matrixOf(stack, [layer, head], rows, cols, options) {
  const [height, width] = [rows.of.length, cols.of.length];
  const cells = await stack.tile(layer, head, [0, height], [0, width], height, width, "max", options);
  const across = cols.labels.length;
  const sums = new Float64Array(rows.labels.length * across).fill(NaN);
  cells.forEach((weight, cell) => {
    add(sums, rows.of[Math.floor(cell / width)] * across + cols.of[cell % width], weight);
  });
  return sums.map((sum, place) => sum / rows.sizes[Math.floor(place / across)]);
}

function add(sums, place, weight) {
  if (!Number.isNaN(weight)) sums[place] = (sums[place] || 0) + weight;
}

// The indices of the largest weights, in descending order, without masked ones and `without`.
export function topPlaces(weights, count, without = null) {
  const places = Array.from(weights.keys()).filter((place) => !Number.isNaN(weights[place]) && place !== without);
  return places.sort((one, other) => weights[other] - weights[one]).slice(0, count);
}
