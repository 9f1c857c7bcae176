// One row of weights, step by step (data/terms.js, views/neuron/).

import assert from "node:assert/strict";
import test from "node:test";
import { termsOf } from "../../../headwise/viewer/static/data/terms.js";
import { listedOf } from "../../../headwise/viewer/static/views/neuron/keys.js";
import { digits, short } from "../../../headwise/viewer/static/views/neuron/numbers.js";
import { stepsOf } from "../../../headwise/viewer/static/views/neuron/steps.js";

// q = [1, 2], k = [[1, 0], [0, 1], [1, 1]], scale 1/2; the last key is masked.
const numbers = ({ softcap = NaN, sink = NaN, bias = [0, 0, 0], allowed = [1, 1, 0] } = {}) =>
  Float64Array.from([2, 0.5, softcap, sink, 1, 2, 1, 0, 0, 1, 1, 1, ...bias, ...allowed]);
const near = (found, expected) => found.forEach((each, i) => assert.ok(Math.abs(each - expected[i]) < 1e-12, `${found}`));

test("products, scores and weights", () => {
  const { steps, highest, sum, keyOf } = termsOf(numbers(), 3);
  assert.deepEqual(steps.map(({ dot, score }) => [dot, score]), [[1, 0.5], [2, 1], [3, -Infinity]]);
  assert.deepEqual([highest, [...keyOf(2)]], [1, [1, 1]]);
  near([sum, ...steps.map(({ weight }) => weight)], [1 + Math.exp(-0.5), 1 / (1 + Math.exp(0.5)), 1 / (1 + Math.exp(-0.5)), 0]);
});

test("softcap, bias and sink", () => {
  const { steps, highest } = termsOf(numbers({ softcap: 2, sink: 3, bias: [0, 1, 0] }), 3);
  const scores = [2 * Math.tanh(0.25), 2 * Math.tanh(0.5) + 1];
  near(steps.slice(0, 2).map(({ score }) => score), scores);
  assert.equal(highest, 3);
  const all = [...scores, 3].map(Math.exp);
  near(steps.map(({ weight }) => weight), [...all.slice(0, 2).map((exp) => exp / (all[0] + all[1] + all[2])), 0]);
});

test("a row that attends to nothing has no weights", () => {
  const terms = termsOf(numbers({ allowed: [0, 0, 0] }), 3);
  assert.deepEqual([terms.empty, terms.steps.map(({ weight }) => weight)], [true, [0, 0, 0]]);
  assert.deepEqual(stepsOf(terms, terms.steps[0], 0).at(-1), ["Weight", "the query attends to nothing", 0]);
});

test("a line for each step that there is", () => {
  const names = (given) => {
    const terms = termsOf(numbers(given), 3);
    return stepsOf(terms, terms.steps[0], 2).map(([name]) => name);
  };
  const last = ["Mask", "Exponential", "Sum of the row", "Weight"];
  assert.deepEqual(names(), ["Sum of the products", "Scale", ...last]);
  assert.deepEqual(names({ softcap: 2, bias: [0, 1, 0] }), ["Sum of the products", "Scale", "Softcap", "Bias", ...last]);
});

test("of many keys those with the largest weights are listed, and the chosen one", () => {
  const steps = Array.from({ length: 100 }, (_, col) => ({ weight: (col * 37) % 100 }));
  const largest = steps.map(({ weight }, col) => [weight, col]).filter(([weight]) => weight >= 36).map(([, col]) => col);
  assert.deepEqual(listedOf(steps, 0), [0, ...largest]);
  assert.deepEqual(listedOf(steps, largest[5]), largest);
  assert.deepEqual(listedOf(steps.slice(0, 64), 3).length, 64);
});

test("how numbers are written", () => {
  const written = [1 / 3, -1234567, 5e-5, 0, -Infinity, NaN].map(digits);
  assert.deepEqual(written, ["0.333333", "−1.235e+6", "5.000e−5", "0", "−∞", "NaN"]);
  assert.deepEqual([-0.12345, Infinity].map(short), ["−0.123", "∞"]);
});
