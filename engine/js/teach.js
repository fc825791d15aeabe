// The page teach.html. Its workers run this script, too.
import { openBackground } from "./background.js";
import { openPage } from "./page.js";
import { openPanel } from "./panel.js";
import { serve } from "./worker.js";

async function open({ network, wasm, makeWorker, place }) {
  const background = await openBackground({ network, wasm, makeWorker });
  openPanel(place, { background, network: () => network });
  return background;
}

if (globalThis.document) openPage(open);
else serve();
