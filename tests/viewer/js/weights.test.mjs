// Weights from a file's blocks (data/weights.js); test_modules.py compares them with those of records.

import assert from "node:assert/strict";
import test from "node:test";
import { Weights } from "../../../headwise/viewer/static/data/weights.js";

// One head, two rows, three keys of one dimension: q = [1, 2] and k = [1, 2, 3] in 12 bits each, all scales 1.
function block() {
  const numbers = [1, 2, 1, 2, 3, 0];
  const bits = numbers.map((number) => number.toString(2).padStart(12, "0")).reverse().join("");
  const packed = Array.from({ length: 8 }, (_, i) => parseInt(bits.slice(-8 * (i + 1), bits.length - 8 * i), 2));
  const lse = new Float32Array([1, 2].map((q) => Math.log([1, 2, 3].reduce((sum, k) => sum + Math.exp(q * k), 0))));
  const parts = [lse, new Uint16Array(5).fill(0x3f80), Uint8Array.from(packed)];
  return Uint8Array.from(parts.flatMap((part) => [...new Uint8Array(part.buffer)])).buffer;
}

const FACTS = {
  heads: 1, kvHeads: 1, dim: 1, scale: 1, softcap: null, planes: null, bias: null, sinks: null,
  groups: [{ bits: 12, wide: false, block: "group" }],
};

function of(given = {}, blocks = {}) {
  const known = { group: block(), ...blocks };
  return new Weights({ ...FACTS, ...given }, 2, 3, (name) => known[name]);
}

function done(work) {
  for (let step = work.next(); ; step = work.next()) if (step.done) return [...step.value];
}

const near = (found, expected) => expected.forEach((each, i) => assert.ok(Math.abs(found[i] - each) < 1e-6, `${found}`));
const softmax = (scores) => scores.map((score) => Math.exp(score) / scores.reduce((sum, each) => sum + Math.exp(each), 0));
const ROWS = [softmax([1, 2, 3]), softmax([2, 4, 6])];

test("every weight, and blocks of them", () => {
  near(done(of().tile(0, [0, 2], [0, 3], 2, 3, "max")), ROWS.flat());
  near(done(of().tile(0, [0, 2], [0, 3], 1, 1, "max")), [ROWS[1][2]]);
  near(done(of().tile(0, [0, 2], [0, 3], 1, 1, "mean")), [1 / 3]);
  near(done(of().tile(0, [0, 2], [0, 3], 1, 1, "sample")), [ROWS[1][2]]);
  near(done(of().tile(0, [0, 1], [1, 3], 1, 2, "max")), ROWS[0].slice(1));
  near(done(of().mix([1, 0.5])), [0, 1, 2].map((key) => ROWS[0][key] + 0.5 * ROWS[1][key]));
});

test("a mask as runs of keys", () => {
  const plane = Uint32Array.from([0, 1, 2, 0, 1, 1, 3]).buffer; // the first row sees key 0, the second keys 1 and 2
  const found = done(of({ planes: [0] }, { plane0: plane }).tile(0, [0, 2], [0, 3], 2, 3, "max"));
  assert.deepEqual(found.map(Number.isNaN), [false, true, true, true, false, false]);
});

test("a bias by cell, or by distance", () => {
  const numbers = [1, 2, 3, 4, 5, 6]; // of a cell; or of a distance, key - query + 1
  const bias = (kind, shape, given) => of({ bias: { block: "bias", kind, shape } }, { bias: Float32Array.from(given).buffer }).bias(0);
  const cells = (biasAt) => [0, 1].map((row) => [0, 1, 2].map((col) => biasAt(row, col)));
  assert.deepEqual(cells(bias("dense", [1, 2, 3], numbers)), [[1, 2, 3], [4, 5, 6]]);
  assert.deepEqual(cells(bias("dense", [1, 2, 1], numbers)), [[1, 1, 1], [2, 2, 2]]);
  assert.deepEqual(cells(bias("dense", [1, 1, 3], numbers)), [[1, 2, 3], [1, 2, 3]]);
  assert.deepEqual(cells(bias("relative", [1, 4], numbers)), [[2, 3, 4], [1, 2, 3]]);
});

test("a block that is cut says so", () => {
  const asked = (given, blocks) => () => done(of(given, blocks).tile(0, [0, 2], [0, 3], 2, 3, "max"));
  const says = (name) => new RegExp(`The file is damaged: ${name} is incomplete. Write it again`);
  for (const length of [0, 16, block().byteLength - 1]) assert.throws(asked({}, { group: block().slice(0, length) }), says("group"));
  for (const numbers of [[], [0, 1], [0, 1, 2, 0, 1]]) {
    assert.throws(asked({ planes: [0] }, { plane0: Uint32Array.from(numbers).buffer }), says("plane0"));
  }
  const bias = { block: "bias", kind: "dense", shape: [1, 2, 3] };
  assert.throws(asked({ bias }, { bias: new ArrayBuffer(20) }), says("bias"));
});
