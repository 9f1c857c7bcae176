// If the columns are patches of an image: the attention of one patch, or of another token, drawn over the image.

import CSS from "./image.css" with { type: "text" };
import { sinkOf } from "../data/sink.js";
import { largest, picture } from "../map/colour.js";
import { choices } from "../shell/controls.js";
import { element, resized } from "../shell/element.js";
import { figurePython, imagePython } from "./text/python.js";
import { Asking, AskingControls } from "./text/asking.js";
import { Caption } from "./text/caption.js";
import { attentionOf, chosenHeads, groupsOf } from "./text/grouping.js";
import { RunningText, codesOf, paletteOf } from "./text/running.js";

const WIDEST = 640; // pixels
const LOWEST = 260; // minimum height of an image
const SHARE = 0.7; // of the page's height, if it has one column
const MARGIN = 20; // below the image
const NAMED = 5; // up to this many other tokens are listed one by one
const EDGE = 12; // around a saved picture
const SMOOTH = 16; // pixels of a patch in a smooth overlay
const FORMS = [["cells", "cells", "A cell for each patch"], ["smooth", "smooth", "Smooth between the patches"]];
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export class ImageView {
  static id = "image";
  static title = "Image";
  static css = CSS;

  static why({ stack }) {
    if (stack.cols.patches) return null;
    return (
      "The input is not known to be an image. If it is one, set the patches before the page is written: " +
      "seen.tokens = headwise.text.Patches(rows, cols)."
    );
  }

  constructor(app) {
    this.app = app;
    this.asking = new Asking(app);
    this.opacity = 0.75;
    this.caption = new Caption(app, "Point at a patch to see its attention; click to pin it.");
    this.canvas = element("canvas", { tabIndex: 0, role: "img", ariaLabel: "The image" });
    this.canvas.setAttribute("aria-describedby", this.caption.words.id);
    this.place = element("div", { className: "place" });
    this.around = element("div", { className: "image" }, this.canvas);
    const parts = [this.caption.element, this.place];
    this.element = element("section", { className: "view-image", ariaLabel: "Image" }, ...parts);
    this.asks = new AskingControls(app);
    this.forms = choices("Drawn as", FORMS, (overlay) => app.state.set({ overlay }));
    this.slider = element("input", { type: "range", min: 0, max: 100, step: 5, ariaLabel: "Opacity of the colours" });
    this.slider.addEventListener("input", () => this.look({ opacity: this.slider.value / 100 }));
    this.slider.addEventListener("keydown", (event) => {
      if (event.key.startsWith("Arrow")) event.stopPropagation(); // they move the slider, not the patch
    });
    const opacity = element("label", { className: "opacity" }, "opacity", this.slider);
    const bar = [this.asks.directions, this.forms, opacity, this.asks.scales, this.asks.sink];
    this.controls = element("div", { className: "image-controls" }, ...bar);
    const more = (by) => this.look({ opacity: Math.min(1, Math.max(0, Math.round((this.opacity + by) * 20) / 20)) });
    this.keys = {
      g: [() => this.asking.turn(), "attention that a patch gives, or gets"],
      m: [() => app.state.set({ overlay: app.state.overlay === "cells" ? "smooth" : "cells" }), "cells, or smooth"],
      "+": [() => more(0.1), "more colour, less image"],
      "-": [() => more(-0.1), "less colour, more image"],
      Enter: [() => this.hold(), "pin the patch, or unpin it"],
    };
    for (const key of Object.keys(ARROWS)) {
      this.keys[key] = [() => this.step(key), "next patch; if one is pinned, the weight of the next patch"];
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
    this.slider.value = Math.round(this.opacity * 100);
    this.slider.disabled = !this.app.stack.cols.image;
  }

  build() {
    const { stack } = this.app;
    const { cols, rows } = stack;
    this.stack = stack;
    this.weights = null;
    this.photo = null;
    if (cols.image) {
      const image = new Image();
      image.addEventListener("load", () => this.develop(stack, image));
      image.addEventListener("error", () => this.app.fail(new Error("The image of this page cannot be shown.")));
      image.src = cols.image;
    }
    const beside = cols.patches.prefix.length ? [this.text(this.side, besides(cols), "Other tokens")] : [];
    const from = this.alone ? [] : [this.text("rows", rows, "Queries")];
    const blocks = (texts) => texts.map(({ block }) => block);
    this.texts = [...from, ...beside];
    this.around.replaceChildren(...blocks(beside), this.canvas);
    this.place.replaceChildren(...blocks(from), this.around);
  }

  text(side, axis, name) {
    const { asking } = this;
    const running = new RunningText(axis, name, {
      point: (token) => asking.point(side, token),
      pin: (token) => this.pin(side, token),
      pointing: (act) => asking.pointing(act),
    });
    running.element.setAttribute("aria-describedby", this.caption.words.id);
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

  async ask() {
    this.question?.abort();
    const { signal } = (this.question = new AbortController());
    const { stack, state } = this.app;
    const { direction } = state;
    const [rows, cols] = [groupsOf(stack.rows, "tokens"), groupsOf(stack.cols, "tokens")];
    const [groups, others] = this.asking.gives ? [rows, cols] : [cols, rows];
    const heads = chosenHeads(state);
    const group = this.asking.asked;
    try {
      const [sink, weights] = await Promise.all([
        state.sink && this.asking.gives ? sinkOf(stack, heads[0], { signal }) : null,
        group === null ? null : attentionOf(stack, heads, rows, cols, direction, group, { signal }),
      ]);
      if (!signal.aborted) this.show({ heads, groups, others, group, direction, weights, sunk: sink });
    } catch (error) {
      if (!signal.aborted) this.app.fail(error);
    }
  }

  show(found) {
    const { app, asking, first } = this;
    const { weights, sunk } = found;
    const over = weights && (this.alone || asking.gives); // they are weights to patches
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
    const what = found.group === null ? "" : `Attention that ${labels[found.group]} ${found.direction}, over the image`;
    this.canvas.ariaLabel = what || "The image";
    this.draw();
  }

  // The sums of a row: patches, and other tokens.
  share(weights) {
    const { prefix } = this.app.stack.cols.patches;
    const { digits } = this.app;
    const sum = (...part) => digits(weights.subarray(...part).reduce((all, weight) => all + (weight || 0), 0));
    const before = prefix.map((name, i) => `${name} ${digits(weights[i] || 0)}`).join(", ");
    const many = `${prefix.length} other tokens ${sum(0, prefix.length)}`;
    return `All patches together ${sum(prefix.length)}; ${prefix.length > NAMED ? many : before}.`;
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
    return Math.max(LOWEST, panel.clientHeight - above - MARGIN);
  }

  draw() {
    if (this.stack !== this.app.stack || !this.canvas.isConnected) return;
    const { width, height } = this.measure();
    this.drawOn(resized(this.canvas, width, height), width, height);
  }

  drawOn(context, width, height) {
    const { style } = this.app;
    const { rows, cols } = this.app.stack.cols.patches;
    const [wide, high] = [width / cols, height / rows];
    if (this.photo) context.drawImage(this.photo, 0, 0, width, height);
    else {
      context.fillStyle = style.panel;
      context.fillRect(0, 0, width, height);
    }
    if (this.weights) {
      const overlay = this.overlay(rows, cols);
      context.globalAlpha = this.photo ? this.opacity : 1;
      context.imageSmoothingEnabled = this.app.state.overlay === "smooth";
      context.drawImage(overlay, 0, 0, width, height);
      context.globalAlpha = 1;
    }
    if (!this.photo) {
      context.fillStyle = style.line;
      for (let col = 1; col < cols; col++) context.fillRect(col * wide - 0.5, 0, 1, height);
      for (let row = 1; row < rows; row++) context.fillRect(0, row * high - 0.5, width, 1);
    }
    const { asked, probe, sides: [askedSide, otherSide] } = this.asking;
    if (this.alone || otherSide === "cols") this.frame(context, probe, wide, high, 1);
    if (this.alone || askedSide === "cols") this.frame(context, asked, wide, high, 2);
  }

  // A canvas of the weights of all patches.
  overlay(rows, cols) {
    const { table } = this.app.style;
    const image = picture(Float32Array.from(this.weights), rows, cols, this.top, this.app.state.scale, table);
    const small = element("canvas", { width: cols, height: rows });
    small.getContext("2d").putImageData(image, 0, 0);
    const made = element("canvas", { width: cols * SMOOTH, height: rows * SMOOTH });
    const context = made.getContext("2d");
    context.imageSmoothingEnabled = this.app.state.overlay === "smooth";
    context.imageSmoothingQuality = "high";
    context.drawImage(small, 0, 0, made.width, made.height);
    return made;
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

  hide() {
    this.question?.abort();
  }

  close() {
    this.hide();
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
    const draw = (context) => {
      head.draw(context, EDGE, EDGE);
      context.save();
      context.translate(EDGE, EDGE + head.height);
      this.drawOn(context, width, height);
      context.restore();
    };
    return { width: width + 2 * EDGE, height: height + head.height + 2 * EDGE, draw };
  }

  python() {
    const { app, asking } = this;
    if (asking.asked === null) return null;
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
