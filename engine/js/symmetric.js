// Eigenvalues and eigenvectors of a symmetric matrix, as numpy.linalg.eigh gives them, unsorted.

const PRECISION = 2 ** -52;
const MOST_STEPS = 60; // of one eigenvalue; two or three are usual
// Square of the length of what is nothing beside numbers of up to 1. What rounding leaves of 0 must
// not be divided by its own length, which may be too small to be a number.
const NEGLIGIBLE = 1e-36;

// matrix: Float64Array of size × size numbers, which is overwritten.
// Returns the values, and the vectors of length 1 as the rows of a matrix.
export function eigen(matrix, size) {
  const most = matrix.reduce((sum, one) => Math.max(sum, Math.abs(one)), 0) || 1;
  for (let i = 0; i < matrix.length; ++i) matrix[i] /= most;
  const { values, vectors } = eigenOfOnes(matrix, size);
  return { values: values.map((one) => most * one), vectors };
}

// The same for numbers of which the largest is 1 or -1.
function eigenOfOnes(matrix, size) {
  const { diagonal, beside, vectors } = tridiagonal(matrix, size);
  let largest = 0;
  for (let i = 0; i < size; ++i) {
    largest = Math.max(largest, Math.abs(diagonal[i]) + Math.abs(beside[i]));
  }
  // What is beside the diagonal is rotated away from the last row to the first.
  let last = size - 1;
  for (let steps = 0; last > 0; ) {
    if (Math.abs(beside[last - 1]) <= PRECISION * largest) {
      --last;
      steps = 0;
      continue;
    }
    if (++steps > MOST_STEPS) throw new Error("the eigenvalues do not converge");
    let first = last - 1;
    while (first > 0 && Math.abs(beside[first - 1]) > PRECISION * largest) --first;
    step(diagonal, beside, vectors, size, first, last);
  }
  return { values: diagonal, vectors };
}

// Reflects a matrix into one with three diagonals (Householder), whose eigenvalues are the same. Of
// the matrix only the lower half, with the diagonal, is read and kept up to date.
function tridiagonal(matrix, size) {
  const vectors = new Float64Array(size * size);
  for (let i = 0; i < size; ++i) vectors[i * size + i] = 1;
  const mirrors = [];
  const product = new Float64Array(size);
  for (let k = 0; k + 2 < size; ++k) {
    const from = k + 1;
    const mirror = new Float64Array(size); // zero before `from`
    let squares = 0;
    for (let i = from; i < size; ++i) {
      mirror[i] = matrix[i * size + k];
      if (i > from) squares += mirror[i] ** 2;
    }
    mirrors.push(null);
    if (squares < NEGLIGIBLE) continue;
    const length = Math.sqrt(squares + mirror[from] ** 2);
    const left = mirror[from] < 0 ? length : -length;
    mirror[from] -= left;
    const scale = Math.sqrt(2 / (squares + mirror[from] ** 2));
    for (let i = from; i < size; ++i) mirror[i] *= scale;
    mirrors[k] = mirror; // the reflection is 1 - m·mᵀ
    timesLower(matrix, size, from, mirror, product);
    let along = 0;
    for (let i = from; i < size; ++i) along += mirror[i] * product[i];
    for (let i = from; i < size; ++i) product[i] -= 0.5 * along * mirror[i];
    for (let i = from; i < size; ++i) {
      const a = mirror[i];
      const b = product[i];
      for (let j = from, at = i * size + from; j <= i; ++j, ++at) {
        matrix[at] -= a * product[j] + b * mirror[j];
      }
    }
    matrix[from * size + k] = left; // of its column
  }
  // The rows of `vectors` become the columns of the product of all reflections.
  for (let k = mirrors.length - 1; k >= 0; --k) {
    const mirror = mirrors[k];
    if (!mirror) continue;
    for (let row = k + 1; row < size; ++row) {
      const along = partialDot(vectors, row * size, mirror, k + 1, size);
      for (let j = k + 1, at = row * size + k + 1; j < size; ++j, ++at) {
        vectors[at] -= along * mirror[j];
      }
    }
  }
  const diagonal = new Float64Array(size);
  const beside = new Float64Array(size);
  for (let i = 0; i < size; ++i) {
    diagonal[i] = matrix[i * size + i];
    if (i + 1 < size) beside[i] = matrix[(i + 1) * size + i];
  }
  return { diagonal, beside, vectors };
}

// product = matrix · vector for rows and columns from `from` on, of the lower half of a symmetric
// matrix.
function timesLower(matrix, size, from, vector, product) {
  for (let i = from; i < size; ++i) {
    const own = vector[i];
    let [even, odd] = [0, 0]; // a single sum would wait for itself
    let [j, at] = [from, i * size + from];
    for (; j + 2 <= i; j += 2, at += 2) {
      const one = matrix[at];
      const two = matrix[at + 1];
      even += one * vector[j];
      odd += two * vector[j + 1];
      product[j] += one * own;
      product[j + 1] += two * own;
    }
    if (j < i) {
      even += matrix[at] * vector[j];
      product[j] += matrix[at] * own;
    }
    product[i] = even + odd + matrix[i * size + i] * own;
  }
}

// Σ row[start + j] · vector[j] for j from `from` to `end`, in four sums, none of which waits long.
function partialDot(row, start, vector, from, end) {
  let [a, b, c, d] = [0, 0, 0, 0];
  let [j, at] = [from, start + from];
  for (; j + 4 <= end; j += 4, at += 4) {
    a += row[at] * vector[j];
    b += row[at + 1] * vector[j + 1];
    c += row[at + 2] * vector[j + 2];
    d += row[at + 3] * vector[j + 3];
  }
  for (; j < end; ++j, ++at) a += row[at] * vector[j];
  return a + b + c + d;
}

// One step of the QR algorithm with Wilkinson's shift on rows first … last of three diagonals.
function step(diagonal, beside, vectors, size, first, last) {
  const corner = beside[last - 1];
  const half = (diagonal[last - 1] - diagonal[last]) / 2;
  const root = Math.hypot(half, corner);
  const shift = diagonal[last] - corner ** 2 / (half + (half < 0 ? -root : root));
  let x = diagonal[first] - shift;
  let z = beside[first];
  for (let k = first; k < last; ++k) {
    const length = Math.hypot(x, z);
    const cos = length > 0 ? x / length : 1;
    const sin = length > 0 ? z / length : 0;
    if (k > first) beside[k - 1] = length;
    const a = diagonal[k];
    const b = beside[k];
    const c = diagonal[k + 1];
    diagonal[k] = cos * cos * a + 2 * cos * sin * b + sin * sin * c;
    diagonal[k + 1] = sin * sin * a - 2 * cos * sin * b + cos * cos * c;
    beside[k] = cos * sin * (c - a) + (cos * cos - sin * sin) * b;
    if (k + 1 < last) {
      x = beside[k];
      z = sin * beside[k + 1];
      beside[k + 1] *= cos;
    }
    for (let i = k * size, j = i + size; j < (k + 2) * size; ++i, ++j) {
      const here = vectors[i];
      const below = vectors[j];
      vectors[i] = cos * here + sin * below;
      vectors[j] = cos * below - sin * here;
    }
  }
}
