/* Paint: values to pixels. The same colours as the library's, 256 steps of RGB in COLOURS. */
const LOOKUP = Object.fromEntries(Object.entries(COLOURS).map(([name, text]) =>
  [name, Uint8Array.from(atob(text), letter => letter.charCodeAt(0))]));

/* Values on both sides of zero get a map that is white at zero, whichever is chosen for shares. */
const SIGNED = "signed";
const isSigned = map => map.signed ?? (data.isSigned || map.minimum < 0);

/* One packed colour per step. `opacity` 1 is solid; below, a patch is as opaque as its value is large. */
const palettes = new Map();
function palette(name, opacity) {
  const key = `${name}/${opacity}`;
  let steps = palettes.get(key);
  if (!steps) {
    const bytes = new Uint8ClampedArray(1024), table = LOOKUP[name];
    for (let step = 0; step < 256; step++) {
      bytes.set(table.subarray(step * 3, step * 3 + 3), step * 4);
      const size = name === SIGNED ? Math.abs(step - 127.5) * 2 : step;
      bytes[step * 4 + 3] = opacity === 1 ? 255 : opacity * size;
    }
    palettes.set(key, steps = new Uint32Array(bytes.buffer));
  }
  return steps;
}
/* Off means there is no picture to see through to. */
const overlayOpacity = () => (state.base === "off" ? 1 : Math.min(0.999, state.opacity / 100));

const surfaces = new WeakMap();
function surface(canvas, width, height) {
  let known = surfaces.get(canvas);
  if (!known || known.width !== width || known.height !== height) {
    canvas.width = width;
    canvas.height = height;
    const image = new ImageData(width, height);
    known = { width, height, image, pixels: new Uint32Array(image.data.buffer), context: canvas.getContext("2d") };
    surfaces.set(canvas, known);
  }
  return known;
}

const SMOOTH = 6;   // pixels per patch when values are interpolated
function paintMap(canvas, map, top, opacity, smooth) {
  if (map.rgb) return paintColours(canvas, map, opacity);
  const { rows, columns } = map.place, { values } = map, zoom = smooth ? SMOOTH : 1, signed = isSigned(map);
  const { image, pixels, context } = surface(canvas, columns * zoom, rows * zoom);
  const steps = palette(signed ? SIGNED : state.colours, opacity), scale = top > 0 ? (signed ? 127.5 : 255) / top : 0, zero = signed ? 128 : 0.5;
  const colour = value => steps[clamp(value * scale + zero, 0, 255) | 0];
  if (smooth) interpolate(values, rows, columns, (at, value) => { pixels[at] = colour(value); });
  else for (let patch = 0; patch < values.length; patch++) pixels[patch] = colour(values[patch]);
  return context.putImageData(image, 0, 0);
}

/* Bilinear between patch centres: values first, colours after, so that no colour is invented. */
function interpolate(values, rows, columns, put) {
  const width = columns * SMOOTH, height = rows * SMOOTH, line = new Float32Array(columns + 1);
  for (let y = 0, at = 0; y < height; y++) {
    const v = clamp((y + 0.5) / SMOOTH - 0.5, 0, rows - 1), row = v | 0, below = Math.min(rows - 1, row + 1), share = v - row;
    for (let column = 0; column < columns; column++)
      line[column] = values[row * columns + column] * (1 - share) + values[below * columns + column] * share;
    line[columns] = line[columns - 1];
    for (let x = 0; x < width; x++, at++) {
      const u = clamp((x + 0.5) / SMOOTH - 0.5, 0, columns - 1), column = u | 0;
      put(at, line[column] + (line[column + 1] - line[column]) * (u - column));
    }
  }
}

/* The ramp fades over a check exactly as the overlay fades over the picture. */
function paintRamp(canvas, vertical, opacity, name) {
  const length = 256, thick = 12, image = new ImageData(vertical ? thick : length, vertical ? length : thick);
  const table = LOOKUP[name];
  for (let step = 0; step < length; step++) for (let across = 0; across < thick; across++) {
    const size = name === SIGNED ? Math.abs(step - 127.5) * 2 : step;
    const alpha = opacity === 1 ? 1 : opacity * size / 255, check = (step >> 2) + (across >> 2) & 1 ? 192 : 168;
    const at = (vertical ? (length - 1 - step) * thick + across : across * length + step) * 4;
    for (let channel = 0; channel < 3; channel++)
      image.data[at + channel] = table[step * 3 + channel] * alpha + check * (1 - alpha);
    image.data[at + 3] = 255;
  }
  canvas.width = image.width;
  canvas.height = image.height;
  canvas.getContext("2d").putImageData(image, 0, 0);
}
