/** An image: its pixels row by row, three (red, green, blue) or four (and alpha) bytes each. */
export interface Pixels {
  data: Uint8Array | Uint8ClampedArray;
  /** In pixels. */
  width: number;
  height: number;
}

export interface Result {
  /** The output of the model's last layer: scores of its classes, or features. */
  output: Float32Array;
  /** The classes, most likely first, with their softmax in percent; empty without a classifier. */
  classes: { name: string; percent: number }[];
  /** Time of the network alone, without resizing. */
  milliseconds: number;
}

export interface Model {
  /** Names of the classes; empty without a classifier. */
  readonly classNames: string[];
  /** What photographs are resized and cropped to, in pixels; null if the model does not say. */
  readonly imageSize: { resize: number; size: number } | null;
  /** Description, for people, of what was packed; null if the file does not say. */
  readonly origin: Record<string, unknown> | null;
  /** The instruction set that it runs on. */
  readonly isa: string;
  /**
   * Runs the model on one image, which is resized (bicubic, antialiased) and cropped as the model
   * says. Transparent pixels lie over white.
   *
   * @throws Error if the image's sizes do not fit each other, or are out of range.
   */
  run(image: Pixels): Result;
  /**
   * Computes an image's features, which are what a classifier is learned from (`burn-engine/learn`).
   * The image is prepared as by `run`.
   *
   * @throws Error if the image's sizes do not fit each other, or are out of range.
   */
  features(image: Pixels): Float32Array;
  /**
   * Finds the codes that differ from a query in the fewest bits, as `burn_engine.Index` does.
   *
   * @param codes codes one after the other, each as long as the query.
   * @param query a code, as `signs` makes it of the features of an image.
   * @param k number of codes to find, 1 or more; all of them if there are fewer.
   * @returns positions and numbers of bits, by distance, the first ones first where these are equal.
   * @throws Error if the lengths do not fit, or k is out of range.
   */
  nearest(codes: Uint8Array, query: Uint8Array, k: number): { position: number; distance: number }[];
  /** Frees the model's memory. It cannot be used any more. */
  free(): void;
}

export interface Options {
  /** The WebAssembly module; default: burn_engine.wasm beside this script. */
  wasm?: BufferSource | WebAssembly.Module;
}

/**
 * Loads a packed model, the bytes of a .bnn file.
 *
 * @throws Error with one sentence if the bytes are not a packed model or break a rule of the format.
 */
export function load(bytes: ArrayBuffer | Uint8Array, options?: Options): Promise<Model>;

/** The search among codes alone. */
export interface Search {
  /**
   * Finds, for each query, the codes that differ from it in the fewest bits.
   *
   * @param codes codes of `length` bytes, one after the other.
   * @param queries the same.
   * @param k number of codes to find for each query, at most as many as there are.
   * @returns for each query k positions and numbers of bits, by distance, the first codes first
   *   where these are equal.
   * @throws Error if k is out of range, or `codes` or `queries` are not whole codes.
   */
  nearest(
    codes: Uint8Array,
    queries: Uint8Array,
    length: number,
    k: number,
  ): { positions: Uint32Array; distances: Uint32Array };
}

/** Loads the module for searches alone, without a packed file. */
export function openSearch(options?: Options): Promise<Search>;

/**
 * Returns the signs of features, one bit each: feature i is bit i mod 8, from the least significant,
 * of byte i / 8, and 1 where it is at least 0.
 */
export function signs(features: ArrayLike<number>): Uint8Array;

/**
 * Resizes the short side of an image (bicubic, antialiased), then cuts out its centre, as
 * `burn-engine run` does, to the byte. An image that is more than 4 times as long as wide loses its
 * ends first. Transparent pixels lie over white.
 *
 * @param imageSize lengths in pixels; null to leave the size as it is.
 * @returns three bytes for each pixel.
 */
export function prepare(
  image: Pixels,
  imageSize: { resize: number; size: number } | null,
): { data: Uint8Array; width: number; height: number };

/**
 * Cuts a part out of an image.
 *
 * @param top its first row; it must lie inside the image.
 * @param left its first column.
 * @returns as many bytes for each pixel; the image itself if nothing is cut off.
 * @throws Error if the image's sizes do not fit each other, or are out of range.
 */
export function cut(
  image: Pixels,
  top: number,
  left: number,
  height: number,
  width: number,
): Pixels;

/** Rounds to the nearest whole number, halves to the even one, as Python does. */
export function roundHalfEven(x: number): number;

/**
 * Takes out of a JPEG, PNG or WebP all that could make a browser turn it, convert its colours, or
 * show another frame of it than the first. Other files are returned as they are.
 *
 * @returns the bytes that are left, and the orientation that the EXIF data give, 1 to 8.
 */
export function withoutMetadata(bytes: Uint8Array): { bytes: Uint8Array; orientation: number };

/** Turns an image that has an orientation of EXIF, 1 to 8. */
export function upright(image: Pixels, orientation: number): Pixels;

/** Decodes a file that the browser knows into pixels, upright. Not in Node.js. */
export function decode(file: Blob): Promise<Pixels>;
