// The colours of heads. A head has the colour of its number; where another chosen head has it already, the next free one.

// The first seven are for all kinds of colour vision (Okabe & Ito), on a light and on a dark page.
const COLOURS = {
  light: "#0072b2 #d55e00 #009e73 #cc79a7 #b8860b #3a9bdc #7a7a7a #7a3e9d #8a4b1f #b3122a #4c6b00 #1c4e80".split(" "),
  dark: "#56b4e9 #f07f3c #2fc79a #e08fbd #e6b800 #9ad0ff #a8a8a8 #b794e6 #d1a27a #ff5c5c #b5cf4a #7fa3d6".split(" "),
};

// The colour that a head has unless another chosen head has it.
export function ownColour(head, dark) {
  const all = COLOURS[dark ? "dark" : "light"];
  return all[head % all.length];
}

// The colours of the chosen heads, [[layer, head], …], in their order.
export function coloursOf(chosen, dark) {
  const all = COLOURS[dark ? "dark" : "light"];
  const taken = new Set();
  return chosen.map(([, head]) => {
    const own = head % all.length;
    const free = all.map((_, i) => (own + i) % all.length).find((place) => !taken.has(place)) ?? own;
    taken.add(free);
    return all[free];
  });
}
