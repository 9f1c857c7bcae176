// Weight to colour: a ramp whose lightness falls (or, on a dark page, rises) evenly, so that it reads the same to every
// eye and in grey. Computed in OKLCH: https://bottosson.github.io/posts/oklab/

const STEPS = 512;
const DECADES = 4; // the log scale spans this many powers of ten below the largest weight

function ramp(dark) {
  const table = new Uint8ClampedArray(STEPS * 3);
  for (let i = 0; i < STEPS; i++) {
    const t = i / (STEPS - 1);
    const [from, to] = dark ? [0.2, 0.95] : [0.985, 0.25];
    const hue = dark ? 290 + 170 * t : 95 - 175 * t; // violet, red, orange, yellow; the other way round on paper
    const chroma = dark ? 0.02 + 0.16 * Math.sin(Math.PI * t ** 0.8) : 0.012 + 0.17 * Math.sin(Math.PI * t ** 0.9);
    table.set(oklch(from + (to - from) * t, chroma, hue), 3 * i);
  }
  return table;
}

function oklch(lightness, chroma, degrees) {
  const a = chroma * Math.cos((degrees * Math.PI) / 180);
  const b = chroma * Math.sin((degrees * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((c) => 255 * (c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055));
}

// How far along the ramp a weight stands, 0 to 1, where `top` is the largest weight shown, and back again.
const SCALES = {
  linear: { along: (share) => share, back: (t) => t },
  root: { along: Math.sqrt, back: (t) => t * t },
  log: { along: (share) => 1 + Math.log10(share) / DECADES, back: (t) => 10 ** (DECADES * (t - 1)) },
};

function along(weight, top, scale) {
  return top > 0 ? Math.min(1, Math.max(0, SCALES[scale].along(weight / top))) : 0;
}

// A picture of height x width weights; masked ones stay clear, so that what lies behind shows through.
function picture(weights, height, width, top, scale, table) {
  const image = new ImageData(width, height);
  for (let i = 0; i < weights.length; i++) {
    if (Number.isNaN(weights[i])) continue;
    const step = 3 * Math.round(along(weights[i], top, scale) * (STEPS - 1));
    image.data.set([table[step], table[step + 1], table[step + 2], 255], 4 * i);
  }
  return image;
}

function css(weight, top, scale, table) {
  const step = 3 * Math.round(along(weight, top, scale) * (STEPS - 1));
  const [r, g, b] = table.subarray(step, step + 3);
  const ink = 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#15131a" : "#ffffff";
  return { fill: `rgb(${r} ${g} ${b})`, ink };
}

const largest = (weights) => weights.reduce((top, weight) => (weight > top ? weight : top), 0);
