// Writes a packed file with a learned classifier: the base file's layers and one more. The same as
// engine/python/burn_engine/classifier_file.py.
import { withMaps } from "./maps.js";
import { takeApart } from "./packed_parts.js";

const VERSION = "0.4.0"; // burn-engine's

export function withClassifier(base, learned) {
  const { weight, bias, classes, maps } = learned;
  const parts = maps?.factors ? withMaps(base, maps.factors) : takeApart(base);
  const { features, program } = parts;
  const channels = parts.channelsOf(features);
  const length = weight.length / classes.length;
  if (channels !== length) {
    throw new Error(`it has ${channels} features, but the classifier was learned from ${length}`);
  }
  parts.removeClassifier();
  const name = newName(program.layers);
  parts.setFloats(`${name}.weight`, [classes.length, length], weight);
  parts.setFloats(`${name}.bias`, [classes.length], bias);
  program.layers.push({ kind: "linear", name, input: features.name, relu: false });
  program.classes = classes;
  const several = features.also?.length ? { layers: [features.input, ...features.also] } : {};
  program.origin = { ...program.origin, learned: { ...how(learned), ...several } };
  return parts.toBytes();
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
