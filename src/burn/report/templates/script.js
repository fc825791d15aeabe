"use strict";
(() => {
  const root = document.documentElement;
  const theme = document.querySelector(".theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const say = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.hidden = false;
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; say(); });
  dark.addEventListener("change", say);
  say();

  const value = (cell) => {
    const key = cell.dataset.k;
    return key === undefined ? cell.textContent.trim() : key === "" ? null : Number(key);
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  for (const table of document.querySelectorAll("table.sorts")) {
    const body = table.tBodies[0];
    if (body.rows.length < 2) continue;
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const falling = now ? now === "ascending" : head.classList.contains("n");
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", falling ? "descending" : "ascending");
        const rows = [...body.rows].map((row) => [value(row.cells[column]), row]);
        rows.sort(([a], [b]) => {
          if (a === null || b === null) return (a === null) - (b === null);
          return falling ? compare(b, a) : compare(a, b);
        });
        body.append(...rows.map(([, row]) => row));
      });
    });
  }

  const links = [...document.querySelectorAll(".rail a")];
  const seen = new Set();
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) seen[entry.isIntersecting ? "add" : "delete"](entry.target.id);
    const first = links.find((link) => seen.has(link.hash.slice(1)));
    for (const link of links) {
      if (link === first) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }, { rootMargin: "-15% 0px -70% 0px" });
  document.querySelectorAll("main > section").forEach((section) => watch.observe(section));

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const one of closed) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of closed) one.open = false; });
})();
