// What follows from a text, with all heads and with some of them off: the probabilities of a classifier's labels, or how similar
// the text is to fixed sentences. In the form that a server gives predictions (headwise/viewer/predictions.py).

// `labels`: those of the head's outputs.
export function probabilitiesOf({ labels, ...head }, plain, edited) {
  const [p, q] = [plain, edited].map((hidden) => softmax(logitsOf(head, hidden)));
  const tokens = labels.map((text, id) => ({ id, text, plain: p[id], edited: q[id] }));
  tokens.sort((one, other) => Math.max(other.plain, other.edited) - Math.max(one.plain, one.edited));
  const distance = p.reduce((sum, share, i) => sum + Math.abs(share - q[i]) / 2, 0);
  const divergence = p.reduce((sum, share, i) => sum + (share && share * Math.log(share / q[i])), 0);
  return { of: "labels", tokens, distance, divergence: Number.isFinite(divergence) ? Math.max(0, divergence) : null };
}

// `hiddenOf(sentence, gates)`: its hidden states; `encoder`: { sentences, pooling, dim }.
export class Similarities {
  constructor(hiddenOf, encoder) {
    Object.assign(this, { hiddenOf, encoder });
    this.plain = this.vectors(null);
  }

  // The model reads the sentences with the same heads off.
  of(plain, edited, gates) {
    if (gates && String(gates) !== this.known?.key) this.known = { key: String(gates), vectors: this.vectors(gates) };
    const [before, after] = [[plain, this.plain], [edited, gates ? this.known.vectors : this.plain]].map(([hidden, others]) => {
      const vector = this.vectorOf(hidden);
      return others.map((other) => dot(vector, other));
    });
    const tokens = this.encoder.sentences.map((text, id) => ({ id, text, plain: before[id], edited: after[id] }));
    return { of: "sentences", tokens: tokens.sort((one, other) => other.edited - one.edited) };
  }

  vectors(gates) {
    return this.encoder.sentences.map((text) => this.vectorOf(this.hiddenOf(text, gates)));
  }

  vectorOf(hidden) {
    const vector = pooled(this.encoder.pooling, hidden, this.encoder.dim);
    const length = Math.sqrt(dot(vector, vector)) || 1;
    return vector.map((x) => x / length);
  }
}

function logitsOf({ pooling, weight, bias }, hidden) {
  const vector = pooled(pooling, hidden, weight[0].length);
  return bias.map((added, label) => weight[label].reduce((sum, factor, i) => sum + factor * vector[i], added));
}

// The vector of a text from its hidden states: their mean, or the state at [CLS].
function pooled(pooling, hidden, dim) {
  const rows = pooling === "cls" ? 1 : hidden.length / dim;
  const sums = new Float64Array(dim);
  for (let i = 0; i < rows * dim; i++) sums[i % dim] += hidden[i] / rows;
  return sums;
}

const dot = (one, other) => one.reduce((sum, x, i) => sum + x * other[i], 0);

function softmax(logits) {
  const powers = logits.map((x) => Math.exp(x - Math.max(...logits)));
  const sum = powers.reduce((total, x) => total + x, 0);
  return powers.map((x) => x / sum);
}
