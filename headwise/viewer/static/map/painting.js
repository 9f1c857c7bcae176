// Paints the picture of a plate (plates.js): its weights, as many as there are pixels, in the colours of the map.

import { picture } from "./colour.js";

// A pixel for every weight, or for every device pixel if that has several weights.
export function sizeOf({ block, height, width, cols }, zoom) {
  const pixels = (count, cells, zoom) => (zoom * cells < count ? Math.max(1, Math.round(zoom * cells)) : count);
  return {
    height: pixels(height, height * block, zoom[0]),
    width: pixels(width, cols[1] - cols[0], zoom[1]),
  };
}

// Draw rows `from` to `past` of a plate onto its picture.
export function paint(plates, plate, from, past) {
  const { canvas } = plate;
  const lines = canvas.height / plate.height;
  const [first, last] = [Math.floor(from * lines), Math.min(canvas.height, Math.ceil(past * lines))];
  const { scale, table } = plates.style;
  const { reach } = plates;
  const signed = plates.what.signed || reach !== null;
  const weights = pooled(plates, plate, first, last);
  const top = reach ?? (scale === "row" && !signed ? 1 : plates.top);
  const colours = signed ? plates.diverging : table;
  const of = reach !== null || scale === "row" ? "linear" : scale; // values are already relative to those of their row
  const image = picture(weights, last - first, canvas.width, top, of, colours, signed);
  canvas.getContext("2d").putImageData(image, 0, first);
}

// The values of rows `first` to `last` of the picture: weights, shares of the row's largest, or even shares above 1;
// without the sink, and 0 for what is below the threshold.
function pooled(plates, plate, first, last) {
  const { canvas, height, width, weights, tops, keys } = plate;
  const hidden = plates.hiddenIn(plate);
  const { scale, threshold } = plates.style;
  const isEven = plates.reach !== null;
  const signed = plates.what.signed || isEven;
  const shares = scale === "row" && !signed;
  const plain = canvas.height === height && canvas.width === width;
  if (plain && !shares && !isEven && hidden < 0 && !threshold) return weights.subarray(first * width, last * width);

  const out = new Float32Array((last - first) * canvas.width).fill(NaN);
  const place = Int32Array.from({ length: width }, (_, x) => Math.floor((x * canvas.width) / width));
  for (let y = Math.ceil((first * height) / canvas.height); y < height; y++) {
    const line = Math.floor((y * canvas.height) / height);
    if (line >= last) break;
    const start = (line - first) * canvas.width;
    const share = shares ? (tops[y] > 0 ? 1 / tops[y] : 0) : isEven ? keys[y] : 1;
    const zero = isEven ? 1 : 0;
    for (let x = 0, at = y * width; x < width; x++, at++) {
      if (x === hidden) continue;
      const weight = weights[at] < threshold && !plates.what.signed ? 0 : weights[at] * share - zero;
      const bin = start + place[x];
      const held = out[bin];
      if (held !== held || (signed ? Math.abs(weight) > Math.abs(held) : weight > held)) out[bin] = weight;
    }
  }
  return out;
}
