// What the Text and the Lines view share: one token is asked, of tokens, words or sentences, and its attention is shown.

import { choices, thresholdSlider } from "../../shell/controls.js";
import { say } from "../../words.js";
import { Asking, AskingControls } from "./asking.js";
import { Caption } from "./caption.js";
import { chosenHeads, groupsOf, LEVELS } from "./grouping.js";
import { figurePython, listPython } from "./python.js";

export class GroupedView {
  // hint: what the caption says while no token is asked.
  constructor(app, hint) {
    this.app = app;
    this.asking = new Asking(app);
    this.caption = new Caption(app, hint);
    this.asks = new AskingControls(app);
    this.levels = choices(say("Read as"), LEVELS.map((level) => [level, say(level)]), (level) => app.state.set({ level }));
    this.threshold = thresholdSlider((threshold) => app.state.set({ threshold }));
  }

  get rows() {
    return groupsOf(this.app.stack.rows, this.app.state.level);
  }

  get cols() {
    return groupsOf(this.app.stack.cols, this.app.state.level);
  }

  turnLevel() {
    const at = LEVELS.indexOf(this.app.state.level);
    this.app.state.set({ level: LEVELS[(at + 1) % LEVELS.length] });
  }

  hold() {
    const { asked, sides: [side] } = this.asking;
    if (asked !== null) this.asking.pin(side, asked, this[side].of);
  }

  python() {
    const { app, asking: { asked } } = this;
    const heads = chosenHeads(app.state);
    if (asked === null) return null;
    if (heads.length === 1 && app.state.level === "tokens") return figurePython(app, asked);
    return listPython(app, heads, asked, app.state.level);
  }
}
