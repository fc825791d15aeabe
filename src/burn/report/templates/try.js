// The panels of the page that run its packed model: on a photograph, and to learn classes. The
// workers of the page run this script, too.
import { openBackground, workersOf } from "./background.js";
import { openPanel } from "./panel.js";
import { drawn } from "./picture.js";
import { serve } from "./worker.js";

const MOST_CLASSES = 5;

async function start() {
  const panel = document.querySelector("#try .panel");
  const file = panel.querySelector("input");
  const drop = panel.querySelector(".drop");
  const said = panel.querySelector("[role=status]");
  const list = panel.querySelector("ol");
  const canvas = panel.querySelector("canvas");

  const say = (text, fault = false) => {
    said.textContent = text;
    said.classList.toggle("fault", fault);
  };

  const show = (classes) => {
    list.replaceChildren(
      ...classes.slice(0, MOST_CLASSES).map(({ name, percent }) => {
        const row = document.createElement("li");
        row.style.setProperty("--v", percent.toFixed(2));
        const label = document.createElement("span");
        label.textContent = name;
        const bar = document.createElement("i");
        const number = document.createElement("b");
        number.textContent = `${percent.toFixed(1)} %`;
        row.append(label, bar, number);
        return row;
      }),
    );
  };

  let last = null;
  const classify = async (background, photo) => {
    last = photo;
    panel.ariaBusy = "true";
    say("Reading the photograph …");
    list.replaceChildren();
    canvas.hidden = true;
    try {
      const { classes, milliseconds, output, picture } = await background.run(photo);
      if (last !== photo) return; // another one came meanwhile
      drawn(picture, canvas).hidden = false;
      show(classes);
      const none = ` It has no classifier: it gave ${output.length} features.`;
      const gives = classes.length ? "" : none;
      say(`${photo.name}: ${milliseconds.toFixed(1)} ms for the network, in this browser.${gives}`);
    } catch (error) {
      if (last !== photo) return;
      say(error.message, true);
    }
    panel.ariaBusy = "false";
  };

  let background;
  try {
    const makeWorker = workersOf(document.getElementById("try-code"));
    const [network, wasm] = [embedded("try-model"), embedded("try-engine")];
    background = await openBackground({ network, wasm, makeWorker });
  } catch (error) {
    say(`The model of this page cannot run here: ${error.message}`, true);
    return;
  }
  drop.hidden = false;
  say("Nothing leaves this page.");
  file.addEventListener("change", () => {
    if (file.files.length) classify(background, file.files[0]);
  });
  for (const kind of ["dragover", "drop"]) {
    panel.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", kind === "dragover");
      const photo = kind === "drop" && event.dataTransfer.files[0];
      if (photo) classify(background, photo);
    });
  }
  panel.addEventListener("dragleave", () => drop.classList.remove("over"));

  const teach = document.getElementById("teach");
  if (!teach) return; // of a model that does not say how photographs become its images
  teach.hidden = false;
  const place = teach.querySelector(".teach");
  openPanel(place, { background, network: () => embedded("try-model"), level: 4 });
}

function embedded(id) {
  const text = atob(document.getElementById(id).textContent.trim());
  return Uint8Array.from(text, (letter) => letter.charCodeAt(0));
}

if (globalThis.document) start();
else serve();
