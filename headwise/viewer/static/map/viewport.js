// The visible part of a map: one `Side` for its rows and one for its columns, each with its own zoom, because a map
// of 4 rows and 4,000 columns would otherwise be a line.

const WIDEST = 56; // maximum pixels of a cell, unless zoomed
const CLOSEST = 80;
const SHORT = 24; // pixels of a cell along the shorter side, if one side is much longer

export class Side {
  // count cells are shown in `room` pixels that begin at `low`.
  constructor() {
    Object.assign(this, { count: 0, low: 0, room: 0, fit: 1, at: 0, z: 1 }); // first visible cell, pixels per cell
  }

  moveTo(at, z = this.z) {
    this.z = Math.max(this.fit, Math.min(z, Math.max(this.fit, CLOSEST)));
    this.at = Math.max(0, Math.min(at, this.count - this.room / this.z));
  }

  // Move this place among the cells to that pixel, as far as the map's ends allow.
  zoom(factor, place, pixel) {
    this.moveTo(0, this.z * factor);
    this.moveTo(place - (pixel - this.low) / this.z);
  }

  // The place among the cells at that pixel, as a real number.
  placeAt(pixel) {
    return this.at + (pixel - this.low) / this.z;
  }

  // Pan as little as needed to make the whole cell visible.
  reveal(cell) {
    this.moveTo(Math.max(cell + 1 - this.room / this.z, Math.min(this.at, cell)));
  }

  get whole() {
    return this.z <= this.fit * 1.0001;
  }

  // Pixels that are covered by cells.
  get span() {
    return Math.min(this.room, (this.count - this.at) * this.z);
  }

  // The visible cells [first, past the last], as real numbers.
  get sight() {
    return [this.at, Math.min(this.count, this.at + this.room / this.z)];
  }

  get cells() {
    const [first, past] = this.sight;
    return [Math.floor(first), Math.min(this.count, Math.ceil(past - 1e-6))];
  }

  // The start of a cell, in pixels.
  place(cell) {
    return this.low + (cell - this.at) * this.z;
  }

  // The cell at that pixel; null outside of the map.
  cellAt(pixel) {
    const cell = Math.floor(this.placeAt(pixel));
    return pixel >= this.low && cell < this.count ? cell : null;
  }
}

// The zoom at which everything is visible: square cells, unless one side is more than twice as long.
export function fit(rows, cols) {
  const [y, x] = [rows, cols].map((side) => Math.min(WIDEST, side.room / side.count));
  const even = (z) => (z * devicePixelRatio > 3 ? Math.floor(z * devicePixelRatio) / devicePixelRatio : z);
  rows.fit = cols.fit = even(Math.min(x, y));
  if (cols.count >= 2 * rows.count) fitLong(cols, rows, even(x), even(y));
  if (rows.count >= 2 * cols.count) fitLong(rows, cols, even(y), even(x));
}

function fitLong(long, short, z, most) {
  long.fit = z;
  short.fit = Math.min(most, Math.max(z, SHORT));
}

// Show [row, past the last row, column, past the last column]; null = everything.
export function lookAt(sight, rows, cols) {
  const [row, pastRow, col, pastCol] = sight ?? [0, rows.count, 0, cols.count];
  let [y, x] = [rows.room / (pastRow - row), cols.room / (pastCol - col)];
  if (rows.fit === cols.fit) y = x = Math.min(x, y); // cells stay square
  if (!sight) [y, x] = [rows.fit, cols.fit];
  for (const [side, z, middle] of [[rows, y, (row + pastRow) / 2], [cols, x, (col + pastCol) / 2]]) {
    side.moveTo(0, z);
    side.moveTo(middle - side.room / side.z / 2);
  }
}

export const sightOf = (rows, cols) => (rows.whole && cols.whole ? null : [...rows.sight, ...cols.sight]);
