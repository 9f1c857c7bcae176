// Aligns the tokens of two texts.
//
// The longest common run, then the same to its left and to its right (Ratcliff & Obershelp): the algorithm of Python's
// difflib.SequenceMatcher, which headwise.analyses.compare uses, so that the page has the same numbers as Python.

const MOST = 5e7; // maximum pairs of equal tokens; with more, only the common beginning and end are matched

// Two lists of labels as one axis with all tokens of both. Entry u is token left[u] of `a` and token right[u] of `b`,
// or -1; same[u] says that the labels are equal. Different tokens share an entry only in a gap of equal length in both
// texts ("street" / "road"). `whole` is false if the texts were too long to match.
// `byPosition`: token u of both is entry u, whatever its label; only for texts of one length.
export function align(a, b, { most = MOST, byPosition = false } = {}) {
  const found = byPosition ? [[0, 0, a.length]] : runsOf(a, b, most);
  const runs = found ?? ends(a, b);
  const left = [];
  const right = [];
  const same = [];
  const add = (i, j, equal) => {
    left.push(i);
    right.push(j);
    same.push(equal);
  };
  let [i, j] = [0, 0];
  for (const [atA, atB, size] of [...runs, [a.length, b.length, 0]]) {
    if (atA - i === atB - j) while (i < atA) add(i++, j++, 0);
    while (i < atA) add(i++, -1, 0);
    while (j < atB) add(-1, j++, 0);
    for (const past = i + size; i < past; ) add(i++, j++, 1);
  }
  return {
    length: left.length,
    left: Int32Array.from(left),
    right: Int32Array.from(right),
    same: Uint8Array.from(same),
    plain: left.every((own, u) => own === u) && right.every((own, u) => own === u),
    whole: found !== null,
  };
}

// [index in a, index in b, length] of the common runs, in order; null if that is too much work.
function runsOf(a, b, most) {
  if (a.length === b.length && a.every((label, i) => label === b[i])) return [[0, 0, a.length]];
  const matcher = new Matcher(a, b, most);
  const runs = [];
  const open = [[0, a.length, 0, b.length]];
  while (open.length) {
    const [lowA, highA, lowB, highB] = open.pop();
    const [atA, atB, size] = matcher.longest(lowA, highA, lowB, highB);
    if (matcher.left < 0) return null;
    if (!size) continue;
    runs.push([atA, atB, size]);
    if (lowA < atA && lowB < atB) open.push([lowA, atA, lowB, atB]);
    if (atA + size < highA && atB + size < highB) open.push([atA + size, highA, atB + size, highB]);
  }
  return runs.sort(([one], [other]) => one - other);
}

class Matcher {
  constructor(a, b, most) {
    this.left = most; // remaining number of pairs
    const numbers = new Map();
    for (const label of b) if (!numbers.has(label)) numbers.set(label, numbers.size);
    const numbersB = Int32Array.from(b, (label) => numbers.get(label));
    this.a = Int32Array.from(a, (label) => numbers.get(label) ?? -1);
    // The indices of each label in b: label n has places[first[n]] to places[first[n + 1]], in order.
    this.first = new Int32Array(numbers.size + 1);
    for (const number of numbersB) this.first[number + 1]++;
    for (let n = 0; n < numbers.size; n++) this.first[n + 1] += this.first[n];
    const next = this.first.slice();
    this.places = new Int32Array(b.length);
    numbersB.forEach((number, j) => (this.places[next[number]++] = j));
    // The length of the run that ends at token j of b, for the previous and the current token of a; shifted by 1.
    this.before = new Int32Array(b.length + 1);
    this.now = new Int32Array(b.length + 1);
  }

  // The first of the longest runs within a[lowA … highA] and b[lowB … highB].
  longest(lowA, highA, lowB, highB) {
    let best = [lowA, lowB, 0];
    let [clearFrom, clearTo] = [0, 0]; // the indices used in `before`
    for (let i = lowA; i < highA && this.left >= 0; i++) {
      const number = this.a[i];
      const from = number < 0 ? 0 : this.at(number, lowB);
      let to = from;
      for (; number >= 0 && to < this.first[number + 1] && this.places[to] < highB; to++) {
        const j = this.places[to];
        const size = this.before[j] + 1;
        this.now[j + 1] = size;
        if (size > best[2]) best = [i - size + 1, j - size + 1, size];
      }
      this.left -= to - from + 1;
      for (let place = clearFrom; place < clearTo; place++) this.before[this.places[place] + 1] = 0;
      [this.before, this.now] = [this.now, this.before];
      [clearFrom, clearTo] = [from, to];
    }
    for (let place = clearFrom; place < clearTo; place++) this.before[this.places[place] + 1] = 0;
    return best;
  }

  // The index of the first token of b from `low` on with this label.
  at(number, low) {
    let [from, to] = [this.first[number], this.first[number + 1]];
    while (from < to) {
      const middle = (from + to) >> 1;
      if (this.places[middle] < low) from = middle + 1;
      else to = middle;
    }
    return from;
  }
}

// The common beginning and the common end.
function ends(a, b) {
  const most = Math.min(a.length, b.length);
  let start = 0;
  while (start < most && a[start] === b[start]) start++;
  let end = 0;
  while (end < most - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  return [[0, 0, start], [a.length - end, b.length - end, end]];
}
