// The asked token, whose attention is shown, and the probe, the other token whose weight is shown: the state's row and
// column, and their pins, in the terms of the Text and the Image view.

import { choices, said, scaleControl, SCALE_CHOICES, sinkControl } from "../../shell/controls.js";
import { say } from "../../words.js";
import { RunningText } from "./running.js";

const FIELD = { rows: "row", cols: "col" };
const PIN = { rows: "pinRow", cols: "pinCol" };

export class Asking {
  constructor(app) {
    this.state = app.state;
    this.by = null; // "pointer" while the reader points: that token is visible
  }

  // Set the state on behalf of the pointer.
  pointing(act) {
    this.by = "pointer";
    act();
    this.by = null;
  }

  get gives() {
    return this.state.direction === "gives";
  }

  // The axis of the asked token, and the other one, whose tokens are coloured.
  get sides() {
    return this.gives ? ["rows", "cols"] : ["cols", "rows"];
  }

  get pinned() {
    return this.state[PIN[this.sides[0]]];
  }

  get asked() {
    return this.pinned ?? this.state[FIELD[this.sides[0]]];
  }

  get probe() {
    const other = this.sides[1];
    return this.state[FIELD[other]] ?? this.state[PIN[other]];
  }

  // The pointer is over a token. side: its axis; "both" if rows and columns are the same.
  point(side, token) {
    const [asked, others] = this.sides;
    const held = this.pinned !== null;
    if (side === others || (side === "both" && held)) this.state.set({ [FIELD[others]]: token });
    else if (!held) this.state.set({ [FIELD[asked]]: token });
  }

  // Pin a token, or unpin it if it, or its group, is pinned. of: the group of each token.
  pin(side, token, of) {
    const [asked, others] = this.sides;
    if (side === others) return this.state.set({ [FIELD[others]]: token });
    const same = this.pinned !== null && of[this.pinned] === of[token];
    this.state.set({ [PIN[asked]]: same ? null : token, [FIELD[asked]]: token });
  }

  // The same for views in which the axis decides the direction: rows give, columns get.
  pointFrom(side, token) {
    if (this.pinned === null) this.state.set({ direction: SAYS[side], [FIELD[side]]: token });
    else if (side === this.sides[1]) this.point(side, token);
  }

  pinFrom(side, token, of) {
    if (side === this.sides[0]) return this.pin(side, token, of);
    this.state.set({ direction: SAYS[side], pinRow: null, pinCol: null, [PIN[side]]: token, [FIELD[side]]: token });
  }

  // The running text of an axis, which asks by pointer and keys. pin(token): called for a click; about: the caption.
  textOf(side, axis, name, pin, about) {
    const point = (token) => this.point(side, token);
    const running = new RunningText(axis, name, { point, pin, pointing: (act) => this.pointing(act) });
    running.element.setAttribute("aria-describedby", about.words.id);
    return running;
  }

  // Mark the asked token and the probe in the running text of this side. groups: from groupsOf; tokens beyond them,
  // the patches of an image, are not in this text.
  markIn(running, side, groups) {
    const here = (token) => (token !== null && token < groups.of.length ? token : null);
    const [askedSide, otherSide] = this.sides;
    const [asks, reads] = [side !== otherSide, side !== askedSide];
    const { asked, probe, pinned } = this;
    running.mark("probe", reads ? here(probe) : null, groups);
    running.mark("asked", asks ? here(asked) : null, groups);
    running.element.dataset.pinned = String(asks && pinned !== null);
    const at = here(asks && !(reads && pinned !== null) ? asked : (probe ?? (asks ? asked : null)));
    const moved = at !== running.at;
    running.moveTo(at);
    if (moved && !this.by) running.reveal();
  }

  turn() {
    this.state.set({ direction: this.gives ? "gets" : "gives" });
  }
}

const SAYS = { rows: "gives", cols: "gets" };

const DIRECTIONS = [
  ["gives", "gives", "The attention that a token gives to the others"],
  ["gets", "gets", "The attention that a token gets from the others"],
];

// The controls that both views have.
export class AskingControls {
  constructor(app) {
    const { state } = app;
    this.state = state;
    this.directions = choices(say("Colours show"), said(DIRECTIONS), (direction) => state.set({ direction }));
    this.scales = scaleControl(state, SCALE_CHOICES.slice(0, 3));
    this.sink = sinkControl(app);
  }

  show() {
    const { direction, scale, sink } = this.state;
    this.directions.show(direction);
    this.scales.show(scale === "row" ? "linear" : scale); // colours of each answer are relative to its own largest weight
    this.sink.show(sink);
  }
}
