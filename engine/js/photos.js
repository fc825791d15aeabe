// The page photos.html. Its workers run this script, too.
import { openLibrary } from "./library.js";
import { openPage } from "./page.js";
import { PhotoTasks } from "./photo_tasks.js";
import { openPhotos } from "./photos_panel.js";
import { serve } from "./worker.js";

async function open({ network, wasm, makeWorker, place }) {
  const library = await openLibrary({ network, wasm, makeWorker });
  openPhotos(place, library);
  return library;
}

if (globalThis.document) openPage(open);
else serve(new PhotoTasks());
