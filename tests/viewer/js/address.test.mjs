// What an address says of the state, and what of it is believed (state.js).

import assert from "node:assert/strict";
import test from "node:test";
import { State } from "../../../headwise/viewer/static/state.js";

const OPENING = { input: 0, stack: 0, layer: 1, head: 2, row: null, col: null, pinRow: 5, pinCol: 3 };
const selected = ({ layer, head, pinRow, pinCol }) => [layer, head, pinRow, pinCol];

test("every field comes back", () => {
  const looked = {
    view: "text", input: 1, stack: 2, layer: 2, head: 3, heads: [[0, 1], [1, 2]], row: 4, col: 5, pinRow: 6, pinCol: 7,
    scale: "log", colours: "cividis", sink: true, threshold: 0.05, theme: "dark", language: "zh", stat: "first_visible",
    sort: "down", level: "words", direction: "gets", sight: [1.25, 7, 0, 4.5], other: { input: 0, stack: 0, layer: 1, head: 2 },
    compare: "difference", align: "positions", flow: "relevance", overlay: "smooth", over: "rollout", bands: "alike", strip: false, hints: false,
    prompt: "a cat & a dog", edits: [{ kind: "ablate", layer: 0, heads: [1] }], after: 3,
  };
  const state = new State();
  assert.deepEqual(new Set(Object.keys(looked)), new Set(Object.keys(state)));
  state.set(looked);
  assert.deepEqual(new State().read(`#${state.write()}`), looked);
  assert.deepEqual(new State().unknown(state.write(), looked), []);
});

test("fields at their beginning are not written", () => {
  const state = new State({ scale: "root" });
  assert.equal(state.write(), "");
  state.set({ scale: "linear", row: 3 });
  assert.equal(state.write(), "row=3&scale=linear");
});

test("thresholds", () => {
  const read = (text) => new State().read(`#threshold=${text}`).threshold;
  const said = { "0.05": 0.05, 1: 1, 2: 0, "-1": 0, "": 0, NaN: 0, "1e-3": 0.001 };
  for (const [text, threshold] of Object.entries(said)) assert.equal(read(text), threshold, text);
});

test("nonsense is nothing", () => {
  const first = { ...new State() };
  const said = [
    "layer=-1&head=x&row=1e9&col=NaN&input=3.5&stack=x&scale=&sort=%00&pinrow=3.5&pincol=",
    "sight=5,1,0&other=0.0.0&sink=yes&strip=0&prompt=%20&edits=off.x.1",
    "%E0%A4%A&&&===&?row=%ff",
    "theme=toString&colours=hasOwnProperty&level=valueOf&compare=__proto__&flow=1&__proto__=1",
  ];
  for (const hash of said) {
    assert.deepEqual(new State().read(hash), first, hash);
    assert.notEqual(new State().unknown(hash, first).length, 0, hash);
  }
  assert.deepEqual(new State().read("heads=0.1,9,x,1.2.3,1.0").heads, [[0, 1], [1, 0]]);
  assert.equal(new State().read("layer=1&layer=2").layer, 1);
});

test("what is unknown is named", () => {
  const state = new State();
  assert.deepEqual(state.unknown("#layer=7&row=2&what=3&nothing", { ...state, row: 2 }), ["layer=7", "what=3", "nothing"]);
});

test("an address that names a selection decides", () => {
  const read = (hash) => selected(new State({}, OPENING).read(hash));
  assert.deepEqual(read(""), [1, 2, 5, 3]);
  assert.deepEqual(read("view=text"), [1, 2, 5, 3]);
  assert.deepEqual(read("layer=0"), [0, 0, null, null]);
  assert.deepEqual(read("row=3"), [0, 0, null, null]);
  assert.deepEqual(read("layer=1&head=1&pinrow=2"), [1, 1, 2, null]);
});

test("every selection comes back, whatever the page opens with", () => {
  const others = [{}, { pinCol: null }, { layer: 0, head: 1 }, { layer: 0, head: 0, pinRow: null, pinCol: null }];
  for (const given of others) {
    const state = new State({}, OPENING);
    assert.equal(state.write(), "");
    state.set(given);
    assert.deepEqual(selected(new State({}, OPENING).read(state.write())), selected(state), JSON.stringify(given));
  }
});

test("listeners are told what really changed", () => {
  const state = new State();
  const told = [];
  const stop = state.on((changed) => told.push([...changed]));
  state.set({ layer: 1, heads: [] });
  state.set({ layer: 1 });
  stop();
  state.set({ layer: 2 });
  assert.deepEqual(told, [["layer"]]);
});
