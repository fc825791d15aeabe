// Reads files with workers of which some end, and others of which some are equal, and prints as JSON
// what becomes of them.
//
//     node library.mjs PACKAGE
import { pathToFileURL } from "node:url";

Object.defineProperty(globalThis, "navigator", { value: { hardwareConcurrency: 8 } });
const { openLibrary } = await import(new URL("library.js", pathToFileURL(`${process.argv[2]}/`)));

const BAD = "7.jpg"; // whoever looks at it ends
let workers = 0;

function makeWorker() {
  ++workers;
  const worker = { terminate() {}, postMessage };
  const soon = (act) => setTimeout(act, 0);
  function postMessage({ id, name, values: [file] }) {
    soon(() => {
      if (file?.name === BAD) {
        worker.onerror({ preventDefault() {}, message: "out of memory" });
        return;
      }
      const features = new Float32Array([1]);
      const photo = { features, seen: { width: 1, height: 1 }, small: null };
      worker.onmessage({ data: { id, result: name === "open" ? { imageSize: null } : photo } });
    });
  }
  soon(() => worker.onmessage({ data: {} }));
  return worker;
}

const library = await openLibrary({ network: null, wasm: null, makeWorker });
const fileOf = (content, name = "a.jpg") => new File([content], name, { lastModified: 1 });
const files = Array.from({ length: 100 }, (_, i) => fileOf("b", `${i}.jpg`));
const options = { signal: new AbortController().signal, onRead() {} };
const { unread, known, left } = await library.read(files, options);
const again = await library.read(files, options);

// Of one name, size and time: three differ, one in its last byte, two are equal to one of these, and
// one is gone.
const bytes = new Uint8Array(3_000_000);
const last = bytes.with(bytes.length - 1, 1);
const first = bytes.with(0, 1);
const gone = fileOf(first.with(1, 1));
gone.slice = () => {
  throw new Error("it is gone");
};
const others = [bytes, last, first, last, bytes].map((content) => fileOf(content));
const { known: equal } = await library.read([...others, gone], options);
console.log(
  JSON.stringify({ equal, workers, read: library.photos.length, unread, known, left, again: again.known }),
);
