// The numbers from which one row of weights is computed, and every step up to the weights, in float64:
//
//   score = scale · q k;  softcap · tanh(score / softcap);  + bias;  -∞ where not allowed
//   weight = exp(score - highest) / sum,  sum = Σ exp(score - highest) + exp(sink - highest)

// numbers: D, scale, softcap, sink (NaN = none); then q [D], k [K, D], bias [K], allowed [K] (1 = may attend). count: K.
export function termsOf(numbers, count) {
  const [dim, scale] = numbers;
  const [softcap, sink] = [numbers[2], numbers[3]].map((number) => (Number.isNaN(number) ? null : number));
  let at = 4;
  const take = (length) => numbers.subarray(at, (at += length));
  const [q, k, bias, allowed] = [dim, count * dim, count, count].map(take);
  const keyOf = (col) => k.subarray(col * dim, (col + 1) * dim);
  const biased = bias.some((added) => added !== 0);
  const steps = Array.from({ length: count }, (_, col) => {
    const key = keyOf(col);
    let dot = 0;
    for (let d = 0; d < dim; d++) dot += q[d] * key[d];
    const scaled = scale * dot;
    const capped = softcap === null ? scaled : softcap * Math.tanh(scaled / softcap);
    const score = allowed[col] ? capped + bias[col] : -Infinity;
    return { dot, scaled, capped, bias: bias[col], allowed: allowed[col] === 1, score };
  });
  const scores = steps.map(({ score }) => score);
  const highest = scores.reduce((most, score) => Math.max(most, score), sink ?? -Infinity);
  const expOf = (score) => (score === -Infinity ? 0 : Math.exp(score - highest));
  let sum = sink === null ? 0 : expOf(sink);
  for (const step of steps) sum += step.exp = expOf(step.score);
  const empty = scores.every((score) => score === -Infinity); // a row that attends to nothing has weights of 0
  for (const step of steps) step.weight = empty ? 0 : step.exp / sum;
  return { dim, scale, softcap, sink, q, keyOf, biased, steps, highest, sum, empty };
}
