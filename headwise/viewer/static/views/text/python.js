// The Python code for the Text and the Image view: the weights of one token in the chosen heads.

import { layerArguments, layersArguments, MAPS, optionArguments, seenOf } from "../python.js";

const FIGURE = "from matplotlib.figure import Figure";

// The running text of one head, as a figure.
export function figurePython({ stack, state }, token) {
  const gives = state.direction === "gives";
  const args = [...layerArguments(stack, state.layer), `head=${state.head}`, `${gives ? "row" : "col"}=${token}`];
  args.push(...optionArguments(stack, { ...state, sink: state.sink && gives }));
  return `import headwise.plot\n\nfigure = headwise.plot.text(${args.join(", ")}, out="attention.pdf")\n`;
}

// The lines of the chosen heads, all of them or those of one token.
export function linesPython({ stack, state }, heads, token) {
  const numbers = heads.map(([, head]) => head);
  const args = [...layerArguments(stack, state.layer), `head=${numbers.length > 1 ? `[${numbers.join(", ")}]` : numbers[0]}`];
  if (token !== null) args.push(`${state.direction === "gives" ? "row" : "col"}=${token}`);
  args.push(...optionArguments(stack, { ...state, colours: null }));
  return `import headwise.plot\n\nfigure = headwise.plot.lines(${args.join(", ")}, out="attention.pdf")\n`;
}

// The weights of several heads, or between groups, as a list in descending order.
export function listPython({ stack, state, layer }, heads, token, level) {
  const [example, gives] = [stack.example, state.direction === "gives"];
  const records = heads.map(([place]) => stack.layers[place].expression);
  const seen = seenOf(layer.expression);
  const lines = [];
  if (level === "tokens") {
    const names = seen ? `${seen}.${gives ? "col" : "row"}_labels(${layer.expression}, ${example})` : "None";
    lines.push(`weights = ${meanPython(stack, state, heads, token)}`, `labels = ${names} or range(len(weights))`);
  } else {
    const each = heads.map(([, head], i) => `grouped(${records[i]}, rows, cols)[${example}, ${head}]`);
    lines.push(
      "from headwise.records import grouped",
      "",
      `rows, cols = (tokens[${example}].${level}() for tokens in ${seen}.axes(${layer.expression}))`,
      `weights = ${meanOf(each)}  # from ${level} to ${level}`,
      gives ? `weights = weights[rows.group_of(${token})]` : `weights = weights[:, cols.group_of(${token})]`,
      `labels = ${gives ? "cols" : "rows"}.labels`,
    );
  }
  lines.push("for place in weights.argsort(descending=True)[:5].tolist():");
  lines.push('    print(f"{weights[place]:.4f} {labels[place]}")');
  return `${lines.join("\n")}\n`;
}

// The weights of the patches as a figure.
export function imagePython({ stack, state }, heads, token) {
  return patchesPython(stack, state, [FIGURE], ["weights", "weight", meanPython(stack, state, heads, token)]);
}

// The same figure for a rollout.
export function rolloutPython({ stack, state, input }, token) {
  const [all, only] = layersArguments(stack, input);
  const layers = only ? `headwise.Seen([${stack.layers.map(({ expression }) => expression).join(", ")}])` : all;
  const imports = [...(layers.startsWith("headwise.") ? ["import headwise"] : []), FIGURE, "from headwise import analyses"];
  const shares = `analyses.rollout(${layers}, rows=${token})[${stack.example}, 0]`;
  return patchesPython(stack, state, imports, ["shares", "share", shares]);
}

function patchesPython(stack, { colours }, imports, [name, one, value]) {
  const { rows, cols, prefix } = stack.cols.patches;
  const map = MAPS[colours] ? `, cmap="${MAPS[colours]}"` : "";
  return [
    ...imports,
    "",
    `${name} = ${value}`,
    `patches = ${name}[${prefix.length}:].reshape(${rows}, ${cols}).cpu().numpy()`,
    "figure = Figure()",
    "axes = figure.add_subplot()",
    `figure.colorbar(axes.imshow(patches${map}), label="${one}")`,
    'figure.savefig("attention.pdf")',
  ].join("\n");
}

// A row or a column, as the mean of the heads.
function meanPython({ layers, example }, { direction }, heads, token) {
  return meanOf(heads.map(([place, head]) => {
    const { expression } = layers[place];
    if (direction === "gives") return `${expression}.weights(heads=${head}, rows=${token})[${example}, 0, 0]`;
    return `${expression}.weights(heads=${head}, cols=${token})[${example}, 0, :, 0]`;
  }));
}

const meanOf = (each) => (each.length === 1 ? each[0] : `(${each.join(" + ")}) / ${each.length}`);
