// The panel that learns classes: photographs of each, a classifier that is learned from their
// features at once, what it says of other photographs, and the packed file with it.
import { closeCamera, frameOf, holds, openCamera } from "./camera.js";
import {
  buttonOf, ignoresDrops, list, paragraph, saves, stopsAt, takesDrops, uncovers, walks,
} from "./elements.js";
import { classify, withClassifier } from "./learn.js";
import { counted, factsOf, thousands } from "./learned_facts.js";
import { markup, STYLE } from "./panel_markup.js";
import { drawn, smallAddress } from "./picture.js";

const BETWEEN_ANSWERS = 120; // ms, at least, of the camera
const BEFORE_LEARNING = 250; // ms without a change
const BEFORE_SHOWN = 250; // ms that work takes before the panel says so
const MOST_SHOWN = 12; // classes of an answer
const MOST_UNREAD = 200; // files that are named
const THUMBNAIL = 96; // pixels
const AT_ONCE = 60; // photographs of a class that are shown; ten times as many more on demand

// Fills an element with the panel.
// background: what openBackground returned. network: a function that returns the packed file's
// bytes. level: of its headings.
export function openPanel(place, { background, network, level = 2 }) {
  const root = place.attachShadow({ mode: "open" });
  root.innerHTML = `<style>${STYLE}</style>${markup(level)}`;
  return new Panel(root, background, network);
}

class Panel {
  #root;
  #background;
  #network;
  // {name, photos, removed, most, card}; a photo is {features, name, small, isFrame}. The card shows
  // at most `most` photos, the newest ones, the last first.
  #classes = [];
  #learned = null; // what learn returned
  #learning = null; // AbortController of what is learned, or was last
  #isLearning = false; // or will in a moment
  #camera = null; // MediaStream
  #reading = 0; // groups of files that are being read
  #numFrames = 0; // that were taken
  #numGiven = 0; // files
  #unread = []; // why files of these could not be read
  #isTaking = false; // a picture of the camera goes through the network
  #trying = null; // {file} that was given last, which may still be read
  #tried = null; // features of the photograph that is shown
  #isSaved = true;
  #timer = 0;
  #works = []; // what is being done; the last is shown

  constructor(root, background, network) {
    this.#root = root;
    this.#background = background;
    this.#network = network;
    this.#addClass();
    this.#addClass();
    this.#element("add").onclick = () => {
      this.#addClass().card.querySelector("header input").select();
      this.#changed();
    };
    this.#element("camera").onclick = () => this.#switchCamera();
    this.#element("save").onclick = () => this.#save();
    this.#element("stop").onclick = () => this.#shownWork()?.stop();
    const tried = this.#element("tried");
    tried.onchange = async () => {
      await this.#try(tried.files[0]);
      tried.value = ""; // so that the same file can be chosen again
    };
    takesDrops(this.#element("trial"), ([file]) => this.#try(file));
    ignoresDrops();
    uncovers(root, { above: this.#element("viewer"), below: this.#element("doing") });
    addEventListener("beforeunload", (event) => {
      if (!this.#isSaved) event.preventDefault();
    });
    this.#showFacts([NOTHING]);
  }

  #element(id) {
    return this.#root.getElementById(id);
  }

  #problem(text) {
    this.#element("problem").textContent = text;
    this.#element("problem").hidden = !text;
  }

  // --- What takes a while. ---

  // Returns how to say how far it is, as a share of 1, and that it has ended.
  #begins(what, stop) {
    const work = { what, share: null, stop, isShown: false };
    this.#works.push(work);
    const timer = setTimeout(() => {
      work.isShown = true;
      this.#showWork();
    }, BEFORE_SHOWN);
    return {
      tell: (share, what = work.what) => {
        Object.assign(work, { share, what });
        this.#showWork();
      },
      end: () => {
        clearTimeout(timer);
        this.#works = this.#works.filter((one) => one !== work);
        this.#showWork();
      },
    };
  }

  #shownWork() {
    return this.#works.filter(({ isShown }) => isShown).at(-1);
  }

  #showWork() {
    const work = this.#shownWork();
    const box = this.#element("doing");
    const hadFocus = box.contains(this.#root.activeElement);
    box.hidden = !work;
    if (work) {
      this.#element("what").textContent = work.what;
      if (work.share === null) this.#element("share").removeAttribute("value");
      else this.#element("share").value = work.share;
    } else if (hadFocus) {
      this.#element("learned-name").focus({ preventScroll: true });
    }
  }

  // --- Classes and their photographs. ---

  #addClass() {
    const names = this.#classes.map(({ name }) => name);
    let number = this.#classes.length + 1;
    while (names.includes(`class ${number}`)) ++number;
    const card = this.#element("class").content.cloneNode(true).firstElementChild;
    const made = { name: `class ${number}`, photos: [], removed: [], most: AT_ONCE, card };
    const name = card.querySelector("header input");
    name.value = made.name;
    name.oninput = () => {
      made.name = name.value.trim();
      label(made);
      this.#changed();
    };
    card.querySelector(".remove").onclick = () => this.#removeClass(made);
    const input = card.querySelector("input[type=file]");
    input.onchange = async () => {
      const files = [...input.files];
      input.value = "";
      await this.#addFiles(made, files);
    };
    takesDrops(card, (files) => this.#addFiles(made, files));
    holds(card.querySelector(".hold"), () => this.#addFrame(made));
    card.querySelector(".hold").hidden = !this.#camera;
    walks(card.querySelector(".photos"), { presses: ["Delete", "Backspace"] });
    card.querySelector(".more").onclick = () => this.#showMore(made);
    card.querySelector(".removed button").onclick = () => this.#putBack(made);
    this.#classes.push(made);
    this.#element("classes").append(card);
    label(made);
    return made;
  }

  #removeClass(made) {
    const { length } = made.photos;
    const what = `${made.name || "the class"} with ${counted(length, "photograph")}`;
    if (length && !confirm(`Remove ${what}?`)) return;
    this.#classes = this.#classes.filter((one) => one !== made);
    // Ends a hold, also one whose own end never comes.
    made.card.querySelector(".hold").dispatchEvent(new Event("pointercancel"));
    made.card.remove();
    this.#element("add").focus();
    this.#changed();
  }

  async #addFiles(made, files) {
    const unread = [];
    let done = 0;
    let isStopped = false;
    const work = this.#begins("Reading", () => (isStopped = true));
    ++this.#reading;
    for (const file of files) {
      if (isStopped || !this.#classes.includes(made)) break; // it was removed meanwhile
      const what = `Reading ${thousands(done + 1)} of ${thousands(files.length)}: ${file.name}`;
      work.tell(done / files.length, what);
      ++done;
      try {
        const { features, picture } = await this.#background.features(file);
        this.#addPhoto(made, features, picture, file.name, false);
      } catch (error) {
        unread.push(error.message);
      }
    }
    work.end();
    --this.#reading;
    this.#showUnread(unread, done);
    this.#changed();
  }

  // Adds to what is said of files that could not be read, the last ones first.
  #showUnread(sentences, number) {
    this.#numGiven += number;
    if (!sentences.length) return; // or it would be read out again
    this.#unread.push(...sentences);
    const box = this.#element("unread");
    const left = this.#unread.length;
    box.hidden = false;
    const lines = this.#unread.slice(-MOST_UNREAD).reverse();
    if (left > lines.length) lines.push(`and ${thousands(left - lines.length)} more`);
    box.textContent =
      `Left out: ${thousands(left)} of ${thousands(this.#numGiven)}. ${lines.join("; ")}`;
  }

  async #addFrame(made) {
    const pixels = this.#isTaking ? null : frameOf(this.#element("live"));
    if (!pixels) return;
    this.#isTaking = true;
    try {
      const { features, picture } = await this.#background.features(pixels);
      const name = `picture ${++this.#numFrames} of the camera`;
      if (this.#classes.includes(made)) this.#addPhoto(made, features, picture, name, true);
    } catch (error) {
      this.#problem(error.message);
    }
    this.#isTaking = false;
    this.#changed();
  }

  #addPhoto(made, features, picture, name, isFrame) {
    this.#put(made, { features, name, small: smallAddress(picture, THUMBNAIL), isFrame });
    label(made);
  }

  // Shows a photograph before the others, and no longer the oldest of those that are too many.
  #put(made, photo) {
    made.photos.push(photo);
    const list = photosIn(made);
    const { activeElement } = this.#root;
    const item = this.#itemOf(made, photo);
    list.prepend(item);
    if (!list.contains(activeElement)) {
      stopsAt(list, item.firstElementChild);
      list.scrollTop = 0;
    }
    while (list.children.length > made.most && !list.lastElementChild.contains(activeElement)) {
      list.lastElementChild.remove();
    }
  }

  #itemOf(made, photo) {
    const item = document.createElement("li");
    const button = buttonOf("", () => this.#removePhoto(made, photo, item));
    button.title = `Remove ${photo.name}`;
    button.setAttribute("aria-label", button.title);
    button.tabIndex = -1;
    const image = document.createElement("img");
    image.alt = "";
    image.src = photo.small;
    button.append(image);
    item.append(button);
    return item;
  }

  // Shows older photographs until there are as many as may be.
  #fill(made) {
    const list = photosIn(made);
    const { photos } = made;
    while (list.children.length < Math.min(made.most, photos.length)) {
      list.append(this.#itemOf(made, photos.at(-1 - list.children.length)));
    }
  }

  #showMore(made) {
    const list = photosIn(made);
    const shown = list.children.length;
    made.most = shown + 10 * AT_ONCE;
    this.#fill(made);
    label(made);
    list.children[shown].firstElementChild.focus();
  }

  #removePhoto(made, photo, item) {
    const list = photosIn(made);
    const at = [...list.children].indexOf(item);
    made.photos = made.photos.filter((one) => one !== photo);
    made.removed.push(photo);
    item.remove();
    this.#fill(made);
    const next = list.children[at] ?? list.lastElementChild;
    (next?.firstElementChild ?? made.card.querySelector("header input")).focus();
    label(made, `Removed ${photo.name}.`);
    this.#changed();
  }

  // Puts the photograph back that was removed last.
  #putBack(made) {
    const photo = made.removed.pop();
    this.#put(made, photo);
    label(made, `${photo.name} is back.`);
    if (!made.removed.length) photosIn(made).querySelector("button").focus();
    this.#changed();
  }

  // --- The camera. ---

  async #switchCamera() {
    const button = this.#element("camera");
    const live = this.#element("live");
    button.disabled = true;
    this.#problem("");
    if (this.#camera) {
      closeCamera(this.#camera);
      live.srcObject = null;
      this.#camera = null;
    } else {
      this.#camera = await openCamera(live).catch((error) => {
        this.#problem(`the camera cannot be used: ${error.message}`);
        return null;
      });
    }
    const camera = this.#camera;
    button.disabled = false;
    button.textContent = camera ? "Switch the camera off" : "Switch the camera on";
    this.#element("viewer").hidden = !camera;
    this.#element("said").textContent = "";
    this.#element("shown").hidden = true;
    this.#element("found").replaceChildren();
    for (const { card } of this.#classes) card.querySelector(".hold").hidden = !camera;
    if (!camera) return;
    camera.getVideoTracks()[0].onended = () => {
      if (this.#camera === camera) this.#switchCamera(); // it was unplugged
    };
    await this.#watch(camera);
  }

  async #watch(camera) {
    const live = this.#element("live");
    const isAsked = () =>
      this.#camera === camera && this.#learned && this.#element("shown").hidden;
    while (this.#camera === camera) {
      const pixels = isAsked() && !document.hidden ? frameOf(live) : null;
      if (pixels) {
        try {
          const { features } = await this.#background.features(pixels);
          if (isAsked()) this.#showAnswer(features, this.#element("said"));
        } catch (error) {
          this.#problem(error.message);
        }
      }
      await new Promise((resume) => setTimeout(resume, BETWEEN_ANSWERS));
    }
  }

  // --- What is learned and what it says. ---

  #taught() {
    return this.#classes.filter(({ photos }) => photos.length);
  }

  #changed() {
    this.#learning?.abort();
    this.#learned = null;
    this.#isLearning = this.#taught().length > 1;
    this.#isSaved = !this.#taught().length;
    this.#element("said").textContent = "";
    for (const id of ["facts", "found"]) this.#element(id).classList.add("old");
    this.#element("save").disabled = true;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#learn(), BEFORE_LEARNING);
  }

  async #learn() {
    if (this.#reading) return; // its end is a change, too
    const taught = this.#taught();
    if (taught.length < 2) {
      this.#says([NOTHING]);
      return;
    }
    this.#learning?.abort();
    const learning = new AbortController();
    this.#learning = learning;
    this.#isLearning = true;
    const photos = taught.flatMap((one) => one.photos);
    const labels = taught.flatMap((one, c) => one.photos.map(() => c));
    const stop = () => {
      learning.abort();
      this.#says([{ text: "Nothing: it was stopped.", kind: "quiet" }]);
      this.#element("facts").append(buttonOf("Learn now", () => this.#learn()));
    };
    const work = this.#begins(`Learning from ${counted(photos.length, "photograph")}`, stop);
    const began = performance.now();
    try {
      const learned = await this.#background.learn(
        photos.map(({ features }) => features),
        labels,
        taught.map(({ name }) => name),
        { signal: learning.signal, onProgress: work.tell },
      );
      if (learning.signal.aborted) return;
      this.#learned = learned;
      const facts = factsOf(learned, {
        hasFrames: photos.some(({ isFrame }) => isFrame),
        empty: this.#classes.filter((one) => !one.photos.length).map(({ name }) => name),
        milliseconds: performance.now() - began,
      });
      this.#element("save").disabled = false;
      this.#says(facts);
    } catch (error) {
      // What stopped it has said so.
      if (!learning.signal.aborted) this.#says([{ text: error.message, kind: "warning" }]);
    } finally {
      work.end();
    }
  }

  #says(facts) {
    this.#isLearning = false;
    this.#showFacts(facts);
    this.#showTried();
  }

  #showFacts(facts) {
    const parts = facts.map(({ text, texts, kind }) => {
      return texts ? list(texts) : paragraph(text, kind);
    });
    this.#element("facts").replaceChildren(...parts);
    this.#element("facts").classList.remove("old");
  }

  async #try(file) {
    if (!file) return;
    const shown = this.#element("shown");
    const trying = { file }; // the same file may be given twice
    this.#trying = trying;
    try {
      const { features, picture } = await this.#background.features(file);
      if (this.#trying !== trying) return; // another one came meanwhile
      this.#tried = features;
      drawn(picture, shown);
      shown.setAttribute("aria-label", file.name);
      shown.hidden = false;
      this.#showTried();
    } catch (error) {
      if (this.#trying !== trying) return;
      shown.hidden = true;
      this.#element("found").classList.remove("old");
      this.#element("found").replaceChildren(paragraph(error.message, "warning"));
    }
  }

  // The answer for the photograph that is shown; the camera's own comes by itself.
  #showTried() {
    const found = this.#element("found");
    if (this.#element("shown").hidden) {
      if (!this.#learned) found.replaceChildren();
    } else if (this.#learned) {
      this.#showAnswer(this.#tried);
      if (this.#camera) found.append(this.#backToCamera());
    } else if (!this.#isLearning) {
      found.classList.remove("old");
      found.replaceChildren(paragraph("It has not learned anything yet.", "quiet"));
    }
  }

  #backToCamera() {
    return buttonOf("Back to the camera", () => {
      this.#element("shown").hidden = true;
      this.#element("camera").focus();
    });
  }

  // The answer, and of the camera's picture also the best class below the picture.
  #showAnswer(features, caption) {
    const { classes, noneOfThese } = classify(this.#learned, features);
    const found = this.#element("found");
    found.setAttribute("aria-live", caption ? "off" : "polite");
    found.classList.remove("old");
    if (caption) {
      const best = `${classes[0].name} ${classes[0].percent.toFixed(0)} %`;
      caption.textContent = noneOfThese ? "none of these" : best;
    }
    const answers = document.createElement("ol");
    answers.setAttribute("role", "list");
    answers.append(
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
    const lines = [answers];
    if (noneOfThese) {
      const text = "None of these: unlike all photographs that it was taught with. The nearest:";
      lines.unshift(paragraph(text, "warning none"));
    }
    found.replaceChildren(...lines);
  }

  #save() {
    let bytes;
    try {
      bytes = withClassifier(this.#network(), this.#learned);
    } catch (error) {
      this.#problem(error.message);
      return;
    }
    saves(new Blob([bytes], { type: "application/octet-stream" }), "mine.bnn");
    this.#isSaved = true;
  }
}

const NOTHING = {
  text: "Nothing yet: give it photographs of two classes, five or more of each.",
  kind: "quiet",
};

const photosIn = ({ card }) => card.querySelector(".photos");

// What a class's card says besides its photographs. said: what became of one.
function label(made, said = "") {
  const { name, photos, removed, card } = made;
  const number = card.querySelector(".count");
  const list = photosIn(made);
  card.setAttribute("aria-label", name || "a class without a name");
  card.querySelector(".remove").setAttribute("aria-label", `Remove ${name || "this class"}`);
  number.textContent = photos.length ? thousands(photos.length) : "";
  number.title = counted(photos.length, "photograph");
  list.hidden = !photos.length;
  list.setAttribute("aria-label", `Photographs of ${name || "this class"}`);
  const left = photos.length - list.children.length;
  const more = card.querySelector(".more");
  const next = Math.min(left, 10 * AT_ONCE);
  more.hidden = left <= 0;
  more.textContent = `Show ${thousands(next)} more${next < left ? ` of ${thousands(left)}` : ""}`;
  const [status, back] = card.querySelector(".removed").children;
  status.textContent = said;
  back.hidden = !removed.length;
  back.textContent = removed.length ? `Put ${removed.at(-1).name} back` : "";
}
