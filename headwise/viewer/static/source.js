// Where the page's numbers come from: here, from the queries and keys that the file itself carries.
//
// A source is { tolerance, texts: [{ labels, pieces, gaps, special, unknown, cut, tile, layers }] }, with `layers` a list
// of { layer, heads, planes }. `tile` is the one question the page asks of it, so that another source (a server) need
// answer nothing else:
//
//   await text.tile(layer, head, [row, pastRow], [col, pastCol], height, width, how)
//
// answers height x width weights (Float32Array, by rows), each the "max" or "mean" of the block of cells it stands for;
// NaN where the mask allows none of them. Blocks are split evenly: height and width are at most the number of cells.

const SLICE_MS = 8; // work this long, then let the browser breathe

function embeddedSource(page) {
  const facts = JSON.parse(page.getElementById("facts").textContent);
  const bytes = (id) => {
    const block = page.getElementById(id);
    const text = block.textContent;
    block.remove(); // decoded once, and kept by the text
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text).buffer;
    const binary = atob(text);
    const out = new Uint8Array(binary.length);
    for (let i = 0; i < out.length; i++) out[i] = binary.charCodeAt(i);
    return out.buffer;
  };
  const { tolerance } = facts;
  return { tolerance, texts: facts.texts.map((text, i) => new EmbeddedText(text, (name) => bytes(`text${i}-${name}`))) };
}

class EmbeddedText {
  constructor(facts, bytes) {
    Object.assign(this, facts);
    this.bytes = bytes;
    this.decoded = new Map(); // layers and mask planes, each decoded when it is first asked for
  }

  async tile(layer, head, rows, cols, height, width, how) {
    const work = this.tileRows(layer, head, rows, cols, height, width, how);
    for (let until = performance.now() + SLICE_MS; ; ) {
      const { done, value } = work.next();
      if (done) return value;
      if (performance.now() < until) continue;
      await (window.scheduler?.yield ? scheduler.yield() : new Promise((resume) => setTimeout(resume)));
      until = performance.now() + SLICE_MS;
    }
  }

  weight(layer, head, row, col) {
    const work = this.tileRows(layer, head, [row, row + 1], [col, col + 1], 1, 1, "max");
    for (;;) {
      const { done, value } = work.next();
      if (done) return value[0] || 0; // a masked cell weighs nothing
    }
  }

  // One row of cells at a time, so that the caller can pause between any two.
  *tileRows(layer, head, [row0, row1], [col0, col1], height, width, how) {
    const { heads, kvHeads, dim, scale, softcap, planes } = this.layers.find((each) => each.layer === layer);
    const size = heads / kvHeads;
    const { q, k, lse } = this.group(layer, Math.floor(head / size), size, dim);
    const { places, runs } = this.plane(planes && planes[head % planes.length]);
    const tokens = this.labels.length;
    const head0 = head % size; // its place in the group
    const out = new Float32Array(height * width).fill(NaN);
    const edge = (bin, bins, cells) => Math.floor((bin * cells) / bins);
    const binOf = new Int32Array(col1 - col0);
    for (let x = 0; x < width; x++) binOf.fill(x, edge(x, width, col1 - col0), edge(x + 1, width, col1 - col0));

    for (let y = 0; y < height; y++) {
      const first = row0 + edge(y, height, row1 - row0);
      const past = row0 + edge(y + 1, height, row1 - row0);
      for (let row = first; row < past; row++) {
        const query = (head0 * tokens + row) * dim;
        for (let run = places[row]; run < places[row + 1]; run++) {
          const stop = Math.min(col1, runs[2 * run + 1]);
          for (let col = Math.max(col0, runs[2 * run]); col < stop; col++) {
            const key = col * dim;
            let score = 0;
            for (let d = 0; d < dim; d++) score += q[query + d] * k[key + d];
            score *= scale;
            if (softcap !== null) score = softcap * Math.tanh(score / softcap);
            const weight = Math.exp(score - lse[head0 * tokens + row]);
            const bin = y * width + binOf[col - col0];
            if (how === "mean") out[bin] = (out[bin] || 0) + weight;
            else if (!(out[bin] >= weight)) out[bin] = weight; // also where it is still NaN
          }
        }
        yield;
      }
      for (let x = 0; how === "mean" && x < width; x++) {
        out[y * width + x] /= (past - first) * (edge(x + 1, width, col1 - col0) - edge(x, width, col1 - col0));
      }
    }
    return out;
  }

  // The query heads that read one key/value head: q [size, tokens, dim], k [tokens, dim], lse [size, tokens].
  group(layer, number, size, dim) {
    return this.once(`layer${layer}-group${number}`, (name) => {
      const { bits } = this.layers.find((each) => each.layer === layer).groups[number];
      const tokens = this.labels.length;
      const buffer = this.bytes(name);
      let offset = 0;
      const take = (Kind, length) => {
        const array = new Kind(buffer, offset, length);
        offset += array.byteLength;
        return array;
      };
      const lse = take(Float32Array, size * tokens);
      const qScale = take(Float32Array, size * tokens);
      const kScale = take(Float32Array, tokens);
      const q = take(Int16Array, size * tokens * dim);
      const k = take(Int16Array, tokens * dim);
      const qLow = bits === 24 && take(Uint8Array, q.length);
      return { lse, q: scaled(q, qLow, qScale), k: scaled(k, bits === 24 && take(Uint8Array, k.length), kScale) };
    });
  }

  // The keys each query may attend to: row i owns the runs from places[i] to places[i + 1], and run r is the keys from
  // runs[2r] to runs[2r + 1].
  plane(number) {
    return this.once(`plane${number ?? " of all"}`, (name) => {
      const tokens = this.labels.length;
      if (number === null) {
        const places = Uint32Array.from({ length: tokens + 1 }, (_, row) => row);
        return { places, runs: new Uint32Array(2 * tokens).map((_, i) => (i % 2) * tokens) };
      }
      const numbers = new Uint32Array(this.bytes(name));
      return { places: numbers.subarray(0, tokens + 1), runs: numbers.subarray(tokens + 1) };
    });
  }

  once(name, decode) {
    if (!this.decoded.has(name)) this.decoded.set(name, decode(name));
    return this.decoded.get(name);
  }
}

// Whole numbers times the scale of their row; `low`, if there, is one byte more of each.
function scaled(high, low, scale) {
  const out = new Float32Array(high.length);
  const dim = high.length / scale.length;
  for (let row = 0, at = 0; row < scale.length; row++) {
    for (let d = 0; d < dim; d++, at++) out[at] = (low ? 256 * high[at] + low[at] : high[at]) * scale[row];
  }
  return out;
}
