// Learns what the JSON on standard input says with the JavaScript package, and prints JSON.
//
//     node learn.mjs PACKAGE < [{"features": [[…], …], "labels": […], "classes": […]}, …]
//
// Of each it prints what was learned, how far it said to be, and what is said of the images in "classify"; with "base" it
// also writes the packed file "out", and prints what that file says of the raw image in "image",
// its features, and whether it is none of these. A number may be "nan", "inf" or "hole", which is
// nothing at its place of an array; so may an image.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(`${process.argv[2]}/`);
const { load } = await import(new URL("index.js", folder));
const { classify, learn, noneOfThese, withClassifier } = await import(new URL("learn.js", folder));

const NUMBERS = { nan: NaN, inf: Infinity };

// Objects stay what they are: {"0": 1, "length": 1} is like an array.
function decoded(value) {
  if (!Array.isArray(value)) return NUMBERS[value] ?? value;
  const row = value.map(decoded);
  row.forEach((one, i) => one === "hole" && delete row[i]);
  return row;
}

async function answer({ features, labels, classes, classify: asked = [], base, out, image, own: given }) {
  const progress = [];
  const onProgress = (share) => progress.push(share);
  const learned = learn(decoded(features), decoded(labels), classes, { onProgress });
  const { weight, bias, towards } = learned;
  const lists = { weight: Array.from(weight), bias: Array.from(bias), towards: Array.from(towards) };
  const classified = asked.map((row) => classify(learned, decoded(row)));
  const found = { ...learned, ...lists, progress, classified };
  if (!base) return found;
  const written = withClassifier(readFileSync(base), learned);
  writeFileSync(out, written);
  const model = await load(written);
  const [file, width, height] = image;
  const pixels = { data: new Uint8Array(readFileSync(file)), width, height };
  const { output, classes: ranked } = model.run(pixels);
  const own = decoded(given) ?? model.features(pixels);
  const none = noneOfThese(model, own);
  return { ...found, output: Array.from(output), ranked, own: Array.from(own), none };
}

const answers = [];
for (const request of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    answers.push(await answer(request));
  } catch (error) {
    answers.push({ refused: `${error.name}: ${error.message}` });
  }
}
console.log(JSON.stringify(answers));
