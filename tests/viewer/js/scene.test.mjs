// The 3-D view's steps (views/surface/scene.js): what is drawn last at a pixel is what a ray from the eye meets first.

import assert from "node:assert/strict";
import test from "node:test";
import { Scene, limited, projection } from "../../../headwise/viewer/static/views/surface/scene.js";

const [WIDTH, HEIGHT, LENGTH] = [900, 600, 7];

// Numbers that look random, the same each time.
function* numbers() {
  for (let state = 1; ; ) yield (state = (state * 48271) % 2147483647) / 2147483647;
}

function scene(weights, rows = LENGTH, cols = LENGTH, threshold = 0) {
  const side = (length) => ({ names: Array.from({ length }, (_, i) => `w${i}`), length, title: "" });
  return new Scene({ rows: side(rows), cols: side(cols), weights, top: Math.max(...weights.filter((w) => w >= 0)), threshold });
}

// The first step on the ray from the eye through a pixel, found by small steps along it.
function met(made, view, { turn, tilt }, [px, py]) {
  const [ox, oy] = view.at(0, 0, 0);
  const [bx, by] = [[1, 0], [0, 1]].map((axis) => view.at(...axis, 0).map((part, i) => part - [ox, oy][i]));
  const [sx, sy] = [px - ox, py - oy];
  const det = bx[0] * by[1] - bx[1] * by[0];
  const ground = [(sx * by[1] - sy * by[0]) / det, (bx[0] * sy - bx[1] * sx) / det];
  const eye = [Math.sin(turn) * Math.cos(tilt), Math.cos(turn) * Math.cos(tilt), Math.sin(tilt)];
  const cell = (value, size) => Math.floor(((value / size + 1) / 2) * LENGTH);
  for (let far = 6; far >= 0; far -= 0.0006) {
    const [x, y, z] = [ground[0] + far * eye[0], ground[1] + far * eye[1], far * eye[2]];
    const [row, col] = [cell(y, made.size[1]), cell(x, made.size[0])];
    const there = row >= 0 && row < LENGTH && col >= 0 && col < LENGTH;
    if (there && z <= made.z(row, col) + 1e-9) return { row, col };
  }
  return null;
}

for (const [turn, tilt] of [[0.56, 0.66], [2.5, 0.3], [-2.2, 1.0], [-0.9, 0.2]]) {
  test(`the step in front is the nearest one, seen from ${turn}, ${tilt}`, () => {
    const random = numbers();
    const made = scene(Array.from({ length: LENGTH ** 2 }, () => random.next().value));
    const view = projection({ turn, tilt, zoom: 1, pan: [0, 0] }, made.size, WIDTH, HEIGHT);
    const places = Array.from({ length: 150 }, () => [
      WIDTH * (0.2 + 0.6 * random.next().value), HEIGHT * (0.1 + 0.8 * random.next().value),
    ]);
    const rays = places.map((place) => met(made, view, { turn, tilt }, place));
    assert.ok(rays.filter(Boolean).length > 40);
    const differ = places.filter((place, i) => JSON.stringify(made.pick(view, place)) !== JSON.stringify(rays[i]));
    assert.ok(differ.length <= 3, `${differ}`); // on an edge the ray's steps are too long
  });
}

test("steps are as high as their weights, and flat below the threshold and where masked", () => {
  const made = scene([0.2, 0.4, NaN, 0.1], 2, 2, 0.15);
  assert.deepEqual([made.z(0, 0), made.z(0, 1), made.z(1, 0), made.z(1, 1)], [0.425, 0.85, 0, 0]);
  assert.deepEqual(scene([1, 1, 1, 1, 1, 1, 1, 1], 1, 8).size, [1, 0.3]); // a single row has some depth
  assert.deepEqual(scene([0.2, 0.4, NaN, 0.1], 2, 2).ticks().map(({ text }) => text), ["0", "0.1", "0.2", "0.3", "0.4"]);
});

test("the eye stays above the ground, and near", () => {
  const { tilt, zoom } = limited({ turn: 9, tilt: 3, zoom: 99, pan: [0, 0] });
  assert.ok(tilt < Math.PI / 2);
  assert.equal(zoom, 8);
  assert.ok(limited({ turn: 0, tilt: -1, zoom: 0, pan: [0, 0] }).tilt > 0);
});
