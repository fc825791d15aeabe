// Learns a linear classifier from a handful of images of each class, in closed form: the same as
// burn_engine.learn of Python (engine/python/burn_engine/learning.py, which says why).
import { areFinite } from "./classifier_file.js";
import { roundHalfEven } from "./index.js";
import { areEnough, equalLengths, isBetter } from "./maps.js";
import { eigen } from "./symmetric.js";

export { noneOfThese, withClassifier } from "./classifier_file.js";
export { widened } from "./maps.js";

// Amounts of shrinkage that are tried.
const SHARES = Array.from({ length: 8 }, (_, i) => 10 ** ((i - 3) / 2));
const KNOWN_REFUSED = 0.05; // share of the known images for which the threshold is set
const LEAST_FOR_THRESHOLD = 10; // images
const MOST_CLASSES = 1_000_000;
const MOST_SCORES = 10_000_000; // images × classes, which take 8 bytes each, several times

// Where a class has a single image.
const MOST = 3; // largest feature that counts, in standard deviations of all features
const CERTAINTY = 2.5; // what cosines are multiplied by

const TINY = 1e-300;
const SMALLEST = 1e-20; // largest of all features, so that sums of squares are numbers
const LARGEST = 1e20;

export function learn(features, labels, classes, { widths, onProgress = () => {} } = {}) {
  const names = checkedClasses(classes);
  const values = checkedFeatures(features, labels, names);
  const answers = Array.from(labels);
  const counts = countsOf(answers, names.length);
  const learned = (rows, tell) => learnedFrom(rows, answers, names, counts, tell);
  if (!widths) return { ...learned(values, onProgress), maps: null };
  checkWidths(widths, values.columns);
  const { columns } = values;
  const length = widths[0];
  const isAsked = widths.length > 1 && areEnough(counts);
  const ofLast = workOf(values.rows, length, counts.length).whole;
  const ofSeveral = isAsked ? workOf(values.rows, columns, counts.length).whole : 0;
  const whole = ofLast + ofSeveral;
  const last = learned(
    rowsFrom(values.rows, length, (i) => rowOf(values, i).subarray(0, length)),
    (share) => onProgress((ofLast * share) / whole),
  );
  const accuracies = { last: last.accuracy };
  const maps = { widths: [...widths], factors: null, accuracies };
  if (!isAsked) return { ...last, maps };
  const factors = equalLengths(lengthsOf(values, widths), widths);
  for (let i = 0; i < values.rows; ++i) {
    const row = rowOf(values, i);
    row.set(multiplied(row, factors));
  }
  const several = learned(values, (share) => onProgress((ofLast + ofSeveral * share) / whole));
  accuracies.several = several.accuracy;
  return isBetter(several, last) ? { ...several, maps: { ...maps, factors } } : { ...last, maps };
}

function learnedFrom(values, answers, names, counts, onProgress) {
  checkValues(values);
  const { way, model, factor, scores } = chosen(values, answers, counts, onProgress);
  const { weight, bias } = model.classifier(way.share);
  const learned = {
    classes: names,
    weight: Float32Array.from(weight.data, (one) => factor * one),
    bias: Float32Array.from(bias, (one, c) => factor * one + model.prior[c]),
    counts,
    ...judged(scores, answers, counts),
    ...directionOf(values),
    way,
    temperature: 1 / factor,
  };
  if (!learned.weight.every(Number.isFinite) || !learned.bias.every(Number.isFinite)) {
    throw new Error("the classifier overflows float32: the features are too small or too large");
  }
  return learned;
}

export function classify(learned, features) {
  const { classes, weight, bias, towards, threshold, maps } = learned;
  const length = weight.length / classes.length;
  const given = maps ? total(maps.widths) : length;
  if (features?.length !== given) {
    throw new Error(
      `${features?.length ?? "no"} features; the classifier was learned from ${given}`,
    );
  }
  if (!areFinite(features)) throw new Error("the features are not finite");
  const all = Float64Array.from(features);
  const row = maps?.factors ? multiplied(all, maps.factors) : all.subarray(0, length);
  const scores = Array.from(bias, (one, c) => {
    return one + dot(weight.subarray(c * length, (c + 1) * length), row);
  });
  const parts = softmax(scores, scores);
  const found = parts.map((part, c) => ({ name: classes[c], percent: 100 * part }));
  return {
    classes: found.sort((a, b) => b.percent - a.percent),
    noneOfThese: threshold === null ? null : cosine(towards, row) < threshold,
  };
}

// --- What is refused. ---

function checkedClasses(classes) {
  if (!Array.isArray(classes)) throw new Error("classes is not an array: give a list of names");
  for (const name of classes) {
    if (typeof name !== "string" || !name) {
      throw new Error(`${String(name) || '""'} is not the name of a class: give a text`);
    }
    if (/[\x00-\x1f\x7f]/.test(name)) {
      throw new Error(`the name of class ${JSON.stringify(name)} has a control character`);
    }
    if (/\p{Surrogate}/u.test(name)) {
      throw new Error(`the name of class ${JSON.stringify(name)} is not Unicode text`);
    }
  }
  if (classes.length < 2) {
    throw new Error(
      `there ${classes.length ? "is one class" : "are no classes"}; it takes two to tell apart: ` +
        "add one of other things",
    );
  }
  if (classes.length > MOST_CLASSES) {
    throw new Error(`${classes.length} classes; a packed file has at most ${MOST_CLASSES}`);
  }
  const seen = new Set();
  for (const name of classes) {
    if (seen.has(name)) throw new Error(`two classes are named ${JSON.stringify(name)}`);
    seen.add(name);
  }
  return [...classes];
}

function checkedFeatures(features, labels, names) {
  if (!features?.length) throw new Error("there are no images to learn from");
  if (!Array.isArray(features)) {
    throw new Error("features is not an array: give a list of each image's features");
  }
  if (!labels) throw new Error("there are no labels");
  if (labels.length !== features.length) {
    throw new Error(`${labels.length} labels for ${features.length} images`);
  }
  if (features.length * names.length > MOST_SCORES) {
    throw new Error(
      `${features.length} images of ${names.length} classes are too many for JavaScript: the two ` +
        `multiplied must not be more than ${MOST_SCORES}; burn_engine.learn in Python takes more`,
    );
  }
  const columns = features[0]?.length;
  if (!columns) throw new Error("image 0 has no features");
  const values = matrix(features.length, columns);
  // Unlike forEach, entries also gives the holes of an array.
  for (const [i, row] of features.entries()) {
    if (row?.length !== columns) {
      throw new Error(`image ${i} has ${row?.length ?? "no"} features, the first one ${columns}`);
    }
    if (!areFinite(row)) throw new Error(`the features of image ${i} are not finite`);
    values.data.set(row, i * columns);
  }
  const answers = Array.from(labels); // which may not be iterable
  for (const label of answers) {
    if (!Number.isInteger(label) || label < 0 || label >= names.length) {
      throw new Error(`label ${label} is none of 0 to ${names.length - 1}, the classes' numbers`);
    }
  }
  countsOf(answers, names.length).forEach((count, c) => {
    if (!count) throw new Error(`class ${JSON.stringify(names[c])} has no image`);
  });
  return values;
}

function checkWidths(widths, columns) {
  const isWidth = (one) => Number.isInteger(one) && one > 0;
  if (!Array.isArray(widths) || !widths.length || !widths.every(isWidth)) {
    throw new Error("widths is no list of each map's number of features, which widened gives");
  }
  if (total(widths) !== columns) {
    throw new Error(`the images have ${columns} features, the maps ${total(widths)}`);
  }
}

function checkValues({ columns, data }) {
  if (data.every((one, at) => one === data[at % columns])) {
    throw new Error("all images have the same features, so nothing tells them apart");
  }
  const largest = data.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
  if (largest < SMALLEST || largest > LARGEST) {
    throw new Error(
      `the largest feature is ${largest.toPrecision(3)}; scale them to ${SMALLEST} to ${LARGEST}`,
    );
  }
}

// --- Matrices: numbers row by row. ---

function matrix(rows, columns) {
  return { rows, columns, data: new Float64Array(rows * columns) };
}

function rowOf({ columns, data }, i) {
  return data.subarray(i * columns, (i + 1) * columns);
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; ++i) sum += a[i] * b[i];
  return sum;
}

// a · bᵀ, four rows of b at once, because this takes most of the time.
function timesRows(a, b) {
  const product = matrix(a.rows, b.rows);
  const { columns: n, data: left } = a;
  const { data: right } = b;
  for (let i = 0; i < a.rows; ++i) {
    let j = 0;
    for (; j + 4 <= b.rows; j += 4) {
      let [s0, s1, s2, s3] = [0, 0, 0, 0];
      for (let k = 0, at = i * n, to = j * n; k < n; ++k, ++at, ++to) {
        const x = left[at];
        s0 += x * right[to];
        s1 += x * right[to + n];
        s2 += x * right[to + 2 * n];
        s3 += x * right[to + 3 * n];
      }
      product.data.set([s0, s1, s2, s3], i * b.rows + j);
    }
    const row = rowOf(a, i);
    for (; j < b.rows; ++j) product.data[i * b.rows + j] = dot(row, rowOf(b, j));
  }
  return product;
}

// a · aᵀ, of which one half is the other's mirror image.
function gramOf(a) {
  const product = matrix(a.rows, a.rows);
  for (let i = 0; i < a.rows; ++i) {
    const before = { ...a, rows: i + 1, data: a.data.subarray(0, (i + 1) * a.columns) };
    const row = { ...a, rows: 1, data: rowOf(a, i) };
    const { data } = timesRows(row, before);
    product.data.set(data, i * a.rows);
    for (let j = 0; j < i; ++j) product.data[j * a.rows + i] = data[j];
  }
  return product;
}

// a · b, of few rows in a.
function times(a, b) {
  const product = matrix(a.rows, b.columns);
  for (let i = 0; i < a.rows; ++i) {
    const to = rowOf(product, i);
    for (let k = 0; k < b.rows; ++k) {
      const weight = a.data[i * a.columns + k];
      const row = rowOf(b, k);
      for (let j = 0; j < row.length; ++j) to[j] += weight * row[j];
    }
  }
  return product;
}

function scaledColumns(a, factors) {
  return rowsFrom(a.rows, a.columns, (i) => rowOf(a, i).map((one, j) => one * factors[j]));
}

// Replaces a symmetric matrix of positive eigenvalues by its inverse.
function invert(a) {
  for (let k = 0; k < a.rows; ++k) {
    const row = rowOf(a, k);
    const pivot = 1 / row[k];
    row[k] = 1;
    for (let j = 0; j < row.length; ++j) row[j] *= pivot;
    for (let i = 0; i < a.rows; ++i) {
      if (i === k) continue;
      const other = rowOf(a, i);
      const weight = other[k];
      other[k] = 0;
      for (let j = 0; j < row.length; ++j) other[j] -= weight * row[j];
    }
  }
}

// row: returns the numbers of a row, of which those that are left out are 0.
function rowsFrom(rows, columns, row) {
  const made = matrix(rows, columns);
  for (let i = 0; i < rows; ++i) made.data.set(row(i), i * columns);
  return made;
}

function transposed({ rows, columns, data }) {
  const turned = matrix(columns, rows);
  for (let i = 0; i < rows; ++i) {
    for (let j = 0; j < columns; ++j) turned.data[j * rows + i] = data[i * columns + j];
  }
  return turned;
}

function timesVector(a, vector) {
  const product = new Float64Array(a.rows);
  for (let i = 0; i < a.rows; ++i) product[i] = dot(rowOf(a, i), vector);
  return product;
}

// Math.max takes no more arguments than fit on the stack.
function largestOf(numbers) {
  let largest = -Infinity;
  for (let i = 0; i < numbers.length; ++i) largest = Math.max(largest, numbers[i]);
  return largest;
}

function normOf(row) {
  return Math.sqrt(dot(row, row));
}

function total(numbers) {
  return numbers.reduce((a, b) => a + b, 0);
}

// As float32, in which the files that are learned from several maps multiply.
function multiplied(row, factors) {
  return row.map((one, j) => Math.fround(one * factors[j]));
}

// Of each row, the length of each map's part.
function lengthsOf(a, widths) {
  const ends = widths.map((_, map) => total(widths.slice(0, map + 1)));
  return Array.from({ length: a.rows }, (_, i) => {
    return ends.map((end, map) => normOf(rowOf(a, i).subarray(end - widths[map], end)));
  });
}

function meanOfRows(a, wanted = () => true) {
  const mean = new Float64Array(a.columns);
  let count = 0;
  for (let i = 0; i < a.rows; ++i) {
    if (!wanted(i)) continue;
    ++count;
    rowOf(a, i).forEach((one, j) => (mean[j] += one));
  }
  return mean.map((sum) => sum / count);
}

function lessRow(a, subtracted) {
  const { rows, columns } = a;
  return { rows, columns, data: a.data.map((one, at) => one - subtracted[at % columns]) };
}

function countsOf(labels, classes) {
  const counts = new Array(classes).fill(0);
  for (const label of labels) ++counts[label];
  return counts;
}

function meansOfClasses(a, labels, classes) {
  const means = matrix(classes, a.columns);
  for (let c = 0; c < classes; ++c) {
    means.data.set(meanOfRows(a, (i) => labels[i] === c), c * a.columns);
  }
  return means;
}

function cosine(a, b) {
  return dot(a, b) / Math.max(normOf(a) * normOf(b), TINY);
}

// --- The kinds, and what they say of an image that is left out. ---

// Images in as few coordinates as lose nothing, relative to their mean: of these, of the features
// 0, and what maps coordinates to features. The coordinates are uncorrelated.
function rowsOf(features, labels, counts, equalLength) {
  const { rows: number, columns } = features;
  let lengths = new Float64Array(number).fill(1);
  if (equalLength) {
    const own = lengths.map((_, i) => normOf(rowOf(features, i)));
    const mean = own.reduce((a, b) => a + b) / number;
    lengths = own.map((one) => (one > 0 ? one : mean) / mean);
  }
  const rows = rowsFrom(number, columns, (i) => rowOf(features, i).map((one) => one / lengths[i]));
  const mean = meanOfRows(rows);
  for (let i = 0; i < number; ++i) {
    const row = rowOf(rows, i);
    for (let j = 0; j < columns; ++j) row[j] -= mean[j];
  }
  const found = number <= columns ? coordinatesOfFew(rows, mean) : coordinatesOfMany(rows, mean);
  return { ...found, mean, lengths, labels, counts, unit: dot(rows.data, rows.data) / columns };
}

// Of no more images than features. They are combinations of the images.
function coordinatesOfFew(rows, mean) {
  const { values, vectors } = principal(gramOf(rows));
  const roots = values.map(Math.sqrt);
  const points = matrix(rows.rows, values.length);
  for (let k = 0; k < values.length; ++k) {
    const vector = rowOf(vectors, k);
    for (let i = 0; i < rows.rows; ++i) points.data[i * values.length + k] = roots[k] * vector[i];
  }
  const along = timesVector(rows, mean);
  const zero = timesVector(vectors, along).map((one, k) => -one / roots[k]);
  const toFeatures = (coordinates) => {
    const divided = scaledColumns(coordinates, roots.map((one) => 1 / one));
    return times(times(divided, vectors), rows);
  };
  return { points, zero, toFeatures };
}

function coordinatesOfMany(rows, mean) {
  const { vectors } = principal(gramOf(transposed(rows)));
  const zero = timesVector(vectors, mean).map((one) => -one);
  const toFeatures = (coordinates) => times(coordinates, vectors);
  return { points: timesRows(rows, vectors), zero, toFeatures };
}

// The eigenvalues of a symmetric matrix that are not 0, and their vectors as rows.
function principal(gram) {
  const { values, vectors } = eigen(gram.data, gram.rows);
  const largest = values.reduce((a, b) => Math.max(a, b));
  const kept = [...values.keys()].filter((k) => values[k] > 1e-10 * largest + TINY);
  const size = gram.rows;
  const chosen = rowsFrom(kept.length, size, (to) => {
    return vectors.subarray(kept[to] * size, (kept[to] + 1) * size);
  });
  return { values: Float64Array.from(kept, (k) => values[k]), vectors: chosen };
}

// Linear discriminant analysis with a covariance that is shrunken towards a multiple of 1. All
// images have a covariance without correlations, D with what is added, and within the classes it
// lacks what is between their means μ, of n images each: A = D - μᵀ n μ. So for any x
//     μ A⁻¹ x = H μ D⁻¹ x  with  H = (1 - μ D⁻¹ μᵀ n)⁻¹,
//     x A⁻¹ y = x D⁻¹ y + (μ D⁻¹ x)ᵀ n (μ A⁻¹ y).
class Lda {
  constructor(rows) {
    const { points, labels, counts } = rows;
    this.rows = rows;
    this.prior = counts.map((count) => Math.log(count / labels.length));
    this.values = timesVectorOfSquares(points);
    this.means = meansOfClasses(points, labels, counts.length);
  }

  // μ D⁻¹, μ D⁻¹ μᵀ, H and μ A⁻¹ μᵀ.
  solved(share) {
    const { counts, unit } = this.rows;
    const { means } = this;
    const inverse = this.values.map((one) => 1 / (one + share * unit));
    const scaledMeans = scaledColumns(means, inverse);
    const between = timesRows(scaledMeans, means);
    const size = counts.length;
    const roots = counts.map(Math.sqrt);
    const left = rowsFrom(size, size, (c) => {
      return rowOf(between, c).map((one, d) => (c === d ? 1 : 0) - roots[c] * one * roots[d]);
    });
    invert(left);
    const solve = rowsFrom(size, size, (c) => {
      return rowOf(left, c).map((one, d) => (one * roots[d]) / roots[c]);
    });
    return { inverse, scaledMeans, between, solve, products: timesRows(solve, between) };
  }

  leftOut(share) {
    const { points, zero, labels, counts, lengths } = this.rows;
    const { means } = this;
    const { inverse, scaledMeans, between, solve, products } = this.solved(share);
    const number = points.rows;
    const own = timesRows(points, scaledMeans);
    const scores = timesRows(own, solve);
    const ownOfZero = timesVector(scaledMeans, zero);
    const scoresOfZero = timesVector(solve, ownOfZero);
    const along = new Float64Array(counts.length);
    const constant = new Float64Array(counts.length);
    return rowsFrom(number, counts.length, (i) => {
      const label = labels[i];
      const point = rowOf(points, i);
      const mean = rowOf(means, label);
      // With u = x - μ_label: u A⁻¹ u, u A⁻¹ x and u A⁻¹ 0, of the features 0.
      let [leverage, withPoint, withZero] = [0, 0, 0];
      for (let j = 0; j < point.length; ++j) {
        const u = point[j] - mean[j];
        const scaled = u * inverse[j];
        leverage += scaled * u;
        withPoint += scaled * point[j];
        withZero += scaled * zero[j];
      }
      const ownHere = rowOf(own, i);
      const here = rowOf(scores, i);
      const ownOfMean = rowOf(between, label);
      const ofMean = rowOf(products, label);
      for (let c = 0; c < along.length; ++c) {
        along[c] = here[c] - ofMean[c];
        const weight = counts[c] * along[c];
        leverage += weight * (ownHere[c] - ownOfMean[c]);
        withPoint += weight * ownHere[c];
        withZero += weight * ownOfZero[c];
        constant[c] = products.data[c * along.length + c];
      }
      // Of the means without the image: uᵀ A⁻¹ μ and μᵀ A⁻¹ μ, with the whole A.
      const others = Math.max(counts[label] - 1, 1);
      const k = (others + 1) / others / (1 - ((others + 1) / others) * leverage);
      constant[label] += (leverage / others - 2 * along[label]) / others;
      along[label] -= leverage / others;
      for (let c = 0; c < along.length; ++c) constant[c] += k * along[c] ** 2;
      const without = (found, withIt) =>
        found.map((one, c) => {
          const product = one - (c === label ? withIt / others : 0);
          return product + k * withIt * along[c] - constant[c] / 2;
        });
      const there = without(scoresOfZero, withZero);
      return stretched(without(here, withPoint), there, lengths[i]).map((one) => {
        return (number - 1) * one;
      });
    });
  }

  classifier(share) {
    const { labels, mean, toFeatures } = this.rows;
    const { scaledMeans, solve, products } = this.solved(share);
    const weight = toFeatures(times(solve, scaledMeans));
    weight.data.forEach((one, at) => (weight.data[at] = labels.length * one));
    const bias = timesVector(weight, mean).map((one, c) => {
      return -0.5 * labels.length * products.data[c * products.columns + c] - one;
    });
    return { weight, bias };
  }
}

// Ridge regression on the labels, 1 for an image's class and 0 for the others.
class Ridge {
  constructor(rows) {
    const { points, labels, counts } = rows;
    this.rows = rows;
    this.prior = counts.map(() => 0);
    this.mean = counts.map((count) => count / labels.length);
    this.values = timesVectorOfSquares(points);
    // Of each class: the points' sum with the labels, less their mean, as weights.
    this.cross = matrix(counts.length, points.columns);
    labels.forEach((label, i) => {
      const point = rowOf(points, i);
      this.mean.forEach((mean, c) => {
        const to = rowOf(this.cross, c);
        const weight = (c === label ? 1 : 0) - mean;
        for (let j = 0; j < point.length; ++j) to[j] += weight * point[j];
      });
    });
  }

  leftOut(share) {
    const { points, labels, counts, lengths, zero, unit } = this.rows;
    const number = points.rows;
    const inverse = this.values.map((one) => 1 / (one + share * unit));
    const cross = scaledColumns(this.cross, inverse);
    const atZero = timesVector(cross, zero).map((one, c) => one + this.mean[c]);
    return rowsFrom(number, counts.length, (i) => {
      const label = labels[i];
      const point = rowOf(points, i);
      const scaled = point.map((one, j) => one * inverse[j]);
      const leverage = 1 / number + dot(scaled, point);
      const influence = 1 / number + dot(scaled, zero);
      const fitted = timesVector(cross, point);
      const wanted = counts.map((_, c) => (c === label ? 1 : 0));
      const residual = wanted.map((one, c) => (one - this.mean[c] - fitted[c]) / (1 - leverage));
      const here = wanted.map((one, c) => one - residual[c]);
      const there = wanted.map((_, c) => atZero[c] - influence * residual[c]);
      return stretched(here, there, lengths[i]);
    });
  }

  classifier(share) {
    const { unit, mean, toFeatures } = this.rows;
    const inverse = this.values.map((one) => 1 / (one + share * unit));
    const weight = toFeatures(scaledColumns(this.cross, inverse));
    const bias = timesVector(weight, mean).map((one, c) => this.mean[c] - one);
    return { weight, bias };
  }
}

function timesVectorOfSquares(points) {
  const sums = new Float64Array(points.columns);
  points.data.forEach((one, at) => (sums[at % points.columns] += one * one));
  return sums;
}

// Directions of the class means, for classes with a single image, where no spread is known.
class Means {
  constructor(features, labels, counts) {
    this.prior = counts.map(() => 0);
    this.features = features;
    this.labels = labels;
    this.counts = counts;
    const { rows: number, columns, data } = features;
    this.length = labels.reduce((sum, _, i) => sum + normOf(rowOf(features, i)), 0) / number;
    const mean = data.reduce((a, b) => a + b) / data.length;
    const variance = data.reduce((sum, one) => sum + (one - mean) ** 2, 0) / data.length;
    const most = MOST * Math.sqrt(variance);
    this.rows = matrix(number, columns);
    for (let i = 0; i < number; ++i) {
      const cut = rowOf(features, i).map((one) => Math.min(Math.max(one, -most), most));
      const norm = Math.max(normOf(cut), TINY);
      this.rows.data.set(cut.map((one) => one / norm), i * columns);
    }
    this.means = meansOfClasses(this.rows, labels, counts.length);
  }

  from(means) {
    const middle = meanOfRows(means);
    const away = lessRow(means, middle);
    const weight = matrix(means.rows, means.columns);
    const bias = new Float64Array(means.rows);
    for (let c = 0; c < means.rows; ++c) {
      const row = rowOf(away, c);
      const norm = Math.max(normOf(row), TINY);
      weight.data.set(row.map((one) => one / norm / this.length), c * means.columns);
      bias[c] = -dot(row, middle) / norm;
    }
    return { weight, bias };
  }

  leftOut() {
    return rowsFrom(this.labels.length, this.counts.length, (i) => {
      const label = this.labels[i];
      const count = this.counts[label];
      if (count < 2) return [];
      const means = { ...this.means, data: this.means.data.slice() };
      const own = rowOf(means, label);
      const row = rowOf(this.rows, i);
      for (let j = 0; j < own.length; ++j) own[j] += (own[j] - row[j]) / (count - 1);
      const { weight, bias } = this.from(means);
      const scores = timesVector(weight, rowOf(this.features, i));
      return Array.from(scores, (one, c) => one + bias[c]);
    });
  }

  classifier() {
    return this.from(this.means);
  }
}

// The scores of an image, from those of its row and of the features 0.
function stretched(scores, zero, length) {
  return scores.map((one, c) => zero[c] + length * (one - zero[c]));
}

// --- The choice. ---

function chosen(features, labels, counts, onProgress) {
  if (counts.includes(1)) {
    const model = new Means(features, labels, counts);
    const scores = model.leftOut();
    scores.data.forEach((one, at) => (scores.data[at] = CERTAINTY * one));
    const way = { kind: "means", equalLength: true, share: 0 };
    return { way, model, factor: CERTAINTY, scores };
  }
  let best = null;
  const progress = progressOf(features, counts.length, onProgress);
  for (const equalLength of [false, true]) {
    const rows = rowsOf(features, labels, counts, equalLength);
    progress.prepared();
    const models = { lda: new Lda(rows), ridge: new Ridge(rows) };
    for (const [kind, model] of Object.entries(models)) {
      for (const share of SHARES) {
        const scores = model.leftOut(share);
        const { factor, loss } = calibrate(scores, labels, model.prior);
        progress.tried();
        if (best && loss >= best.loss) continue;
        best = { loss, way: { kind, equalLength, share }, model, factor, scores };
      }
    }
  }
  const { factor, model, scores } = best;
  for (let i = 0; i < labels.length; ++i) {
    const row = rowOf(scores, i);
    calibrated(row, factor, model.prior, row);
  }
  return best;
}

// What is to be done, in multiplications. Eigenvalues take some times as long as a trial of one
// amount of shrinkage, as measured for 512 features.
function workOf(rows, columns, classes) {
  const rank = Math.min(rows, columns);
  const trial = rows * rank * classes;
  const preparation = (rank * rank * (rows + 10 * rank)) / 10;
  return { trial, preparation, whole: 2 * preparation + 4 * SHARES.length * trial };
}

function progressOf({ rows, columns }, classes, tell) {
  const { trial, preparation, whole } = workOf(rows, columns, classes);
  let done = 0;
  const add = (part) => tell(Math.min((done += part) / whole, 1));
  return { prepared: () => add(preparation), tried: () => add(trial) };
}

function calibrated(row, factor, prior, result) {
  for (let c = 0; c < row.length; ++c) result[c] = factor * row[c] + prior[c];
  return result;
}

// The factor for which softmax(factor · scores + prior) has the least cross-entropy, and that,
// where a label counts as 1 - 1 / (n + 2) of an answer and the other classes share the rest.
function calibrate({ rows: number, columns: classes, data }, labels, prior) {
  const scores = matrix(number, classes);
  scores.data.set(data);
  for (let i = 0; i < number; ++i) {
    const row = rowOf(scores, i);
    const highest = largestOf(row);
    for (let c = 0; c < classes; ++c) row[c] -= highest;
  }
  const other = 1 / (number + 2) / (classes - 1);
  const answer = new Float64Array(classes);
  const answerOf = (label) => {
    answer.fill(other);
    answer[label] = 1 - 1 / (number + 2);
    return answer;
  };
  const probabilities = new Float64Array(classes);
  const probabilitiesOf = (row, factor) =>
    softmax(calibrated(row, factor, prior, probabilities), probabilities);
  // Sum over the images of a function of one's scores and label.
  const sumOf = (part) => {
    let sum = 0;
    for (let i = 0; i < number; ++i) sum += part(rowOf(scores, i), labels[i]);
    return sum;
  };
  const target = sumOf((row, label) => dot(row, answerOf(label)));
  const slope = (logarithm) => {
    const factor = Math.exp(logarithm);
    return sumOf((row) => dot(row, probabilitiesOf(row, factor))) - target;
  };
  const mean = scores.data.reduce((a, b) => a + b) / scores.data.length;
  const variance =
    scores.data.reduce((sum, one) => sum + (one - mean) ** 2, 0) / scores.data.length;
  const spread = Math.max(Math.sqrt(variance), TINY);
  let low = Math.log(1e-3 / spread);
  let high = Math.log(1e4 / spread);
  if (slope(low) >= 0) high = low;
  while (high - low > 1e-4) {
    const middle = (low + high) / 2;
    if (slope(middle) < 0) low = middle;
    else high = middle;
  }
  const factor = Math.exp(high);
  const loss = sumOf((row, label) => {
    probabilitiesOf(row, factor);
    answerOf(label);
    return probabilities.reduce((sum, one, c) => {
      return sum - answer[c] * Math.log(Math.max(one, TINY));
    }, 0);
  });
  return { factor, loss: loss / number };
}

function softmax(scores, result) {
  const highest = largestOf(scores);
  let sum = 0;
  for (let c = 0; c < scores.length; ++c) sum += result[c] = Math.exp(scores[c] - highest);
  for (let c = 0; c < scores.length; ++c) result[c] /= sum;
  return result;
}

// Accuracy, its error, the largest class's share, and the confusions.
function judged(scores, labels, counts) {
  const confusion = counts.map(() => new Array(counts.length).fill(0));
  labels.forEach((label, i) => {
    const row = rowOf(scores, i);
    if (counts[label] > 1) ++confusion[label][row.indexOf(largestOf(row))];
  });
  const numbers = confusion.map((row) => row.reduce((a, b) => a + b));
  const number = numbers.reduce((a, b) => a + b);
  if (!number) return { accuracy: null, error: null, largest: null, confusion };
  const right = confusion.reduce((sum, row, c) => sum + row[c], 0);
  const share = (right + 1) / (number + 2); // so that the error of 0 or 100 % is not 0
  return {
    accuracy: right / number,
    error: Math.sqrt((share * (1 - share)) / number),
    largest: largestOf(numbers) / number,
    confusion,
  };
}

// The images' direction, and the threshold of the cosine with it.
function directionOf(features) {
  const total = new Float64Array(features.columns);
  const rows = [];
  for (let i = 0; i < features.rows; ++i) {
    const row = rowOf(features, i);
    const norm = Math.max(normOf(row), TINY);
    rows.push(row.map((one) => one / norm));
    rows[i].forEach((one, j) => (total[j] += one));
  }
  const most = Math.max(total.reduce((a, b) => Math.max(a, Math.abs(b)), 0), TINY);
  const towards = Int8Array.from(total, (one) => roundHalfEven((127 * one) / most));
  if (rows.length < LEAST_FOR_THRESHOLD) return { towards, threshold: null };
  const cosines = rows.map((row) => cosine(total.map((one, j) => one - row[j]), row));
  cosines.sort((a, b) => a - b);
  return { towards, threshold: cosines[Math.floor(KNOWN_REFUSED * rows.length)] };
}
