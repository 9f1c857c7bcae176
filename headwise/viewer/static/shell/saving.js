// Export: the view as a picture, and the Python code for a similar figure.

import { button } from "./controls.js";
import { download, element } from "./element.js";
import { SvgContext } from "../map/svg.js";
import { say } from "../words.js";

const SHARP = 2; // minimum pixels per point
const LONGEST = 100; // characters of a file name
const LARGEST = 16384; // maximum side of a canvas, in pixels

export class Saving {
  constructor(app) {
    this.app = app;
    this.png = button({ icon: "save", text: "PNG" }, "", () => this.save("png", pngOf));
    this.svg = button({ icon: "save", text: "SVG" }, "", () => this.save("svg", svgOf));
    this.python = button({ icon: "copy", text: "Python" }, "", () => this.copy());
    const group = { className: "saving", role: "group", ariaLabel: say("Export") };
    this.element = element("span", group, this.png, this.svg, this.python);
  }

  update() {
    const { view } = this.app;
    const able = (control, on, what, why) => {
      if (control.ariaLabel === what && control.disabled === !on) return;
      control.disabled = !on;
      control.ariaLabel = what;
      control.title = on ? what : why;
    };
    able(this.png, view?.picture, say("Save PNG"), say("This view has no picture to save"));
    able(this.svg, view?.picture, say("Save SVG"), say("This view has no picture to save"));
    able(this.python, view?.python, say("Copy Python"), say("There is no Python code for this view"));
  }

  async save(ending, made) {
    const { app } = this;
    try {
      const picture = await app.view.picture();
      if (!picture) return app.say(say("There is nothing to save yet."));
      const name = `${this.name()}.${ending}`;
      download(await made(picture, app.style.paper), name);
      app.say(say("Saved as {name}.", { name }));
    } catch (error) {
      app.fail(error);
    }
  }

  // A file name made of the title, the view and the head.
  name() {
    const { app } = this;
    const { view, layer, head } = app.state;
    const of = app.View.strip === false ? view : `${view}-${app.headName(layer, head)}`;
    const plain = (text) => text.normalize("NFC").replace(/[^\p{L}\p{M}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
    const title = [...plain(app.source.title)];
    const half = (LONGEST - plain(of).length) >> 1; // a title that is too long is cut in the middle
    const shown = title.length > 2 * half ? [...title.slice(0, half), "…", ...title.slice(-half)] : title;
    return [shown.join(""), plain(of)].filter(Boolean).join("-");
  }

  async copy() {
    const { app } = this;
    const code = app.view.python();
    if (!code) return app.say(say("There is no Python code for this selection."));
    const text = this.whole(code);
    try {
      await navigator.clipboard.writeText(text);
      app.say(say("Copied the Python code."));
    } catch {
      this.offer(text); // a page in a frame, or from a file, has no right to write to the clipboard
    }
  }

  // The Python code of a view, with the lines that define its names.
  whole(code) {
    const lines = code.trim().split("\n");
    const past = lines.findIndex((line) => line && !/^(import|from) /.test(line));
    const imports = lines.slice(0, past).filter(Boolean);
    if (!imports.includes("import headwise.plot")) imports.unshift("import headwise");
    const name = this.app.layer.expression.startsWith("record") ? "record" : "seen";
    const made = this.app.source.made ?? `...  # the ${name === "seen" ? "Seen" : "AttentionRecord"} that this shows`;
    return [...imports, "", `${name} = ${made}`, ...lines.slice(past), ""].join("\n");
  }

  offer(text) {
    const rows = text.split("\n").length;
    const field = element("textarea", { value: text, readOnly: true, ariaLabel: "Python", rows });
    const close = button({ icon: "close" }, say("Close"), () => dialog.close());
    const top = element("div", { className: "top" }, element("h2", { textContent: say("Python to copy") }), close);
    const dialog = element("dialog", { className: "code", ariaLabel: say("Python to copy") }, top, field);
    dialog.addEventListener("close", () => dialog.remove());
    this.app.frame.append(dialog);
    dialog.showModal();
    field.select();
  }
}

async function pngOf({ width, height, draw }, paper) {
  const sharp = Math.min(Math.max(SHARP, devicePixelRatio), LARGEST / width, LARGEST / height);
  const canvas = new OffscreenCanvas(Math.ceil(width * sharp), Math.ceil(height * sharp));
  const context = canvas.getContext("2d");
  context.scale(sharp, sharp);
  await onPaper(context, { width, height, draw }, paper);
  return canvas.convertToBlob({ type: "image/png" });
}

async function svgOf({ width, height, draw }, paper) {
  const context = new SvgContext(width, height);
  await onPaper(context, { width, height, draw }, paper);
  return new Blob([context.toString()], { type: "image/svg+xml" });
}

function onPaper(context, { width, height, draw }, paper) {
  context.fillStyle = paper;
  context.fillRect(0, 0, width, height);
  return draw(context);
}
