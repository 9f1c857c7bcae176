// The Python code for the Compare view.

import { layerArguments, optionArguments, seenOf } from "../python.js";

// Two figures with the same colours.
export function pythonOfSides({ left, right, one, other }, { scale, colours, sink, top }) {
  const figures = [["left", left, one], ["right", right, other]].map(([name, { layer, head }, stack]) => {
    const args = [...layerArguments(stack, layer), `head=${head}`, ...optionArguments(stack, { scale, colours, sink })];
    if (top > 0 && scale !== "row") args.push(`vmax=${Number(top.toPrecision(4))}`);
    return `${name} = headwise.plot.heatmap(${args.join(", ")}, out="${name}.pdf")`;
  });
  return ["import headwise.plot", "", ...figures].join("\n");
}

// Right minus left, on the common tokens.
export function pythonOfDifference({ left, right, one, other, rows, cols }) {
  const sides = [["a", left, one], ["b", right, other]].map(([name, { layer, head }, stack]) => {
    const { expression } = stack.layers[layer];
    const seen = seenOf(expression) ?? "headwise.Seen([record])";
    return { name, head, example: stack.example, expression, seen };
  });
  const lines = sides.map(({ name, expression }) => `${name} = ${expression}`);
  const weights = sides.map(({ name, head, example }) => `${name}.weights(heads=${head})[${example}, 0]`);
  if (rows.plain && cols.plain) lines.push(`difference = ${weights[1]} - ${weights[0]}  # right minus left`);
  else {
    const labelsOf = (kind) => ({ name, example, seen }) => `${seen}.${kind}_labels(${name}, ${example})`;
    const labels = (kind) => sides.map(labelsOf(kind)).join(", ");
    lines.unshift("from difflib import SequenceMatcher", "");
    lines.push(
      "",
      "def shared(x, y):",
      "    runs = SequenceMatcher(None, x, y, autojunk=False).get_matching_blocks()",
      "    return zip(*[(run.a + i, run.b + i) for run in runs for i in range(run.size)])",
      "",
      `rows_a, rows_b = map(list, shared(${labels("row")}))`,
      `cols_a, cols_b = map(list, shared(${labels("col")}))`,
      `difference = ${weights[1]}[rows_b][:, cols_b] - ${weights[0]}[rows_a][:, cols_a]  # right minus left`,
    );
  }
  lines.push('print(f"{difference.min():.3f} … {difference.max():.3f}")');
  return lines.join("\n");
}
