// Two heads as maps over the tokens of both: each side, right minus left, and their divergence.
//
// The axes are those of align.js: an entry is a token of the left text, of the right one, or of both.

const STRIP = 1 << 20; // cells of one side per question
const ALL = 1 << 22; // up to this many cells are all computed
const POOLED = 512; // with more cells, blocks of more cells than this use only their middle row

// One head over the joint axes. rows, cols: its token at each entry, -1 = none.
export class Side {
  constructor(stack, layer, head, rows, cols) {
    Object.assign(this, { stack, layer, head, rows, cols });
  }

  // Every cell of a rectangle of entries; NaN for masked cells, and for tokens that this side does not have.
  async cells([row, pastRow], [col, pastCol], options) {
    const width = pastCol - col;
    const out = new Float32Array((pastRow - row) * width).fill(NaN);
    const down = span(this.rows, row, pastRow);
    const across = span(this.cols, col, pastCol);
    const [height, own] = [down[1] - down[0], across[1] - across[0]];
    if (!height || !own) return out;
    const found = await this.stack.tile(this.layer, this.head, down, across, height, own, "max", options);
    for (let i = row; i < pastRow; i++) {
      if (this.rows[i] < 0) continue;
      const from = (this.rows[i] - down[0]) * own - across[0];
      const to = (i - row) * width - col;
      for (let j = col; j < pastCol; j++) if (this.cols[j] >= 0) out[to + j] = found[from + this.cols[j]];
    }
    return out;
  }
}

// The tokens from the first to past the last of the entries low … past.
function span(tokens, low, past) {
  while (low < past && tokens[low] < 0) low++;
  while (past > low && tokens[past - 1] < 0) past--;
  return low < past ? [tokens[low], tokens[past - 1] + 1] : [0, 0];
}

// `tile` for a HeatMap (see source.js) of one side, and of right minus left; NaN where one side has no weight. A block
// of cells has the value of largest magnitude in it. `tell(rows)`: the number of rows per drawn row if only the middle
// one was computed, 1 if all were.
export const alone = (side, tell) => pooled((...asked) => side.cells(...asked), tell);

export function difference(left, right, tell) {
  return pooled(async (...asked) => {
    const [minus, out] = await Promise.all([left.cells(...asked), right.cells(...asked)]);
    for (let i = 0; i < out.length; i++) out[i] -= minus[i];
    return out;
  }, tell);
}

function pooled(cellsOf, tell) {
  return async ([row0, row1], cols, height, width, how, options) => {
    const across = cols[1] - cols[0];
    if (height === row1 - row0 && width === across) return inStrips(cellsOf, [row0, row1], cols, options);
    const edge = (y) => row0 + Math.floor((y * (row1 - row0)) / height);
    const place = Int32Array.from({ length: across }, (_, j) => Math.floor(((j + 1) * width - 1) / across));
    const sampled = how === "sample" || tooMany(row1 - row0, across, height, width);
    tell?.(sampled ? Math.ceil((row1 - row0) / height) : 1);
    const out = new Float32Array(height * width).fill(NaN);
    const step = sampled ? 1 : Math.max(1, Math.floor(STRIP / across / ((row1 - row0) / height)));
    await Promise.all(
      Array.from({ length: Math.ceil(height / step) }, async (_, strip) => {
        const [first, past] = [strip * step, Math.min(height, (strip + 1) * step)];
        const middle = (edge(first) + edge(past)) >> 1;
        const rows = sampled ? [middle, middle + 1] : [edge(first), edge(past)];
        const cells = await cellsOf(rows, cols, options);
        let y = first;
        for (let i = rows[0]; i < rows[1]; i++) {
          while (!sampled && i >= edge(y + 1)) y++;
          const [from, to] = [(i - rows[0]) * across, y * width];
          for (let j = 0; j < across; j++) {
            const [bin, cell] = [to + place[j], cells[from + j]];
            if (!Number.isNaN(cell) && !(Math.abs(out[bin]) >= Math.abs(cell))) out[bin] = cell;
          }
        }
      }),
    );
    return out;
  };
}

const tooMany = (rows, cols, height, width) => rows * cols > ALL && (rows * cols) / (height * width) > POOLED;

async function inStrips(cellsOf, [row0, row1], cols, options) {
  const across = cols[1] - cols[0];
  const step = Math.max(1, Math.floor(STRIP / across));
  if (row1 - row0 <= step) return cellsOf([row0, row1], cols, options);
  const out = new Float32Array((row1 - row0) * across);
  for (let row = row0; row < row1; row += step) {
    out.set(await cellsOf([row, Math.min(row1, row + step)], cols, options), (row - row0) * across);
  }
  return out;
}

// ---- the divergence of two heads

const SOME = 64; // rows compared if all rows have more than ALL cells

// As headwise.analyses.compare: the mean over the common rows of the Jensen-Shannon divergence between their
// distributions over the keys of both and one more cell, the learned sink. `left`, `right`: Sides; rows, cols: axes of
// align.js. Returns the divergence in nats and the number of rows.
export async function divergence(left, right, rows, cols, options) {
  const shared = entries(rows);
  if (!shared.length || !entries(cols).length) return { nats: NaN, rows: 0 };
  const whole = rows.length * cols.length <= ALL;
  const count = whole ? shared.length : Math.min(SOME, shared.length);
  const some = Array.from({ length: count }, (_, n) => shared[Math.floor(((n + 0.5) * shared.length) / count)]);
  const parts = whole ? [[0, rows.length]] : some.map((row) => [row, row + 1]);
  let sum = 0;
  for (const part of parts) {
    const [p, q] = await Promise.all([left, right].map((side) => side.cells(part, [0, cols.length], options)));
    for (let row = part[0]; row < part[1]; row++) {
      if (rows.same[row]) sum += rowDivergence(p, q, (row - part[0]) * cols.length, cols.same);
    }
  }
  return { nats: sum / count, rows: count };
}

const entries = ({ same }) => Array.from(same.keys()).filter((u) => same[u]);

function rowDivergence(p, q, from, same) {
  let sum = apart(rest(p, from, same), rest(q, from, same));
  for (let j = from; j < from + same.length; j++) {
    const [one, other] = [p[j] || 0, q[j] || 0]; // NaN: masked
    sum += same[j - from] ? apart(one, other) : apart(one, 0) + apart(0, other);
  }
  return sum / 4;
}

// The weight of a row on a learned sink, or on nothing.
function rest(weights, from, same) {
  let left = 1;
  for (let j = 0; j < same.length; j++) left -= weights[from + j] || 0;
  return left > 1e-3 ? left : 0; // less is rounding
}

// (p + q) ((1 + t) log(1 + t) + (1 - t) log(1 - t)), t = (p - q) / (p + q): equal ones give exactly 0
function apart(p, q) {
  if (!(p + q > 0)) return 0;
  const t = (p - q) / (p + q);
  const term = (x) => (x > -1 ? (1 + x) * Math.log1p(x) : 0);
  return (p + q) * (term(t) + term(-t));
}
