/** Groups of images. */
export interface Clusters {
  /** Group of each image, from 0 for the largest group. */
  labels: Int32Array;
  /** Cosine between each image and the centre of its group. */
  centrality: Float32Array;
}

export interface ClusterOptions {
  /** Number of groups; default: `usualNumber`. Fewer are made if fewer images differ. */
  k?: number;
  /** Of the random numbers, at least 0; default: 0. */
  seed?: number;
  /** Is told how many of the most rounds are done, from 0 to 1. */
  onProgress?: (share: number) => void;
}

/**
 * Divides images into groups of similar ones by spherical k-means, as `burn_engine.cluster` of
 * Python does, with the same result.
 *
 * @param features of each image, all of one length, as `Model.features` returns them.
 * @throws Error with one sentence if there are none, their lengths differ, a number is not finite,
 *   all features of an image are 0, or k or seed is out of range.
 */
export function cluster(features: ArrayLike<number>[], options?: ClusterOptions): Clusters;

/** Returns how many groups are made of images if nobody says: √(n / 2), from 1 to 100. */
export function usualNumber(count: number): number;
