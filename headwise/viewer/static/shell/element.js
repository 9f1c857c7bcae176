// An element with properties and children. Text is inserted as text, never as HTML.
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// A sentence with elements in the places of its {names}, as a list of nodes and texts.
export function filled(sentence, parts) {
  return sentence.split(/\{(\w+)\}/).map((text, i) => (i % 2 ? parts[text] : text)).filter((part) => part !== "");
}

// Facts in a row, as a list of nodes and texts. A line ends between two of them.
export function listed(facts) {
  return facts.flatMap((textContent, i) => [i ? " · " : "", element("span", { textContent })]);
}

// Give a canvas a size in pixels of the page. Returns its context, in these pixels and empty.
export function resized(canvas, width, height) {
  canvas.width = Math.round(width * devicePixelRatio);
  canvas.height = Math.round(height * devicePixelRatio);
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d");
  context.scale(devicePixelRatio, devicePixelRatio);
  return context;
}

// Icons on a grid of 16 x 16, in lines of the text's colour.
const ICONS = {
  left: "M10 3.5 5.5 8l4.5 4.5",
  right: "M6 3.5 10.5 8 6 12.5",
  search: "M11.2 7a4.2 4.2 0 1 1-8.4 0 4.2 4.2 0 0 1 8.4 0ZM10.2 10.2l3.3 3.3",
  help: "M5.8 6a2.2 2.2 0 1 1 3.3 1.9c-.7.4-1.1.9-1.1 1.7M8 12v.2M14.2 8A6.2 6.2 0 1 1 1.8 8a6.2 6.2 0 0 1 12.4 0Z",
  auto: "M14.2 8A6.2 6.2 0 1 1 1.8 8a6.2 6.2 0 0 1 12.4 0ZM8 1.8v12.4M8 4.2h4.8M8 7.2h6.1M8 10.2h5.6M8 13h3.2",
  light:
    "M11 8a3 3 0 1 1-6 0 3 3 0 0 1 6 0ZM8 1.2v1.4M8 13.4v1.4M1.2 8h1.4M13.4 8h1.4M3.2 3.2l1 1M11.8 11.8l1 1" +
    "M3.2 12.8l1-1M11.8 4.2l1-1",
  dark: "M13.6 9.6A5.9 5.9 0 0 1 6.4 2.4a5.9 5.9 0 1 0 7.2 7.2Z",
  save: "M8 2v8M4.8 7 8 10.2 11.2 7M2.5 13.5h11",
  copy: "M5.8 5.8h7.4v7.9H5.8zM10.2 5.8V2.8H2.8v7.4h3",
  close: "M4 4l8 8M12 4l-8 8",
  look: "M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8ZM10 8a2 2 0 1 1-4 0 2 2 0 0 1 4 0Z",
  side: "M2.2 3.2h11.6v9.6H2.2zM6.4 3.2v9.6",
};

export const icon = (name) => svg("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));

// Style sheets for a shadow root.
export function styled(root, texts) {
  root.adoptedStyleSheets = texts.map((text) => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(text);
    return sheet;
  });
}

// An element of SVG.
export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Gives the reader a file to save.
export function download(blob, name) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
