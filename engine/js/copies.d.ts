import type { Options, Pixels, Search } from "./index.js";

/** What is kept of an image while its duplicates are looked for: 4.2 kB. */
export interface Appearance {
  /** Its middle, shrunk to 64 × 64 pixels, grey. */
  square: Uint8Array;
  /** The same text for images of one size whose shrunken middles are the same. */
  digest: string;
  /** In pixels. */
  height: number;
  width: number;
  /** Mean difference of neighbouring pixels in the middle, in half octaves. */
  sharpness: number;
}

/** An image of a group. */
export interface Copy {
  /** Its position among the images that were compared. */
  position: number;
  /** How well its details agree with those of the group's best image, up to 1. */
  agreement: number;
  /**
   * How one of the two was altered, in words; "" if it only was resized, compressed, brightened or
   * the like.
   */
  alteration: string;
}

export interface CopiesOptions {
  /** Is told how much of the comparing is done, from 0 to 1. */
  onProgress?: (share: number) => void;
}

/**
 * Returns what an image looks like, as Python's engine does, to the bit.
 *
 * @throws Error if the image's sizes do not fit each other, or are out of range.
 */
export function appearance(image: Pixels): Appearance;

/** Images whose duplicates are looked for, where not all pixels are in memory at once. */
export class Appearances {
  /** @param search what `openSearch` of `burn-engine` returned. */
  constructor(search: Search);
  /**
   * Adds an image.
   *
   * @param numBytes length of its file; default: 0.
   */
  add(seen: Appearance, numBytes?: number): void;
  /**
   * Returns groups of near-duplicates: each image of a group is a copy of its first one.
   *
   * @returns the groups of two images or more, the best image of each first: the one with most
   *   pixels, then the sharpest, then the one with most bytes; groups by the position of their
   *   first image.
   */
  groups(options?: CopiesOptions): Copy[][];
}

/**
 * Finds near-duplicates among images, resized, compressed, cropped, mirrored or turned, as
 * `burn_engine.duplicates` of Python does, with the same result.
 *
 * A page stands still while it looks at an image and compares, so a page with hundreds of images
 * calls it in a worker.
 *
 * @throws Error if an image's sizes do not fit each other, or are out of range.
 */
export function duplicates(
  images: Iterable<Pixels>,
  options?: Options & CopiesOptions,
): Promise<Copy[][]>;
