/** How a classifier was learned. */
export interface Way {
  /**
   * "lda", linear discriminant analysis; "ridge", ridge regression; or "means", directions of the
   * class means, where a class has a single image.
   */
  kind: "lda" | "ridge" | "means";
  /** Whether the features of the images were scaled to one length before. */
  equalLength: boolean;
  /**
   * The shrinkage: what was added to the covariance's diagonal, in units of the mean variance of a
   * feature over all images; 0 for "means".
   */
  share: number;
}

/** A linear classifier, and what is known of how good it is. */
export interface Learned {
  classes: string[];
  /**
   * Classes × features, class by class: the scores are weight · features + bias, and their softmax
   * the probabilities.
   */
  weight: Float32Array;
  bias: Float32Array;
  /** Number of images of each class. */
  counts: number[];
  /**
   * Share of the images that are classified right when the classifier is learned from all others,
   * from 0 to 1. Images that are the only one of their class do not count; null if there are no
   * others.
   */
  accuracy: number | null;
  /** Standard error of the accuracy. */
  error: number | null;
  /** What the accuracy would be for always answering the largest class. */
  largest: number | null;
  /** Numbers of images: rows are the true classes, columns the answers. */
  confusion: number[][];
  /** The direction of the images' features, of any length. */
  towards: Int8Array;
  /**
   * Cosine with `towards` below which an image is taken to be none of these: it refuses at most 5 %
   * of the images. null if there are fewer than 10.
   */
  threshold: number | null;
  way: Way;
  /** What the scores were divided by to calibrate the probabilities. */
  temperature: number;
  /** Which of several maps it was learned from; null without `widths`. */
  maps: Maps | null;
}

/** Which of several maps a classifier was learned from. */
export interface Maps {
  /** Number of features of each map, the last map's first. */
  widths: number[];
  /**
   * What each feature was multiplied by, so that those of each map have the mean length of the last
   * one's; null if the last map alone was learned from, whose features are the first ones.
   */
  factors: Float32Array | null;
  /**
   * The accuracy when the last map alone is learned from; and when all maps are, unless a class has
   * fewer than 10 images.
   */
  accuracies: { last: number | null; several?: number | null };
}

export interface LearnOptions {
  /**
   * Numbers of the features of each map, as `widened` returns them: then it is learned from all maps
   * if each class has 10 images and the accuracy is higher by more than half of its standard error,
   * and otherwise from the last map alone.
   */
  widths?: number[] | null;
  /** Is told how much of the work is done, from 0 to 1. */
  onProgress?: (share: number) => void;
}

/**
 * Learns to classify images by their features, from one to some hundreds of each class, as
 * `burn_engine.learn` of Python does, with `widths` as the command `burn-engine learn`, with the same
 * result up to rounding.
 *
 * A page stands still meanwhile, so for hundreds of images a page calls it in a worker.
 *
 * @param features of each image, all of one length and finite, as `Model.features` returns them.
 * @param labels each image's class, a number from 0 to classes - 1.
 * @param classes names of the classes, at least two; each has at least one image.
 * @throws Error with one sentence if this is not so, all images have the same features, or the
 *   number of images multiplied by that of classes is more than 10,000,000; or if the widths are not
 *   positive integers whose sum is the number of features.
 */
export function learn(
  features: ArrayLike<number>[],
  labels: ArrayLike<number>,
  classes: string[],
  options?: LearnOptions,
): Learned;

/**
 * Classifies an image by its features.
 *
 * @param features of the image: those that `learn` was given, so with `widths` all of them.
 * @returns the classes, most likely first, with their probabilities in percent; and whether the
 *   image is unlike all that the classifier was learned from, null if that is not known.
 * @throws Error if there are not as many features as `learn` was given, or one is not finite.
 */
export function classify(
  learned: Learned,
  features: ArrayLike<number>,
): { classes: { name: string; percent: number }[]; noneOfThese: boolean | null };

/**
 * Returns the bytes of a packed file with a learned classifier, for Python, C and JavaScript. Layers,
 * format, image and origin are the base's; the origin also says how it was learned. If it was learned
 * from several maps, the features are their means, and the format is 5.
 *
 * @param base the bytes of the packed file whose features it was learned from; with `widths`, of the
 *   file that `widened` was given. A classifier that it has already is replaced.
 * @throws Error if the base is no packed file, or has other maps or another number of features.
 */
export function withClassifier(base: ArrayBuffer | Uint8Array, learned: Learned): Uint8Array;

/**
 * Returns a packed file whose features are followed by the means of earlier maps, those of the last
 * four blocks, where a block is a 3 × 3 convolution with the 1 × 1 convolutions after it. It has no
 * classifier. `load` and `Model.features` give what `learn` takes with `widths`.
 *
 * @param base the bytes of a packed file.
 * @returns the file's bytes, and the number of features of each map, the last map's first; null if
 *   the base has a single block, its features are those of a `linear` layer or of several maps, or
 *   its shortcuts are of integers, as in formats 2 and 3.
 * @throws Error if the base is no packed file.
 */
export function widened(
  base: ArrayBuffer | Uint8Array,
): { bytes: Uint8Array; widths: number[] } | null;

/**
 * Tells whether an image is unlike all that a classifier was learned from.
 *
 * @param model of a file that `withClassifier` or `burn-engine learn` wrote.
 * @param features of the image, which `model.features` returns.
 * @returns null if the file does not say.
 * @throws Error if the file says and a feature is not finite.
 */
export function noneOfThese(
  model: { readonly origin: Record<string, unknown> | null },
  features: ArrayLike<number>,
): boolean | null;
