// The top of the page: its title, the input and layers shown, the theme, and help.

import { button, choices, picker } from "./controls.js";
import { element, icon } from "./element.js";
import { framesSaid, unknownSaid } from "./reading.js";

const FEW = 4; // stacks up to this many stand side by side

export class Header {
  constructor(app) {
    this.app = app;
    const { inputs } = app.source;
    const names = inputs.map(({ name }, place) => [place, name]);
    this.inputs = picker("Input", names, (place) => app.go({ input: Number(place) }));
    this.inputs.hidden = inputs.length < 2;
    this.stacks = element("span", { className: "stacks" });
    this.facts = element("p", { className: "facts" });
    this.theme = button({ icon: "auto" }, "Theme", () => this.turnTheme());
    const help = button({ icon: "help" }, "Help: the keys (?)", () => app.keys.show());
    const title = element("h1", { textContent: app.source.title, title: app.source.title, dir: "auto" });
    const corner = element("span", { className: "corner" }, this.theme, help);
    this.element = element("header", {}, title, this.facts, this.inputs, this.stacks, corner);
  }

  // From the system's theme to the other one first, so that every step except the last changes something.
  turnTheme() {
    const [system, other] = this.app.darkness.matches ? ["dark", "light"] : ["light", "dark"];
    const next = { auto: other, [other]: system, [system]: "auto" };
    this.app.state.set({ theme: next[this.app.state.theme] });
  }

  update(changed) {
    const { app } = this;
    if (changed.has("theme")) {
      const { theme } = app.state;
      this.theme.replaceChildren(icon(theme));
      this.theme.title = this.theme.ariaLabel = `Theme: ${theme === "auto" ? "that of the system" : theme} (t)`;
    }
    if (!changed.has("input") && !changed.has("stack")) return;
    if (changed.has("input")) this.offerStacks();
    this.inputs.show(app.state.input);
    this.chooser.show(app.state.stack);
    this.facts.replaceChildren(...factsOf(app.stack, app.source).flatMap((fact, i) => [i ? " · " : "", fact]));
  }

  offerStacks() {
    const { stacks } = this.app.input;
    const options = stacks.map(({ name }, place) => [place, name]);
    const choose = (place) => this.app.go({ stack: Number(place) });
    this.chooser = (stacks.length > FEW ? picker : choices)("Layers", options, choose);
    this.stacks.replaceChildren(...(stacks.length > 1 ? [this.chooser] : []));
  }
}

// The size of the stack and the accuracy of the weights, a few words each.
export function factsOf({ rows, cols, layers, kind }, { tolerance }) {
  const span = (numbers) => [...new Set([Math.min(...numbers), Math.max(...numbers)])].map(said).join("–");
  const heads = span(layers.map((layer) => layer.heads));
  const shared = layers.some((layer) => layer.kvHeads < layer.heads);
  const kv = shared ? ` (${span(layers.map((layer) => layer.kvHeads))} key/value)` : "";
  return [
    `${layers.length} ${layers.length === 1 ? "layer" : "layers"} × ${heads} ${heads === "1" ? "head" : "heads"}${kv}`,
    kind === "cross" ? `${tokensOf(rows)} attending to ${tokensOf(cols)}` : tokensOf(rows),
    ...unknownSaid(rows, cols),
    tolerance ? `weights within ${tolerance} of the model's` : "exact weights, from the server",
  ];
}

function tokensOf(axis) {
  const { length, cut, patches, text } = axis;
  if (axis.seconds) return framesSaid(axis);
  const name = patches && !text ? "patches" : text === false ? "positions" : "tokens";
  const one = length === 1 ? name.replace(/e?s$/, "") : name;
  return `${said(length)} ${one}${cut ? ` (${said(cut)} more did not fit)` : ""}`;
}

const said = (number) => number.toLocaleString("en");
