// Small charts in SVG: bars of a histogram, and bars of weight by relative position.

import { svg } from "../shell/element.js";

// Bars of these heights, as wide as the place. marked: the number of the bar that has the other colour.
export function bars(heights, label, { marked = -1, height = 40 } = {}) {
  const top = Math.max(...heights, 1e-12);
  const chart = svg("svg", {
    viewBox: `0 0 ${heights.length * 4} ${height}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": label,
    class: "bars",
  });
  heights.forEach((value, place) => {
    const size = value > 0 ? Math.max(0.6, (value / top) * height) : 0;
    const shape = { x: place * 4 + 0.3, y: height - size, width: 3.4, height: size };
    chart.append(svg("rect", { ...shape, class: place === marked ? "marked" : "bar" }));
  });
  return chart;
}

export const share = (x) => rounded(x);

export const rounded = (x) => (x === null ? "–" : x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2));
