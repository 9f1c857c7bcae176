// Maps of nearly uniform heads. Where no weight is much more than an even share of the keys that its query may attend to,
// one colour would fill the map; there colours show how many times an even share a weight is, around 1.

const NEARLY = 1.5; // no weight is more than this many even shares
const FEW = 4; // with fewer keys every weight is near an even share
const LEAST = 0.1; // colours reach at least from 0.9 to 1.1 even shares

// Whether a map with `cols` columns is nearly uniform; most: the largest weight, in even shares.
export const isNearlyEven = (most, cols) => cols >= FEW && most > 0 && most <= NEARLY;

// How far from 1 the colours reach. least, most: the smallest and the largest weight, in even shares.
export const reachOf = (least, most) => Math.max(LEAST, most - 1, 1 - least);

// A small picture of a map with `cols` columns in even shares above 1, { shares, reach }; null if it is not nearly uniform.
export function inEvenShares(weights, width, cols) {
  const shares = new Float32Array(weights.length);
  let [least, most] = [Infinity, 0];
  for (let start = 0; start < weights.length; start += width) {
    const row = weights.subarray(start, start + width);
    const seen = row.reduce((sum, weight) => sum + !Number.isNaN(weight), 0);
    if (seen < width && width < cols) return null; // how many keys a pooled row sees is not known
    const keys = (seen * cols) / width;
    row.forEach((weight, x) => {
      const share = weight * keys;
      shares[start + x] = share - 1;
      if (share > most) most = share;
      if (share < least) least = share;
    });
    if (most > NEARLY) return null;
  }
  return isNearlyEven(most, cols) ? { shares, reach: reachOf(least, most) } : null;
}
