// What takes long in a page: photographs that go through the network, and learning. A worker does
// it, or the page itself where it cannot have one (background.js).
import { decode, load, prepare } from "./index.js";
import { learn, widened } from "./learn.js";

export class Tasks {
  #model;
  #wide; // the same with the means of more maps in its features, where there are such

  // `widths`: numbers of the features of each map, null if they are not of several.
  async open(network, wasm) {
    const module = await WebAssembly.compile(wasm);
    this.#model = await load(network, { wasm: module });
    const wide = widened(network);
    this.#wide = wide ? await load(wide.bytes, { wasm: module }) : this.#model;
    const { imageSize, classNames } = this.#model;
    return { imageSize, classNames, widths: wide?.widths ?? null };
  }

  // photo: a file, or pixels. `picture` is what the network sees of it.
  async features(photo) {
    const { pixels, picture } = await this.#read(photo);
    const features = this.#wide.features(pixels);
    if (!features.every(Number.isFinite)) throw new Error("the network's output is not finite");
    return { features, picture };
  }

  async run(photo) {
    const { pixels, picture } = await this.#read(photo);
    this.#model.run(pixels); // the first run also compiles the module
    return { ...this.#model.run(pixels), picture };
  }

  learn(features, labels, classes, widths, onProgress) {
    return learn(features, labels, classes, { widths, onProgress });
  }

  async #read(photo) {
    const pixels = photo instanceof Blob ? await decode(photo) : photo;
    return { pixels, picture: prepare(pixels, this.#model.imageSize) };
  }
}

// Answers the page's messages, one after the other, in a worker.
export function serve(tasks = new Tasks()) {
  let last = Promise.resolve();
  onmessage = ({ data: { id, name, values } }) => {
    const onProgress = (share) => postMessage({ id, share });
    last = last.then(async () => {
      try {
        postMessage({ id, result: await tasks[name](...values, onProgress) });
      } catch (error) {
        postMessage({ id, refused: error.message });
      }
    });
  };
  postMessage({}); // it is there
}
