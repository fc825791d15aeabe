// Groups of similar images: what clustering.py of burn_engine does, with the same result. Features
// and centres are whole numbers, whose sums of products are exact in any order.
import { roundHalfEven } from "./index.js";
import { normalized } from "./vectors.js";

const MOST_ROUNDS = 50;
const MOST_GROUPS = 100; // that are made if nobody says how many
const LENGTH = 2048; // of the whole features

export function usualNumber(count) {
  return Math.max(1, Math.min(MOST_GROUPS, Math.round(Math.sqrt(count / 2))));
}

export function cluster(features, { k, seed = 0, onProgress } = {}) {
  const count = features.length;
  if (!count) throw new Error("there are no images to divide into groups");
  if (!Number.isSafeInteger(seed) || seed < 0) {
    throw new Error(`seed ${seed} is not an integer from 0 to ${Number.MAX_SAFE_INTEGER}`);
  }
  const groups = k ?? usualNumber(count);
  if (!Number.isInteger(groups) || groups < 1 || groups > count) {
    throw new Error(`k ${k} is not a number of groups from 1 to ${count}, the images`);
  }
  const images = new Rows(whole(normalized(features)), count);
  let centres = drawn(images, groups, randomNumbers(seed));
  let found = nearest(images, centres);
  for (let done = 0; done < MOST_ROUNDS; ++done) {
    onProgress?.(done / MOST_ROUNDS);
    centres = means(images, found.labels, centres);
    const before = found.labels;
    found = nearest(images, centres);
    if (found.labels.every((label, i) => label === before[i])) break;
  }
  const { labels, products } = found;
  const centrality = Float32Array.from(products, (product, i) => {
    return product / Math.sqrt(images.squares[i] * centres.squares[labels[i]]);
  });
  const places = placesOf(labels, centres.count);
  return { labels: labels.map((label) => places[label]), centrality };
}

// Vectors of whole numbers, one after the other, and the squares of their lengths.
class Rows {
  constructor(values, count) {
    Object.assign(this, { values, count, width: values.length / count });
    this.squares = Float64Array.from({ length: count }, (_, i) => this.product(i, this, i));
  }

  product(i, others, j) {
    const { values, width } = this;
    const from = others.values;
    let sum = 0; // below 2^24
    for (let a = i * width, b = j * width, end = a + width; a < end; ++a, ++b) {
      sum = (sum + Math.imul(values[a], from[b])) | 0;
    }
    return sum;
  }
}

// Returns vectors of length 1 as whole numbers of about LENGTH.
function whole(units) {
  return Int16Array.from(units, (unit) => roundHalfEven(unit * LENGTH));
}

// Random numbers, at least 0 and less than 1: the upper half of Knuth's MMIX.
function randomNumbers(seed) {
  let state = BigInt(seed);
  return () => {
    state = BigInt.asUintN(64, state * 6364136223846793005n + 1442695040888963407n);
    return Number(state >> 32n) / 2 ** 32;
  };
}

// Returns centres: images drawn with a chance that grows with their distance from the others. Of a
// few that are drawn each time, the one is kept to which most of the distance is due.
function drawn(images, count, random) {
  const { squares } = images;
  const distances = (to) =>
    squares.map((square, i) => square + squares[to] - 2 * images.product(i, images, to));
  const sumOf = (row) => row.reduce((a, b) => a + b, 0);
  const chosen = [Math.floor(random() * images.count)];
  let distance = distances(chosen[0]);
  const tries = 2 + Math.floor(Math.log(count));
  for (let total; chosen.length < count && (total = sumOf(distance)) > 0; ) {
    const left = Array.from({ length: tries }, () => {
      const place = random() * total;
      let sum = 0;
      const image = distance.findIndex((one) => (sum += one) > place);
      const others = distances(image);
      return { image, distance: distance.map((one, i) => Math.min(one, others[i])) };
    });
    const sums = left.map((one) => sumOf(one.distance));
    const best = left[sums.indexOf(Math.min(...sums))];
    chosen.push(best.image);
    distance = best.distance;
  }
  const { values, width } = images;
  const centres = new Int16Array(chosen.length * width);
  chosen.forEach((at, c) => {
    centres.set(values.subarray(at * width, (at + 1) * width), c * width);
  });
  return new Rows(centres, chosen.length);
}

// Returns the centres of groups; that of an empty group stays.
function means(images, labels, before) {
  const { values, width } = images;
  const sums = new Float64Array(before.values.length);
  labels.forEach((label, i) => {
    for (let a = i * width, b = label * width, end = a + width; a < end; ++a, ++b) {
      sums[b] += values[a];
    }
  });
  const centres = before.values.slice();
  for (let begin = 0; begin < sums.length; begin += width) {
    const row = sums.subarray(begin, begin + width);
    const length = Math.sqrt(row.reduce((square, one) => square + one * one, 0));
    if (length) centres.set(whole(row.map((one) => one / length)), begin);
  }
  return new Rows(centres, before.count);
}

// Returns the nearest centre of each image, and its product with it.
function nearest(images, centres) {
  const labels = new Int32Array(images.count);
  const products = new Int32Array(images.count);
  for (let i = 0; i < images.count; ++i) {
    let most = -Infinity;
    for (let c = 0; c < centres.count; ++c) {
      const product = images.product(i, centres, c);
      if (product > most) [most, labels[i]] = [product, c];
    }
    products[i] = most;
  }
  return { labels, products };
}

// Returns the place of each group among all, the largest first.
function placesOf(labels, count) {
  const sizes = new Array(count).fill(0);
  for (const label of labels) ++sizes[label];
  const places = new Int32Array(count);
  const order = [...sizes.keys()].sort((a, b) => sizes[b] - sizes[a]);
  order.forEach((label, place) => (places[label] = place));
  return places;
}
