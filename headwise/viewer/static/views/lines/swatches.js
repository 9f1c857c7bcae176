// The row of heads above the lines: the heads of the current layer, then the chosen ones of other layers. A click turns a
// head on or off, with Shift it only adds it, a double click leaves it alone. One head is always on.

import { element } from "../../shell/element.js";
import { say } from "../../words.js";
import { chosenHeads } from "../text/grouping.js";
import { coloursOf, ownColour } from "./colours.js";

export class Swatches {
  constructor(app) {
    this.app = app;
    this.element = element("div", { className: "swatches", role: "group", ariaLabel: say("Heads") });
    this.element.addEventListener("click", (event) => {
      const pair = pairOf(event);
      if (pair) this.turn(pair, event.shiftKey);
    });
    this.element.addEventListener("dblclick", (event) => {
      const pair = pairOf(event);
      if (pair) this.only(pair);
    });
  }

  show() {
    const { app } = this;
    const { state, layer, style: { dark } } = app;
    const chosen = chosenHeads(state);
    const colours = coloursOf(chosen, dark);
    const here = Array.from({ length: layer.heads }, (_, head) => [state.layer, head]);
    const pairs = [...here, ...chosen.filter(([other]) => other !== state.layer)];
    const buttons = this.buttons(pairs);
    pairs.forEach(([place, head], i) => {
      const on = chosen.findIndex((pair) => pair[0] === place && pair[1] === head);
      const button = buttons[i];
      const name = app.headName(place, head);
      Object.assign(button.dataset, { layer: place, head });
      button.textContent = place === state.layer ? String(head) : `${app.stack.layers[place].number}.${head}`;
      button.ariaPressed = String(on >= 0);
      button.ariaLabel = name;
      button.title = say("{head}: click to show or hide it, double-click for it alone", { head: name });
      button.style.setProperty("--colour", on >= 0 ? colours[on] : ownColour(head, dark));
    });
  }

  // This many buttons. Existing ones are kept: a double click needs the button of its first click.
  buttons(pairs) {
    const { children } = this.element;
    while (children.length > pairs.length) this.element.lastChild.remove();
    while (children.length < pairs.length) this.element.append(element("button", { type: "button" }));
    return children;
  }

  turn(pair, add) {
    const chosen = chosenHeads(this.app.state);
    const others = chosen.filter((each) => !same(each, pair));
    if (others.length === chosen.length) this.choose([...chosen, pair]);
    else if (!add && others.length) this.choose(others);
    else if (!add) this.app.say(say("One head is always shown"));
  }

  only(pair) {
    this.choose([pair]);
  }

  all() {
    const { state, layer } = this.app;
    const current = [state.layer, state.head];
    const all = Array.from({ length: layer.heads }, (_, head) => [state.layer, head]);
    this.choose([current, ...all.filter((pair) => !same(pair, current))]);
  }

  // The first one is the current head.
  choose([[layer, head], ...heads]) {
    this.app.go({ layer, head, heads });
  }
}

const same = (one, other) => one[0] === other[0] && one[1] === other[1];

function pairOf(event) {
  const { layer, head } = event.target.closest("button")?.dataset ?? {};
  return head === undefined ? null : [Number(layer), Number(head)];
}
