// If the columns are patches of an image: the attention of one patch, or of another token, drawn over the image. A
// large map shows the chosen heads, or the rollout over all layers; small maps show each head of the layer.

import CSS from "./image.css" with { type: "text" };
import { sinkOf } from "../data/sink.js";
import { largest } from "../map/colour.js";
import { choices, said } from "../shell/controls.js";
import { element, resized } from "../shell/element.js";
import { say } from "../words.js";
import { rollout, tooMuch, usualToken } from "./flow/rollout.js";
import { HeadMaps } from "./image/maps.js";
import { paintImage } from "./image/paint.js";
import { figurePython, imagePython, rolloutPython } from "./text/python.js";
import { Asking, AskingControls } from "./text/asking.js";
import { Caption } from "./text/caption.js";
import { View } from "./view.js";
import { attentionOf, chosenHeads, groupsOf } from "./text/grouping.js";
import { codesOf, paletteOf } from "./text/running.js";

const WIDEST = 640; // pixels
const LOWEST = 260; // minimum height of an image
const SHARE = 0.7; // of the page's height, if it has one column
const MARGIN = 20; // below the image
const NAMED = 5; // up to this many other tokens are listed one by one
const EDGE = 12; // around a saved picture
const FORMS = [["cells", "cells", "A cell for each patch"], ["smooth", "smooth", "Smooth between the patches"]];
const OVER = [
  ["heads", "attention", "The attention of the chosen heads"],
  ["rollout", "rollout", "Abnar & Zuidema 2020: the product of attention plus identity over the layers"],
];
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export class ImageView extends View {
  static id = "image";
  static title = "Image";
  static css = CSS;

  static why({ stack }) {
    if (stack.cols.patches) return null;
    return say(
      "The input is not known to be an image. If it is one, set the patches before the page is written: " +
      "seen.tokens = headwise.text.Patches(rows, cols).",
    );
  }

  constructor(app) {
    super(app);
    this.asking = new Asking(app);
    this.opacity = 0.75;
    this.caption = new Caption(app, say("Point at a patch to see its attention; click to pin it."));
    this.canvas = element("canvas", { tabIndex: 0, role: "img", ariaLabel: say("The image") });
    this.canvas.setAttribute("aria-describedby", this.caption.words.id);
    this.place = element("div", { className: "place" });
    this.around = element("div", { className: "image" }, this.canvas);
    this.remark = element("p", { className: "note" });
    this.maps = new HeadMaps(app);
    const parts = [this.caption.element, this.place];
    this.element = element("section", { className: "view-image", ariaLabel: say("Image") }, ...parts);
    this.asks = new AskingControls(app);
    this.over = choices(say("Over the image"), said(OVER), (over) => app.state.set({ over }));
    this.forms = choices(say("Drawn as"), said(FORMS), (overlay) => app.state.set({ overlay }));
    this.slider = element("input", { type: "range", min: 0, max: 100, step: 5, ariaLabel: say("Opacity of the colours") });
    this.slider.addEventListener("input", () => this.look({ opacity: this.slider.value / 100 }));
    this.slider.addEventListener("keydown", (event) => {
      if (event.key.startsWith("Arrow")) event.stopPropagation(); // they move the slider, not the patch
    });
    const opacity = element("label", { className: "opacity" }, say("opacity"), this.slider);
    const bar = [this.over, this.asks.directions, this.forms, opacity, this.asks.scales, this.asks.sink];
    this.controls = element("div", { className: "image-controls" }, ...bar);
    const more = (by) => this.look({ opacity: Math.min(1, Math.max(0, Math.round((this.opacity + by) * 20) / 20)) });
    this.keys = {
      g: [() => this.asking.turn(), say("attention that a patch gives, or gets")],
      m: [() => app.state.set({ overlay: app.state.overlay === "cells" ? "smooth" : "cells" }), say("cells, or smooth")],
      "+": [() => more(0.1), say("more colour, less image")],
      "-": [() => more(-0.1), say("less colour, more image")],
      r: [() => app.state.set({ over: this.rolls ? "heads" : "rollout" }), say("attention of the heads, or rollout over all layers")],
      Enter: [() => this.hold(), say("pin the patch, or unpin it")],
    };
    for (const key of Object.keys(ARROWS)) {
      this.keys[key] = [() => this.step(key), say("next patch; if one is pinned, the weight of the next patch")];
    }
    this.listen();
    this.size = new ResizeObserver(() => this.draw());
    this.size.observe(this.place);
  }

  // ---- the selection

  // Rows and columns are the patches of one image, and the tokens before them.
  get alone() {
    return this.app.stack.rows === this.app.stack.cols;
  }

  // The side of a patch.
  get side() {
    return this.alone ? "both" : "cols";
  }

  get rolls() {
    return this.app.state.over === "rollout" && this.whyNot === null;
  }

  // Why there is no rollout; null if there is.
  get whyNot() {
    const { stack, source } = this.app;
    if (!this.alone || stack.kind === "cross") return say("A rollout needs self-attention.");
    return tooMuch(stack, source.kind);
  }

  get first() {
    return this.app.stack.cols.patches.prefix.length;
  }

  hold() {
    const { asked, sides: [side] } = this.asking;
    if (asked !== null) this.pin(side, asked);
  }

  pin(side, token) {
    this.asking.pin(side, token, groupsOf(this.app.stack[this.asking.sides[0]], "tokens").of);
  }

  look(given) {
    Object.assign(this, given);
    this.controlsShow();
    this.draw();
  }

  // An arrow key moves to the next patch; upward from the first row, to the tokens before the patches.
  step(key) {
    const { asking, first } = this;
    const held = asking.pinned !== null;
    const side = asking.sides[held ? 1 : 0];
    if (!this.alone && side === "rows") return this.texts[0].running.step(key);
    const at = (held ? asking.probe : asking.asked) ?? first;
    const { rows, cols } = this.app.stack.cols.patches;
    if (at < first) {
      const next = at + (key === "ArrowLeft" || key === "ArrowUp" ? -1 : 1);
      return asking.point(side, key === "ArrowDown" ? first : Math.max(0, next));
    }
    const [down, right] = ARROWS[key];
    const [row, col] = [Math.floor((at - first) / cols) + down, ((at - first) % cols) + right];
    if (row < 0 && first) asking.point(this.side, first - 1);
    else if (row >= 0 && row < rows && col >= 0 && col < cols) asking.point(this.side, first + row * cols + col);
  }

  // ---- the display

  update(changed) {
    const { app } = this;
    if (this.stack !== app.stack) this.build();
    if (changed.has("style")) this.palette = paletteOf(app.style);
    this.controlsShow();
    this.mark();
    this.ask();
    if (changed.has("overlay")) this.draw();
  }

  controlsShow() {
    this.asks.show();
    this.forms.show(this.app.state.overlay);
    this.over.show(this.rolls ? "rollout" : "heads");
    for (const button of this.asks.directions.children) button.disabled = this.rolls; // a token is made of others
    const [, rolls] = this.over.children;
    rolls.disabled = this.whyNot !== null;
    rolls.title = this.whyNot ?? say(OVER[1][2]);
    this.slider.value = Math.round(this.opacity * 100);
    this.slider.disabled = !this.app.stack.cols.image;
  }

  build() {
    const { stack } = this.app;
    const { cols, rows } = stack;
    this.stack = stack;
    this.weights = null;
    this.photo = null;
    this.rolled = new Map(); // token -> the shares of all tokens in it
    this.maps.show(0, null, 0);
    this.remark.textContent = cols.imageNote ? say(cols.imageNote) : "";
    if (cols.image) {
      const image = new Image();
      image.addEventListener("load", () => this.develop(stack, image));
      image.addEventListener("error", () => this.app.fail(new Error(say("The image of this page cannot be shown."))));
      image.src = cols.image;
    }
    const beside = cols.patches.prefix.length ? [this.text(this.side, besides(cols), say("Other tokens"))] : [];
    const from = this.alone ? [] : [this.text("rows", rows, say("Queries"))];
    const blocks = (texts) => texts.map(({ block }) => block);
    this.texts = [...from, ...beside];
    this.around.replaceChildren(...blocks(beside), this.canvas, ...(cols.imageNote ? [this.remark] : []));
    this.place.replaceChildren(...blocks(from), this.around, this.maps.element);
  }

  text(side, axis, name) {
    const running = this.asking.textOf(side, axis, name, (token) => this.pin(side, token), this.caption);
    const block = element("div", { className: "beside" }, element("h2", { textContent: name }), running.element);
    block.classList.toggle("long", side === "rows");
    return { side, running, block, groups: groupsOf(axis, "tokens") };
  }

  // The image as a canvas, from which pictures are drawn.
  develop(stack, image) {
    if (stack !== this.stack) return; // the stack has changed meanwhile
    const { naturalWidth: width, naturalHeight: height } = image;
    this.photo = element("canvas", { width, height });
    this.photo.getContext("2d").drawImage(image, 0, 0);
    this.draw();
  }

  mark() {
    for (const { side, running, groups } of this.texts) {
      this.asking.markIn(running, side, groups);
      const found = this.app.found?.[side === "rows" ? "rows" : "cols"];
      running.find(found && new Set([...found].filter((token) => token < groups.of.length))); // without patches
    }
  }

  ask() {
    const { stack, state } = this.app;
    const { direction } = state;
    const [rows, cols] = [groupsOf(stack.rows, "tokens"), groupsOf(stack.cols, "tokens")];
    const [groups, others] = this.asking.gives ? [rows, cols] : [cols, rows];
    const heads = chosenHeads(state);
    const group = this.asking.asked;
    if (this.rolls) return this.roll(rows, heads);
    const over = group !== null && (this.alone || this.asking.gives); // they are weights to patches
    const every = over ? Array.from({ length: stack.layers[state.layer].heads }, (_, head) => head) : [];
    const find = async (options) => {
      const of = (chosen) => attentionOf(stack, chosen, rows, cols, direction, group, options);
      const [sunk, weights, ...each] = await Promise.all([
        state.sink && this.asking.gives ? sinkOf(stack, heads[0], options) : null,
        group === null ? null : of(heads),
        ...every.map((head) => of([[state.layer, head]])),
      ]);
      return { heads, groups, others, group, direction, weights, sunk, each };
    };
    this.question(find, (found) => this.show(found));
  }

  // The shares of all tokens in the asked one, over all layers.
  roll(groups, heads) {
    const { stack } = this.app;
    const find = async ({ signal }) => {
      const group = this.asking.asked ?? (await usualToken(stack, signal));
      if (!this.rolled.has(group)) {
        const found = await rollout(stack, group, { kind: this.app.source.kind, signal, tell: () => {} });
        this.rolled.set(group, found.at(-1));
      }
      const weights = Float64Array.from(this.rolled.get(group));
      return { heads, groups, others: groups, group, direction: "gives", weights, sunk: null, each: [] };
    };
    this.question(find, (found) => {
      this.show(found);
      const about = { token: stack.rows.labels[found.group], n: stack.layers.length };
      this.caption.title.textContent = say("{token} is made of: rollout over {n} layers", about);
    });
  }

  show(found) {
    const { app, asking, first } = this;
    const { weights, sunk, each } = found;
    const over = weights && (this.alone || asking.gives);
    const shown = weights?.map((weight, place) => (place === sunk ? NaN : weight));
    this.weights = over ? shown.subarray(first) : null; // only of patches: other tokens may have far larger weights
    this.top = weights ? largest(this.weights ?? shown) : 0;
    const codes = weights && codesOf(weights, this.top, app.state.scale, sunk);
    for (const { side, running, groups } of this.texts) {
      running.paint(side === asking.sides[0] ? null : codes, this.palette, groups);
    }
    const notes = over && asking.gives && first ? [this.share(weights)] : [];
    this.caption.show({ ...found, probe: asking.probe, top: this.top, pinned: asking.pinned !== null, notes });
    const { labels } = app.stack[asking.sides[0]];
    const values = { token: labels[found.group], direction: say(found.direction) };
    const what = () => say("Attention that {token} {direction}, over the image", values);
    this.canvas.ariaLabel = found.group === null ? say("The image") : what();
    const small = each.map((of) => of.map((weight, at) => (at === sunk ? NaN : weight)).subarray(first));
    this.maps.show(app.state.layer, small.length ? small : null, Math.max(0, ...small.map(largest)));
    this.draw();
  }

  // The sums of a row: patches, and other tokens.
  share(weights) {
    const { prefix } = this.app.stack.cols.patches;
    const { digits } = this.app;
    const sum = (...part) => digits(weights.subarray(...part).reduce((all, weight) => all + (weight || 0), 0));
    const before = prefix.map((name, i) => `${name} ${digits(weights[i] || 0)}`).join(say(", "));
    const many = say("{n} other tokens {weight}", { n: prefix.length, weight: sum(0, prefix.length) });
    const others = prefix.length > NAMED ? many : before;
    return say("All patches together {weight}; {others}.", { weight: sum(prefix.length), others });
  }

  // ---- drawing

  measure() {
    const { rows, cols } = this.app.stack.cols.patches;
    const [wide, high] = this.photo ? [this.photo.width, this.photo.height] : [cols, rows];
    const width = Math.max(1, Math.round(Math.min(WIDEST, this.around.clientWidth, (this.room * wide) / high)));
    return { width, height: Math.max(1, Math.round((width * high) / wide)) };
  }

  // The largest height at which the whole image is visible.
  get room() {
    const { panel, host } = this.app;
    if (getComputedStyle(panel).overflowY === "visible") return SHARE * host.clientHeight; // the whole page scrolls
    const above = this.canvas.getBoundingClientRect().top - this.element.getBoundingClientRect().top;
    const below = this.remark.isConnected ? this.remark.offsetHeight + MARGIN : MARGIN;
    return Math.max(LOWEST, panel.clientHeight - above - below);
  }

  draw() {
    if (this.stack !== this.app.stack || !this.canvas.isConnected) return;
    const { width, height } = this.measure();
    this.drawOn(resized(this.canvas, width, height), width, height);
    this.maps.draw(this.how);
  }

  // How weights are painted over the image.
  get how() {
    const { rows, cols } = this.app.stack.cols.patches;
    const { style, state } = this.app;
    const { photo, opacity } = this;
    const scale = state.scale === "row" ? "linear" : state.scale;
    return { rows, cols, photo, scale, style, smooth: state.overlay === "smooth", opacity };
  }

  drawOn(context, width, height) {
    const { rows, cols } = this.app.stack.cols.patches;
    const [wide, high] = [width / cols, height / rows];
    paintImage(context, width, height, { ...this.how, weights: this.weights, top: this.top });
    const { asked, probe, sides: [askedSide, otherSide] } = this.asking;
    if (this.alone || otherSide === "cols") this.frame(context, probe, wide, high, 1);
    if (this.alone || askedSide === "cols") this.frame(context, asked, wide, high, 2);
  }

  frame(context, token, wide, high, line) {
    if (token === null || token < this.first) return;
    const { cols } = this.app.stack.cols.patches;
    const { style } = this.app;
    const [x, y] = [((token - this.first) % cols) * wide, Math.floor((token - this.first) / cols) * high];
    for (const [outside, colour] of [[line, style.paper], [0, style.accent]]) {
      context.strokeStyle = colour;
      context.lineWidth = line;
      context.strokeRect(x - outside, y - outside, wide + 2 * outside, high + 2 * outside);
    }
  }

  close() {
    super.close();
    this.size.disconnect();
  }

  // ---- actions of the reader

  listen() {
    const tokenAt = ({ offsetX, offsetY }) => {
      const { rows, cols } = this.app.stack.cols.patches;
      const { clientWidth, clientHeight } = this.canvas;
      const [row, col] = [Math.floor((offsetY / clientHeight) * rows), Math.floor((offsetX / clientWidth) * cols)];
      return row >= 0 && row < rows && col >= 0 && col < cols ? this.first + row * cols + col : null;
    };
    this.canvas.addEventListener("pointermove", (event) => {
      const token = tokenAt(event);
      if (token !== null) this.asking.pointing(() => this.asking.point(this.side, token));
    });
    this.canvas.addEventListener("click", (event) => {
      const token = tokenAt(event);
      if (token !== null) this.asking.pointing(() => this.pin(this.side, token));
    });
  }

  // ---- export

  picture() {
    const { width, height } = this.measure();
    const head = this.caption.picture(width);
    const maps = this.maps.picture(width);
    const draw = (context) => {
      head.draw(context, EDGE, EDGE);
      context.save();
      context.translate(EDGE, EDGE + head.height);
      this.drawOn(context, width, height);
      context.translate(0, height);
      maps.draw(context);
      context.restore();
    };
    return { width: width + 2 * EDGE, height: height + head.height + maps.height + 2 * EDGE, draw };
  }

  python() {
    const { app, asking } = this;
    if (asking.asked === null) return null;
    if (this.rolls) return rolloutPython(app, asking.asked);
    if (!this.alone && !asking.gives) return figurePython(app, asking.asked);
    return imagePython(app, chosenHeads(app.state), asking.asked);
  }
}

// The tokens before the patches, as an axis.
function besides({ patches: { prefix } }) {
  const no = prefix.map(() => false);
  return {
    labels: prefix, gaps: no, pieces: prefix, special: no.map(() => true), unknown: no, cut: 0, text: false,
    sentences: { index: prefix.map((_, i) => i) }, generated: null, length: prefix.length,
  };
}
