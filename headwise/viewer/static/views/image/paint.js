// An image with the weights of its patches over it.

import { picture } from "../../map/colour.js";
import { element } from "../../shell/element.js";

const SMOOTH = 16; // pixels of a patch in a smooth overlay

// grid: { rows, cols, photo: a canvas or null, weights: one for each patch or null, top: the weight at the ramp's end,
// scale, style, smooth, opacity }.
export function paintImage(context, width, height, { rows, cols, photo, weights, top, scale, style, smooth, opacity }) {
  if (photo) context.drawImage(photo, 0, 0, width, height);
  else {
    context.fillStyle = style.panel;
    context.fillRect(0, 0, width, height);
  }
  if (weights) {
    context.globalAlpha = photo ? opacity : 1;
    context.imageSmoothingEnabled = smooth;
    context.drawImage(overlay(weights, rows, cols, top, scale, style.table, smooth), 0, 0, width, height);
    context.globalAlpha = 1;
  }
  if (!photo) {
    context.fillStyle = style.line;
    for (let col = 1; col < cols; col++) context.fillRect((col * width) / cols - 0.5, 0, 1, height);
    for (let row = 1; row < rows; row++) context.fillRect(0, (row * height) / rows - 0.5, width, 1);
  }
}

// A canvas of the weights of all patches.
function overlay(weights, rows, cols, top, scale, table, smooth) {
  const image = picture(Float32Array.from(weights), rows, cols, top, scale, table);
  const small = element("canvas", { width: cols, height: rows });
  small.getContext("2d").putImageData(image, 0, 0);
  const made = element("canvas", { width: cols * SMOOTH, height: rows * SMOOTH });
  const context = made.getContext("2d");
  context.imageSmoothingEnabled = smooth;
  context.imageSmoothingQuality = "high";
  context.drawImage(small, 0, 0, made.width, made.height);
  return made;
}
