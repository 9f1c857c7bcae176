// The head on the other side of a comparison, and the controls that choose it. The left side is the current head of
// the page; the right one is `state.other`, or the default.

import { button, picker, toggle } from "../../shell/controls.js";
import { element } from "../../shell/element.js";
import { say } from "../../words.js";

export class Opposite {
  // changed(): called when `linked` changes, which is not part of the page's state.
  constructor(app, changed) {
    Object.assign(this, { app, changed });
    const { other, layer, head } = app.state;
    this.linked = !other || (other.layer === layer && other.head === head);
    this.build();
  }

  get left() {
    const { input, stack, layer, head } = this.app.state;
    return { input, stack, layer, head };
  }

  // With `linked`, the layer and head of the left side.
  get right() {
    const right = this.app.state.other ?? this.usual();
    if (!this.linked || this.isSameStack(right)) return right;
    const { layer, head } = this.app.state;
    return this.within({ ...right, layer, head });
  }

  // The same head of the next input, or the next head.
  usual() {
    const { left } = this;
    const { inputs } = this.app.source;
    if (inputs.length > 1) return this.within(this.inInput((left.input + 1) % inputs.length, left));
    const { layers } = inputs[0].stacks[left.stack];
    const { heads } = layers[left.layer];
    if (heads > 1) return { ...left, head: (left.head + 1) % heads };
    if (layers.length > 1) return this.within({ ...left, layer: (left.layer + 1) % layers.length });
    return { input: 0, stack: (left.stack + 1) % inputs[0].stacks.length, layer: 0, head: 0 };
  }

  // The corresponding place in another input: in its stack of the same name, if there is one.
  inInput(input, place) {
    const { name } = this.stackOf(place);
    const stack = this.app.source.inputs[input].stacks.findIndex((each) => each.name === name);
    return { ...place, input, stack: Math.max(0, stack) };
  }

  within(place) {
    const { layers } = this.stackOf(place);
    const layer = Math.min(place.layer, layers.length - 1);
    return { ...place, layer, head: Math.min(place.head, layers[layer].heads - 1) };
  }

  stackOf({ input, stack }) {
    return this.app.source.inputs[input].stacks[stack];
  }

  isSameStack({ input, stack }) {
    return input === this.app.state.input && stack === this.app.state.stack;
  }

  // "tired · layer 3 · head 5", shortened to the parts that differ.
  nameOf(place) {
    const { input, layer, head } = place;
    const { inputs } = this.app.source;
    const stack = this.stackOf(place);
    const parts = [say("layer {n}", { n: stack.layers[layer].number }), say("head {n}", { n: head })];
    if (inputs[input].stacks.length > 1) parts.unshift(stack.name);
    if (inputs.length > 1) parts.unshift(inputs[input].name);
    return parts.join(" · ");
  }

  // ---- controls

  // After the layer or head is chosen here, the right side no longer follows the left.
  take(other, own = false) {
    if (own && !this.isSameStack(other)) this.linked = false;
    this.app.state.set({ other: this.within(other) });
  }

  link(linked) {
    this.linked = linked;
    this.app.state.set({ other: this.right });
    this.changed();
  }

  swap() {
    const { left, right, app } = this;
    app.go({ ...right, other: left });
  }

  build() {
    const take = (field, own) => (value) => this.take({ ...this.right, [field]: Number(value) }, own);
    const { inputs } = this.app.source;
    this.inputs = picker(say("with"), inputs.map(({ name }, i) => [i, name]), (value) => {
      this.take(this.inInput(Number(value), this.right));
    });
    this.inputs.hidden = inputs.length < 2;
    this.stacks = picker(say("stack"), [], take("stack"));
    this.layers = picker(say("layer"), [], take("layer", true));
    this.heads = picker(say("head"), [], take("head", true));
    this.together = toggle(say("linked"), say("The same layer and head on both sides"), (on) => this.link(on));
    const swap = button(say("⇄ swap"), say("Swap the sides"), () => this.swap());
    const parts = [this.inputs, this.stacks, this.layers, this.heads, this.together, swap];
    this.element = element("span", { className: "opposite", role: "group", ariaLabel: say("The right side") }, ...parts);
  }

  show() {
    const { right } = this;
    const { stacks } = this.app.source.inputs[right.input];
    const { layers } = this.stackOf(right);
    this.inputs.show(right.input);
    this.stacks.hidden = stacks.length < 2;
    this.stacks.offer(stacks.map(({ name }, i) => [i, name]));
    this.stacks.show(right.stack);
    this.layers.offer(layers.map(({ number }, i) => [i, number]));
    this.layers.show(right.layer);
    this.heads.offer(Array.from({ length: layers[right.layer].heads }, (_, i) => [i, i]));
    this.heads.show(right.head);
    const apart = !this.isSameStack(right);
    this.together.disabled = !apart;
    this.together.show(this.linked && apart);
  }
}
