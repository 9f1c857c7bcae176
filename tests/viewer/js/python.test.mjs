// The Python code of views (views/python.js), and the colours of heads (views/lines/colours.js).

import assert from "node:assert/strict";
import test from "node:test";
import { coloursOf, ownColour } from "../../../headwise/viewer/static/views/lines/colours.js";
import { layerArguments, layersArguments, optionArguments, seenOf } from "../../../headwise/viewer/static/views/python.js";

const stack = (...expressions) => {
  const words = { labels: ["a", "b"] };
  return { rows: words, cols: words, example: 0, layers: expressions.map((expression) => ({ expression })) };
};

test("a layer of a Seen, which knows the labels of its tokens, or a bare record", () => {
  assert.deepEqual(layerArguments(stack("seen[0]", "seen[1]"), 1), ["seen", "layer=1"]);
  assert.deepEqual(layerArguments(stack("seen.records[3]"), 0), ["seen.records[3]"]);
  const numbers = { labels: ["0", "1"] };
  assert.deepEqual(layerArguments({ ...stack("seen[1]"), rows: numbers, cols: numbers }, 0), ["seen[1]"]);
  assert.deepEqual(["seen[1]", "seen.records[2]", "record"].map(seenOf), ["seen", "seen", undefined]);
});

test("the layers of a stack", () => {
  const all = (count, ...expressions) => layersArguments(stack(...expressions), { stacks: Array(count) });
  assert.deepEqual(all(1, "record"), ["record"]);
  assert.deepEqual(all(1, "seen[0]", "seen[1]"), ["seen"]);
  assert.deepEqual(all(2, "seen[0]", "seen[2]"), ["seen", "layers=[0, 2]"]);
  assert.deepEqual(all(1, "seen.records[0]", "seen.records[1]"), ["headwise.Seen([seen.records[0], seen.records[1]])"]);
  assert.deepEqual(all(1, 'seen["a"][0]', 'seen["b"][0]'), ['headwise.Seen([seen["a"][0], seen["b"][0]])']);
});

test("options that are not the usual ones", () => {
  const options = (given, usual) => optionArguments({ example: 0 }, { scale: "linear", colours: "ember", sink: false, ...given }, usual);
  assert.deepEqual(options(), []);
  assert.deepEqual(options({ scale: "row" }), []);
  assert.deepEqual(options({}, "root"), ['scale="linear"']);
  assert.deepEqual(options({ scale: "log", colours: "grey", sink: true }), ['scale="log"', 'cmap="Greys"', "hide_sink=True"]);
  assert.deepEqual(optionArguments({ example: 2 }, { scale: "linear", colours: "ember" }), ["example=2"]);
});

test("heads have the colour of their number, or the next free one", () => {
  assert.deepEqual(coloursOf([[0, 1], [1, 3]], false), [ownColour(1, false), ownColour(3, false)]);
  const [first, second] = coloursOf([[0, 1], [1, 1]], true);
  assert.deepEqual([first, second], [ownColour(1, true), ownColour(2, true)]);
  const many = coloursOf(Array.from({ length: 13 }, (_, head) => [0, head]), false);
  assert.equal(new Set(many).size, 12);
});
