// What the header says of tokens that are no plain text: frames of a sound, and tokens that the model does not know.

import { say } from "../words.js";

const said = (number) => number.toLocaleString("en");

// The frames of an axis, with their length and that of the sound; null if it is no sound.
export function framesSaid({ length, seconds }) {
  if (!seconds) return null;
  const values = { n: said(length), ms: Number((1000 * seconds).toFixed(2)), s: (length * seconds).toFixed(2) };
  return say("{n} frames of {ms} ms ({s} s)", values);
}

// How many of the tokens the model does not know, as a list of one sentence or none. axes: each counts once.
export function unknownSaid(...axes) {
  let [unknown, all] = [0, 0];
  for (const axis of new Set(axes)) {
    unknown += axis.unknown.filter(Boolean).length;
    all += axis.length;
  }
  if (!unknown) return [];
  const values = { n: said(unknown), all: said(all) };
  const sentence = unknown === 1 ? "{n} of {all} tokens is unknown to this model" : "{n} of {all} tokens are unknown to this model";
  return [say(sentence, values)];
}
