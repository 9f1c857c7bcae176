// The sink of a head: the first key that any query may attend to; null if no query may attend to anything.

const AROUND = 256; // columns that are searched at once
const sinks = new WeakMap(); // stack -> "layer.head" -> column

// The sink of [layer, head], kept.
export async function sinkOf(stack, [layer, head], options) {
  if (!stack.layers[layer].masked) return 0;
  if (!sinks.has(stack)) sinks.set(stack, new Map());
  const known = sinks.get(stack);
  const key = `${layer}.${head}`;
  const tile = (...question) => stack.tile(layer, head, ...question);
  if (!known.has(key)) known.set(key, await firstAllowed(tile, stack.rows.length, stack.cols.length, options));
  return known.get(key);
}

// tile: as stack.tile, of one layer and head.
export async function firstAllowed(tile, rows, cols, options) {
  for (let first = 0, past; first < cols; first = past) {
    past = Math.min(cols, first + AROUND);
    const weights = await tile([0, rows], [first, past], 1, past - first, "max", options);
    const found = weights.findIndex((weight) => !Number.isNaN(weight));
    if (found >= 0) return first + found;
  }
  return null;
}
