// The entry point of the notebook widget (anywidget): the page in the output of a cell, with numbers from the kernel.

import { App } from "./app.js";
import { embeddedSource } from "./data/source.js";
import { say, speak } from "./words.js";

const HEIGHT = "min(640px, 92vh)";

// model.get("facts"): the facts, as JSON; "blocks": the bytes of all blocks; "places": start and end of each block.
export function render({ model, el }) {
  const host = document.createElement("div");
  host.style.height = HEIGHT;
  host.dataset.lmSuppressShortcuts = "true"; // JupyterLab: no shortcuts of its own while the focus is here
  el.append(host);
  let app = null;
  // A notebook may call this long before it shows the element, and may hold dozens: each starts when scrolled near.
  const observer = new IntersectionObserver(
    (entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      app = start(model, host);
    },
    { rootMargin: "400px" },
  );
  observer.observe(host);
  return () => {
    observer.disconnect();
    app?.close();
    host.remove();
  };
}

function start(model, host) {
  try {
    const facts = JSON.parse(model.get("facts"));
    speak([facts.language, ...navigator.languages].filter(Boolean)); // the writer of the output, then the browser
    const source = embeddedSource(facts, blocksOf(model));
    host.style.height = source.small ? "auto" : HEIGHT;
    const app = new App(host, source);
    const theme = themeAround(host);
    if (theme) app.state.set({ theme });
    return app;
  } catch (error) {
    (host.shadowRoot ?? host).textContent = say("This cannot be shown: {why}. Run the cell again.", {
      why: error.message,
    });
    throw error;
  }
}

function blocksOf(model) {
  const bytes = model.get("blocks"); // a DataView, often on a part of a longer buffer
  const places = model.get("places");
  return (name) => {
    if (!places[name]) throw new Error(say("The output is incomplete: {name} is missing. Run the cell again.", { name }));
    const [start, past] = places[name];
    return bytes.buffer.slice(bytes.byteOffset + start, bytes.byteOffset + past);
  };
}

// The theme of the notebook, which may differ from the system's, from the lightness of the background. null = unknown.
function themeAround(element) {
  for (let at = element.parentElement; at; at = at.parentElement ?? at.getRootNode().host) {
    const [red, green, blue, alpha = 1] = getComputedStyle(at).backgroundColor.match(/[\d.]+/g).map(Number);
    if (alpha > 0.5) return 0.299 * red + 0.587 * green + 0.114 * blue < 128 ? "dark" : "light";
  }
  return null;
}
