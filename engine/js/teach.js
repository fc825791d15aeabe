// The page teach.html. Its workers run this script, too.
import { openBackground, workersOf } from "./background.js";
import { thousands } from "./learned_facts.js";
import { openPanel } from "./panel.js";
import { serve } from "./worker.js";

async function start() {
  const files = JSON.parse(document.getElementById("files").textContent);
  const [network, wasm] = await Promise.all([fetched(files.network), fetched(files.engine)]);
  const makeWorker = workersOf(document.getElementById("code"));
  const background = await openBackground({ network, wasm, makeWorker });
  const side = background.imageSize?.size;
  document.getElementById("about").textContent =
    `The network is ${files.name}, ${thousands(network.length / 1000)} kB` +
    (side ? `, and sees ${side}\u00a0×\u00a0${side}\u00a0pixels.` : ".");
  openPanel(document.getElementById("panel"), { background, network: () => network });
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

if (globalThis.document) start().catch(problem);
else serve();
