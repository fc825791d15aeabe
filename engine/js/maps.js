// Features of more maps than the last: which ones, in what units, and whether they help. The same
// as engine/python/burn_engine/maps.py, which says why.
import { reading, takeApart } from "./packed_parts.js";

const NUM_BLOCKS = 4;
export const LEAST_IMAGES = 10; // of each class, to choose
const FORMAT = 5; // the first with means of several maps
const FORMAT_OF_FLOAT_SIDES = 4;

export function widened(base) {
  const parts = takeApart(base);
  const also = earlierMaps(parts);
  if (!also.length) return null;
  const widths = reading(() => [parts.features, ...also].map((one) => parts.channelsOf(one)));
  addMeans(parts, also);
  return { bytes: parts.toBytes(), widths };
}

// Returns the parts of a file whose features are means of several maps, multiplied by factors.
// base: a file that `widened` takes or returned.
export function withMaps(base, factors) {
  const parts = takeApart(base);
  const also = earlierMaps(parts);
  if (!also.length && !parts.features.also?.length) {
    throw new Error(
      "the classifier was learned from means of several maps, which it does not have",
    );
  }
  addMeans(parts, also);
  const { name } = parts.features;
  const length = parts.channelsOf(parts.features);
  if (length !== factors.length) {
    throw new Error(
      `its maps have ${length} means, but the classifier was learned from ${factors.length}`,
    );
  }
  for (const key of [`${name}.bias`, `${name}.scale`]) {
    const floats = parts.floats(key);
    parts.setFloats(key, [length], floats.map((one, i) => one * factors[i]));
  }
  return parts;
}

// Returns the last layer of each of the last four blocks but the very last, in their order. There
// are none if there is a single block, or the features cannot be followed by others.
function earlierMaps(parts) {
  return reading(() => {
    const { layers, format } = parts.program;
    const { kind, also } = parts.features;
    if (kind !== "global_mean" || also?.length) return [];
    if (format < FORMAT_OF_FLOAT_SIDES && layers.some(({ side }) => side)) return [];
    return layers.filter((_, at) => endsBlock(parts, at)).slice(-NUM_BLOCKS, -1);
  });
}

function endsBlock({ program: { layers }, stored }, at) {
  const isBinary = (kind) => kind === "binary_convolution" || kind === "gated_convolution";
  const after = layers[at + 1];
  if (!after || !isBinary(layers[at].kind)) return false;
  if (isBinary(after.kind)) return stored.get(`${after.name}.weight`).shape[1] === 3;
  return after.kind === "global_mean";
}

// Has the means of more layers follow the features.
function addMeans(parts, layers) {
  reading(() => {
    parts.removeClassifier();
    const { features, stored } = parts;
    const { name, also = [] } = features;
    const own = parts.floats(`${name}.bias`);
    const length = layers.reduce((sum, layer) => sum + parts.channelsOf(layer), own.length);
    const bias = new Float32Array(length);
    const scale = new Float32Array(length).fill(1);
    bias.set(own);
    if (stored.has(`${name}.scale`)) scale.set(parts.floats(`${name}.scale`));
    parts.setFloats(`${name}.bias`, [length], bias);
    parts.setFloats(`${name}.scale`, [length], scale);
    const names = layers.map((layer) => layer.name);
    Object.assign(features, { scaled: true, also: [...also, ...names] });
    parts.program.format = FORMAT;
  });
}

// Returns the factors that give the features of each map the mean length of the last one's.
// lengths: of each image and map, the last map's first.
export function equalLengths(lengths, widths) {
  const means = widths.map((_, map) => {
    return lengths.reduce((sum, one) => sum + one[map], 0) / lengths.length;
  });
  const factors = widths.map((width, map) => new Array(width).fill(means[0] / (means[map] || 1)));
  return Float32Array.from(factors.flat());
}

// Whether there are images enough to ask whether more maps help.
export function areEnough(counts) {
  return counts.every((count) => count >= LEAST_IMAGES);
}

// Whether more maps help: by more than half of the accuracy's standard error.
export function isBetter(several, last) {
  return several.accuracy - last.accuracy > last.error / 2;
}
