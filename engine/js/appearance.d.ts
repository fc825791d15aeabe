import type { Pixels } from "./index.js";

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

/**
 * Returns what an image looks like, as Python's engine does, to the bit.
 *
 * @throws Error if the image's sizes do not fit each other, or are out of range.
 */
export function appearance(image: Pixels): Appearance;
