// Writes a packed file with a learned classifier: the base file's layers and one more. The same as
// engine/python/burn_engine/classifier_file.py.

const VERSION = "0.4.0"; // burn-engine's
const ITEM_BYTES = { F32: 4, I16: 2, U8: 1 };
const MOST_HEADER = 10_000_000; // bytes

export function withClassifier(base, learned) {
  const bytes = base instanceof ArrayBuffer ? new Uint8Array(base) : base;
  const { metadata, program, stored, channels } = parsed(bytes);
  const { layers, classes } = program;
  const features = layers.find((layer) => layer.name === program.features);
  const last = layers[layers.length - 1];
  const length = learned.weight.length / learned.classes.length;
  if (channels !== length) {
    throw new Error(`it has ${channels} features, but the classifier was learned from ${length}`);
  }
  if (classes) {
    layers.pop();
    stored.delete(`${last.name}.weight`);
    stored.delete(`${last.name}.bias`);
  }
  const name = newName(layers);
  const { weight, bias } = learned;
  const shape = [learned.classes.length, length];
  stored.set(`${name}.weight`, { dtype: "F32", shape, data: littleEndian(weight) });
  stored.set(`${name}.bias`, { dtype: "F32", shape: shape.slice(0, 1), data: littleEndian(bias) });
  layers.push({ kind: "linear", name, input: features.name, relu: false });
  program.classes = learned.classes;
  const several = features.also?.length ? { layers: [features.input, ...features.also] } : {};
  program.origin = { ...program.origin, learned: { ...how(learned), ...several } };
  return safetensors(stored, { ...metadata, bnn: JSON.stringify(program) });
}

export function noneOfThese(model, features) {
  const none = model.origin?.learned?.none;
  if (typeof none?.below !== "number" || typeof none.towards !== "string") return null;
  let towards;
  try {
    towards = Int8Array.from(atob(none.towards), (one) => one.charCodeAt(0));
  } catch {
    return null; // anyone may have written it
  }
  if (towards.length !== features?.length) return null;
  if (!areFinite(features)) throw new Error("the features are not finite");
  let product = 0;
  let squares = 0;
  let ownSquares = 0;
  towards.forEach((one, i) => {
    product += one * features[i];
    squares += one ** 2;
    ownSquares += features[i] ** 2;
  });
  return product / Math.max(Math.sqrt(squares) * Math.sqrt(ownSquares), 1e-300) < none.below;
}

// Whether all are finite numbers, which a hole and a text are not.
export function areFinite(features) {
  for (let i = 0; i < features.length; ++i) {
    if (!Number.isFinite(features[i])) return false;
  }
  return true;
}

// What this file needs to be sound; `load` checks all of it.
function parsed(bytes) {
  try {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    const start = 8 + Number(view.getBigUint64(0, true));
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(8, start));
    const { __metadata__: metadata, ...header } = JSON.parse(text);
    const program = JSON.parse(metadata.bnn);
    const stored = new Map(
      Object.entries(header).map(([name, { dtype, shape, data_offsets: [begin, end] }]) => {
        const data = bytes.subarray(start + begin, start + end);
        if (data.length !== end - begin || !(dtype in ITEM_BYTES)) throw new Error(name);
        return [name, { dtype, shape, data }];
      }),
    );
    const { kind, name } = program.layers.find((layer) => layer.name === program.features);
    const channels = stored.get(`${name}.${kind === "linear" ? "weight" : "bias"}`).shape[0];
    if (program.origin !== undefined && !isObject(program.origin)) throw new Error("origin");
    return { metadata, program, stored, channels };
  } catch {
    throw new Error("the base is no packed file: give the bytes of one that load takes");
  }
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function newName(layers) {
  const taken = ["image", ...layers.map((layer) => layer.name)];
  // A layer head.weight would have tensors beside those of a layer head.
  const clashes = (name) => taken.some((one) => one === name || one.startsWith(`${name}.`));
  const names = ["head", ...taken.keys(), taken.length].map((one) => {
    return one === "head" ? one : `head${one}`;
  });
  return names.find((name) => !clashes(name));
}

function how({ counts, way, accuracy, threshold, towards }) {
  const rounded = (one) => (one === null ? null : Math.round(one * 1e6) / 1e6);
  const text = btoa(Array.from(towards, (one) => String.fromCharCode(one & 0xff)).join(""));
  return {
    burn_engine: VERSION,
    images: counts,
    kind: way.kind,
    share: rounded(way.share),
    equal_length: way.equalLength,
    accuracy: rounded(accuracy),
    none: threshold === null ? null : { below: rounded(threshold), towards: text },
  };
}

function littleEndian(floats) {
  const view = new DataView(new ArrayBuffer(4 * floats.length));
  floats.forEach((one, i) => view.setFloat32(4 * i, one, true));
  return new Uint8Array(view.buffer);
}

// Tensors of larger numbers come first, so that all are aligned.
function safetensors(stored, metadata) {
  const sorted = [...stored].sort(([, a], [, b]) => ITEM_BYTES[b.dtype] - ITEM_BYTES[a.dtype]);
  const entries = [["__metadata__", metadata]];
  let position = 0;
  for (const [name, { dtype, shape, data }] of sorted) {
    const end = position + data.length;
    entries.push([name, { dtype, shape, data_offsets: [position, end] }]);
    position = end;
  }
  const text = new TextEncoder().encode(JSON.stringify(Object.fromEntries(entries)));
  const padded = text.length + ((8 - (text.length % 8)) % 8);
  if (padded > MOST_HEADER) {
    throw new Error(`the names of the classes take ${padded} bytes; a file has ${MOST_HEADER}`);
  }
  const whole = new Uint8Array(8 + padded + position).fill(0x20, 8, 8 + padded);
  new DataView(whole.buffer).setBigUint64(0, BigInt(padded), true);
  whole.set(text, 8);
  let at = 8 + padded;
  for (const [, { data }] of sorted) {
    whole.set(data, at);
    at += data.length;
  }
  return whole;
}
