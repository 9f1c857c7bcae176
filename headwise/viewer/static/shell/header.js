// The top of the page: its title, the input and layers shown, the theme, and help.

import { button, choices, languageSwitch, picker } from "./controls.js";
import { element, listed } from "./element.js";
import { say, whole } from "../words.js";

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

  turnTheme() {
    this.app.state.set({ theme: this.app.themes.after(this.app.state.theme) });
  }

  update(changed) {
    const { app } = this;
    if (changed.has("theme")) app.themes.mark(this.theme, app.state.theme);
    if (changed.has("hints")) {
      this.hints.ariaPressed = String(app.state.hints);
      this.hints.title = app.state.hints ? say("Hide what to look at (i)") : say("Show what to look at (i)");
      this.hints.ariaLabel = this.hints.title;
    }
    this.hints.hidden = !app.opening.any;
    if (!changed.has("input") && !changed.has("stack")) return;
    if (changed.has("input")) this.offerStacks();
    this.inputs.show(app.state.input);
    this.chooser.show(app.state.stack);
    this.facts.replaceChildren(...listed(factsOf(app.stack, app.source)));
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
export function factsOf({ rows, cols, layers, kind }, { title, tolerance, about, live }) {
  const span = (numbers) => [...new Set([Math.min(...numbers), Math.max(...numbers)])].map(whole).join("–");
  const heads = span(layers.map((layer) => layer.heads));
  const shared = layers.some((layer) => layer.kvHeads < layer.heads);
  const count = layers.length;
  const ofLayers = count === 1 ? say("1 layer") : say("{n} layers", { n: count });
  const name = heads === "1" ? say("1 head") : say("{n} heads", { n: heads });
  const what = () => say("{n} key/value", { n: span(layers.map((layer) => layer.kvHeads)) });
  const ofHeads = shared ? say("{name} ({what})", { name, what: what() }) : name;
  const cross = () => say("{queries} attending to {keys}", { queries: tokensOf(rows), keys: tokensOf(cols) });
  const accuracy = () => (tolerance ? say("weights within {tolerance} of the model's", { tolerance }) : say("exact weights, from the server"));
  return [
    ...(about.model && about.model !== title ? [about.model] : []),
    `${ofLayers} × ${ofHeads}`,
    withUnknown(kind === "cross" ? cross() : tokensOf(rows), rows, cols),
    ...(live?.milliseconds ? carriedSaid(live) : [accuracy()]),
  ];
}

// Of a model in the page: how long a run took, and how far its attention to the recorded text is from that of float32.
function carriedSaid({ dtype, distance, milliseconds }) {
  const said = [say("{dtype}, computed in this page in {n} ms", { dtype, n: Math.max(1, Math.round(milliseconds)) })];
  if (!distance) return said;
  const [mean, most] = [distance.mean, distance.most].map((far) => Number(far.toPrecision(2)));
  return [...said, say("weights of the recorded text differ from float32 by {mean} on average, {most} at most", { mean, most })];
}

function tokensOf(axis) {
  const { length, cut, patches, text } = axis;
  if (axis.seconds) return framesSaid(axis);
  const n = whole(length);
  const one = length === 1;
  let name = one ? say("1 token") : say("{n} tokens", { n });
  if (patches && !text) name = one ? say("1 patch") : say("{n} patches", { n });
  else if (text === false) name = one ? say("1 position") : say("{n} positions", { n });
  return cut ? say("{tokens} ({n} more did not fit)", { tokens: name, n: whole(cut) }) : name;
}

// The frames of a sound, with their length and its own.
function framesSaid({ length, seconds }) {
  const values = { n: whole(length), ms: Number((1000 * seconds).toFixed(2)), s: (length * seconds).toFixed(2) };
  return say("{n} frames of {ms} ms ({s} s)", values);
}

// The tokens, and how many of them the model does not know. axes: each counts once.
function withUnknown(tokens, ...axes) {
  const n = [...new Set(axes)].flatMap((axis) => axis.unknown).filter(Boolean).length;
  return n ? say("{tokens}, {n} unknown to this model", { tokens, n: whole(n) }) : tokens;
}
