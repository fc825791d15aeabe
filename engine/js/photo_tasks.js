// What takes long in the page photos.html: looking at photographs, and comparing all of them. A
// worker does it, or the page itself where it cannot have one (background.js).
import { appearance } from "./appearance.js";
import { cluster } from "./clustering.js";
import { Appearances } from "./copies.js";
import { decode, load, openSearch } from "./index.js";
import { smallFile } from "./picture.js";
import { normalized } from "./vectors.js";

const THUMBNAIL = 240; // pixels

export class PhotoTasks {
  #model;

  async open(network, wasm) {
    this.#model = await load(network, { wasm });
    return { imageSize: this.#model.imageSize };
  }

  // `small` is the photograph as a small file.
  async look(file) {
    const pixels = await decode(file);
    const features = this.#model.features(pixels);
    if (!features.every(Number.isFinite)) throw new Error("the network's output is not finite");
    normalized([features]); // which refuses features of length 0
    return { features, seen: appearance(pixels), small: await smallFile(pixels, THUMBNAIL) };
  }

  // photos: {seen, bytes} of each.
  async copies(wasm, photos, onProgress) {
    const all = new Appearances(await openSearch({ wasm }));
    for (const { seen, bytes } of photos) all.add(seen, bytes);
    return all.groups({ onProgress });
  }

  groups(features, k, onProgress) {
    return cluster(features, { k, onProgress });
  }
}
