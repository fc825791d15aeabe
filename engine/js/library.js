// Photographs that a page has read: their copies, groups, and which are similar.
import { openBackground } from "./background.js";
import { usualNumber } from "./clustering.js";
import { areEqual, pathOf } from "./files.js";
import { PhotoTasks } from "./photo_tasks.js";
import { normalized } from "./vectors.js";

const MOST_READERS = 4; // one takes some hundred megabytes for a large photograph

// Returns a library without photographs. What it is given says openBackground.
export async function openLibrary({ network, wasm, makeWorker }) {
  const open = () => openBackground({ network, wasm, makeWorker, tasks: new PhotoTasks() });
  const readers = [await open()];
  const half = Math.ceil((navigator.hardwareConcurrency || 1) / 2);
  const more = readers[0].isBeside ? Math.min(MOST_READERS, half) - 1 : 0;
  readers.push(...(await Promise.all(Array.from({ length: more }, open))));
  return new Library(readers, wasm, open);
}

class Library {
  #readers;
  #wasm;
  #open;
  #known = new Map(); // sets of the files that it has, by their size, time and name
  #units = null; // features of length 1, once they are asked for
  photos = []; // {file, path, small, width, height, bytes, features, seen}

  constructor(readers, wasm, open) {
    this.#readers = readers;
    this.#wasm = wasm;
    this.#open = open;
    this.imageSize = readers[0].imageSize;
  }

  // Reads files that it does not have yet. Returns a sentence for each that cannot be read, how many
  // it has already, and how many it has not read because it was stopped.
  // onRead: is told how many are done. signal: stops it; what is read stays.
  async read(files, { signal, onRead }) {
    const photos = new Array(files.length);
    const unread = [];
    let [done, known] = [0, 0];
    const queue = files.entries();
    const readOn = async (_, at) => {
      for (const [i, file] of queue) {
        if (signal.aborted) return;
        try {
          if (await this.#has(file)) {
            ++known;
            continue;
          }
          if (this.#readers[at].hasEnded) this.#readers[at] = await this.#open();
          photos[i] = this.#photo(file, await this.#readers[at].ask("look", [file]));
        } catch (error) {
          const { name } = file;
          const { message } = error;
          const reason = message.startsWith(name) ? message.slice(name.length) : `: ${message}`;
          unread.push(pathOf(file) + reason);
          this.#forget(file);
        } finally {
          onRead(++done, files.length);
        }
      }
    };
    onRead(0, files.length);
    await Promise.all(this.#readers.map(readOn));
    this.photos = this.photos.concat(photos.filter(Boolean));
    this.#units = null;
    return { unread, known, left: files.length - done };
  }

  // Whether it has a file; otherwise it has it from now on. A file that is given twice would be its
  // own copy. Of a path a page knows only the end, from where the file was chosen, so two files may
  // have the same one, and their bytes decide.
  async #has(file) {
    const path = `/${pathOf(file)}`;
    const files = this.#filesLike(file);
    // It goes on to those that other readers add meanwhile.
    for (const known of files) {
      const other = `/${pathOf(known)}`;
      const mayBe = other.endsWith(path) || path.endsWith(other);
      if (mayBe && (await areEqual(known, file))) return true;
    }
    files.add(file);
    return false;
  }

  #forget(file) {
    this.#filesLike(file).delete(file);
  }

  #filesLike({ size, lastModified, name }) {
    const key = `${size} ${lastModified} ${name}`;
    if (!this.#known.has(key)) this.#known.set(key, new Set());
    return this.#known.get(key);
  }

  #photo(file, { features, seen, small }) {
    const { width, height } = seen;
    const path = pathOf(file);
    return { file, path, small, width, height, bytes: file.size, features, seen };
  }

  // Returns groups of {photo, alteration}, the best copy of each first.
  async copies(options) {
    const photos = this.photos.map(({ seen, bytes }) => ({ seen, bytes }));
    const groups = await this.#ask("copies", [this.#wasm, photos], options);
    return groups.map((group) =>
      group.map(({ position, alteration }) => ({ photo: this.photos[position], alteration })),
    );
  }

  get usualNumber() {
    return usualNumber(this.photos.length);
  }

  // Returns groups of similar photographs, the largest first, and of each the most central first.
  async groups(k, options) {
    const features = this.photos.map((photo) => photo.features);
    const { labels, centrality } = await this.#ask("groups", [features, k], options);
    const groups = [];
    labels.forEach((label, i) => (groups[label] ??= []).push(i));
    return groups.map((group) =>
      group.sort((a, b) => centrality[b] - centrality[a]).map((i) => this.photos[i]),
    );
  }

  #ask(name, values, options) {
    return this.#readers[0].askOther(name, values, options);
  }

  // Returns {photo, cosine} of all other photographs, the most similar first.
  similar(photo) {
    this.#units ??= normalized(this.photos.map(({ features }) => features));
    const width = photo.features.length;
    const begin = this.photos.indexOf(photo) * width;
    const own = this.#units.subarray(begin, begin + width);
    return this.photos
      .map((other, i) => {
        const row = this.#units.subarray(i * width, (i + 1) * width);
        return { photo: other, cosine: own.reduce((sum, one, j) => sum + one * row[j], 0) };
      })
      .filter((found) => found.photo !== photo)
      .sort((a, b) => b.cosine - a.cosine);
  }
}
