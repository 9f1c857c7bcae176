// Colours of weights (map/colour.js), and maps of nearly uniform heads (map/even.js).

import assert from "node:assert/strict";
import test from "node:test";
import {
  COLOURS, SCALES, along, css, divergingRamp, largest, picture, ramp,
} from "../../../headwise/viewer/static/map/colour.js";
import { inEvenShares, isNearlyEven, reachOf } from "../../../headwise/viewer/static/map/even.js";
import { SCALE_CHOICES } from "../../../headwise/viewer/static/shell/controls.js";

globalThis.ImageData = class {
  constructor(width, height) {
    this.data = new Uint8ClampedArray(4 * width * height);
  }
};

const rgbOf = (packed) => [packed & 255, (packed >> 8) & 255, (packed >> 16) & 255];

// Relative luminance, as WCAG defines it.
function luminance(rgb) {
  const [red, green, blue] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

for (const dark of [false, true]) {
  test(`every ramp changes its lightness evenly, on a ${dark ? "dark" : "light"} page`, () => {
    const tables = [...COLOURS.map(([name]) => ramp(dark, name)), divergingRamp(dark).slice(256)];
    for (const table of tables) {
      const lightness = Array.from(table, (packed) => 116 * Math.cbrt(luminance(rgbOf(packed))) - 16);
      for (let i = 16; i < lightness.length; i += 16) assert.ok((lightness[i] > lightness[i - 16]) === dark);
      assert.ok(Math.abs(lightness.at(-1) - lightness[0]) > 45);
    }
  });

  test(`text on every colour can be read, on a ${dark ? "dark" : "light"} page`, () => {
    for (const [name] of COLOURS) {
      for (let step = 0; step < 64; step++) {
        const { fill, ink } = css(step / 63, 1, "linear", ramp(dark, name));
        const lights = [fill.match(/\d+/g).map(Number), ink === "#000000" ? [0, 0, 0] : [255, 255, 255]].map(luminance);
        assert.ok((Math.max(...lights) + 0.05) / (Math.min(...lights) + 0.05) >= 4.5, `${name} ${step}`);
      }
    }
  });
}

test("the place of a weight on the ramp", () => {
  const places = (scale) => [0, 1e-5, 0.04, 0.25, 1].map((weight) => along(weight, 1, scale));
  assert.deepEqual(places("linear"), [0, 1e-5, 0.04, 0.25, 1]);
  assert.deepEqual(places("root"), [0, Math.sqrt(1e-5), 0.2, 0.5, 1]);
  assert.deepEqual(places("log").map((t) => Number(t.toFixed(4))), [0, 0, 0.6505, 0.8495, 1]);
  for (const { along: forth, back } of Object.values(SCALES)) assert.ok(Math.abs(back(forth(0.25)) - 0.25) < 1e-12);
  assert.deepEqual([along(2, 1, "linear"), along(0.5, 0, "root")], [1, 0]);
  assert.deepEqual([-0.5, 0, 0.25].map((by) => along(by, 0.5, "linear", true)), [0, 0.5, 0.75]);
  assert.deepEqual(SCALE_CHOICES.map(([scale]) => scale), Object.keys(SCALES));
  assert.equal(largest([NaN, 0.25, 0.5, NaN]), 0.5);
});

test("every pixel of a picture has the colour of its weight", () => {
  const weights = Float32Array.from({ length: 400 }, (_, i) => (i % 7 ? (0.8 * i) / 399 : 0.8 * 10 ** (-i / 80)));
  const table = Uint32Array.from({ length: 512 }, (_, place) => place); // each colour is its place
  for (const scale of Object.keys(SCALES)) {
    const pixels = new Uint32Array(picture(weights, 20, 20, 0.8, scale, table).data.buffer);
    for (const [i, weight] of weights.entries()) {
      const row = weights.subarray(i - (i % 20), i - (i % 20) + 20);
      const place = 511 * (scale === "row" ? along(weight, largest(row), "linear") : along(weight, 0.8, scale));
      assert.ok(Math.abs(pixels[i] - place) <= 1, `${scale} ${weight}`);
    }
  }
});

test("differences are coloured from one end to the other", () => {
  for (const scale of ["linear", "root"]) {
    const { data } = picture(Float32Array.from([-0.4, 0, 0.4, NaN]), 1, 4, 0.4, scale, divergingRamp(false), true);
    const [low, none, high, unknown] = [0, 4, 8, 12].map((at) => [...data.subarray(at, at + 4)]);
    assert.ok(low[2] > low[0] + 60); // blue
    assert.ok(high[0] > high[2] + 60); // orange
    assert.ok(Math.min(...none.slice(0, 3)) > 240);
    assert.deepEqual(unknown, [0, 0, 0, 0]);
  }
});

test("a map is nearly uniform where no weight is much more than an even share", () => {
  assert.deepEqual([isNearlyEven(1.4, 9), isNearlyEven(1.6, 9), isNearlyEven(1.4, 3), isNearlyEven(0, 9)], [true, false, false, false]);
  assert.deepEqual([reachOf(0.98, 1.05), reachOf(0.5, 1.25), reachOf(0.9, 1.25)], [0.1, 0.5, 0.25]);
  // Of a causal map: a row of 2 keys, and one of 4.
  const even = inEvenShares(Float32Array.from([0.5, 0.5, NaN, NaN, 0.25, 0.25, 0.3125, 0.1875]), 4, 4);
  assert.deepEqual([...even.shares].map(String), ["0", "0", "NaN", "NaN", "0", "0", "0.25", "-0.25"]);
  assert.equal(even.reach, 0.25);
  assert.equal(inEvenShares(Float32Array.from([0.7, 0.1, 0.1, 0.1]), 4, 4), null);
  assert.equal(inEvenShares(Float32Array.from([0.1, NaN]), 2, 8), null); // a pooled row with masked blocks
});
