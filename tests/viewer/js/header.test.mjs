// What the header says of a stack (shell/header.js), and the languages of sentences (words.js).

import assert from "node:assert/strict";
import test from "node:test";
import { factsOf } from "../../../headwise/viewer/static/shell/header.js";
import { say, speak, untranslated } from "../../../headwise/viewer/static/words.js";

const axis = (length, given) => ({ length, cut: 0, patches: null, text: true, seconds: null, unknown: Array(length).fill(false), ...given });
const layer = (heads, kvHeads = heads) => ({ heads, kvHeads });
const unknown = (count, length) => ({ unknown: Array.from({ length }, (_, i) => i < count) });

function said(rows, { cols = rows, layers = [layer(2)], kind = "self", tolerance = 1e-4 } = {}) {
  return factsOf({ rows, cols, layers, kind }, { tolerance, about: { model: "" } });
}

test("layers, heads and tokens", () => {
  assert.deepEqual(said(axis(9)), ["1 layer × 2 heads", "9 tokens", "weights within 0.0001 of the model's"]);
  const layers = [layer(4, 2), layer(6)];
  assert.equal(said(axis(9), { layers })[0], "2 layers × 4–6 heads (2–6 key/value)");
  assert.equal(said(axis(9), { tolerance: 0 })[2], "exact weights, from the server");
  const lengths = [axis(1), axis(1200, { cut: 3 }), axis(5, { text: false }), axis(5, { text: false, patches: {} })];
  assert.deepEqual(lengths.map((rows) => said(rows)[1]), ["1 token", "1,200 tokens (3 more did not fit)", "5 positions", "5 patches"]);
  assert.equal(said(axis(50, { seconds: 0.02 }))[1], "50 frames of 20 ms (1.00 s)");
  assert.equal(said(axis(2), { cols: axis(3), kind: "cross" })[1], "2 tokens attending to 3 tokens");
});

test("tokens that the model does not know, each axis once", () => {
  const count = (many) => said(axis(9, unknown(many, 9)))[1];
  assert.deepEqual([1, 3].map(count), ["9 tokens, 1 unknown to this model", "9 tokens, 3 unknown to this model"]);
  const both = said(axis(2, unknown(1, 2)), { cols: axis(3, unknown(1, 3)), kind: "cross" });
  assert.equal(both[1], "2 tokens attending to 3 tokens, 2 unknown to this model");
});

test("the first language that we have, else English", () => {
  assert.equal(speak(["fr-FR", "zh-Hans-CN", "en"]), "zh");
  assert.equal(say("{n} tokens", { n: 3 }), "3 个词元");
  assert.equal(say("Nobody said {what}", { what: "this" }), "Nobody said this");
  assert.deepEqual([...untranslated], ["Nobody said {what}"]);
  assert.equal(speak(["fr"]), "en");
  assert.equal(say("{n} tokens", { n: 3 }), "3 tokens");
});
