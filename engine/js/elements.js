// Elements of a page, and what they do when keys are pressed or files dropped on them.
import { filesIn } from "./files.js";

const ROOM = 8; // pixels around what has the focus, of which its outline takes four

// Has the arrows move among the buttons of a list, which is one stop of the tabulator.
// presses: keys that press one, too.
export function walks(list, { presses = [] } = {}) {
  list.addEventListener("focusin", ({ target }) => stopsAt(list, target));
  list.addEventListener("keydown", (event) => {
    const buttons = [...list.querySelectorAll("button")];
    const at = buttons.indexOf(event.target);
    const below = buttons.findIndex(({ offsetTop }) => offsetTop > buttons[0].offsetTop);
    const row = below < 0 ? buttons.length : below;
    const to = {
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      ArrowUp: at - row,
      ArrowDown: at + row,
      Home: 0,
      End: buttons.length - 1,
    }[event.key];
    if (to !== undefined) buttons[to]?.focus();
    else if (presses.includes(event.key)) event.target.click();
    else return;
    event.preventDefault();
  });
}

// Makes a button of such a list the one at which the tabulator stops.
export function stopsAt(list, button) {
  for (const other of list.querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
  button.tabIndex = 0;
}

// Has the page scroll where what stays in sight would cover what has the keyboard's focus.
// above, below: elements that may stay at the upper and at the lower edge of the window.
export function uncovers(root, { above, below }) {
  const scroll = () => {
    const focused = root.activeElement;
    // Under a pointer nothing may move, or what it pressed would not be clicked.
    if (!focused?.matches(":focus-visible")) return;
    for (const cover of [above, below]) {
      const over = cover.getBoundingClientRect();
      const own = (focused.closest(".file") ?? focused).getBoundingClientRect();
      const isBeside = own.right <= over.left || own.left >= over.right;
      if (isBeside || own.bottom <= over.top || own.top >= over.bottom) continue;
      if (cover.contains(focused)) continue;
      const up = own.top - over.bottom - ROOM;
      const down = own.bottom - over.top + ROOM;
      scrollBy({ top: cover === above ? up : down, behavior: "instant" });
    }
  };
  // After the browser has scrolled by itself.
  root.addEventListener("focusin", () => requestAnimationFrame(scroll));
  const observer = new ResizeObserver(scroll); // also when they are shown
  observer.observe(above);
  observer.observe(below);
}

export function takesDrops(place, take) {
  let depth = 0; // of elements inside it that the pointer has entered
  const over = (change) => {
    depth = change === null ? 0 : depth + change;
    place.classList.toggle("over", depth > 0);
  };
  place.addEventListener("dragenter", () => over(1));
  place.addEventListener("dragleave", () => over(-1));
  place.addEventListener("drop", async (event) => {
    over(null);
    const files = await filesIn(event.dataTransfer);
    if (files.length) take(files);
  });
}

// Without it, what is dropped beside the places for drops replaces the page.
export function ignoresDrops() {
  for (const kind of ["dragover", "drop"]) {
    addEventListener(kind, (event) => event.preventDefault());
  }
}

// Has the browser save a Blob as a file.
export function saves(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

export function buttonOf(text, press) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.onclick = press;
  return made;
}

export function paragraph(text, kind = "") {
  const made = document.createElement("p");
  made.textContent = text;
  made.className = kind;
  return made;
}

export function list(sentences) {
  const made = document.createElement("ul");
  made.append(
    ...sentences.map((sentence) => {
      const item = document.createElement("li");
      item.textContent = sentence;
      return item;
    }),
  );
  return made;
}
