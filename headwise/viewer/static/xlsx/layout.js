// Where the matrices of a step stand on its sheet, and the addresses of their cells: as headwise/worksheet/layout.py.
//
// matrix: { name, rows, cols: { letter, labels }, value(i, j), formula: null or its text, kind, digits }, with i and j from 0.
// A formula names matrices: X[i,j] is the cell of X in the same row and column, X[i,:] the row, X[:,j] the column, from 1.
// A number is a matrix with one row and one column that have no labels.

const FIRST_ROW = 6; // above it: title, sentence, formula, links
const LONGEST_NAME = 31;

export const isNumber = ({ rows, cols }) => [rows, cols].every(({ labels }) => labels.length === 1 && !labels[0]);

class Place {
  constructor(matrix, sheet, row, col) {
    Object.assign(this, { matrix, sheet, row, col });
  }

  // [row, column] of a number, all from 1.
  at(i, j) {
    return [isNumber(this.matrix) ? this.row : this.row + 2 + i, this.col + j];
  }

  // null = all rows or columns.
  address(i, j, fixed = "") {
    const { rows, cols } = this.matrix;
    const first = cell(...this.at(i ?? 1, j ?? 1), fixed);
    const last = cell(...this.at(i ?? rows.labels.length, j ?? cols.labels.length), fixed);
    return first === last ? first : `${first}:${last}`;
  }

  get absolute() {
    return `'${this.sheet}'!${this.address(null, null, "$")}`;
  }
}

// steps: [{ title, sentence, symbols, grid: rows of matrices }, …] -> [{ name, step, places }, …]
export function layOut(steps) {
  return steps.map((step, number) => {
    const name = `${number + 1} ${step.title.replaceAll(": ", " ").replaceAll("'", "’").replace(/[[\]:*?/\\]/g, "")}`;
    const sheet = name.slice(0, LONGEST_NAME).trimEnd();
    const widths = [];
    for (const row of step.grid) {
      row.forEach((matrix, at) => {
        if (at < row.length - 1) widths[at] = Math.max(widths[at] ?? 0, matrix.cols.labels.length);
      });
    }
    const places = [];
    let top = FIRST_ROW;
    for (const row of step.grid) {
      let left = 1;
      row.forEach((matrix, at) => {
        places.push(new Place(matrix, sheet, top, left));
        left += Math.max(widths[at] ?? 0, isNumber(matrix) ? 2 : 1) + 2; // a number has its formula after it
      });
      top += row.every(isNumber) ? 2 : 4 + Math.max(...row.map(({ rows }) => rows.labels.length));
    }
    return { name: sheet, step, places };
  });
}

// (2, 3) is C2.
export const cell = (row, col, fixed = "") => `${fixed}${letters(col)}${fixed}${row}`;

// 1 is A, 27 is AA.
export function letters(col) {
  let found = "";
  for (; col; col = Math.floor((col - 1) / 26)) found = String.fromCharCode(65 + ((col - 1) % 26)) + found;
  return found;
}

// The formula of one cell, with addresses; places: of all matrices, by name.
export function addressed(formula, i, j, sheet, places) {
  const index = (text) => (text === ":" ? null : text === "i" ? i : text === "j" ? j : Number(text));
  return formula.replace(/\b([A-Za-z_]\w*)\[([^\],]+),([^\]]+)\]/g, (_, name, row, col) => {
    const place = places.get(name);
    const address = place.address(index(row), index(col));
    return place.sheet === sheet ? address : `'${place.sheet}'!${address}`;
  });
}

// A formula with spaces where lines can be broken.
export function readable(formula) {
  const parts = formula.split(/(\[[^\]]*\])/);
  return parts.map((part) => (part.startsWith("[") ? part : part.replaceAll(",", ", "))).join("")
    .replace(/(?<=[\w\])])([-+*/])(?=[\w(])/g, " $1 ");
}
