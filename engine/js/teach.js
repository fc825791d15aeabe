// The page teach.html: photographs of classes, a classifier that is learned from their features at
// once, what it says of other photographs, and the packed file with it.
import { decode, load, prepare } from "burn-engine";
import { classify, learn, withClassifier } from "burn-engine/learn";

const BETWEEN_PHOTOS = 200; // ms, while the button is held
const BETWEEN_ANSWERS = 120; // ms, at least, of the camera
const BEFORE_LEARNING = 250; // ms without a change
const MOST_SHOWN = 12; // classes of an answer
const MOST_SIDE = 640; // pixels, of a camera's picture before it is prepared

const element = (id) => document.getElementById(id);
const state = {
  model: null,
  network: null, // bytes
  classes: [], // {name, photos, card}; a photo is {features, picture, isFrame}
  learned: null, // what learn returned
  camera: null, // MediaStream
  isSaved: true,
  timer: 0,
};

start().catch((error) => problem(error.message));

async function start() {
  const files = JSON.parse(element("files").textContent);
  const [network, engine] = await Promise.all([fetched(files.network), fetched(files.engine)]);
  state.network = new Uint8Array(network);
  state.model = await load(state.network, { wasm: engine });
  const side = state.model.imageSize?.size;
  element("about").textContent =
    `The network is ${files.name}, ${thousands(network.byteLength / 1000)} kB` +
    (side ? `, and sees ${side}\u00a0×\u00a0${side}\u00a0pixels.` : ".");
  addClass();
  addClass();
  element("add").onclick = () => {
    const made = addClass();
    made.card.querySelector("header input").select();
    changed();
  };
  element("camera").onclick = switchCamera;
  element("save").onclick = save;
  element("tried").onchange = async ({ target }) => {
    await tryPhoto(target.files[0]);
    target.value = "";
  };
  takesDrops(element("try"), (dropped) => tryPhoto(dropped[0]));
  for (const kind of ["dragover", "drop"]) {
    addEventListener(kind, (event) => event.preventDefault()); // or a photograph replaces the page
  }
  addEventListener("beforeunload", (event) => {
    if (!state.isSaved) event.preventDefault();
  });
  showFacts();
  document.body.dataset.ready = "yes";
}

async function fetched(address) {
  const response = await fetch(address).catch(() => null);
  if (!response?.ok) throw new Error(`${address} cannot be read: it must lie beside this page`);
  return response.arrayBuffer();
}

function problem(text) {
  element("problem").textContent = text;
  element("problem").hidden = !text;
}

const thousands = (number) => Math.round(number).toLocaleString("en");
const counted = (number, one, many = `${one}s`) => `${thousands(number)} ${number === 1 ? one : many}`;

// --- Classes and their photographs. ---

function addClass() {
  const names = state.classes.map(({ name }) => name);
  let number = state.classes.length + 1;
  while (names.includes(`class ${number}`)) ++number;
  const card = element("class").content.cloneNode(true).firstElementChild;
  const made = { name: `class ${number}`, photos: [], card };
  const name = card.querySelector("header input");
  name.value = made.name;
  name.oninput = () => {
    made.name = name.value.trim();
    label(made);
    changed();
  };
  card.querySelector(".remove").onclick = () => removeClass(made);
  const input = card.querySelector("input[type=file]");
  input.onchange = async () => {
    const files = [...input.files];
    input.value = ""; // so that the same files can be chosen again
    await addFiles(made, files);
  };
  takesDrops(card, (files) => addFiles(made, files));
  holds(card.querySelector(".hold"), () => addFrame(made));
  card.querySelector(".hold").hidden = !state.camera;
  state.classes.push(made);
  element("classes").append(card);
  label(made);
  return made;
}

function removeClass(made) {
  const { length } = made.photos;
  if (length && !confirm(`Remove ${made.name || "the class"} with ${counted(length, "photograph")}?`)) {
    return;
  }
  state.classes = state.classes.filter((one) => one !== made);
  // Ends a hold, also one whose own end never comes.
  made.card.querySelector(".hold").dispatchEvent(new Event("pointercancel"));
  made.card.remove();
  element("add").focus();
  changed();
}

// What a class's card says besides its photographs.
function label({ name, photos, card }) {
  card.setAttribute("aria-label", name || "a class without a name");
  card.querySelector(".remove").setAttribute("aria-label", `Remove ${name || "this class"}`);
  card.querySelector(".count").textContent = photos.length ? thousands(photos.length) : "";
  card.querySelector(".count").title = counted(photos.length, "photograph");
  card.querySelector(".photos").hidden = !photos.length;
}

async function addFiles(made, files) {
  const unread = [];
  for (const [done, file] of files.entries()) {
    if (!state.classes.includes(made)) break; // it was removed meanwhile
    element("facts").textContent = `reading ${done + 1} of ${files.length}: ${file.name}`;
    try {
      addPhoto(made, await decode(file), false);
    } catch (error) {
      unread.push(error.message);
    }
  }
  showUnread(unread, files.length);
  changed();
}

function showUnread(sentences, number) {
  const box = element("unread");
  box.hidden = !sentences.length;
  const lines = sentences.slice(0, 5);
  if (sentences.length > 5) lines.push(`and ${sentences.length - 5} more`);
  box.textContent = `Left out: ${sentences.length} of ${number}. ${lines.join("; ")}`;
}

function addFrame(made) {
  const pixels = frame();
  if (!pixels) return;
  try {
    addPhoto(made, pixels, true);
  } catch (error) {
    problem(error.message);
  }
  changed();
}

function addPhoto(made, pixels, isFrame) {
  const features = state.model.features(pixels);
  if (!features.every(Number.isFinite)) throw new Error("the network's output is not finite");
  const picture = pictureOf(prepare(pixels, state.model.imageSize));
  const photo = { features, picture, isFrame };
  made.photos.push(photo);
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  button.title = "Remove this photograph";
  button.setAttribute("aria-label", `Remove photograph ${made.photos.length} of ${made.name}`);
  button.append(picture);
  button.onclick = () => {
    const next = item.nextElementSibling ?? item.previousElementSibling;
    (next?.firstElementChild ?? made.card.querySelector("header input")).focus();
    item.remove();
    made.photos = made.photos.filter((one) => one !== photo);
    label(made);
    changed();
  };
  item.append(button);
  const list = made.card.querySelector(".photos");
  list.append(item);
  label(made);
  list.scrollTop = list.scrollHeight;
}

function pictureOf(image, canvas = document.createElement("canvas")) {
  const { data, width, height } = image;
  canvas.width = width;
  canvas.height = height;
  const shown = new ImageData(width, height);
  for (let from = 0, to = 0; from < data.length; from += 3, to += 4) {
    shown.data.set([data[from], data[from + 1], data[from + 2], 255], to);
  }
  canvas.getContext("2d").putImageData(shown, 0, 0);
  return canvas;
}

function takesDrops(place, take) {
  let depth = 0; // of elements inside it that the pointer has entered
  const over = (change) => {
    depth = change === null ? 0 : depth + change;
    place.classList.toggle("over", depth > 0);
  };
  place.addEventListener("dragenter", () => over(1));
  place.addEventListener("dragleave", () => over(-1));
  place.addEventListener("drop", (event) => {
    over(null);
    const files = [...event.dataTransfer.files];
    if (files.length) take(files);
  });
}

// --- The camera. ---

async function switchCamera() {
  const button = element("camera");
  button.disabled = true;
  problem("");
  if (state.camera) {
    stop(state.camera);
    state.camera = null;
  } else {
    state.camera = await openedCamera().catch((error) => {
      problem(`the camera cannot be used: ${error.message}`);
      return null;
    });
  }
  button.disabled = false;
  const isOn = state.camera !== null;
  button.textContent = isOn ? "Switch the camera off" : "Switch the camera on";
  element("viewer").hidden = !isOn;
  element("said").textContent = "";
  element("shown").hidden = true;
  element("found").replaceChildren();
  for (const { card } of state.classes) card.querySelector(".hold").hidden = !isOn;
  if (isOn) watch(state.camera);
}

async function openedCamera() {
  if (!navigator.mediaDevices) {
    throw new Error("browsers give a page one only over https, from localhost, or from a file");
  }
  // Of a phone, not the one on its face.
  const video = { facingMode: "environment" };
  const camera = await navigator.mediaDevices.getUserMedia({ video });
  const [track] = camera.getVideoTracks();
  try {
    if (track) {
      element("live").srcObject = camera;
      await element("live").play();
    }
    if (track?.readyState !== "live") throw new Error("it gives no pictures");
  } catch (error) {
    stop(camera);
    throw error;
  }
  track.onended = () => {
    if (state.camera === camera) switchCamera(); // it was unplugged
  };
  return camera;
}

function stop(camera) {
  for (const track of camera.getTracks()) track.stop();
}

// The camera's picture as pixels; null if there is none.
const canvas = document.createElement("canvas");
function frame() {
  const video = element("live");
  const { videoWidth, videoHeight } = video;
  if (!state.camera || !videoWidth) return null;
  const scale = Math.min(1, MOST_SIDE / Math.max(videoWidth, videoHeight));
  const width = Math.max(1, Math.round(videoWidth * scale));
  const height = Math.max(1, Math.round(videoHeight * scale));
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(video, 0, 0, width, height);
  return { data: context.getImageData(0, 0, width, height).data, width, height };
}

async function watch(camera) {
  while (state.camera === camera) {
    if (state.learned && element("shown").hidden && !document.hidden) {
      const pixels = frame();
      if (pixels) showAnswer(state.model.features(pixels), element("said"));
    }
    await new Promise((resume) => setTimeout(resume, BETWEEN_ANSWERS));
  }
}

// Calls `take` when a button is pressed, and again and again as long as it is held.
function holds(button, take) {
  let timer = 0;
  const begin = () => {
    if (timer) return;
    take();
    timer = setInterval(take, BETWEEN_PHOTOS);
  };
  const end = () => {
    clearInterval(timer);
    timer = 0;
  };
  const isKey = ({ key }) => key === " " || key === "Enter";
  button.addEventListener("pointerdown", (event) => {
    if (event.button === 0) begin();
  });
  for (const kind of ["pointerup", "pointercancel", "pointerleave", "blur"]) {
    button.addEventListener(kind, end);
  }
  button.addEventListener("keydown", (event) => {
    if (isKey(event)) {
      event.preventDefault();
      begin();
    }
  });
  button.addEventListener("keyup", (event) => {
    if (isKey(event)) end();
  });
  button.addEventListener("click", ({ detail, pointerType }) => {
    if (!detail && !pointerType) take(); // of a screen reader, without a pointer or a key
  });
  button.addEventListener("contextmenu", (event) => event.preventDefault());
}

// --- What is learned and what it says. ---

function changed() {
  state.learned = null;
  element("said").textContent = "";
  element("save").disabled = true;
  state.isSaved = !state.classes.some(({ photos }) => photos.length);
  clearTimeout(state.timer);
  state.timer = setTimeout(learnNow, BEFORE_LEARNING);
}

function learnNow() {
  const taught = state.classes.filter(({ photos }) => photos.length);
  if (taught.length < 2) {
    element("found").replaceChildren();
    showFacts();
    return;
  }
  const features = taught.flatMap(({ photos }) => photos.map((photo) => photo.features));
  const labels = taught.flatMap(({ photos }, c) => photos.map(() => c));
  try {
    const began = performance.now();
    state.learned = learn(features, labels, taught.map(({ name }) => name));
    showFacts(performance.now() - began);
    element("save").disabled = false;
  } catch (error) {
    element("found").replaceChildren();
    element("facts").replaceChildren(paragraph(error.message, "warning"));
  }
  showTried();
}

function paragraph(text, kind = "") {
  const made = document.createElement("p");
  made.textContent = text;
  made.className = kind;
  return made;
}

function showFacts(milliseconds) {
  const { learned } = state;
  if (!learned) {
    const text = "Nothing yet: give it photographs of two classes, five or more of each.";
    element("facts").replaceChildren(paragraph(text, "quiet"));
    return;
  }
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const checked = learned.confusion.flat().reduce((a, b) => a + b);
  const lines = [];
  if (learned.accuracy === null) {
    lines.push(paragraph("Accuracy: unknown; two photographs of each class are the least to measure it."));
  } else {
    lines.push(
      paragraph(
        `Accuracy: ${percent(learned.accuracy)} ± ${percent(learned.error)} of ` +
          `${counted(checked, "photograph")}, each classified by what the others teach. Always ` +
          `the largest class: ${percent(learned.largest)}.`,
      ),
    );
    const mistakes = confusions(learned);
    if (mistakes.length) lines.push(mistakesList(mistakes));
  }
  const alone = learned.counts.filter((count) => count === 1).length;
  if (alone) {
    lines.push(
      paragraph(
        `${counted(alone, "class has", "classes have")} a single photograph, so how certain the ` +
          "probabilities are is a guess.",
        "warning",
      ),
    );
  }
  const frames = state.classes.flatMap(({ photos }) => photos).filter(({ isFrame }) => isFrame);
  if (frames.length && learned.accuracy !== null) {
    lines.push(
      paragraph(
        "Pictures of one scene resemble each other, so for those of the camera the accuracy is " +
          "too high: move the thing, turn it, change what is behind it.",
        "warning",
      ),
    );
  }
  const left = state.classes.filter(({ photos }) => !photos.length).map(({ name }) => name);
  if (left.length) lines.push(paragraph(`Without photographs: ${left.join(", ")}.`, "quiet"));
  lines.push(paragraph(`Learned in ${thousands(milliseconds)} ms.`, "quiet"));
  element("facts").replaceChildren(...lines);
}

function confusions({ classes, confusion, counts }) {
  const pairs = confusion.flatMap((row, c) =>
    row.map((times, said) => ({ times: c === said ? 0 : times, of: counts[c], c, said })),
  );
  return pairs
    .filter(({ times }) => times)
    .sort((a, b) => b.times - a.times)
    .slice(0, 5)
    .map(({ times, of, c, said }) => {
      return `${times} of ${of} of ${classes[c]} were taken for ${classes[said]}`;
    });
}

function mistakesList(sentences) {
  const list = document.createElement("ul");
  list.append(
    ...sentences.map((sentence) => {
      const item = document.createElement("li");
      item.textContent = sentence;
      return item;
    }),
  );
  return list;
}

async function tryPhoto(file) {
  if (!file) return;
  try {
    const pixels = await decode(file);
    state.tried = { name: file.name, features: state.model.features(pixels) };
    const shown = element("shown");
    pictureOf(prepare(pixels, state.model.imageSize), shown);
    shown.setAttribute("aria-label", file.name);
    shown.hidden = false;
    showTried();
  } catch (error) {
    element("shown").hidden = true;
    element("found").replaceChildren(paragraph(error.message, "warning"));
  }
}

// The answer for the photograph that was given last; the camera's own comes by itself.
function showTried() {
  if (element("shown").hidden) return;
  if (state.learned) {
    showAnswer(state.tried.features);
    if (state.camera) element("found").append(backToCamera());
  } else {
    element("found").replaceChildren(paragraph("It has not learned anything yet.", "quiet"));
  }
}

function backToCamera() {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Back to the camera";
  button.onclick = () => {
    element("shown").hidden = true;
    element("camera").focus();
  };
  return button;
}

// The answer, and of the camera's picture also the best class below the picture.
function showAnswer(features, caption) {
  const { classes, noneOfThese } = classify(state.learned, features);
  element("found").setAttribute("aria-live", caption ? "off" : "polite");
  if (caption) {
    const best = `${classes[0].name} ${classes[0].percent.toFixed(0)} %`;
    caption.textContent = noneOfThese ? "none of these" : best;
  }
  const list = document.createElement("ol");
  list.append(
    ...classes.slice(0, MOST_SHOWN).map(({ name, percent }) => {
      const item = document.createElement("li");
      item.style.setProperty("--share", `${percent}%`);
      const [words, number] = [document.createElement("span"), document.createElement("span")];
      words.textContent = name;
      number.textContent = `${percent.toFixed(1)} %`;
      item.append(words, number);
      return item;
    }),
  );
  const lines = [list];
  if (noneOfThese) {
    const text = "None of these: unlike all photographs that it was taught with. The nearest:";
    lines.unshift(paragraph(text, "warning none"));
  }
  element("found").replaceChildren(...lines);
}

function save() {
  const bytes = withClassifier(state.network, state.learned);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
  link.download = "mine.bnn";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  state.isSaved = true;
}
