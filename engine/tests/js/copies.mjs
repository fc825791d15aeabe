// Compares images as the JSON on standard input says with the JavaScript package, and prints JSON.
//
//     node copies.mjs PACKAGE < [{"images": [[file, width, height], …], "bytes": […]}, …]
//
// The files hold raw pixels. Of each list it prints the groups, how far it said to be, and of each
// image what it looks like and its codes, or the error.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { answerAll } from "./answers.mjs";

const folder = pathToFileURL(`${process.argv[2]}/`);
const { openSearch } = await import(new URL("index.js", folder));
const { Appearances, duplicates } = await import(new URL("copies.js", folder));
const { alteredCodes, appearance, codeOf } = await import(new URL("appearance.js", folder));
const search = await openSearch();

async function answer({ images, bytes = [], plain }) {
  const pixels = images.map(([file, width, height]) => {
    return { data: new Uint8Array(readFileSync(file)), width, height };
  });
  if (plain) return duplicates(pixels);
  const progress = [];
  const seen = new Appearances(search);
  const looks = pixels.map(appearance);
  looks.forEach((look, i) => seen.add(look, bytes[i]));
  const groups = seen.groups({ onProgress: (share) => progress.push(share) });
  const lists = looks.map(({ square, ...rest }) => {
    const altered = Array.from(alteredCodes(square));
    return { square: Array.from(square), code: Array.from(codeOf(square)), altered, ...rest };
  });
  return { groups, progress, looks: lists };
}

await answerAll(answer);
