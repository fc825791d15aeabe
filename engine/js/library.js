// Photographs that a page has read: their copies, groups, and which are similar.
import { openBackground } from "./background.js";
import { usualNumber } from "./clustering.js";
import { pathOf } from "./files.js";
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
  return new Library(readers, wasm);
}

class Library {
  #readers;
  #wasm;
  #known = new Set(); // of files, so that none is its own copy
  #units = null; // features of length 1, once they are asked for
  photos = []; // {file, path, small, width, height, bytes, features, seen}

  constructor(readers, wasm) {
    this.#readers = readers;
    this.#wasm = wasm;
    this.imageSize = readers[0].imageSize;
  }

  // Reads files that it does not have yet. Returns a sentence for each that cannot be read, and how
  // many it has already.
  // onRead: is told how many are done. signal: stops it; what is read stays.
  async read(files, { signal, onRead }) {
    const keyOf = (file) => `${file.size} ${file.lastModified} ${file.name}`;
    const fresh = files.filter((file) => {
      const key = keyOf(file);
      return !this.#known.has(key) && this.#known.add(key);
    });
    const photos = new Array(fresh.length);
    const unread = [];
    let done = 0;
    const queue = fresh.entries();
    const readOn = async (reader) => {
      for (const [i, file] of queue) {
        if (signal.aborted) return;
        try {
          photos[i] = this.#photo(file, await reader.ask("look", [file]));
        } catch (error) {
          const { name } = file;
          const { message } = error;
          const reason = message.startsWith(name) ? message.slice(name.length) : `: ${message}`;
          unread.push(pathOf(file) + reason);
        }
        onRead(++done, fresh.length);
      }
    };
    onRead(0, fresh.length);
    await Promise.all(this.#readers.map(readOn));
    fresh.forEach((file, i) => photos[i] || this.#known.delete(keyOf(file)));
    this.photos = this.photos.concat(photos.filter(Boolean));
    this.#units = null;
    return { unread, known: files.length - fresh.length };
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
    const groups = Array.from({ length: 1 + Math.max(...labels) }, () => []);
    labels.forEach((label, i) => groups[label].push(i));
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
