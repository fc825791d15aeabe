// Learns what the JSON on standard input says with the JavaScript package, and prints JSON.
//
//     node learn.mjs PACKAGE < [{"features": [[…], …], "labels": […], "classes": […]}, …]
//
// Of each it prints what was learned, how far it said to be, and what is said of the images in "classify"; with "base" it
// also writes the packed file "out", and prints what that file says of the raw image in "image",
// its features, and whether it is none of these. A number may be "nan", "inf" or "hole", which is
// nothing at its place of an array; so may an image.
// Of {"widen": file, "out": file, "image": […]} it writes the file with the means of more maps, and
// prints their widths and the features of the image; null if there are no such maps.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { answerAll } from "./answers.mjs";

const folder = pathToFileURL(`${process.argv[2]}/`);
const { load } = await import(new URL("index.js", folder));
const { classify, learn, noneOfThese, widened, withClassifier } = await import(new URL("learn.js", folder));

const NUMBERS = { nan: NaN, inf: Infinity };

// Objects stay what they are: {"0": 1, "length": 1} is like an array.
function decoded(value) {
  if (!Array.isArray(value)) return NUMBERS[value] ?? value;
  const row = value.map(decoded);
  row.forEach((one, i) => one === "hole" && delete row[i]);
  return row;
}

function pixelsOf([file, width, height]) {
  return { data: new Uint8Array(readFileSync(file)), width, height };
}

async function wide({ widen, out, image }) {
  const found = widened(readFileSync(widen));
  if (!found) return null;
  writeFileSync(out, found.bytes);
  const model = await load(found.bytes);
  return { widths: found.widths, features: Array.from(model.features(pixelsOf(image))) };
}

async function answer(request) {
  const { features, labels, classes, widths, classify: asked = [], base, out, image, own: given } = request;
  if (request.widen) return wide(request);
  const progress = [];
  const onProgress = (share) => progress.push(share);
  const learned = learn(decoded(features), decoded(labels), classes, { widths, onProgress });
  const { weight, bias, towards, maps } = learned;
  const factors = maps?.factors && Array.from(maps.factors);
  const lists = {
    ...{ weight: Array.from(weight), bias: Array.from(bias), towards: Array.from(towards) },
    maps: maps && { ...maps, factors },
  };
  const classified = asked.map((row) => classify(learned, decoded(row)));
  const found = { ...learned, ...lists, progress, classified };
  if (!base) return found;
  const written = withClassifier(readFileSync(base), learned);
  writeFileSync(out, written);
  const model = await load(written);
  const pixels = pixelsOf(image);
  const { output, classes: ranked } = model.run(pixels);
  const own = decoded(given) ?? model.features(pixels);
  const none = noneOfThese(model, own);
  return { ...found, output: Array.from(output), ranked, own: Array.from(own), none };
}

await answerAll(answer);
