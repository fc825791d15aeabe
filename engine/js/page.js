// What the pages teach.html and photos.html begin with.
import { workersOf } from "./background.js";
import { thousands } from "./learned_facts.js";

// Opens a page: reads the files that it names, and gives `open` their bytes, what makes workers of
// the page's script, and the element that it fills.
// open: also async; returns the size in pixels of what the network sees of a photograph.
export function openPage(open) {
  opened(open).catch(problem);
}

async function opened(open) {
  const files = JSON.parse(document.getElementById("files").textContent);
  const [network, wasm] = await Promise.all([fetched(files.network), fetched(files.engine)]);
  const makeWorker = workersOf(document.getElementById("code"));
  const place = document.getElementById("panel");
  const { imageSize } = await open({ network, wasm, makeWorker, place });
  const side = imageSize?.size;
  document.getElementById("about").textContent =
    `The network is ${files.name}, ${thousands(network.length / 1000)} kB` +
    (side ? `, and sees ${side}\u00a0×\u00a0${side}\u00a0pixels.` : ".");
  document.body.dataset.ready = "yes";
}

async function fetched(address) {
  const response = await fetch(address).catch(() => null);
  if (!response?.ok) throw new Error(`${address} cannot be read: it must lie beside this page`);
  return new Uint8Array(await response.arrayBuffer());
}

function problem({ message }) {
  const place = document.getElementById("problem");
  place.textContent = message;
  place.hidden = false;
}
