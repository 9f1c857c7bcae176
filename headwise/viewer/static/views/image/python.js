// The Python code for the rollout over an image.

import { layersArguments, MAPS } from "../python.js";

export function rolloutPython({ stack, state, input }, token) {
  const { rows, cols, prefix } = stack.cols.patches;
  const map = MAPS[state.colours] ? `, cmap="${MAPS[state.colours]}"` : "";
  const [all, only] = layersArguments(stack, input);
  const layers = only ? `headwise.Seen([${stack.layers.map(({ expression }) => expression).join(", ")}])` : all;
  return [
    ...(layers.startsWith("headwise.") ? ["import headwise"] : []),
    "from matplotlib.figure import Figure",
    "from headwise import analyses",
    "",
    `shares = analyses.rollout(${layers}, rows=${token})[${stack.example}, 0]`,
    `patches = shares[${prefix.length}:].reshape(${rows}, ${cols}).cpu().numpy()`,
    "figure = Figure()",
    "axes = figure.add_subplot()",
    `figure.colorbar(axes.imshow(patches${map}), label="share")`,
    'figure.savefig("attention.pdf")',
  ].join("\n");
}
