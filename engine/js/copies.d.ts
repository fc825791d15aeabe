import type { Appearance } from "./appearance.js";
import type { Options, Pixels, Search } from "./index.js";

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
