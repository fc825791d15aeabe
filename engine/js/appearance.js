// What an image looks like, and whether two images are copies: what appearance.py of burn_engine
// does, with the same bits. `fround` rounds to float32 where Python's arrays do.
import { cut, prepare, roundHalfEven, signs } from "./index.js";

const SIDE = 64; // pixels of the square
const MOST_DIFFERENT = 0.26; // share of the code's bits of a pair whose finer details are compared
const LEAST_AGREEMENT = 0.5; // of copies
const LEAST_OF_ALTERED = 0.7;
const COARSE = [5, 15]; // sides of the two blurs whose difference is taken, in pixels
const FINE = [3, 7];
const ACROSS = 25; // samples along the disc's diameter
const ZOOM = 0.8; // side of the middle that a cropped copy shows
const MIDDLE = 512; // pixels of each side in which sharpness is measured
const LARGEST = 2; // fine differences count at most this many times their median
const STEPS = 1024; // to which that median is divided

const { fround } = Math;

export const CODE_BYTES = 64;

// In which ways a copy may differ from its original; the first is not at all.
export const ALTERATIONS = alterations();
export const UNALTERED = 0;

function alterations() {
  const way = (turn, zoom = 1, mirrored = false, right = 0, down = 0) => {
    return { turn, zoom, mirrored, right, down };
  };
  const from = (first, last, step) =>
    Array.from({ length: (last - first) / step + 1 }, (_, i) => first + i * step);
  const shifts = [-1, 0, 1].flatMap((a) => [-1, 0, 1].map((b) => [a, b]));
  return [
    ...from(0, 30, 5).map((turn) => way(turn)),
    ...from(-15, 15, 5).map((turn) => way(turn, ZOOM)),
    ...shifts
      .filter(([a, b]) => a || b)
      .map(([a, b]) => way(0, ZOOM, false, a * (1 - ZOOM), b * (1 - ZOOM))),
    ...[90, 180].map((turn) => way(turn)),
    ...[...from(-10, 10, 5), 90, 180, 270].map((turn) => way(turn, 1, true)),
    way(0, ZOOM, true),
  ];
}

// Returns a way in a few words; "" for none.
export function textOf({ turn, zoom, mirrored }) {
  const parts = mirrored ? ["mirrored"] : [];
  if (turn) parts.push(`turned by about ${Math.abs(turn)}°`);
  if (zoom < 1) parts.push("cropped");
  return parts.join(", ");
}

export function appearance(image) {
  const { width, height } = image;
  const middle = thousandths(
    prepare(centre(image, Math.min(height, MIDDLE), Math.min(width, MIDDLE)), null).data,
  );
  const rows = Math.min(height, MIDDLE);
  const columns = Math.min(width, MIDDLE);
  const [down, right] = [change(middle, rows, columns, 1, 0), change(middle, rows, columns, 0, 1)];
  const side = Math.min(height, width);
  const small = prepare(centre(image, side, side), { resize: SIDE, size: SIDE }).data;
  return {
    square: Uint8Array.from(thousandths(small), (grey) => roundHalfEven(grey / 1000)),
    digest: digestOf(small),
    height,
    width,
    sharpness: roundHalfEven(2 * Math.log2(1 + (down + right) / 1000)),
  };
}

function centre(image, height, width) {
  const top = (image.height - height) >> 1;
  return cut(image, top, (image.width - width) >> 1, height, width);
}

// Returns the grey of pixels, in thousandths of a byte.
function thousandths(rgb) {
  const grey = new Int32Array(rgb.length / 3);
  for (let i = 0, at = 0; i < grey.length; ++i, at += 3) {
    grey[i] = 299 * rgb[at] + 587 * rgb[at + 1] + 114 * rgb[at + 2];
  }
  return grey;
}

// Returns the mean difference of pixels that are `down` and `right` of each other.
function change(grey, rows, columns, down, right) {
  const [height, width, apart] = [rows - down, columns - right, down * columns + right];
  if (!height || !width) return 0;
  let sum = 0;
  for (let y = 0; y < height; ++y) {
    for (let at = y * columns, end = at + width; at < end; ++at) {
      sum += Math.abs(grey[at + apart] - grey[at]);
    }
  }
  return sum / (height * width);
}

// Returns a text that is the same for the same pixels: the values of four polynomials.
function digestOf(rgb) {
  const prime = 67_108_859; // below 2^26, so that products are exact
  const values = [17_435_963, 29_384_017, 40_283_311, 61_803_399].map((place) => {
    let value = 0;
    for (let at = 0; at < rgb.length; at += 3) {
      const pixel = (rgb[at] << 16) | (rgb[at + 1] << 8) | rgb[at + 2];
      value = (value * place + pixel) % prime;
    }
    return value.toString(36);
  });
  return values.join(" ");
}

// Returns the code of an image, CODE_BYTES bytes, from its square.
export function codeOf(square) {
  return packed(sampled(detailsOf(square, COARSE), UNALTERED));
}

// Returns the codes of an image after each of ALTERATIONS, one after the other.
export function alteredCodes(square) {
  const details = detailsOf(square, COARSE);
  const codes = new Uint8Array(ALTERATIONS.length * CODE_BYTES);
  ALTERATIONS.forEach((_, way) => codes.set(packed(sampled(details, way)), way * CODE_BYTES));
  return codes;
}

export function fineDetails(square) {
  return detailsOf(square, FINE);
}

// Returns what is compared of an image that is altered in a way: whole numbers, and their length.
export function compared(details, way) {
  const samples = sampled(details, way);
  const sizes = samples.map(Math.abs).sort();
  const usual = fround(sizes[sizes.length >> 1] + 0.5);
  const values = Float64Array.from(samples, (sample) => {
    const cut = Math.min(Math.max(fround(sample / usual), -LARGEST), LARGEST);
    return roundHalfEven(cut * STEPS);
  });
  const sum = values.reduce((a, b) => a + b, 0);
  const one = { values, sum };
  one.length = Math.sqrt(product(one, one)) + 1e-3 * STEPS * values.length;
  return one;
}

// Returns how well the fine details of two images agree, -1 to 1.
export function agreement(a, b) {
  return fround(product(a, b) / (a.length * b.length));
}

function product(a, b) {
  const sum = a.values.reduce((sum, value, i) => sum + value * b.values[i], 0);
  return a.values.length * sum - a.sum * b.sum;
}

export function areCopies(agreement, way) {
  return agreement >= (way === UNALTERED ? LEAST_AGREEMENT : LEAST_OF_ALTERED);
}

// Returns the number of different bits up to which pairs are compared further.
export function mostBits() {
  return Math.trunc(MOST_DIFFERENT * taps()[0].length);
}

// Returns the differences of means over squares of two odd sides; edges are repeated.
function detailsOf(square, sides) {
  const [small, large] = sides.map((side) => added(added(square, side, 1), side, SIDE));
  const [few, many] = sides.map((side) => side ** 2);
  const details = new Float32Array(SIDE * SIDE);
  for (let i = 0; i < details.length; ++i) {
    details[i] = fround(small[i] / few) - fround(large[i] / many);
  }
  return details;
}

// Returns sums of neighbours along lines whose pixels are `apart` in memory.
function added(values, side, apart) {
  const other = apart === 1 ? SIDE : 1;
  const half = side >> 1;
  const found = new Int32Array(SIDE * SIDE);
  for (let line = 0; line < SIDE; ++line) {
    const first = line * other;
    const last = first + (SIDE - 1) * apart;
    let sum = half * values[first];
    for (let i = 0; i < half; ++i) sum += values[first + i * apart];
    for (let at = first; at <= last; at += apart) {
      sum += values[Math.min(at + half * apart, last)];
      found[at] = sum;
      sum -= values[Math.max(at - half * apart, first)];
    }
  }
  return found;
}

// Returns the samples of an image that is altered in a way.
function sampled(details, way) {
  const { positions, weights, length } = taps()[way];
  const samples = new Float32Array(length);
  for (let i = 0, tap = 0; i < length; ++i) {
    let sum = 0;
    for (const end = tap + 4; tap < end; ++tap) {
      sum = fround(sum + fround(details[positions[tap]] * weights[tap]));
    }
    samples[i] = sum;
  }
  return samples;
}

function packed(samples) {
  const code = new Uint8Array(CODE_BYTES);
  code.set(signs(samples));
  return code;
}

// Returns where the disc is sampled: right and down, from -1 to 1.
function points() {
  const places = Array.from({ length: ACROSS }, (_, i) => ((i + 0.5) / ACROSS) * 2 - 1);
  return places
    .flatMap((down) => places.map((right) => [right, down]))
    .filter(([right, down]) => right * right + down * down <= 1)
    .map((point) => point.map(fround));
}

let allTaps = null;

// Returns the four pixels of each sample, and their weights, for each of ALTERATIONS.
function taps() {
  allTaps ??= ALTERATIONS.map((way) => tapsOf(way, points()));
  return allTaps;
}

function tapsOf({ turn, zoom, mirrored, right: shift, down: lowered }, disc) {
  const angle = turn * (Math.PI / 180);
  const [cosine, sine] = [fround(Math.cos(angle)), fround(Math.sin(angle))];
  const positions = new Int32Array(4 * disc.length);
  const weights = new Float32Array(4 * disc.length);
  const placed = (turned, moved) => {
    const at = fround(fround(turned * fround(zoom)) + fround(moved));
    const pixel = Math.min(Math.max(fround(fround(at + 1) * (SIDE / 2) - 0.5), 0), SIDE - 1);
    const first = Math.min(Math.trunc(pixel), SIDE - 2);
    return [first, pixel - first];
  };
  disc.forEach(([x, down], i) => {
    const right = mirrored ? -x : x;
    const across = fround(fround(right * cosine) - fround(down * sine));
    const along = fround(fround(right * sine) + fround(down * cosine));
    const [left, u] = placed(across, shift);
    const [top, v] = placed(along, lowered);
    const first = SIDE * top + left;
    positions.set([first, first + 1, first + SIDE, first + SIDE + 1], 4 * i);
    weights.set([(1 - u) * (1 - v), u * (1 - v), (1 - u) * v, u * v], 4 * i);
  });
  return { positions, weights, length: disc.length };
}
