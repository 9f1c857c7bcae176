// Live pages: a prompt and edits in the state become a run of the model, whose source then takes the page's place.

import CSS from "./live.css" with { type: "text" };
import { blockedIn, blocked, isOff, off, toggled, written } from "../../data/edits.js";
import { learn, openingOf } from "../../data/opening.js";
import { EditRow } from "./row.js";
import { Predictions } from "./predictions.js";
import { PromptField } from "./prompt.js";
import { say } from "../../words.js";

const SLOW_MS = 150; // a run that takes longer is shown as work in progress

export class Live {
  static css = CSS;

  // The initial values of the fields of the state on which a run depends.
  static first({ prompt, edits, position }) {
    return { prompt, edits, after: position };
  }

  // runOf({ prompt, edits, position }, { signal }): the source of a run of the model, on a server or in the page.
  constructor(app, runOf) {
    this.app = app;
    this.runOf = runOf;
    this.prompt = new PromptField(app, (prompt) => this.ask(prompt));
    this.row = new EditRow(app, this);
    this.predictions = new Predictions(app);
    this.running = null; // the current question, as a text
    this.keys = [
      [["o"], say("switch this head off, or on again"), () => this.switchHead()],
      ...(this.carried ? [] : [[["e"], say("block the current cell in this head, or unblock it"), () => this.blockEdge("head")]]),
    ];
  }

  close() {
    this.asking?.abort();
  }

  // What is shown: { prompt, edits, position, predictions, ... }.
  get shown() {
    return this.app.source.live;
  }

  // Whether the page itself has the model, which then answers while one types. Its heads can be switched off, but no edges.
  get carried() {
    return Boolean(this.app.source.live.carried);
  }

  isOff(layer, head) {
    return isOff(this.shown.edits, this.app.stack.layers[layer].number, head);
  }

  // The blocked cells of a head, [row, col].
  blockedIn(layer, head) {
    return blockedIn(this.shown.edits, this.app.stack.layers[layer].number, head);
  }

  // ---- changes

  // Run another prompt. Blocked edges name tokens of the old prompt and are dropped; heads stay.
  ask(prompt) {
    const { state } = this.app;
    if (prompt === state.prompt) return this.carried || this.app.say(say("This prompt is shown already."));
    const edits = state.edits.filter(({ kind }) => kind !== "block");
    if (edits.length < state.edits.length) {
      this.app.say(say("Blocked edges were dropped: they named tokens of the other prompt."));
    }
    state.set({ prompt, edits, after: null });
  }

  switchHead() {
    const { state, layer } = this.app;
    state.set({ edits: toggled(state.edits, off(layer.number, state.head)) });
  }

  blockEdge(scope) {
    const { state, layer } = this.app;
    const [query, key] = [state.pinRow ?? state.row, state.pinCol ?? state.col];
    const why = this.whyNoEdge(query, key);
    if (why) return this.row.tell(why);
    state.set({ edits: toggled(state.edits, blocked(scope, layer.number, state.head, query, key)) });
  }

  // Why a cell cannot be blocked; null if it can.
  whyNoEdge(query, key) {
    if (query === null || key === null) return say("Pin a cell of the map, or a line between two tokens, to block that edge.");
    if (this.shown.predictions && key > query) return say("A token attends to no later token: there is no edge to block.");
    return null;
  }

  // ---- runs

  update(changed) {
    for (const part of [this.prompt, this.row, this.predictions]) part.update(changed);
    const { prompt, edits, after } = this.app.state;
    const wanted = asText(prompt, edits, after);
    if (wanted === this.running) return;
    this.asking?.abort();
    const isLost = this.running !== null && this.carried; // what the page was still to learn of the shown run
    this.running = null;
    this.busy(false);
    const { run, prompt: shown, edits: made, position } = this.shown;
    if (wanted !== asText(shown, made, position) || isLost || (run === null && !this.failed)) this.run(wanted);
  }

  async run(wanted) {
    const { app } = this;
    const { prompt, edits, after: position } = app.state;
    const asking = (this.asking = new AbortController());
    this.running = wanted;
    const late = setTimeout(() => asking === this.asking && this.busy(true), SLOW_MS);
    try {
      const source = await this.runOf({ prompt, edits, position }, { signal: asking.signal });
      if (asking.signal.aborted) return source.close?.();
      if (source.live.run === this.shown.run) app.source.live = source.live; // only another position
      else {
        const { source: before } = app;
        app.replace(source);
        before.close?.();
        source.insights?.then((found) => this.learn(source, found));
      }
      this.running = null;
      for (const part of [this.prompt, this.row, this.predictions]) part.update(app.everything());
    } catch (error) {
      if (asking.signal.aborted) return;
      app.fail(error); // and back to what is shown; the field keeps what was typed
      this.running = null;
      this.failed = wanted === asText(this.shown.prompt, this.shown.edits, this.shown.position);
      if (this.failed) for (const { element } of [this.prompt, this.row, this.predictions]) element.hidden = true;
      app.state.set(Live.first(this.shown));
    } finally {
      clearTimeout(late);
      if (asking === this.asking) this.busy(false);
    }
  }

  // What is worth a look in a run is known later than its weights.
  learn({ live }, found) {
    const { app } = this;
    if (live.run !== this.shown.run) return;
    learn(app.source, found);
    app.state.openWith(openingOf(app.source));
    app.opening.forget();
    app.update(new Set(["stat", "sort"]));
  }

  busy(slow) {
    this.app.busy(slow);
    this.prompt.busy(slow);
  }
}

const asText = (prompt, edits, after) => JSON.stringify([prompt, written(edits), after]);
