// The strip beside the views: the current layer and head, and a thumbnail of every head.

import { button } from "./controls.js";
import { element } from "./element.js";
import { groupsOfHeads, HeadTiles } from "./thumbs.js";
import { say } from "../words.js";

export class Strip {
  constructor(app) {
    this.app = app;
    this.layer = new Stepper(say("Layer"), [say("Previous layer ([)"), say("Next layer (])")], (layer) => app.go({ layer }));
    this.head = new Stepper(say("Head"), [say("Previous head (,)"), say("Next head (.)")], (head) => app.go({ head }));
    this.path = element("p", { className: "path", dir: "auto" });
    this.grid = element("div", { className: "heads", role: "group", ariaLabel: say("Layers and heads") });
    this.tiles = new HeadTiles(app, this.grid, (layer, head) => app.go({ layer, head }));
    this.fold = button({ icon: "side" }, say("Hide the heads (b)"), () => app.state.set({ strip: !app.state.strip }));
    this.inside = element("div", { className: "inside" }, this.layer.element, this.head.element, this.path, this.grid);
    this.element = element("nav", { className: "strip", ariaLabel: say("Heads") }, this.fold, this.inside);
  }

  update(changed) {
    const { app } = this;
    const { View } = app;
    const alone = app.stack.layers.length === 1 && app.stack.layers[0].heads === 1;
    this.element.hidden = View.strip === false || alone;
    if (this.element.hidden) {
      this.stale ||= changed.has("input") || changed.has("stack");
      return;
    }
    if (changed.has("strip")) {
      this.element.classList.toggle("folded", !app.state.strip);
      this.fold.ariaExpanded = String(app.state.strip);
      this.fold.title = this.fold.ariaLabel = app.state.strip ? say("Hide the heads (b)") : say("Show the heads (b)");
    }
    if (!this.built || this.stale || changed.has("input") || changed.has("stack")) this.fill();
    const fields = ["view", "input", "stack", "layer", "head", "heads", "strip"];
    if (fields.some((field) => changed.has(field))) this.mark();
  }

  fill() {
    [this.built, this.stale] = [true, false];
    const { stack } = this.app;
    this.tiles.clear();
    this.layer.offer(stack.layers.map(({ number }) => number));
    const groups = ({ heads, kvHeads }) => (kvHeads < heads ? kvHeads : 0);
    this.grid.style.setProperty("--most", Math.max(...stack.layers.map(({ heads }) => heads)));
    this.grid.style.setProperty("--shared", Math.max(...stack.layers.map(groups)));
    this.grid.replaceChildren(...stack.layers.map((facts, layer) => this.row(facts, layer)));
  }

  row(facts, layer) {
    const { name, number, heads, kvHeads } = facts;
    const shared = kvHeads < heads;
    const groups = groupsOfHeads(facts).map(([first, past], group) => {
      const tiles = Array.from({ length: past - first }, (_, i) => this.tiles.make(layer, first + i));
      const title = shared ? say("key/value head {n}", { n: group }) : "";
      return element("span", { className: shared ? "group shared" : "group", title }, ...tiles);
    });
    const label = element("span", { className: "number", textContent: number, title: name });
    return element("div", { className: "row" }, label, ...groups);
  }

  mark() {
    const { app } = this;
    const { name, heads, kvHeads } = app.layer;
    this.layer.show(app.state.layer);
    this.head.offer(Array.from({ length: heads }, (_, head) => head));
    this.head.show(app.state.head);
    const kv = kvHeads < heads ? say("key/value head {n}", { n: Math.floor((app.state.head * kvHeads) / heads) }) : "";
    this.path.replaceChildren(element("bdi", { textContent: name, title: name }), kv && ` · ${kv}`);
    const current = this.tiles.mark();
    if (current && app.state.strip) intoSight(this.grid, current);
  }
}

// Scroll only `box` until `part` is visible.
function intoSight(box, part) {
  const [outer, inner] = [box.getBoundingClientRect(), part.getBoundingClientRect()];
  const by = (from, to, low, high) => (low < from ? low - from : high > to ? high - to : 0);
  box.scrollTop += by(outer.top + 6, outer.bottom - 6, inner.top, inner.bottom);
  box.scrollLeft += by(outer.left + 30, outer.right - 6, inner.left, inner.right);
}

// A list of numbers with buttons for the previous and the next one.
class Stepper {
  constructor(name, [back, on], choose) {
    this.choose = choose;
    this.select = element("select", { ariaLabel: name });
    this.select.addEventListener("change", () => choose(Number(this.select.value)));
    const step = (by) => choose((Number(this.select.value) + by + this.select.length) % this.select.length);
    this.element = element(
      "div", { className: "stepper", role: "group", ariaLabel: name },
      element("span", { className: "name", textContent: name, ariaHidden: "true" }),
      button({ icon: "left" }, back, () => step(-1)),
      this.select,
      button({ icon: "right" }, on, () => step(1)),
    );
  }

  // names: the name of each entry.
  offer(names) {
    const text = names.join();
    if (text === this.offered) return;
    this.offered = text;
    this.select.replaceChildren(...names.map((textContent, value) => element("option", { value, textContent })));
  }

  show(place) {
    this.select.value = String(place);
  }
}
