// The prompt: a field at the top of a live page. Enter runs it.

import { element } from "../element.js";
import { say } from "../../words.js";

export class PromptField {
  // ask(prompt): called with another prompt; while one types if the page has the model.
  constructor(app, ask) {
    this.app = app;
    this.field = element("textarea", { rows: 1, spellcheck: false, dir: "auto", id: "prompt" });
    const { carried } = app.source.live;
    if (!carried) this.field.title = say("Enter runs the model on it, Shift+Enter begins a line");
    this.button = element("button", { type: "submit", className: "toggle", textContent: say("Run") });
    this.button.hidden = carried; // until it takes long
    const label = element("label", { textContent: carried ? say("Text") : say("Prompt"), htmlFor: "prompt" });
    this.element = element("form", { className: "prompt" }, label, this.field, this.button);
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!carried || this.field.value.trim()) ask(this.field.value);
    });
    for (const kind of carried ? ["input", "compositionend"] : []) {
      this.field.addEventListener(kind, ({ isComposing }) => {
        const { value } = this.field;
        if (!isComposing && value.trim()) ask((this.asked = value));
      });
    }
    this.field.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        this.element.requestSubmit();
      } else if (event.key === "Escape") this.field.blur();
    });
  }

  // Only another run writes into the field: a prompt that was refused stays, and what was typed since this one was asked.
  update() {
    const { prompt } = this.app.source.live;
    if (prompt === this.known) return;
    if (prompt !== this.asked) this.field.value = prompt;
    [this.known, this.asked] = [prompt, null];
  }

  busy(slow) {
    const { carried, run } = this.app.source.live;
    this.button.hidden = carried && !slow;
    this.button.textContent = !slow ? say("Run") : run === null ? say("Loading the model …") : say("Running …");
  }
}
