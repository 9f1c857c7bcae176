// Arguments of headwise.plot for the Python code of a view.

export const MAPS = { viridis: "viridis", cividis: "cividis", grey: "Greys" }; // as matplotlib calls them; ember is the default

// The layer of a Seen, which knows the labels of its tokens; or a bare record.
export function layerArguments(stack, layer) {
  const { expression } = stack.layers[layer];
  const numbered = [stack.rows, stack.cols].every(({ labels }) => labels.every((label, i) => label === String(i)));
  const [, seen, place] = /^(.*)\[(\d+)\]$/.exec(expression) ?? [];
  return numbered || !seen || seen.endsWith(".records") ? [expression] : [seen, `layer=${place}`];
}

// The layers of a stack: a record, a Seen and which of its layers, or several records.
export function layersArguments({ layers }, { stacks }) {
  const all = layers.map(({ expression }) => expression);
  if (all.length === 1) return all;
  const places = all.map((expression) => /^(.*)\[(\d+)\]$/.exec(expression) ?? []);
  const [, seen] = places[0];
  const together = seen && !seen.endsWith(".records") && places.every(([, other]) => other === seen);
  if (!together) return [`headwise.Seen([${all.join(", ")}])`];
  return stacks.length > 1 ? [seen, `layers=[${places.map(([, , place]) => place).join(", ")}]`] : [seen];
}

// The Seen of a record; undefined for a bare record.
export function seenOf(expression) {
  return /^(.*)\[\d+\]$/.exec(expression)?.[1].replace(/\.records$/, "");
}

// The example, and the colours.
export function optionArguments(stack, { scale, colours, sink }, usual = "linear") {
  const args = stack.example ? [`example=${stack.example}`] : [];
  if (scale !== usual && scale !== "row") args.push(`scale="${scale}"`);
  if (MAPS[colours]) args.push(`cmap="${MAPS[colours]}"`);
  if (sink) args.push("hide_sink=True");
  return args;
}
