// Edits of a live page, in the state and in the address (data/edits.js).

import assert from "node:assert/strict";
import test from "node:test";
import { blocked, blockedIn, isOff, off, read, toggled, written } from "../../../headwise/viewer/static/data/edits.js";

test("an edit is made, and taken back by itself", () => {
  const edits = toggled(toggled([], off(0, 1)), blocked("layer", 1, 0, 5, 2));
  assert.deepEqual(edits, [
    { kind: "ablate", layer: 0, heads: [1] },
    { kind: "block", layer: 1, heads: "all", query: 5, key: 2 },
  ]);
  assert.deepEqual(toggled(edits, off(0, 1)), edits.slice(1));
});

test("heads that an edit means", () => {
  assert.deepEqual([isOff([off(0, 1)], 0, 1), isOff([off(0, 1)], 0, 0), isOff([off(0, 1)], 1, 1)], [true, false, false]);
  const cells = (scope, ...head) => blockedIn([blocked(scope, 1, 0, 5, 2)], ...head).length;
  assert.deepEqual([cells("head", 1, 0), cells("head", 1, 1), cells("head", 0, 0)], [1, 0, 0]);
  assert.deepEqual([cells("layer", 1, 0), cells("layer", 1, 1), cells("layer", 0, 0)], [1, 1, 0]);
  assert.deepEqual([cells("everywhere", 1, 0), cells("everywhere", 0, 1)], [1, 1]);
  assert.deepEqual(blockedIn([blocked("everywhere", 1, 0, 5, 2)], 3, 3), [[5, 2]]);
});

test("in an address", () => {
  const edits = [off(0, 1), blocked("head", 1, 0, 5, 2), blocked("layer", 1, 0, 5, 3), blocked("everywhere", 1, 0, 5, 4)];
  assert.equal(written(edits), "off.0.1,block.1.0.5.2,block.1.all.5.3,block.all.all.5.4");
  assert.deepEqual(read(written(edits)), edits);
  const nonsense = "off,off.x.1,off.0.0.1,block.0.0.1,block.0.0.1.y,what.0.0,off.0.0,off.0.0,block.1.0+1.2.1";
  assert.deepEqual(read(nonsense), [off(0, 0), { kind: "block", layer: 1, heads: [0, 1], query: 2, key: 1 }]);
});
