// Takes packed files apart and puts changed ones together. The same as
// engine/python/burn_engine/packed_parts.py.

const ITEM_BYTES = { F32: 4, I16: 2, U8: 1 };
const MOST_HEADER = 10_000_000; // bytes
const FORMATS = [1, 2, 3, 4, 5];

// Returns the parts of a packed file, checked for what changing it takes; `load` checks all of it.
export function takeApart(base) {
  const bytes = base instanceof ArrayBuffer ? new Uint8Array(base) : base;
  return reading(() => {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    const start = 8 + Number(view.getBigUint64(0, true));
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(8, start));
    const { __metadata__: metadata, ...header } = JSON.parse(text);
    const program = JSON.parse(metadata.bnn);
    if (!FORMATS.includes(program.format)) throw new Error("format");
    const stored = new Map(
      Object.entries(header).map(([name, { dtype, shape, data_offsets: [begin, end] }]) => {
        const data = bytes.subarray(start + begin, start + end);
        const isWhole = Number.isInteger(begin) && data.length === end - begin;
        if (!isWhole || !Object.hasOwn(ITEM_BYTES, dtype)) throw new Error(name);
        return [name, { dtype, shape, data }];
      }),
    );
    if (program.origin !== undefined && !isObject(program.origin)) throw new Error("origin");
    if (!program.layers.every(({ name }) => typeof name === "string")) throw new Error("name");
    JSON.stringify(program); // which must not be nested too deep
    const parts = new Parts(metadata, program, stored);
    parts.channelsOf(parts.features); // which must be there
    return parts;
  });
}

// Returns what a function finds in a packed file, whose every mistake is told in the same words.
export function reading(find) {
  try {
    return find();
  } catch {
    throw new Error("the base is no packed file: give the bytes of one that load takes");
  }
}

// What a packed file is made of, to be changed. program: its JSON values. stored: the tensors by
// name, {dtype, shape, data}.
class Parts {
  constructor(metadata, program, stored) {
    Object.assign(this, { metadata, program, stored });
  }

  // The layer whose output is the features.
  get features() {
    return this.program.layers.find((layer) => layer.name === this.program.features);
  }

  // Number of the channels of a layer's output, for all kinds that can be features or maps.
  channelsOf({ name }) {
    return this.stored.get(`${name}.bias`).shape[0];
  }

  // The numbers of a tensor of float32.
  floats(name) {
    const { data } = this.stored.get(name);
    const view = new DataView(data.buffer, data.byteOffset, data.length);
    return Float32Array.from({ length: data.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
  }

  setFloats(name, shape, floats) {
    const view = new DataView(new ArrayBuffer(4 * floats.length));
    floats.forEach((one, i) => view.setFloat32(4 * i, one, true));
    this.stored.set(name, { dtype: "F32", shape, data: new Uint8Array(view.buffer) });
  }

  // Removes the last layer if it is a classifier, with its tensors and the classes.
  removeClassifier() {
    if (!this.program.classes) return;
    delete this.program.classes;
    const { name } = this.program.layers.pop();
    this.stored.delete(`${name}.weight`);
    this.stored.delete(`${name}.bias`);
  }

  // Returns the file; tensors of larger numbers come first, so that all are aligned.
  toBytes() {
    const metadata = { ...this.metadata, bnn: JSON.stringify(this.program) };
    const size = ([, { dtype }]) => ITEM_BYTES[dtype];
    const sorted = [...this.stored].sort((a, b) => size(b) - size(a));
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
      throw new Error(
        `the header with the names of the classes takes ${padded} bytes; a file has ${MOST_HEADER}`,
      );
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
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
