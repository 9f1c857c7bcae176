// The top of the page: its title, the input and layers shown, the theme, and help.

import { button, choices, languageSwitch, picker } from "./controls.js";
import { element, icon } from "./element.js";
import { say } from "../words.js";
import { framesSaid, unknownSaid } from "./reading.js";

const FEW = 4; // stacks up to this many stand side by side

export class Header {
  constructor(app) {
    this.app = app;
    const { inputs } = app.source;
    const names = inputs.map(({ name }, place) => [place, name]);
    this.inputs = picker(say("Input"), names, (place) => app.go({ input: Number(place) }));
    this.inputs.hidden = inputs.length < 2;
    this.stacks = element("span", { className: "stacks" });
    this.facts = element("p", { className: "facts" });
    this.theme = button({ icon: "auto" }, say("Theme"), () => this.turnTheme());
    const help = button({ icon: "help" }, say("Help: the keys (?)"), () => app.keys.show());
    this.hints = button({ icon: "look" }, "", () => app.state.set({ hints: !app.state.hints }));
    const title = element("h1", { textContent: app.source.title, title: app.source.title, dir: "auto" });
    const switched = app.address ? [languageSwitch((language) => app.state.set({ language }))] : [];
    const corner = element("span", { className: "corner" }, ...switched, this.hints, this.theme, help);
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
      this.theme.title = this.theme.ariaLabel = themeSaid(theme);
    }
    if (changed.has("hints")) {
      this.hints.ariaPressed = String(app.state.hints);
      this.hints.title = app.state.hints ? say("Hide what to look at (i)") : say("Show what to look at (i)");
      this.hints.ariaLabel = this.hints.title;
    }
    if (!changed.has("input") && !changed.has("stack")) return;
    this.hints.hidden = !app.opening.any;
    if (changed.has("input")) this.offerStacks();
    this.inputs.show(app.state.input);
    this.chooser.show(app.state.stack);
    this.facts.replaceChildren(...factsOf(app.stack, app.source).flatMap((fact, i) => [i ? " · " : "", fact]));
  }

  offerStacks() {
    const { stacks } = this.app.input;
    const options = stacks.map(({ name }, place) => [place, name]);
    const choose = (place) => this.app.go({ stack: Number(place) });
    this.chooser = (stacks.length > FEW ? picker : choices)(say("Layers"), options, choose);
    this.stacks.replaceChildren(...(stacks.length > 1 ? [this.chooser] : []));
  }
}

// The size of the stack and the accuracy of the weights, a few words each.
export function factsOf({ rows, cols, layers, kind }, { tolerance }) {
  const span = (numbers) => [...new Set([Math.min(...numbers), Math.max(...numbers)])].map(said).join("–");
  const heads = span(layers.map((layer) => layer.heads));
  const shared = layers.some((layer) => layer.kvHeads < layer.heads);
  const kv = shared ? ` (${say("{n} key/value", { n: span(layers.map((layer) => layer.kvHeads)) })})` : "";
  const count = layers.length;
  const ofLayers = count === 1 ? say("1 layer") : say("{n} layers", { n: count });
  const ofHeads = heads === "1" ? say("1 head") : say("{n} heads", { n: heads });
  const cross = () => say("{queries} attending to {keys}", { queries: tokensOf(rows), keys: tokensOf(cols) });
  return [
    `${ofLayers} × ${ofHeads}${kv}`,
    kind === "cross" ? cross() : tokensOf(rows),
    ...unknownSaid(rows, cols),
    tolerance ? say("weights within {tolerance} of the model's", { tolerance }) : say("exact weights, from the server"),
  ];
}

function tokensOf(axis) {
  const { length, cut, patches, text } = axis;
  if (axis.seconds) return framesSaid(axis);
  const n = said(length);
  const one = length === 1;
  let name = one ? say("1 token") : say("{n} tokens", { n });
  if (patches && !text) name = one ? say("1 patch") : say("{n} patches", { n });
  else if (text === false) name = one ? say("1 position") : say("{n} positions", { n });
  return cut ? say("{tokens} ({n} more did not fit)", { tokens: name, n: said(cut) }) : name;
}

// The title of the button for the theme.
export function themeSaid(theme) {
  const names = { auto: say("that of the system"), light: say("light"), dark: say("dark") };
  return say("Theme: {theme} (t)", { theme: names[theme] });
}

const said = (number) => number.toLocaleString("en");
