// The panel that finds photographs: chosen ones are read, and then their copies, groups of similar
// ones, and those that are similar to one are shown.
import { buttonOf, ignoresDrops, paragraph, saves, takesDrops, walks } from "./elements.js";
import { imagesOf } from "./files.js";
import { counted, thousands } from "./learned_facts.js";
import { MARKUP, STYLE } from "./photos_markup.js";

const TABS = ["copies", "groups", "similar"];
const MOST_GROUPS = 100;
const AT_ONCE = { copies: 50, groups: 12, similar: 60 }; // groups of copies, else photographs
const MOST_UNREAD = 1_000; // that are named
const WORTH_ASKING = 100; // photographs, before the page is left
const BEFORE_SHOWN = 250; // ms that work takes before the panel says so

// Fills an element with the panel. library: what openLibrary returned.
export function openPhotos(place, library) {
  const root = place.attachShadow({ mode: "open" });
  root.innerHTML = `<style>${STYLE}</style>${MARKUP}`;
  return new Photos(root, library);
}

class Photos {
  #root;
  #library;
  #works = new Map(); // what is being done, by its kind; the first is shown
  #isReading = false;
  #unread = new Set(); // sentences
  #copies = []; // {group, kept, isListed} of each group; all but the kept one are listed
  #wanted = null; // number of groups that was chosen
  #view = { tab: "copies", photo: null };
  #scrolled = new Map(); // by photograph or tab, how far it was scrolled
  #pictures = new Map(); // addresses of small pictures, by photograph
  #large = null; // address of the photograph that is shown large

  constructor(root, library) {
    this.#root = root;
    this.#library = library;
    this.#takes("chosen", (files) => files);
    this.#takes("folder", imagesOf);
    takesDrops(root.querySelector(".panel"), (files) => this.#add(files));
    ignoresDrops();
    this.#element("stop").onclick = () => this.#shownWork()?.stop();
    this.#element("copy").onclick = () => this.#copyList();
    this.#element("save").onclick = () => {
      saves(new Blob([this.#list()], { type: "text/plain" }), "copies.txt");
    };
    const number = this.#element("number");
    number.oninput = () => this.#label(number.value);
    number.onchange = () => {
      this.#wanted = Number(number.value);
      this.#showGroups(this.#wanted);
    };
    this.#element("filter").oninput = () => this.#showAll();
    this.#element("back").onclick = () => history.back();
    for (const tab of TABS) {
      this.#element(`tab-${tab}`).onclick = () => this.#go({ tab, photo: null }, true);
    }
    this.#root.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
      const step = { ArrowLeft: TABS.length - 1, ArrowRight: 1 }[event.key];
      if (!step) return;
      const tab = TABS[(TABS.indexOf(this.#view.tab) + step) % TABS.length];
      this.#go({ tab, photo: null }, true);
      this.#element(`tab-${tab}`).focus();
    });
    addEventListener("beforeunload", (event) => {
      if (this.#isReading || library.photos.length >= WORTH_ASKING) event.preventDefault();
    });
    history.scrollRestoration = "manual";
    history.replaceState({ tab: "copies", photo: null }, "");
    addEventListener("popstate", ({ state }) => {
      if (state) this.#show({ tab: state.tab, photo: library.photos[state.photo] ?? null }, true);
    });
  }

  #element(id) {
    return this.#root.getElementById(id);
  }

  #takes(id, chosen) {
    const input = this.#element(id);
    input.onchange = async () => {
      const files = chosen([...input.files]);
      input.value = ""; // so that the same can be chosen again
      await this.#add(files);
    };
  }

  // --- Reading, and what is computed of all. ---

  async #add(files) {
    if (this.#isReading) return;
    if (!files.length) {
      this.#count("There are no photographs in it.");
      return;
    }
    this.#isReading = true;
    this.#problem("");
    this.#element("choice").inert = true;
    const before = this.#library.photos.length;
    const began = performance.now();
    let [known, left] = [0, 0];
    await this.#does("reading", async (signal, tell) => {
      const onRead = (done, all) => {
        const left = ((performance.now() - began) / done) * (all - done);
        const rest = done > 20 && left > 5_000 ? `, ${durationOf(left)} left` : "";
        tell(all ? done / all : null, `Read ${thousands(done)} of ${counted(all, "photograph")}${rest}`);
      };
      const result = await this.#library.read(files, { signal, onRead });
      ({ known, left } = result);
      for (const sentence of result.unread) this.#unread.add(sentence);
    });
    this.#isReading = false;
    this.#element("choice").inert = false;
    this.#showUnread();
    const { length } = this.#library.photos;
    const parts = [length ? counted(length, "photograph") : "No photograph was read"];
    if (known) parts.push(`${counted(known, "was", "were")} there already`);
    if (left) parts.push(`${counted(left, "was", "were")} not read, since it was stopped`);
    this.#count(`${parts.join("; ")}.`);
    if (length > before) this.#compute();
  }

  #count(text) {
    const { length } = this.#library.photos;
    this.#element("choice").classList.toggle("empty", !length);
    this.#element("count").textContent = text;
  }

  #showUnread() {
    const box = this.#element("unread");
    const { size } = this.#unread;
    box.hidden = !size;
    box.querySelector("summary").textContent =
      `Left out: ${counted(size, "file")} that cannot be read`;
    const lines = [...this.#unread].slice(0, MOST_UNREAD);
    const more = size - lines.length;
    if (more) lines.push(`and ${thousands(more)} more`);
    box.open = lines.length <= 5;
    box.querySelector("ul").replaceChildren(
      ...lines.map((line) => Object.assign(document.createElement("li"), { textContent: line })),
    );
  }

  #compute() {
    const { photos, usualNumber } = this.#library;
    const number = this.#element("number");
    number.max = Math.min(MOST_GROUPS, photos.length);
    number.value = this.#wanted ?? usualNumber;
    this.#label(number.value);
    this.#scrolled.clear();
    this.#element("results").hidden = false;
    this.#show({ tab: this.#view.tab, photo: null });
    this.#findCopies();
    this.#showGroups(Number(number.value));
  }

  // Does work of a kind, in place of other work of that kind, and shows its progress. Returns
  // whether it was finished, null if other work took its place.
  async #does(kind, work) {
    this.#works.get(kind)?.stop();
    const controller = new AbortController();
    const own = { what: "", share: null, isShown: false };
    own.stop = () => controller.abort(new Error("it was stopped"));
    this.#works.delete(kind);
    this.#works.set(kind, own);
    const timer = setTimeout(() => {
      own.isShown = true;
      this.#showWork();
    }, BEFORE_SHOWN);
    const tell = (share, what) => {
      Object.assign(own, { share, what });
      this.#showWork();
    };
    let isDone = false;
    try {
      await work(controller.signal, tell);
      isDone = !controller.signal.aborted;
    } catch (error) {
      if (!controller.signal.aborted) this.#problem(error.message);
    }
    clearTimeout(timer);
    if (this.#works.get(kind) !== own) return null;
    this.#works.delete(kind);
    this.#showWork();
    return isDone;
  }

  #shownWork() {
    return [...this.#works.values()].find(({ isShown }) => isShown);
  }

  #showWork() {
    const work = this.#shownWork();
    this.#element("doing").hidden = !work;
    if (!work) return;
    this.#element("what").textContent = work.what;
    if (work.share === null) this.#element("share").removeAttribute("value");
    else this.#element("share").value = work.share;
  }

  #problem(text) {
    this.#element("problem").textContent = text;
    this.#element("problem").hidden = !text;
  }

  // --- Views. ---

  #go(view, goesOn = false) {
    history.pushState({ tab: view.tab, photo: this.#library.photos.indexOf(view.photo) }, "");
    this.#show(view, goesOn);
  }

  // goesOn: whether it is scrolled to where it was.
  #show(view, goesOn = false) {
    this.#scrolled.set(this.#view.photo ?? this.#view.tab, scrollY);
    this.#view = view;
    for (const tab of TABS) {
      const button = this.#element(`tab-${tab}`);
      const isShown = tab === view.tab;
      button.setAttribute("aria-selected", isShown);
      button.tabIndex = isShown ? 0 : -1;
      this.#element(tab).hidden = !isShown;
    }
    if (view.tab === "similar") {
      if (view.photo) this.#showSimilar(view.photo);
      else this.#showAll();
    }
    const before = goesOn ? this.#scrolled.get(view.photo ?? view.tab) : null;
    const top = this.#element("results").getBoundingClientRect().top + scrollY;
    scrollTo(0, before ?? (view.photo ? top : Math.min(scrollY, top)));
  }

  #content(tab) {
    return this.#element(tab).querySelector(".content");
  }

  // --- Copies. ---

  async #findCopies() {
    const { length } = this.#library.photos;
    const facts = this.#element("copies").querySelector(".facts");
    const what = `Looking for copies among ${counted(length, "photograph")}`;
    this.#element("list").hidden = true;
    this.#content("copies").replaceChildren();
    this.#element("tab-copies").querySelector("span").textContent = "";
    facts.textContent = `${what} …`;
    const isDone = await this.#does("copies", async (signal, tell) => {
      tell(null, what);
      const onProgress = (share) => tell(share, what);
      const groups = await this.#library.copies({ signal, onProgress });
      this.#copies = this.#withDecisions(groups);
      this.#showCopies();
    });
    if (isDone !== false) return;
    facts.textContent = "They were not all compared.";
    this.#content("copies").append(buttonOf("Look for copies", () => this.#findCopies()));
  }

  // Returns groups with what was decided of their photographs before.
  #withDecisions(groups) {
    const before = new Map(
      this.#copies.flatMap((one) => one.group.map(({ photo }) => [photo, one])),
    );
    return groups.map((group) => {
      const decided = group.map(({ photo }) => before.get(photo)).filter(Boolean);
      const chosen = decided.filter(({ kept }) => kept).map((one) => one.group[one.kept].photo);
      const kept = group.findIndex(({ photo }) => chosen.includes(photo));
      return { group, kept: Math.max(kept, 0), isListed: decided.every((one) => one.isListed) };
    });
  }

  #showCopies() {
    const inside = this.#copies.reduce((sum, { group }) => sum + group.length, 0);
    const bytes = this.#others(() => true).reduce((sum, photo) => sum + photo.bytes, 0);
    const { length } = this.#copies;
    this.#element("copies").querySelector(".facts").textContent = length
      ? `${counted(length, "group")} with ${thousands(inside)} of ` +
        `${counted(this.#library.photos.length, "photograph")}. All but the best copy of each ` +
        `group take ${sizeOf(bytes)}. The best copy has the most pixels; among copies of one ` +
        "size it is the sharpest. You can keep another one instead. The list names all that are " +
        "not kept. This page deletes nothing."
      : `No copies among ${counted(this.#library.photos.length, "photograph")}.`;
    this.#element("tab-copies").querySelector("span").textContent = thousands(length);
    this.#element("list").hidden = !length;
    this.#element("copied").textContent = "";
    const make = (one) => this.#groupOfCopies(one);
    const list = document.createElement("div");
    list.className = "groups";
    fill(this.#content("copies"), list, this.#copies, AT_ONCE.copies, make);
  }

  #groupOfCopies(one) {
    const { group } = one;
    const box = boxOf(counted(group.length, "photograph"));
    const number = this.#copies.indexOf(one);
    const changed = (change) => {
      Object.assign(one, change);
      this.#element("copied").textContent = "";
      figures.forEach((figure, i) => {
        figure.classList.toggle("kept", one.isListed && i === one.kept);
        figure.classList.toggle("best", i === 0 && one.kept === 0);
      });
    };
    const check = checkOf("list the others", one.isListed, (isListed) => changed({ isListed }));
    box.querySelector("header").append(check);
    const figures = group.map(({ photo, alteration }, i) => {
      const facts = [sidesOf(photo), sizeOf(photo.bytes)];
      if (alteration) facts.push(alteration);
      const figure = this.#figure(photo, i, facts.join(", "));
      figure.append(checkOf("keep", i === one.kept, () => changed({ kept: i }), `kept ${number}`));
      return figure;
    });
    changed({});
    const grid = gridOf();
    grid.append(...figures);
    box.append(grid);
    return box;
  }

  #others(isTaken) {
    return this.#copies
      .filter(isTaken)
      .flatMap(({ group, kept }) => group.filter((_, i) => i !== kept))
      .map(({ photo }) => photo);
  }

  // A name on each line, with escapes for characters that would end it.
  #list() {
    const names = this.#others(({ isListed }) => isListed).map(({ path }) => path);
    return names.map((name) => `${lineOf(name)}\n`).join("");
  }

  async #copyList() {
    const said = this.#element("copied");
    const names = this.#others(({ isListed }) => isListed).length;
    try {
      await navigator.clipboard.writeText(this.#list());
      said.textContent = `${counted(names, "name")} copied.`;
    } catch {
      said.textContent = "This browser does not let the page copy: save the list.";
    }
  }

  // --- Groups. ---

  #label(number) {
    this.#root.querySelector("output").textContent = number;
  }

  async #showGroups(k) {
    const count = this.#element("tab-groups").querySelector("span");
    const isDone = await this.#does("groups", async (signal, tell) => {
      const onProgress = (share) => tell(share, `Making ${counted(k, "group")}`);
      const groups = await this.#library.groups(k, { signal, onProgress });
      count.textContent = thousands(groups.length);
      const boxes = groups.map((photos) => {
        const box = boxOf(counted(photos.length, "photograph"));
        const content = document.createElement("div");
        box.append(content);
        const make = (photo, place) => this.#figure(photo, place);
        fill(content, gridOf(), photos, AT_ONCE.groups, make);
        return box;
      });
      this.#content("groups").replaceChildren(...boxes);
    });
    if (isDone !== false) return;
    count.textContent = "";
    this.#content("groups").replaceChildren(paragraph("The groups were not made.", "quiet"));
  }

  // --- Similar ones. ---

  #showAll() {
    const part = this.#element("filter").value.trim().toLowerCase();
    const found = this.#library.photos.filter(({ path }) => path.toLowerCase().includes(part));
    this.#asked(null);
    this.#heading(
      found.length
        ? `Press one of ${counted(found.length, "photograph")}: the most similar ones are shown`
        : "No photograph has this in its name",
    );
    const make = (photo, place) => this.#figure(photo, place);
    fill(this.#content("similar"), gridOf(), found, AT_ONCE.similar, make);
  }

  #showSimilar(photo) {
    this.#asked(photo);
    const found = this.#library.similar(photo);
    this.#heading(found.length ? "The most similar ones" : "There is no other photograph");
    const make = ({ photo: other, cosine }, place) =>
      this.#figure(other, place, cosine.toFixed(3));
    fill(this.#content("similar"), gridOf(), found, AT_ONCE.similar, make);
  }

  #heading(text) {
    this.#element("similar").querySelector("h2").textContent = text;
  }

  // Shows a photograph large, or none.
  #asked(photo) {
    const figure = this.#element("asked");
    const image = figure.querySelector("img");
    figure.hidden = !photo;
    this.#element("back").hidden = !photo;
    this.#element("filter").hidden = Boolean(photo);
    if (this.#large) URL.revokeObjectURL(this.#large);
    this.#large = photo && URL.createObjectURL(photo.file);
    image.removeAttribute("src");
    if (!photo) return;
    image.src = this.#large;
    image.alt = photo.path;
    figure.querySelector("figcaption").replaceChildren(
      spanOf("name", photo.path),
      spanOf("facts", `${sidesOf(photo)}, ${sizeOf(photo.bytes)}`),
    );
    figure.focus({ preventScroll: true });
  }

  // --- Photographs as elements. ---

  // place: in its list, of which the first is a stop of the tabulator.
  #figure(photo, place, facts = "") {
    const item = document.createElement("li");
    const button = buttonOf("", () => this.#go({ tab: "similar", photo }));
    button.title = "Show similar ones";
    button.tabIndex = place ? -1 : 0;
    const image = document.createElement("img");
    image.loading = "lazy";
    image.alt = photo.path;
    image.src = this.#picture(photo);
    button.append(image);
    const about = document.createElement("div");
    about.className = "about";
    about.title = photo.path;
    const end = photo.path.lastIndexOf("/") + 1;
    about.append(spanOf("name", photo.path.slice(end)));
    if (end) about.append(spanOf("folder", photo.path.slice(0, end)));
    if (facts) about.append(spanOf("facts", facts));
    item.append(button, about);
    return item;
  }

  #picture(photo) {
    if (!this.#pictures.has(photo)) {
      this.#pictures.set(photo, URL.createObjectURL(photo.small));
    }
    return this.#pictures.get(photo);
  }
}

// Fills an element with a list of what is made of some of all, and a button for more.
function fill(place, list, all, atOnce, make) {
  let shown = 0;
  const more = buttonOf("", () => show(10 * atOnce));
  const show = (number) => {
    const some = all.slice(shown, shown + number);
    list.append(...some.map((one, i) => make(one, shown + i)));
    shown += some.length;
    const left = all.length - shown;
    const next = Math.min(left, 10 * atOnce);
    more.textContent = `Show ${thousands(next)} more${next < left ? ` of ${thousands(left)}` : ""}`;
    more.hidden = !left;
  };
  show(atOnce);
  place.replaceChildren(list, more);
}

function boxOf(heading) {
  const box = document.createElement("section");
  box.className = "box group";
  const header = document.createElement("header");
  header.append(Object.assign(document.createElement("h2"), { textContent: heading }));
  box.append(header);
  return box;
}

// Returns a box to tick, or one of several of which one is ticked if they have a name.
function checkOf(text, checked, change, name = "") {
  const type = name ? "radio" : "checkbox";
  const input = Object.assign(document.createElement("input"), { type, name, checked });
  input.onchange = () => change(input.checked);
  const label = document.createElement("label");
  label.append(input, text);
  return label;
}

function gridOf() {
  const grid = document.createElement("ul");
  grid.className = "photos";
  grid.setAttribute("role", "list");
  walks(grid);
  return grid;
}

function spanOf(kind, text) {
  return Object.assign(document.createElement("span"), { className: kind, textContent: text });
}

function sidesOf({ width, height }) {
  return `${thousands(width)}\u00a0×\u00a0${thousands(height)}`;
}

function sizeOf(bytes) {
  if (bytes < 1e6) return `${thousands(bytes / 1e3)}\u00a0kB`;
  if (bytes < 1e9) return `${(bytes / 1e6).toFixed(1)}\u00a0MB`;
  return `${(bytes / 1e9).toFixed(1)}\u00a0GB`;
}

function durationOf(milliseconds) {
  const seconds = milliseconds / 1000;
  return seconds < 90 ? `about ${Math.ceil(seconds)} s` : `about ${Math.ceil(seconds / 60)} min`;
}

// Returns a name without what would end its line or turn its direction, unlike that of any other.
function lineOf(name) {
  const odd = /[\\\p{Cc}\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu;
  return name.replace(odd, (c) => {
    const code = c.charCodeAt(0).toString(16);
    return c === "\\" ? "\\\\" : `\\u${code.padStart(4, "0")}`;
  });
}
