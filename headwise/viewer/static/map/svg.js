// Writes SVG through the calls of a canvas, so that a view can save its drawing as vectors.
//
// It has the part of CanvasRenderingContext2D that views use. Text stays text; canvases become embedded PNGs.

const NAMESPACE = "http://www.w3.org/2000/svg";
const RASTER = 2; // pixels per point, if a pattern fills a rectangle
const FONT = /^(italic\s+)?(?:(\d+|bold|normal)\s+)?([\d.]+)px\s+(.*)$/;
const NOT_IN_XML = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|\p{Surrogate}/gu;

let written = 0; // for unique names of clips, because a document may contain several pictures

export class SvgContext {
  constructor(width, height) {
    Object.assign(this, { width, height, parts: [], saved: [], path: [], clips: 0, name: `h${++written}` });
    this.measuring = document.createElement("canvas").getContext("2d"); // knows fonts and colours
    this.matrix = new DOMMatrix();
    this.clipped = null;
    Object.assign(this, { fillStyle: "#000000", strokeStyle: "#000000", globalAlpha: 1, imageSmoothingEnabled: true });
    Object.assign(this, { lineWidth: 1, font: "400 10px sans-serif", direction: "ltr" });
    Object.assign(this, { textAlign: "start", textBaseline: "alphabetic" });
  }

  toString() {
    const [width, height] = [number(this.width), number(this.height)];
    const size = { xmlns: NAMESPACE, width, height, viewBox: `0 0 ${width} ${height}` };
    return `<?xml version="1.0" encoding="UTF-8"?>\n${tag("svg", size, `\n${this.parts.join("\n")}\n`)}\n`;
  }

  // ---- state

  save() {
    this.saved.push(Object.fromEntries(STATE.map((key) => [key, this[key]])));
  }

  restore() {
    Object.assign(this, this.saved.pop());
  }

  translate(x, y) {
    this.matrix = this.matrix.translate(x, y);
  }

  rotate(angle) {
    this.matrix = this.matrix.rotate((angle * 180) / Math.PI);
  }

  scale(x, y) {
    this.matrix = this.matrix.scale(x, y);
  }

  // ---- paths: their points are stored in coordinates of the picture

  beginPath() {
    this.path = [];
  }

  moveTo(x, y) {
    this.path.push(`M${this.at(x, y)}`);
  }

  lineTo(x, y) {
    this.path.push(`${this.path.length ? "L" : "M"}${this.at(x, y)}`);
  }

  bezierCurveTo(x1, y1, x2, y2, x, y) {
    this.path.push(`C${this.at(x1, y1)} ${this.at(x2, y2)} ${this.at(x, y)}`);
  }

  closePath() {
    this.path.push("Z");
  }

  rect(x, y, width, height) {
    this.moveTo(x, y);
    this.lineTo(x + width, y);
    this.lineTo(x + width, y + height);
    this.lineTo(x, y + height);
    this.closePath();
  }

  at(x, y) {
    const point = this.matrix.transformPoint({ x, y });
    return `${number(point.x)} ${number(point.y)}`;
  }

  fill() {
    this.put("path", { d: this.path.join(""), ...this.painted("fill", this.fillStyle) });
  }

  stroke() {
    this.put("path", { d: this.path.join(""), fill: "none", ...this.lined() });
  }

  clip() {
    const id = `${this.name}c${++this.clips}`;
    const within = this.clipped && { "clip-path": `url(#${this.clipped})` };
    this.parts.push(tag("clipPath", { id, ...within }, tag("path", { d: this.path.join("") })));
    this.clipped = id;
  }

  // ---- rectangles, text, pictures

  fillRect(x, y, width, height) {
    if (typeof this.fillStyle !== "string") return this.fillWithPattern(x, y, width, height);
    this.put("rect", { ...this.box(x, y, width, height), ...this.painted("fill", this.fillStyle) });
  }

  strokeRect(x, y, width, height) {
    this.put("rect", { ...this.box(x, y, width, height), fill: "none", ...this.lined(false) });
  }

  fillWithPattern(x, y, width, height) {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [Math.max(1, Math.ceil(width * RASTER)), Math.max(1, Math.ceil(height * RASTER))];
    const context = canvas.getContext("2d");
    context.scale(RASTER, RASTER);
    context.fillStyle = this.fillStyle;
    context.fillRect(0, 0, width, height);
    this.drawImage(canvas, x, y, width, height);
  }

  measureText(text) {
    this.measuring.font = this.font;
    return this.measuring.measureText(text);
  }

  fillText(text, x, y) {
    const shown = String(text).replace(/[\t\n\f\r]/g, " ").replace(NOT_IN_XML, "\ufffd");
    const [, italic, weight, size, family] = FONT.exec(this.font) ?? [null, null, null, 10, "sans-serif"];
    const leftwards = this.direction === "rtl";
    const align = { left: leftwards ? "end" : "start", right: leftwards ? "start" : "end", center: "middle" };
    this.put("text", {
      ...this.placed(x, y + this.drop(shown)),
      ...this.painted("fill", this.fillStyle),
      "font-family": family, "font-size": size, "font-weight": weight ?? "400", "font-style": italic ? "italic" : null,
      "text-anchor": align[this.textAlign] ?? this.textAlign, direction: leftwards ? "rtl" : null,
      "xml:space": "preserve",
    }, escaped(shown));
  }

  // The distance from the textBaseline down to the alphabetic baseline, the only one that all SVG readers know.
  drop(text) {
    const { measuring } = this;
    const ascent = (baseline) => {
      measuring.textBaseline = baseline;
      return this.measureText(text).actualBoundingBoxAscent;
    };
    return ascent("alphabetic") - ascent(this.textBaseline);
  }

  // source: a canvas.
  drawImage(source, x, y, width, height) {
    const canvas = document.createElement("canvas"); // an OffscreenCanvas has no toDataURL
    [canvas.width, canvas.height] = [source.width, source.height];
    canvas.getContext("2d").drawImage(source, 0, 0);
    const style = this.imageSmoothingEnabled ? null : "image-rendering:pixelated";
    const shown = { preserveAspectRatio: "none", style, opacity: this.globalAlpha === 1 ? null : this.globalAlpha };
    this.put("image", { ...this.box(x, y, width, height), ...shown, href: canvas.toDataURL("image/png") });
  }

  // ---- attributes

  put(name, attributes, content) {
    this.parts.push(tag(name, { ...attributes, "clip-path": this.clipped && `url(#${this.clipped})` }, content));
  }

  // A position as attributes: shifted if the matrix only shifts, else with the matrix.
  placed(x, y) {
    const { a, b, c, d, e, f } = this.matrix;
    if (a === 1 && b === 0 && c === 0 && d === 1) return { x: number(x + e), y: number(y + f) };
    return { x: number(x), y: number(y), transform: `matrix(${[a, b, c, d, e, f].map(number).join(" ")})` };
  }

  // A canvas accepts rectangles of negative size.
  box(x, y, width, height) {
    const corner = this.placed(Math.min(x, x + width), Math.min(y, y + height));
    return { ...corner, width: number(Math.abs(width)), height: number(Math.abs(height)) };
  }

  lined(stretch = true) {
    const { a, b, c, d } = this.matrix;
    const by = stretch ? Math.sqrt(Math.abs(a * d - b * c)) : 1; // points of a path are already transformed
    return { ...this.painted("stroke", this.strokeStyle), "stroke-width": number(this.lineWidth * by) };
  }

  // A colour in a form that all SVG readers know.
  painted(what, colour) {
    this.measuring.fillStyle = "#000000";
    this.measuring.fillStyle = colour;
    const said = this.measuring.fillStyle;
    const parts = /^rgba\((\d+), (\d+), (\d+), ([\d.]+)\)$/.exec(said);
    const opacity = this.globalAlpha * (parts ? Number(parts[4]) : 1);
    const plain = parts ? `#${[1, 2, 3].map((i) => Number(parts[i]).toString(16).padStart(2, "0")).join("")}` : said;
    return { [what]: plain, [`${what}-opacity`]: opacity === 1 ? null : number(opacity) };
  }
}

const STATE = [
  "matrix", "clipped", "fillStyle", "strokeStyle", "lineWidth", "globalAlpha", "font", "textAlign", "textBaseline",
  "direction", "imageSmoothingEnabled",
];

// Attributes that are null are left out.
function tag(name, attributes, content = "") {
  const said = Object.entries(attributes).filter(([, value]) => value !== null && value !== undefined);
  const written = said.map(([key, value]) => ` ${key}="${escaped(String(value))}"`).join("");
  return content === "" ? `<${name}${written}/>` : `<${name}${written}>${content}</${name}>`;
}

const escaped = (text) =>
  text.replace(/[&<>"]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[sign]);

const number = (value) => Number(value.toFixed(3));
