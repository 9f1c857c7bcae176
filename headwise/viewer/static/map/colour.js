// Weight to colour. The lightness of every ramp changes evenly from that of the page to the opposite end, so that it is
// readable with colour blindness and in grey. A ramp is a table of packed colours, made by `ramp` or `divergingRamp`.

const STEPS = 512;
const DECADES = 4; // the log scale spans this many powers of ten below the largest weight

export const COLOURS = [["ember", "Ember"], ["viridis", "Viridis"], ["cividis", "Cividis"], ["grey", "Grey"]];

// Seventeen even steps of the maps of van der Walt and Smith (2015) and of Nuñez, Anderton and Renslow (2018), dark to
// light.
const PUBLISHED = {
  viridis:
    "440154 48186a 472d7b 424086 3b528b 33638d 2c728e 26828e 21918c " +
    "1fa088 28ae80 3fbc73 5ec962 84d44b addc30 d8e219 fde725",
  cividis:
    "00224e 002e6a 1a386f 32436d 434e6c 535a6d 61656f 6f7073 7d7c78 " +
    "8c8878 9b9476 aba072 bcae6c cdbb63 dec958 f0d846 fee838",
};

// The colours for weights: small weights are close to the page's colour, dark or light.
export function ramp(dark, colours = "ember") {
  const from = dark ? 0.2 : 0.985;
  if (colours === "grey") return table((t) => oklch(from + ((dark ? 0.98 : 0.15) - from) * t, 0, 0));
  if (colours in PUBLISHED) {
    const rgb = (hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
    const points = PUBLISHED[colours].split(" ").map(rgb);
    return table((t) => between(points, dark ? t : 1 - t));
  }
  return table((t) => {
    const hue = dark ? 290 + 170 * t : 95 - 175 * t; // violet, red, orange, yellow; reversed on a light page
    const chroma = dark ? 0.02 + 0.16 * Math.sin(Math.PI * t ** 0.8) : 0.012 + 0.17 * Math.sin(Math.PI * t ** 0.9);
    return oklch(from + ((dark ? 0.95 : 0.25) - from) * t, chroma, hue);
  });
}

// The colours for differences, from -top to top: blue, the page, orange-red.
export function divergingRamp(dark) {
  const [from, to] = dark ? [0.2, 0.78] : [0.985, 0.42];
  return table((t) => {
    const far = Math.abs(2 * t - 1);
    return oklch(from + (to - from) * far, 0.19 * far ** 0.85, t < 0.5 ? 258 : 42);
  });
}

function table(colourAt) {
  const bytes = new Uint8ClampedArray(4 * STEPS);
  for (let i = 0; i < STEPS; i++) bytes.set([...colourAt(i / (STEPS - 1)), 255], 4 * i);
  return new Uint32Array(bytes.buffer);
}

// https://bottosson.github.io/posts/oklab/
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

function between(points, t) {
  const place = Math.min(t * (points.length - 1), points.length - 1.001);
  const [from, to] = [points[Math.floor(place)], points[Math.floor(place) + 1]];
  return from.map((c, i) => c + (to[i] - c) * (place % 1));
}

// The place of a weight on the ramp, 0 to 1, where `top` is the largest weight shown, and the inverse. On the scale
// "row" every row has its own `top`.
export const SCALES = {
  linear: { name: "linear", along: (share) => share, back: (t) => t },
  root: { name: "square root", along: Math.sqrt, back: (t) => t * t },
  log: { name: "log", along: (share) => 1 + Math.log10(share) / DECADES, back: (t) => 10 ** (DECADES * (t - 1)) },
  row: { name: "per row", along: (share) => share, back: (t) => t },
};

export function along(weight, top, scale, signed = false) {
  if (!(top > 0)) return signed ? 0.5 : 0;
  if (signed) return 0.5 + 0.5 * Math.sign(weight) * along(Math.abs(weight), top, scale === "root" ? "root" : "linear");
  return Math.min(1, Math.max(0, SCALES[scale].along(weight / top)));
}

export function largest(weights) {
  let top = 0;
  for (let i = 0; i < weights.length; i++) if (weights[i] > top) top = weights[i]; // false for NaN
  return top;
}

// A picture of height x width weights; masked ones (NaN) are transparent and show the background.
export function picture(weights, height, width, top, scale, table, signed = false) {
  const image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  if (scale === "row" && !signed) {
    for (let start = 0; start < weights.length; start += width) {
      const row = weights.subarray(start, start + width);
      paint(row, pixels.subarray(start, start + width), largest(row), "linear", table, false);
    }
  } else paint(weights, pixels, top, scale, table, signed);
  return image;
}

const INFINITY = 0x7f800000; // the bits of a float32 infinity; larger ones are NaN
const MANTISSA = Float64Array.from({ length: 2048 }, (_, i) => Math.log2(1 + (i + 0.5) / 2048));

// One pass without function calls per pixel: a map of 1,024 x 1,024 is painted between two frames.
function paint(weights, pixels, top, scale, table, signed) {
  const count = weights.length;
  const past = STEPS - 1;
  const share = top > 0 ? 1 / top : 0;
  if (signed) {
    for (let i = 0; i < count; i++) {
      const even = weights[i] * share;
      const far = scale === "root" ? Math.sqrt(Math.abs(even)) * Math.sign(even) : even;
      const place = (past * (far + 1)) / 2;
      if (place === place) pixels[i] = table[place < 0 ? 0 : place > past ? past : (place + 0.5) | 0];
    }
  } else if (scale === "root") {
    for (let i = 0; i < count; i++) {
      const place = past * Math.sqrt(weights[i] * share);
      if (place === place) pixels[i] = table[place > past ? past : (place + 0.5) | 0];
    }
  } else if (scale === "log") {
    const bits = new Uint32Array(weights.buffer, weights.byteOffset, count); // sign, 8 bits of exponent, 23 of mantissa
    const octave = (past * Math.LOG10E * Math.LN2) / DECADES;
    const offset = past - octave * (127 + Math.log2(top > 0 ? top : Infinity));
    for (let i = 0; i < count; i++) {
      if (bits[i] > INFINITY) continue;
      const place = offset + octave * ((bits[i] >>> 23) + MANTISSA[(bits[i] >>> 12) & 2047]);
      pixels[i] = table[place < 0 ? 0 : place > past ? past : (place + 0.5) | 0];
    }
  } else {
    const slope = past * share;
    for (let i = 0; i < count; i++) {
      const place = weights[i] * slope;
      if (place === place) pixels[i] = table[place > past ? past : (place + 0.5) | 0];
    }
  }
}

// The colour of one weight, and of text on it: black or white, whichever has more contrast (at least 4.5 : 1).
export function css(weight, top, scale, table, signed = false) {
  const packed = table[Math.round(along(weight, top, scale, signed) * (STEPS - 1))];
  const [r, g, b] = [packed & 255, (packed >> 8) & 255, (packed >> 16) & 255];
  const [red, green, blue] = [r, g, b].map((c) => (c <= 10 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const ink = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#000000" : "#ffffff";
  return { fill: `rgb(${r} ${g} ${b})`, ink };
}
