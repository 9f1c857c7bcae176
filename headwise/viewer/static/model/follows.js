// What follows from a text, with all heads and with some of them off: the probabilities of a classifier's labels, or how similar
// the text is to fixed sentences. In the form that a server gives predictions (headwise/viewer/predictions.py).

import { logitsOf, pooled } from "./encoder.js";

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
    Object.assign(this, { hiddenOf, encoder, known: new Map() });
  }

  // The model reads the sentences with the same heads off.
  of(plain, edited, gates) {
    const { sentences } = this.encoder;
    const [before, after] = [[plain, null], [edited, gates]].map(([hidden, off]) => {
      const vector = this.vectorOf(hidden);
      return this.vectors(off).map((other) => dot(vector, other));
    });
    const tokens = sentences.map((text, id) => ({ id, text, plain: before[id], edited: after[id] }));
    return { of: "sentences", tokens: tokens.sort((one, other) => other.edited - one.edited) };
  }

  vectors(gates) {
    const key = String(gates);
    if (!this.known.has(key)) this.known.set(key, this.encoder.sentences.map((text) => this.vectorOf(this.hiddenOf(text, gates))));
    return this.known.get(key);
  }

  vectorOf(hidden) {
    const vector = pooled(this.encoder.pooling, hidden, this.encoder.dim);
    const length = Math.sqrt(dot(vector, vector)) || 1;
    return vector.map((x) => x / length);
  }
}

const dot = (one, other) => one.reduce((sum, x, i) => sum + x * other[i], 0);

function softmax(logits) {
  const powers = logits.map((x) => Math.exp(x - Math.max(...logits)));
  const sum = powers.reduce((total, x) => total + x, 0);
  return powers.map((x) => x / sum);
}
