// Which heads a search for a token finds: in their pairs, or in the texts of their examples.

const bare = (label) => label.replace(/^(##|[␣⏎␍⇥\s]+)(?=.)|<\/w>$/gs, "").trim().toLowerCase();

export function matcher(query) {
  const wanted = bare(query);
  if (!wanted) return null;
  const fits = wanted.length < 3 ? (label) => bare(label) === wanted : (label) => bare(label).startsWith(wanted);
  return fits;
}

// The first pair with such a token, else the first example whose text has one; null if there is none.
export function found(head, windows, fits) {
  const pair = head.pairs.find(([query, key]) => fits(query) || fits(key));
  if (pair) return { pair };
  const example = head.examples.find(({ window }) => windows[window].labels.some(fits));
  return example ? { example } : null;
}
