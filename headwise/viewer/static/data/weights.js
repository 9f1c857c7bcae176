// The weights of one layer, computed from the queries and keys in the file: A = exp(s - lse).
//
// `facts` is a layer of the page's facts; `blockOf(name)` gives the bytes of a block. Every method is a generator that
// pauses after each row, so it runs at full speed in a worker, or in slices without one.

export class Weights {
  constructor(facts, rows, cols, blockOf) {
    Object.assign(this, { facts, rows, cols, blockOf });
    this.groups = new Map();
  }

  // height x width weights, each the "max" or "mean" of its block of cells, or the largest of the block's middle row
  // ("sample"); NaN where the mask forbids all of them.
  *tile(head, [row0, row1], [col0, col1], height, width, how) {
    const row = this.rowsOf(head);
    const out = new Float32Array(height * width).fill(NaN);
    const edge = (bin, bins, cells) => Math.floor((bin * cells) / bins);
    const binOf = new Int32Array(col1 - col0);
    for (let x = 0; x < width; x++) binOf.fill(x, edge(x, width, col1 - col0), edge(x + 1, width, col1 - col0));

    for (let y = 0; y < height; y++) {
      let first = row0 + edge(y, height, row1 - row0);
      let past = row0 + edge(y + 1, height, row1 - row0);
      if (how === "sample") {
        first = (first + past) >> 1;
        past = first + 1;
      }
      for (let i = first; i < past; i++) {
        row(i, col0, col1, (col, weight) => {
          const bin = y * width + binOf[col - col0];
          if (how === "mean") out[bin] = (out[bin] || 0) + weight;
          else if (!(out[bin] >= weight)) out[bin] = weight; // also where it is still NaN
        });
        yield;
      }
      for (let x = 0; how === "mean" && x < width; x++) {
        out[y * width + x] /= (past - first) * (edge(x + 1, width, col1 - col0) - edge(x, width, col1 - col0));
      }
    }
    return out;
  }

  // Σ_i vector[i] · (the mean over the heads of A[i, :])
  *mix(vector) {
    const out = new Float64Array(this.cols);
    const { heads } = this.facts;
    for (let head = 0; head < heads; head++) {
      const row = this.rowsOf(head);
      for (let i = 0; i < this.rows; i++) {
        const share = vector[i] / heads;
        if (!share) continue;
        row(i, 0, this.cols, (col, weight) => (out[col] += share * weight));
        yield;
      }
    }
    return Float32Array.from(out);
  }

  // All numbers from which the weights of a row are computed; terms.js reads them.
  *terms(head, row) {
    const { heads, kvHeads, dim, scale, softcap, planes, sinks } = this.facts;
    const { cols } = this;
    const size = heads / kvHeads;
    const { q, k } = this.group(Math.floor(head / size), size);
    const { places, runs } = this.plane(planes && planes[head % planes.length]);
    const biasAt = this.bias(head);
    const out = new Float64Array(4 + dim + cols * dim + 2 * cols);
    out.set([dim, scale, softcap ?? NaN, sinks?.[head] ?? NaN]);
    out.set(q.subarray(((head % size) * this.rows + row) * dim, ((head % size) * this.rows + row + 1) * dim), 4);
    out.set(k, 4 + dim);
    const bias = 4 + dim + cols * dim;
    for (let run = places[row]; run < places[row + 1]; run++) out.fill(1, bias + cols + runs[2 * run], bias + cols + runs[2 * run + 1]);
    for (let col = 0; biasAt && col < cols; col++) {
      const added = biasAt(row, col);
      if (added === -Infinity) out[bias + cols + col] = 0;
      else out[bias + col] = added;
    }
    yield;
    return out;
  }

  // A function of (row, first column, past the last, take) that calls take(column, weight) for every allowed cell.
  rowsOf(head) {
    const { heads, kvHeads, dim, scale, softcap, planes } = this.facts;
    const size = heads / kvHeads;
    const { q, k, lse } = this.group(Math.floor(head / size), size);
    const { places, runs } = this.plane(planes && planes[head % planes.length]);
    const biasAt = this.bias(head);
    const head0 = head % size; // its place in the group
    return (row, col0, col1, take) => {
      const query = (head0 * this.rows + row) * dim;
      const away = lse[head0 * this.rows + row];
      if (away === -Infinity) return; // an empty row
      for (let run = places[row]; run < places[row + 1]; run++) {
        const stop = Math.min(col1, runs[2 * run + 1]);
        for (let col = Math.max(col0, runs[2 * run]); col < stop; col++) {
          const key = col * dim;
          let [a, b, c, e] = [0, 0, 0, 0]; // four independent sums are faster than one
          let d = 0;
          for (; d + 3 < dim; d += 4) {
            a += q[query + d] * k[key + d];
            b += q[query + d + 1] * k[key + d + 1];
            c += q[query + d + 2] * k[key + d + 2];
            e += q[query + d + 3] * k[key + d + 3];
          }
          for (; d < dim; d++) a += q[query + d] * k[key + d];
          let score = (a + b + c + e) * scale;
          if (softcap !== null) score = softcap * Math.tanh(score / softcap);
          if (biasAt) {
            const bias = biasAt(row, col);
            if (bias === -Infinity) continue;
            score += bias;
          }
          take(col, Math.exp(score - away));
        }
      }
    };
  }

  // A block with a checked number of bytes, which its content may determine.
  whole(name, bytesOf) {
    const buffer = this.blockOf(name);
    const words = new Uint32Array(buffer, 0, buffer.byteLength >> 2);
    if (buffer.byteLength >= bytesOf(words)) return buffer;
    throw new Error(`The file is damaged: ${name} is incomplete. Write it again with headwise view.`);
  }

  // The query heads that share one key/value head: q [size, rows, dim], k [cols, dim], lse [size, rows].
  group(number, size) {
    if (this.groups.has(number)) return this.groups.get(number);
    const { dim, groups } = this.facts;
    const { bits, wide, block } = groups[number];
    const vectors = size * this.rows + this.cols;
    const isWhole = bits === 32; // floats as they are, of a model in the page
    const bytes = size * this.rows * (wide ? 8 : 4) + (isWhole ? 0 : 2 * vectors) + Math.ceil((vectors * dim * bits) / 8);
    const buffer = this.whole(block, () => bytes);
    let offset = 0;
    const take = (Kind, length) => {
      const array = new Kind(buffer, offset, length);
      offset += array.byteLength;
      return array;
    };
    const lse = take(wide ? Float64Array : Float32Array, size * this.rows);
    const vectorsOf = () => {
      const scales = [size * this.rows, this.cols].map((count) => upperHalves(take(Uint16Array, count)));
      const numbers = unpacked(new Uint8Array(buffer, offset), bits);
      return scales.map((each) => scaled(numbers, dim, each));
    };
    const [q, k] = isWhole ? [size * this.rows, this.cols].map((count) => take(Float32Array, count * dim)) : vectorsOf();
    this.groups.set(number, { lse, q, k });
    return { lse, q, k };
  }

  // The keys each query may attend to: row i has the runs from places[i] to places[i + 1], and run r is the keys from
  // runs[2r] to runs[2r + 1].
  plane(number) {
    if (number === null) {
      const places = Uint32Array.from({ length: this.rows + 1 }, (_, row) => row);
      return { places, runs: new Uint32Array(2 * this.rows).map((_, i) => (i % 2) * this.cols) };
    }
    const bytes = (words) => 4 * (this.rows + 1 + 2 * (words[this.rows] ?? 0)); // the last place is the number of runs
    const numbers = new Uint32Array(this.whole(`plane${number}`, bytes));
    return { places: numbers.subarray(0, this.rows + 1), runs: numbers.subarray(this.rows + 1) };
  }

  // The number that is added to each score of a head, as a function of row and column, or null.
  bias(head) {
    const { bias } = this.facts;
    if (!bias) return null;
    const [heads, rows, cols] = bias.shape;
    const count = bias.kind === "relative" ? heads * (this.rows + this.cols - 1) : heads * rows * cols;
    const numbers = new Float32Array(this.whole(bias.block, () => 4 * count));
    if (bias.kind === "relative") {
      const zero = (head % heads) * (this.rows + this.cols - 1) + this.rows - 1;
      return (row, col) => numbers[zero + col - row];
    }
    const start = (head % heads) * rows * cols;
    return (row, col) => numbers[start + (rows > 1 ? row * cols : 0) + (cols > 1 ? col : 0)];
  }
}

// float32 numbers of which only the upper 16 bits are kept.
function upperHalves(halves) {
  return new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
}

// A function that returns the next integer of `bits` bits; they are packed from the lowest bits up.
function unpacked(bytes, bits) {
  let [held, have, at] = [0, 0, 0];
  return () => {
    for (; have < bits; have += 8) held |= bytes[at++] << have;
    const number = (held << (32 - bits)) >> (32 - bits); // with its sign
    held >>>= bits;
    have -= bits;
    return number;
  };
}

// Rows of integers, each times the scale of its row.
function scaled(next, dim, scale) {
  const out = new Float32Array(scale.length * dim);
  for (let row = 0, at = 0; row < scale.length; row++) {
    for (let d = 0; d < dim; d++, at++) out[at] = next() * scale[row];
  }
  return out;
}
