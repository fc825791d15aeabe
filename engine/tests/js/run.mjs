// Does what the JSON on standard input says with the JavaScript package, and prints JSON.
//
//     node run.mjs index.js < [{"model": file, "images": [[file, width, height], …]}, …]
//
// Of each model it prints the error of loading it, or its facts, and of each image the output or
// the error, or for "nearest" what is found among codes. Without a model it prints the bytes of the images, prepared for "size" and turned by
// "orientation". Of "files" it prints the bytes without metadata, and the orientation.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { load, prepare, signs, upright, withoutMetadata } = await import(pathToFileURL(process.argv[2]));

function pixels([file, width, height]) {
  return { data: new Uint8Array(readFileSync(file)), width, height };
}

function tried(action) {
  try {
    return action();
  } catch (error) {
    return { error: `${error.name}: ${error.message}` };
  }
}

async function answer({ model, images, size, orientation, files, nearest }) {
  if (files) {
    return files.map((file) => {
      const found = withoutMetadata(new Uint8Array(readFileSync(file)));
      return { ...found, bytes: Buffer.from(found.bytes).toString("base64") };
    });
  }
  if (!model) {
    return images.map((image) =>
      tried(() => {
        const { data, width, height } = prepare(upright(pixels(image), orientation ?? 1), size);
        return { width, height, data: Buffer.from(data).toString("base64") };
      }),
    );
  }
  let network;
  try {
    network = await load(readFileSync(model));
  } catch (error) {
    return { error: `${error.name}: ${error.message}` };
  }
  if (nearest) {
    const codes = Uint8Array.from(nearest.codes);
    return tried(() => network.nearest(codes, signs(nearest.features), nearest.k));
  }
  const { isa, classNames, imageSize } = network;
  const outputs = images.map((image) =>
    tried(() => {
      const { output, classes } = network.run(pixels(image));
      return { output: Array.from(output), classes };
    }),
  );
  network.free();
  return { isa, classNames, imageSize, outputs };
}

const answers = [];
for (const request of JSON.parse(readFileSync(0, "utf8"))) answers.push(await answer(request));
console.log(JSON.stringify(answers));
