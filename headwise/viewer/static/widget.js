// The entry of a widget in a notebook (anywidget): the page, in the output of a cell, with its numbers from the kernel.

import { App } from "./app.js";
import { embeddedSource } from "./data/source.js";

const HEIGHT = "min(640px, 92vh)";

// model.get("facts"): the facts, as JSON; "blocks": all bytes in one; "places": where in them a block begins and ends.
export function render({ model, el }) {
  const host = document.createElement("div");
  host.style.height = HEIGHT;
  host.dataset.lmSuppressShortcuts = "true"; // JupyterLab: its own keys rest while the focus is in here
  el.append(host);
  let app = null;
  // A notebook may call this long before it shows the element, and may hold dozens: each starts when it comes near.
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
    const source = embeddedSource(JSON.parse(model.get("facts")), blocksOf(model));
    const app = new App(host, source);
    const theme = themeAround(host);
    if (theme) app.state.set({ theme });
    return app;
  } catch (error) {
    (host.shadowRoot ?? host).textContent = `This cannot be shown: ${error.message}. Run the cell again.`;
    throw error;
  }
}

function blocksOf(model) {
  const bytes = model.get("blocks"); // a DataView, often on a part of a longer buffer
  const places = model.get("places");
  return (name) => {
    if (!places[name]) throw new Error(`The output is not whole: it lacks ${name}. Run the cell again.`);
    const [start, past] = places[name];
    return bytes.buffer.slice(bytes.byteOffset + start, bytes.byteOffset + past);
  };
}

// Notebooks have a theme of their own, whatever the system's: the lightness of what lies behind tells. null = nobody said.
function themeAround(element) {
  for (let at = element.parentElement; at; at = at.parentElement ?? at.getRootNode().host) {
    const [red, green, blue, alpha = 1] = getComputedStyle(at).backgroundColor.match(/[\d.]+/g).map(Number);
    if (alpha > 0.5) return 0.299 * red + 0.587 * green + 0.114 * blue < 128 ? "dark" : "light";
  }
  return null;
}
