// The edits of a live page: heads that are off and edges that are blocked, as the server reads them:
//
//   { kind: "ablate", layer: 0, heads: [1] }                                  a head that is off
//   { kind: "block", layer: 0, heads: [1], query: 5, key: 2 }                 an edge of one head
//   { kind: "block", layer: 0 or "all", heads: "all", query: 5, key: 2 }      an edge of a layer, or of all layers
//
// layer: its number, which `stack.layers[i].number` tells.

export const ALL = "all";
export const SCOPES = ["head", "layer", "everywhere"];

export const off = (layer, head) => ({ kind: "ablate", layer, heads: [head] });

export function blocked(scope, layer, head, query, key) {
  const where = { head: { layer, heads: [head] }, layer: { layer, heads: ALL }, everywhere: { layer: ALL, heads: ALL } };
  return { kind: "block", ...where[scope], query, key };
}

export const same = (one, other) => writtenEdit(one) === writtenEdit(other);

export const has = (edits, edit) => edits.some((each) => same(each, edit));

// The edits with this one, or without it if it is among them.
export function toggled(edits, edit) {
  return has(edits, edit) ? edits.filter((each) => !same(each, edit)) : [...edits, edit];
}

export function isOff(edits, layer, head) {
  return edits.some((each) => each.kind === "ablate" && means(each, layer, head));
}

// The blocked cells of a head: [[row, col], ...].
export function blockedIn(edits, layer, head) {
  const found = edits.filter((each) => each.kind === "block" && means(each, layer, head));
  return found.map(({ query, key }) => [query, key]);
}

function means({ layer, heads }, asked, head) {
  return (layer === ALL || layer === asked) && (heads === ALL || heads.includes(head));
}

// ---- in the address: "off.0.1,block.1.all.5.2"

export const written = (edits) => edits.map(writtenEdit).join(",");

function writtenEdit({ kind, layer, heads, query, key }) {
  const place = [layer, heads === ALL ? ALL : heads.join("+")];
  return (kind === "ablate" ? ["off", ...place] : ["block", ...place, query, key]).join(".");
}

// Invalid parts are left out, as an address may be written by hand. The server checks the rest.
export function read(text) {
  const found = text.split(",").map(readEdit).filter(Boolean);
  return found.filter((edit, i) => found.findIndex((each) => same(each, edit)) === i);
}

const NUMBER = /^\d{1,9}$/;

function readEdit(text) {
  const [word, where, which, query, key, ...rest] = text.split(".");
  const layer = where === ALL ? ALL : NUMBER.test(where) ? Number(where) : null;
  const heads = which === ALL ? ALL : (which ?? "").split("+").every((each) => NUMBER.test(each)) ? which.split("+").map(Number) : null;
  if (layer === null || heads === null || rest.length) return null;
  if (word === "off") return query === undefined ? { kind: "ablate", layer, heads } : null;
  if (word !== "block" || !NUMBER.test(query) || !NUMBER.test(key)) return null;
  return { kind: "block", layer, heads, query: Number(query), key: Number(key) };
}
