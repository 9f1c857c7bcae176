// Rollouts that take long: the estimate from some rows, and how the exact ones replace it (views/flow/rollout.js).

import assert from "node:assert/strict";
import test from "node:test";
import { rollout, sample } from "../../../headwise/viewer/static/views/flow/rollout.js";

const sum = (shares) => shares.reduce((total, share) => total + share, 0);

test("large shares stay, and the others are stood for by some of equal weight", () => {
  const shares = Float64Array.from([0.5, ...Array(100).fill(0.005)]);
  const found = sample(shares, 20); // a step is 0.05, so ten of the hundred, ten apart
  assert.equal(found[0], 0.5);
  const kept = [...found.keys()].slice(1).filter((i) => found[i]);
  assert.equal(kept.length, 10);
  assert.ok(kept.every((place, i) => Math.abs(place - (5 + 10 * i)) <= 1), String(kept));
  assert.ok(Math.abs(sum(found) - 1) < 1e-9);
  assert.deepEqual(sample(Float64Array.from([0, 1, 0]), 20), Float64Array.from([0, 1, 0]));
});

// Every row attends to all tokens evenly.
function even(length, heads) {
  const asked = [];
  const mix = async (layer, shares) => {
    asked.push(shares.filter((share) => share).length);
    return new Float32Array(length).fill(sum(shares) / length);
  };
  return { asked, rows: { length }, layers: [{ heads }, { heads }], mix };
}

test("a long rollout is told whole after few rows, and its layers become exact from the top down", async () => {
  const stack = even(2048, 64);
  const told = [];
  const tell = (found, part, estimated = 0) => told.push([found.length, estimated, stack.asked.length]);
  const found = await rollout(stack, 5, { kind: "server", signal: new AbortController().signal, tell });
  const first = told.findIndex(([layers]) => layers === 3);
  assert.deepEqual(told[first].slice(0, 2), [3, 2]);
  assert.ok(stack.asked.slice(0, told[first][2]).every((rows) => rows <= 512), "few rows until then");
  assert.deepEqual([...new Set(told.slice(first).map(([, estimated]) => estimated))], [2, 1, 0]);
  assert.ok(Math.abs(found[2][5] - (0.25 + 0.75 / 2048)) < 1e-6, "½ · ½ of itself, and even shares of the rest");
  assert.ok(Math.abs(sum(found[2]) - 1) < 1e-5);
});
