// Runs packed 1-bit networks: the C++ engine, compiled to WebAssembly with 128-bit vectors.

const MAX_PIXELS = 100_000_000; // of a photograph
const UINT8 = 0; // burn_pixels in burn_engine.h
const LAST = -1; // layer

export async function load(bytes, options = {}) {
  if (bytes instanceof ArrayBuffer) bytes = new Uint8Array(bytes);
  if (!(bytes instanceof Uint8Array)) {
    throw new Error("the model must be an ArrayBuffer or a Uint8Array: the bytes of a .bnn file");
  }
  return new Model(await instantiate(options.wasm), bytes);
}

// Returns the search among codes, which needs no network.
export async function openSearch(options = {}) {
  return new Search(await instantiate(options.wasm));
}

// Feature i is bit i mod 8, from the least significant, of byte i / 8: 1 where it is at least 0.
export function signs(features) {
  const code = new Uint8Array(Math.ceil(features.length / 8));
  for (let i = 0; i < features.length; ++i) {
    if (features[i] >= 0) code[i >> 3] |= 1 << (i & 7);
  }
  return code;
}

async function instantiate(wasm) {
  if (!wasm) wasm = await read(new URL("burn_engine.wasm", import.meta.url));
  let memory = null;
  // All that the module imports: a clock for its barriers, which it has no use for, the
  // environment, which is empty, and its end.
  const imports = {
    env: { emscripten_notify_memory_growth() {} },
    wasi_snapshot_preview1: {
      clock_time_get(id, precision, result) {
        const now = BigInt(Math.round(performance.now() * 1e6));
        new DataView(memory.buffer).setBigUint64(result, now, true);
        return 0;
      },
      environ_sizes_get(count, size) {
        const view = new DataView(memory.buffer);
        view.setUint32(count, 0, true);
        view.setUint32(size, 0, true);
        return 0;
      },
      environ_get: () => 0,
      proc_exit(code) {
        throw new Error(`the engine ended with status ${code}`);
      },
    },
  };
  const made = await WebAssembly.instantiate(wasm, imports);
  const { exports } = made instanceof WebAssembly.Instance ? made : made.instance;
  memory = exports.memory;
  exports._initialize();
  return exports;
}

async function read(url) {
  if (url.protocol === "file:" && typeof process === "object") {
    const { readFile } = await import("node:fs/promises");
    return readFile(url);
  }
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`);
  return response.arrayBuffer();
}

class Model {
  #engine;
  #model = 0;
  #plan = null; // of one image size and last layer, with the memory of its input and output

  constructor(engine, bytes) {
    this.#engine = engine;
    const file = allocated(this.#engine, bytes.length);
    new Uint8Array(engine.memory.buffer).set(bytes, file);
    try {
      this.#model = this.#made((result) => engine.burn_load_memory(file, bytes.length, 0, result));
    } finally {
      engine.free(file);
    }
    this.isa = textAt(this.#engine, engine.burn_isa(this.#model));
    const resize = engine.burn_image_resize(this.#model);
    const size = engine.burn_image_size(this.#model);
    this.imageSize = size > 0 ? { resize, size } : null;
    this.origin = originOf(bytes);
    this.classNames = [];
    for (let i = 0; i < engine.burn_num_classes(this.#model); ++i) {
      this.classNames.push(textAt(this.#engine, engine.burn_class_name(this.#model, i)));
    }
  }

  run(image) {
    const { output, milliseconds } = this.#computed(image, LAST);
    return { output, classes: ranked(this.classNames, output), milliseconds };
  }

  features(image) {
    return this.#computed(image, this.#engine.burn_features_layer(this.#model)).output;
  }

  #computed(image, layer) {
    if (!this.#model) throw new Error("the model was freed");
    const { data, width, height } = prepare(image, this.imageSize);
    const plan = this.#planOf(height, width, layer);
    new Uint8Array(this.#engine.memory.buffer).set(data, plan.input);
    const began = performance.now();
    check(this.#engine, this.#engine.burn_run(plan.address, plan.input, UINT8, 1, plan.output));
    const milliseconds = performance.now() - began;
    const output = new Float32Array(this.#engine.memory.buffer, plan.output, plan.length).slice();
    return { output, milliseconds };
  }

  nearest(codes, query, k) {
    if (!this.#model) throw new Error("the model was freed");
    const length = query.length;
    if (!length || codes.length % length) {
      throw new Error(`codes of ${codes.length} bytes are not whole codes of ${length}`);
    }
    const count = Math.min(k, codes.length / length);
    const { positions, distances } = new Search(this.#engine).nearest(codes, query, length, count);
    return Array.from(positions, (position, i) => ({ position, distance: distances[i] }));
  }

  free() {
    this.#freePlan();
    this.#engine.burn_free(this.#model);
    this.#model = 0;
  }

  #planOf(height, width, layer) {
    const plan = this.#plan;
    if (plan?.height === height && plan.width === width && plan.layer === layer) return plan;
    this.#freePlan();
    const engine = this.#engine;
    const shape = allocated(this.#engine, 12);
    let length = 1;
    try {
      check(
        engine,
        engine.burn_output_shape(this.#model, height, width, layer, shape, shape + 4, shape + 8),
      );
      for (const side of new Int32Array(engine.memory.buffer, shape, 3)) length *= side;
    } finally {
      engine.free(shape);
    }
    const address = this.#made((result) =>
      engine.burn_plan_create(this.#model, height, width, 1, layer, result),
    );
    const made = { height, width, layer, address, length, input: 0, output: 0 };
    try {
      made.input = allocated(engine, height * width * 3);
      made.output = allocated(engine, 4 * length);
    } catch (error) {
      engine.burn_plan_free(address);
      engine.free(made.input);
      throw error;
    }
    this.#plan = made;
    return made;
  }

  #freePlan() {
    if (!this.#plan) return;
    this.#engine.burn_plan_free(this.#plan.address);
    this.#engine.free(this.#plan.input);
    this.#engine.free(this.#plan.output);
    this.#plan = null;
  }

  // Returns the pointer that a function of the engine writes.
  #made(make) {
    const result = allocated(this.#engine, 4);
    try {
      check(this.#engine, make(result));
      return new Uint32Array(this.#engine.memory.buffer, result, 1)[0];
    } finally {
      this.#engine.free(result);
    }
  }
}

class Search {
  #engine;

  constructor(engine) {
    this.#engine = engine;
  }

  nearest(codes, queries, length, k) {
    if (!(length > 0 && k >= 0 && [length, k].every(Number.isInteger))) {
      throw new Error(`length ${length} and k ${k} are not numbers of bytes and of codes`);
    }
    for (const { length: bytes } of [codes, queries]) {
      if (bytes % length) throw new Error(`${bytes} bytes are not whole codes of ${length}`);
    }
    const engine = this.#engine;
    const [count, asked] = [codes.length / length, queries.length / length];
    if (!k || !asked) return { positions: new Uint32Array(0), distances: new Uint32Array(0) };
    const all = allocated(engine, codes.length + queries.length);
    let found = 0;
    try {
      found = allocated(engine, 12 * k * asked); // positions, 8 bytes each, and distances
      const memory = new Uint8Array(engine.memory.buffer);
      memory.set(codes, all);
      memory.set(queries, all + codes.length);
      const distances = found + 8 * k * asked;
      const wanted = [0, all, count, length, all + codes.length, asked, k, found, distances];
      check(engine, engine.burn_nearest(...wanted));
      const halves = new Uint32Array(engine.memory.buffer, found, 2 * k * asked);
      return {
        positions: Uint32Array.from({ length: k * asked }, (_, i) => halves[2 * i]),
        distances: new Uint32Array(engine.memory.buffer, distances, k * asked).slice(),
      };
    } finally {
      engine.free(found);
      engine.free(all);
    }
  }
}

function check(engine, status) {
  if (status !== 0) throw new Error(textAt(engine, engine.burn_last_error()));
}

function allocated(engine, size) {
  // The module takes 32 bits of a size.
  const address = size < 2 ** 32 ? engine.malloc(Math.max(size, 1)) : 0;
  if (!address) throw new Error("out of memory");
  return address;
}

function textAt(engine, address) {
  const bytes = new Uint8Array(engine.memory.buffer, address);
  // A name may begin with what is a mark of the byte order at the beginning of a file.
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes.slice(0, bytes.indexOf(0)));
}

// The engine has found the file to be sound. Its own JSON allows no more than JavaScript's.
function originOf(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const end = 8 + Number(view.getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, end)));
  return JSON.parse(header.__metadata__.bnn).origin ?? null;
}

function ranked(names, scores) {
  if (!names.length) return [];
  const highest = scores.reduce((a, b) => Math.max(a, b));
  const powers = Array.from(scores, (score) => Math.exp(score - highest));
  const sum = powers.reduce((a, b) => a + b);
  return names
    .map((name, i) => ({ name, percent: (100 * powers[i]) / sum }))
    .sort((a, b) => b.percent - a.percent);
}

export function prepare(image, imageSize) {
  if (!imageSize) return overWhite(image);
  let photo = isOpaque(image) ? image : overWhite(image);
  const most = 4 * Math.min(photo.width, photo.height); // not to enlarge only to crop
  photo = centre(photo, Math.min(photo.width, most), Math.min(photo.height, most));
  const { resize, size } = imageSize;
  const short = Math.min(photo.width, photo.height);
  if (short === resize) return overWhite(centre(photo, size, size));
  const scaled = (side) => Math.max(resize, roundHalfEven(side * (resize / short)));
  return resizedCentre(photo, scaled(photo.width), scaled(photo.height), size);
}

// Returns a part of an image, with as many bytes a pixel.
export function cut(image, top, left, height, width) {
  const channels = channelsOf(image);
  if (width === image.width && height === image.height) return image;
  const data = new Uint8Array(channels * width * height);
  for (let y = 0; y < height; ++y) {
    const begin = channels * ((top + y) * image.width + left);
    const row = image.data.subarray(begin, begin + channels * width);
    data.set(row, channels * y * width);
  }
  return { data, width, height };
}

// Returns the number of bytes a pixel of an image that is sound.
function channelsOf(image) {
  const { data, width, height } = image ?? {};
  const inRange = (side) => Number.isInteger(side) && side >= 1;
  if (!inRange(width) || !inRange(height) || width * height > MAX_PIXELS) {
    throw new Error(
      `an image of ${width} × ${height} pixels; expected 1 or more in width and height, and ` +
        `at most ${MAX_PIXELS} in all`,
    );
  }
  const pixels = width * height;
  const bytes = data instanceof Uint8Array || data instanceof Uint8ClampedArray;
  if (!bytes || (data.length !== 3 * pixels && data.length !== 4 * pixels)) {
    throw new Error(
      `an image of ${width} × ${height} pixels needs ${3 * pixels} or ${4 * pixels} bytes ` +
        `(RGB or RGBA), not ${bytes ? data.length : typeof data}`,
    );
  }
  return data.length / pixels;
}

function isOpaque(image) {
  if (channelsOf(image) === 3) return true;
  for (let at = 3; at < image.data.length; at += 4) if (image.data[at] !== 255) return false;
  return true;
}

function overWhite(image) {
  const step = channelsOf(image);
  const { data, width, height } = image;
  const rgb = new Uint8Array(3 * width * height);
  for (let from = 0, to = 0; to < rgb.length; from += step, to += 3) {
    const alpha = step === 4 ? data[from + 3] : 255;
    for (let c = 0; c < 3; ++c) {
      rgb[to + c] = (data[from + c] * alpha + 255 * (255 - alpha) + 127) / 255;
    }
  }
  return { data: rgb, width, height };
}

export function roundHalfEven(x) {
  const floor = Math.floor(x);
  if (x - floor !== 0.5) return Math.round(x);
  return floor % 2 === 0 ? floor : floor + 1;
}

function centre(photo, width, height) {
  const top = roundHalfEven((photo.height - height) / 2);
  const left = roundHalfEven((photo.width - width) / 2);
  return cut(photo, top, left, height, width);
}

// Bicubic resampling whose support grows with the scale, first across and then down, with weights
// in fixed point and rounding to bytes in between: the bytes of the Python engine. Only what the
// centre of the resized image takes is computed.
// photo: three bytes a pixel, or four of which the last does not count.
function resizedCentre(photo, width, height, size) {
  const across = weightsOf(photo.width, width, size);
  const down = weightsOf(photo.height, height, size);
  const top = down[0].first;
  const bottom = down[size - 1].first + down[size - 1].weights.length;
  const lines = resampledAcross(photo, across, top, bottom - top);
  return { data: resampledDown(lines, 3 * size, down, top), width: size, height: size };
}

const FIXED_BITS = 22; // of a weight of 1: 8 bits of a byte and 2 of overshoot are left of 32
const HALF = 2 ** (FIXED_BITS - 1);

function bicubic(x) {
  const a = -0.5;
  x = Math.abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

// For each of `size` output positions in the middle of `to`, the first input position and the
// weights of those that it takes.
function weightsOf(from, to, size) {
  const scale = from / to;
  const stretch = Math.max(scale, 1);
  const support = 2 * stretch;
  const begin = roundHalfEven((to - size) / 2);
  return Array.from({ length: size }, (_, i) => {
    const middle = (begin + i + 0.5) * scale;
    const first = Math.max(Math.trunc(middle - support + 0.5), 0);
    const end = Math.min(Math.trunc(middle + support + 0.5), from);
    const weights = [];
    for (let x = first; x < end; ++x) weights.push(bicubic((x - middle + 0.5) / stretch));
    const sum = weights.reduce((a, b) => a + b, 0);
    const fixed = weights.map((w) => {
      const scaled = (w / sum) * 2 ** FIXED_BITS;
      return Math.trunc(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    });
    return { first, weights: Int32Array.from(fixed) };
  });
}

function toByte(sum) {
  return Math.min(Math.max(sum >> FIXED_BITS, 0), 255);
}

// Returns some rows, resampled to three bytes a pixel.
function resampledAcross({ data, width, height }, all, top, rows) {
  const step = data.length / (width * height);
  const out = new Uint8Array(3 * rows * all.length);
  let to = 0;
  for (let y = top; y < top + rows; ++y) {
    for (const { first, weights } of all) {
      let at = (y * width + first) * step;
      let [red, green, blue] = [HALF, HALF, HALF];
      for (let k = 0; k < weights.length; ++k, at += step) {
        red += Math.imul(data[at], weights[k]);
        green += Math.imul(data[at + 1], weights[k]);
        blue += Math.imul(data[at + 2], weights[k]);
      }
      out[to++] = toByte(red);
      out[to++] = toByte(green);
      out[to++] = toByte(blue);
    }
  }
  return out;
}

// data: the rows from `top` on.
function resampledDown(data, rowBytes, all, top) {
  const out = new Uint8Array(all.length * rowBytes);
  const sums = new Int32Array(rowBytes);
  all.forEach(({ first, weights }, y) => {
    sums.fill(HALF);
    weights.forEach((weight, k) => {
      const row = (first - top + k) * rowBytes;
      for (let i = 0; i < rowBytes; ++i) sums[i] += Math.imul(data[row + i], weight);
    });
    for (let i = 0; i < rowBytes; ++i) out[y * rowBytes + i] = toByte(sums[i]);
  });
  return out;
}

export async function decode(file) {
  const { bytes, orientation } = withoutMetadata(new Uint8Array(await file.arrayBuffer()));
  let bitmap;
  try {
    bitmap = await createImageBitmap(new Blob([bytes], { type: file.type }), {
      premultiplyAlpha: "none",
      colorSpaceConversion: "none",
    });
  } catch {
    throw new Error(`${file.name ?? "the file"} is not an image that this browser can read`);
  }
  const { width, height } = bitmap;
  // A canvas for drawing multiplies colours by alpha and loses those of transparent pixels, but is
  // read in a fifth of the time. JPEGs have none.
  const gl = isJpeg(bytes) ? null : new OffscreenCanvas(width, height).getContext("webgl2");
  const fits = gl && Math.max(width, height) <= gl.getParameter(gl.MAX_TEXTURE_SIZE);
  const data = fits ? readTexture(gl, bitmap) : readCanvas(bitmap);
  bitmap.close();
  return upright({ data, width, height }, orientation);
}

// Browsers differ in what they turn, in the colours that they convert, and in the frame of an
// animated PNG that they take. So they get files without all that could ask for it, and the
// orientation of the EXIF data is applied here.
export function withoutMetadata(bytes) {
  const starts = (...values) => values.every((value, i) => value === null || bytes[i] === value);
  if (isJpeg(bytes)) return withoutSegments(bytes);
  if (starts(0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a)) return withoutAncillary(bytes);
  const size = [null, null, null, null];
  if (starts(0x52, 0x49, 0x46, 0x46, ...size, 0x57, 0x45, 0x42, 0x50)) return withoutChunks(bytes);
  return { bytes, orientation: 1 };
}

function isJpeg(bytes) {
  return bytes[0] === 0xff && bytes[1] === 0xd8;
}

function joined(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

function isExif(bytes) {
  return [0x45, 0x78, 0x69, 0x66, 0, 0].every((value, i) => bytes[i] === value);
}

// Of a JPEG: the segments of applications, except JFIF's and Adobe's, which say what the colours
// are.
function withoutSegments(bytes) {
  const kept = [bytes.subarray(0, 2)];
  const exif = [];
  let at = 2;
  while (at + 4 <= bytes.length && bytes[at] === 0xff) {
    const marker = bytes[at + 1];
    if (marker === 0xff) {
      ++at; // filling
      continue;
    }
    if (marker === 0xda) break; // the pixels begin
    const bare = marker === 0x01 || (marker >= 0xd0 && marker <= 0xd9);
    const end = at + 2 + (bare ? 0 : (bytes[at + 2] << 8) | bytes[at + 3]);
    if (end > bytes.length) break;
    const dropped = marker >= 0xe1 && marker <= 0xef && marker !== 0xee;
    if (!dropped) kept.push(bytes.subarray(at, end));
    const content = bytes.subarray(at + 4, end);
    if (marker === 0xe1 && isExif(content)) exif.push(content.subarray(6));
    at = end;
  }
  kept.push(bytes.subarray(at));
  return { bytes: joined(kept), orientation: orientationOf(joined(exif)) };
}

// Of a PNG: the chunks that are not needed to show it, except the transparent colour.
function withoutAncillary(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const kept = [bytes.subarray(0, 8)];
  let exif = new Uint8Array(0);
  let at = 8;
  while (at + 12 <= bytes.length) {
    const end = at + 12 + view.getUint32(at);
    if (end > bytes.length) break;
    const name = String.fromCharCode(...bytes.subarray(at + 4, at + 8));
    const needed = !(bytes[at + 4] & 0x20) || name === "tRNS";
    if (needed) kept.push(bytes.subarray(at, end));
    if (name === "eXIf") exif = bytes.subarray(at + 8, end - 4);
    at = end;
  }
  kept.push(bytes.subarray(at));
  return { bytes: joined(kept), orientation: orientationOf(exif) };
}

// Of a WebP: EXIF, XMP and the colour profile.
function withoutChunks(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const header = bytes.slice(0, 12);
  const kept = [header];
  let exif = new Uint8Array(0);
  let hasExif = false; // by the header of an extended file
  let at = 12;
  while (at + 8 <= bytes.length) {
    const length = view.getUint32(at + 4, true);
    const end = at + 8 + length + (length & 1);
    if (end > bytes.length) break;
    const name = String.fromCharCode(...bytes.subarray(at, at + 4));
    if (name === "VP8X") {
      const chunk = bytes.slice(at, end);
      hasExif = (chunk[8] & 0x08) !== 0;
      chunk[8] &= ~(0x20 | 0x08 | 0x04);
      kept.push(chunk);
    } else if (name === "EXIF") {
      if (hasExif && !exif.length) exif = bytes.subarray(at + 8, at + 8 + length);
    } else if (name !== "XMP " && name !== "ICCP") {
      kept.push(bytes.subarray(at, end));
    }
    at = end;
  }
  kept.push(bytes.subarray(at));
  const whole = joined(kept);
  const dropped = bytes.length - whole.length;
  new DataView(whole.buffer).setUint32(4, view.getUint32(4, true) - dropped, true);
  return { bytes: whole, orientation: orientationOf(exif) };
}

// The tag 0x0112 of the first directory, one 16-bit integer from 1 to 8; otherwise 1.
function orientationOf(exif) {
  while (isExif(exif)) exif = exif.subarray(6);
  const view = new DataView(exif.buffer, exif.byteOffset, exif.length);
  try {
    const start = view.getUint32(0);
    const little = start === 0x49492a00;
    if (!little && start !== 0x4d4d002a) return 1;
    const directory = view.getUint32(4, little);
    const count = view.getUint16(directory, little);
    for (let i = 0; i < count; ++i) {
      const entry = directory + 2 + 12 * i;
      if (view.getUint16(entry, little) !== 0x0112) continue;
      const isShort = view.getUint16(entry + 2, little) === 3;
      const value = view.getUint16(entry + 8, little);
      const isOne = view.getUint32(entry + 4, little) === 1;
      return isShort && isOne && value >= 1 && value <= 8 ? value : 1;
    }
  } catch (error) {
    if (!(error instanceof RangeError)) throw error; // the data are cut off
  }
  return 1;
}

export function upright(image, orientation) {
  if (orientation === 1) return image;
  const swapped = orientation >= 5;
  const { data } = image;
  const [width, height] = swapped ? [image.height, image.width] : [image.width, image.height];
  const upsideDown = [3, 4, 7, 8].includes(orientation);
  const mirrored = [2, 3, 6, 7].includes(orientation);
  const step = data.length / (width * height);
  const out = new Uint8Array(data.length);
  let to = 0;
  for (let y = 0; y < height; ++y) {
    const row = upsideDown ? height - 1 - y : y;
    for (let x = 0; x < width; ++x) {
      const column = mirrored ? width - 1 - x : x;
      const from = step * (swapped ? column * image.width + row : row * image.width + column);
      for (let c = 0; c < step; ++c) out[to++] = data[from + c];
    }
  }
  return { data: out, width, height };
}

function readTexture(gl, bitmap) {
  const { width, height } = bitmap;
  gl.pixelStorei(gl.UNPACK_COLORSPACE_CONVERSION_WEBGL, gl.NONE);
  gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
  gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, bitmap);
  gl.bindFramebuffer(gl.FRAMEBUFFER, gl.createFramebuffer());
  const { FRAMEBUFFER, COLOR_ATTACHMENT0, TEXTURE_2D } = gl;
  gl.framebufferTexture2D(
    FRAMEBUFFER, COLOR_ATTACHMENT0, TEXTURE_2D, gl.getParameter(gl.TEXTURE_BINDING_2D), 0,
  );
  const data = new Uint8Array(4 * width * height);
  gl.readPixels(0, 0, width, height, gl.RGBA, gl.UNSIGNED_BYTE, data);
  gl.getExtension("WEBGL_lose_context")?.loseContext();
  return data;
}

function readCanvas(bitmap) {
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height).data;
}
