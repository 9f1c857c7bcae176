// The tokens of two texts as one axis (views/compare/align.js, union.js); test_modules.py compares it with Python's difflib.

import assert from "node:assert/strict";
import test from "node:test";
import { align } from "../../../headwise/viewer/static/views/compare/align.js";
import { Union } from "../../../headwise/viewer/static/views/compare/union.js";

function axis(labels) {
  const no = labels.map(() => false);
  return { labels, length: labels.length, special: no, unknown: no, generated: null };
}

const union = (one, other) => new Union(axis([...one]), axis([...other]));

test("tokens that are replaced, put in and taken out", () => {
  const [replaced, put, taken] = [union("abc", "axc"), union("ac", "abbc"), union("abc", "b")];
  assert.deepEqual([replaced.axes.both.labels, replaced.plain], [["a", "b | x", "c"], true]);
  assert.deepEqual([put.axes.both.labels, put.plain], [["a", "▸ b", "▸ b", "c"], false]);
  assert.deepEqual([taken.axes.both.labels, taken.plain], [["◂ a", "b", "◂ c"], false]);
  assert.deepEqual(put.axes.left.labels, ["a", "·", "·", "c"]);
  assert.equal(union("ab", "ab").told(), "The same 2 tokens on both sides.");
  assert.equal(taken.told(), "1 token in common, 2 only left (◂).");
  assert.equal(replaced.told(), "2 tokens in common, 1 replaced (one | other).");
});

test("texts that are too long are aligned at their ends", () => {
  const [one, other] = [9000, 8000].map((count) => ["s", ...Array(count).fill("a"), "e"]);
  one.splice(-1, 0, "x");
  const found = align(one, other);
  assert.deepEqual([found.whole, found.same.reduce((sum, same) => sum + same, 0)], [false, 8002]);
  assert.deepEqual([found.left.at(-1), found.right.at(-1)], [one.length - 1, other.length - 1]);
});

test("places between entries, in tokens of the left", () => {
  const both = union("abcd", "axxbcd"); // entries: a, ▸ x, ▸ x, b, c, d
  assert.deepEqual([0, 1, 2, 3].map((token) => both.entryOf(token)), [0, 3, 4, 5]);
  assert.deepEqual([0, 1, 3].map((entry) => both.tokenAt(entry)), [0, null, 1]);
  assert.deepEqual([0.5, 1.5, 3.25, 6].map((at) => both.tokenPlace(at)), [0.5, 1, 1.25, 4]);
  assert.deepEqual([0.5, 1.25, 4].map((at) => both.entryPlace(at)), [0.5, 3.25, 6]);
});
