// Which token is asked what it gives or gets, and which of the others is read out: the state's row and column, and
// their pins, as the Text and the Image view speak of them.

import { choices, SCALE_CHOICES, toggle } from "../../shell/controls.js";

const FIELD = { rows: "row", cols: "col" };
const PIN = { rows: "pinRow", cols: "pinCol" };

export class Asking {
  constructor(app) {
    this.state = app.state;
    this.by = null; // "pointer" while a person points: what is pointed at is in sight
  }

  // What the state is set to while the pointer does it.
  pointing(act) {
    this.by = "pointer";
    act();
    this.by = null;
  }

  get gives() {
    return this.state.direction === "gives";
  }

  // The axis that is asked about, and the other, whose tokens are coloured.
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

  // A token is pointed at. side: the axis that it is of; "both" where rows and columns are one.
  point(side, token) {
    const [asked, others] = this.sides;
    const held = this.pinned !== null;
    if (side === others || (side === "both" && held)) this.state.set({ [FIELD[others]]: token });
    else if (!held) this.state.set({ [FIELD[asked]]: token });
  }

  // Hold a token, or let it go if it, or its group, is held. of: the group of each token.
  pin(side, token, of) {
    const [asked, others] = this.sides;
    if (side === others) return this.state.set({ [FIELD[others]]: token });
    const same = this.pinned !== null && of[this.pinned] === of[token];
    this.state.set({ [PIN[asked]]: same ? null : token, [FIELD[asked]]: token });
  }

  // The same where the axis itself says whether it is asked what it gives (rows) or gets (columns).
  pointFrom(side, token) {
    if (this.pinned === null) this.state.set({ direction: SAYS[side], [FIELD[side]]: token });
    else if (side === this.sides[1]) this.point(side, token);
  }

  pinFrom(side, token, of) {
    if (side === this.sides[0]) return this.pin(side, token, of);
    this.state.set({ direction: SAYS[side], pinRow: null, pinCol: null, [PIN[side]]: token, [FIELD[side]]: token });
  }

  turn() {
    this.state.set({ direction: this.gives ? "gets" : "gives" });
  }
}

const SAYS = { rows: "gives", cols: "gets" };

const DIRECTIONS = [
  ["gives", "gives", "What a token gives to the others"],
  ["gets", "gets", "What a token gets from the others"],
];

// What both views have in their bar.
export class AskingControls {
  constructor({ state }) {
    this.state = state;
    const set = (field) => (value) => state.set({ [field]: value });
    this.directions = choices("Colours show", DIRECTIONS, set("direction"));
    this.scales = choices("Colour scale", SCALE_CHOICES.slice(0, 3), set("scale"));
    const hides = "Hide the first token that anybody may attend to; weights stay as they are";
    this.sink = toggle("Hide the sink", hides, set("sink"));
  }

  show() {
    const { direction, scale, sink } = this.state;
    this.directions.show(direction);
    this.scales.show(scale === "row" ? "linear" : scale); // each answer is coloured against its own largest
    this.sink.show(sink);
  }
}
