// Features as vectors of length 1.

// Returns the features of images divided by their lengths, in float32, one after the other.
// features: of each image, all of one length.
export function normalized(features) {
  const width = features[0]?.length ?? 0;
  const all = new Float32Array(features.length * width);
  features.forEach((row, i) => {
    if (row?.length !== width) {
      throw new Error("the features of some images are more than those of others");
    }
    let square = 0;
    for (let j = 0; j < width; ++j) square += row[j] * row[j];
    const length = Math.sqrt(square);
    if (!(length > 0 && length < Infinity)) throw new Error(whyNot(row));
    for (let j = 0; j < width; ++j) all[i * width + j] = row[j] / length;
  });
  return all;
}

function whyNot(row) {
  const numbers = Array.from(row);
  if (!numbers.every(Number.isFinite)) return "features are not finite";
  if (numbers.every((number) => number === 0)) return "all features of an image are 0";
  return "the features of an image are too large or too small";
}
