// The visible part of a map (map/viewport.js).

import assert from "node:assert/strict";
import test from "node:test";
import { Side, fit, lookAt, sightOf } from "../../../headwise/viewer/static/map/viewport.js";

globalThis.devicePixelRatio = 1;

function sides(rows, cols, room = [400, 600], low = [50, 80]) {
  const made = [rows, cols].map((count, i) => Object.assign(new Side(), { count, room: room[i], low: low[i] }));
  fit(...made);
  lookAt(null, ...made);
  return made;
}

const near = (found, expected) => expected.forEach((value, i) => assert.ok(Math.abs(found[i] - value) < 1e-6, `${found}`));

test("cells are square, whole pixels, and not too large", () => {
  const [rows, cols] = sides(30, 30);
  assert.deepEqual([rows.z, cols.z], [13, 13]); // 400 / 30
  assert.deepEqual(sides(3, 3).map(({ z }) => z), [56, 56]);
  assert.equal(sides(4000, 4000)[0].z, 0.1);
});

test("a map of few rows and many columns is no line", () => {
  const [rows, cols] = sides(4, 400);
  assert.deepEqual([rows.z, cols.z], [24, 1.5]);
  const [many, few] = sides(400, 4);
  assert.deepEqual([many.z, few.z], [1, 24]);
});

test("pixels and cells", () => {
  const [rows] = sides(30, 30);
  assert.deepEqual([rows.place(0), rows.place(2)], [50, 76]);
  assert.deepEqual([49, 50, 62, 63, 50 + 30 * 13].map((pixel) => rows.cellAt(pixel)), [null, 0, 0, 1, null]);
  assert.deepEqual([rows.span, rows.whole], [390, true]);
});

test("zoom keeps the cell below the pointer, up to the map's ends", () => {
  const [rows] = sides(100, 100);
  const at = rows.placeAt(250);
  rows.zoom(4, at, 250);
  assert.equal(rows.z, 16);
  near([rows.placeAt(250)], [at]);
  rows.zoom(2, 0, 50);
  assert.deepEqual([rows.at, rows.z], [0, 32]);
  rows.zoom(100, 0, 50);
  assert.equal(rows.z, 80);
  rows.zoom(1e-3, 50, 250);
  assert.deepEqual([rows.at, rows.z, rows.whole], [0, 4, true]);
});

test("a part of the map is looked at, and is what is in sight", () => {
  const [rows, cols] = sides(100, 100);
  assert.equal(sightOf(rows, cols), null);
  lookAt([20, 40, 30, 50], rows, cols); // 400 pixels for 20 rows; the columns have room for more
  near(sightOf(rows, cols), [20, 40, 25, 55]);
  assert.deepEqual([rows.cells, cols.cells], [[20, 40], [25, 55]]);
  lookAt([90, 110, 0, 20], rows, cols);
  near(sightOf(rows, cols), [80, 100, 0, 30]);
  lookAt(null, rows, cols);
  assert.equal(sightOf(rows, cols), null);
});

test("a cell is brought into sight by the shortest way", () => {
  const [rows, cols] = sides(100, 100);
  lookAt([20, 40, 20, 40], rows, cols);
  const found = [30, 45, 10].map((cell) => (rows.reveal(cell), rows.at));
  near(found, [20, 26, 10]);
});
