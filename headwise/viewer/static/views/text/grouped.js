// The base of the Text and the Lines view: the attention of one asked token, word or sentence is shown.

import { sinkOf } from "../../data/sink.js";
import { largest } from "../../map/colour.js";
import { choices, thresholdControl } from "../../shell/controls.js";
import { say } from "../../words.js";
import { View } from "../view.js";
import { Asking, AskingControls } from "./asking.js";
import { Caption } from "./caption.js";
import { attentionOf, chosenHeads, groupsOf, LEVELS } from "./grouping.js";
import { figurePython, listPython } from "./python.js";

export class GroupedView extends View {
  // hint: what the caption says while no token is asked.
  constructor(app, hint) {
    super(app);
    this.asking = new Asking(app);
    this.caption = new Caption(app, hint);
    this.asks = new AskingControls(app);
    this.levels = choices(say("Read as"), LEVELS.map((level) => [level, say(level)]), (level) => app.state.set({ level }));
    this.threshold = thresholdControl(app.state);
  }

  get rows() {
    return groupsOf(this.app.stack.rows, this.app.state.level);
  }

  get cols() {
    return groupsOf(this.app.stack.cols, this.app.state.level);
  }

  // The levels that put any tokens into one group.
  get offered() {
    const { rows, cols } = this.app.stack;
    const groups = (level) => level === "tokens" || [rows, cols].some((axis) => axis[level].labels.length < axis.length);
    return LEVELS.filter(groups);
  }

  turnLevel() {
    const { app, offered } = this;
    app.state.set({ level: offered[(offered.indexOf(app.state.level) + 1) % offered.length] });
  }

  hold() {
    const { asked, sides: [side] } = this.asking;
    if (asked !== null) this.asking.pin(side, asked, this[side].of);
  }

  controlsShow() {
    const { app: { state }, offered } = this;
    this.asks.show();
    this.levels.show(state.level);
    this.threshold.show(state.threshold);
    for (const button of this.levels.children) button.hidden = !offered.includes(button.dataset.value);
    this.levels.hidden = offered.length === 1;
  }

  // Ask for the weights that the caption needs, and what more({ signal }) adds, and show them. The old display stays until
  // they arrive.
  ask(rows, cols, heads, more = () => null) {
    const { app: { stack, state }, asking } = this;
    const { direction } = state;
    const [groups, others] = asking.gives ? [rows, cols] : [cols, rows];
    const group = asking.asked === null ? null : groups.of[asking.asked];
    const find = async (options) => {
      const [sink, weights, added] = await Promise.all([
        state.sink ? sinkOf(stack, heads[0], options) : null,
        group === null ? null : attentionOf(stack, heads, rows, cols, direction, group, options),
        more(options),
      ]);
      const sunk = sink === null ? null : cols.of[sink];
      return { heads, rows, cols, groups, others, group, direction, weights, sunk, ...added };
    };
    this.question(find, (found) => this.show(found));
  }

  // The result, with the numbers that the caption shows: the largest weight, and the weight of the probe.
  captioned(found) {
    const { asking } = this;
    const { others, weights } = found;
    const sunk = asking.gives ? found.sunk : null; // it is a column
    const top = weights ? largest(weights.map((weight, place) => (place === sunk ? 0 : weight))) : 0;
    const probe = asking.probe === null ? null : others.of[asking.probe];
    return { ...found, sunk, top, probe, pinned: asking.pinned !== null };
  }

  python() {
    const { app, asking: { asked } } = this;
    const heads = chosenHeads(app.state);
    if (asked === null) return null;
    if (heads.length === 1 && app.state.level === "tokens") return figurePython(app, asked);
    return listPython(app, heads, asked, app.state.level);
  }
}
