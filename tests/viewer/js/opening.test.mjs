// What is worth a look (data/opening.js), what the sink is (data/sink.js), and which heads a search finds (profile/matching.js).

import assert from "node:assert/strict";
import test from "node:test";
import { openingOf, worthALook } from "../../../headwise/viewer/static/data/opening.js";
import { firstAllowed } from "../../../headwise/viewer/static/data/sink.js";
import { found, matcher } from "../../../headwise/viewer/static/profile/matching.js";

const pair = (weight, keys, place) => ({ layer: 0, head: 0, row: 1, col: 2, weight, keys, ...place });
const support = (values, queries = 9, chance = [0.1]) => ({ values, queries: values.map(() => queries), chance });
const none = { previous: support([0, 0]), first_visible: support([0, 0]), induction: null };
const supports = (given) => ({ supports: { ...none, ...given } });
const rows = { unknown: [false, false, true, false] };
const known = { rows, cols: rows };
const kinds = (pairs, layers) => worthALook({ pairs, layers, ...known }).map(({ kind }) => kind);

test("the strongest pair first, then patterns that exist, then other pairs", () => {
  const layers = [
    supports({ previous: support([0.9, 0.3], 8), induction: support([0.3, null]) }),
    supports({ first_visible: support([0, 0.5]) }),
  ];
  const pairs = [pair(0.9, 10), pair(0.8, 10)];
  assert.deepEqual(kinds(pairs, layers), ["pair", "previous", "sink", "pair"]);
  const [first, previous, sink] = worthALook({ pairs, layers, ...known });
  assert.deepEqual(first, { kind: "pair", layer: 0, head: 0, row: 1, col: 2, value: 0.9, keys: 10 });
  assert.deepEqual([previous, sink], [
    { kind: "previous", layer: 0, head: 0, value: 0.9, queries: 8 }, { kind: "sink", layer: 1, head: 1, value: 0.5, queries: 9 },
  ]);
  assert.deepEqual(kinds([], [{ stats: null }]), []); // not known yet
});

test("a pattern has five queries, and is twice as strong as chance", () => {
  const of = (...given) => kinds([], [supports({ induction: support(...given) })]);
  assert.deepEqual(of([0.4, 0], 5), ["induction"]);
  assert.deepEqual(of([0.9, 0], 4), []);
  assert.deepEqual(of([0.39, 0], 99), []);
  assert.deepEqual(of([0.9, 0.8], 9, [0.46, 0.39]), ["induction"]); // of the other head
  assert.deepEqual(of([0.9, 0.8], 9, [0.46]), []);
});

test("two inputs of models of one shape open on Compare", () => {
  const input = (...heads) => ({ stacks: [{ place: 0, pairs: [pair(0.9, 10)], ...known, layers: heads.map((each) => ({ heads: each })) }] });
  const view = (...inputs) => openingOf({ inputs }).view;
  assert.deepEqual([view(input(2, 2), input(2, 2)), view(input(2, 2), input(2, 4)), view(input(2, 2), input(2))], ["compare", undefined, undefined]);
  assert.deepEqual([view(input(2, 2)), view(input(2), input(2), input(2))], [undefined, undefined]);
});

test("a page opens with the strongest pair of the first input", () => {
  const given = [[pair(0.5, 10)], [pair(0.9, 10, { layer: 2, head: 3 })], []];
  const stacks = given.map((pairs, place) => ({ place, pairs, layers: [], ...known }));
  assert.deepEqual(openingOf({ inputs: [{ stacks }] }), {
    input: 0, stack: 1, layer: 2, head: 3, row: null, col: null, pinRow: 1, pinCol: 2,
  });
  assert.equal(openingOf({ inputs: [{ stacks: [{ place: 0, pairs: [], layers: [], ...known }] }] }), null);
});

test("the sink is the first column in which anything is allowed", async () => {
  const asked = [];
  const tile = (first) => async (rows, [from, past]) => {
    asked.push([from, past]);
    return Float32Array.from({ length: past - from }, (_, i) => (from + i < first ? NaN : 0.5));
  };
  assert.equal(await firstAllowed(tile(3), 4, 10), 3);
  assert.equal(await firstAllowed(tile(300), 4, 400), 300);
  assert.equal(await firstAllowed(tile(99), 4, 10), null);
  assert.deepEqual(asked, [[0, 10], [0, 256], [256, 400], [0, 10]]);
});

test("heads are found by a token of their pairs, then of their examples", () => {
  const head = { pairs: [["the", "##cat", 1]], examples: [{ window: 0 }, { window: 1 }] };
  const windows = [{ labels: ["a", "dog"] }, { labels: ["zebra"] }];
  const of = (query) => found(head, windows, matcher(query));
  assert.deepEqual(of("CAT"), { pair: head.pairs[0] });
  assert.deepEqual(of("zeb"), { example: { window: 1 } });
  assert.deepEqual([of("do"), of("catx")], [null, null]); // two letters: that token alone
  assert.equal(matcher(" "), null);
});
