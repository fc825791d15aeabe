// How the texts and controls of panels look. The page around a panel sets the colours: --card,
// --text, --quiet, --line, --accent, --on-accent, --warn.

export const CONTROLS = `
* { box-sizing: border-box; }
[hidden] { display: none !important; }
:host { display: block; container-type: inline-size; color: var(--text); }
h2 { font-size: 1.05rem; line-height: 1.3; margin: 0 0 .5rem; font-family: inherit; }
p { margin: .25rem 0; }
.quiet { color: var(--quiet); font-size: .9rem; }
.warning { color: var(--warn); }
.hide { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
  white-space: nowrap; }
.row { display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; }
button, .file { font: inherit; padding: .4rem .75rem; border-radius: .4rem; cursor: pointer;
  border: 1px solid var(--line); background: var(--card); color: var(--text); min-height: 2.5rem; }
button.main { background: var(--accent); color: var(--on-accent); border-color: transparent; }
button:disabled { opacity: .5; cursor: default; }
.file { display: inline-flex; align-items: center; position: relative; }
.file input { position: absolute; width: 1px; height: 1px; opacity: 0; }
:focus-visible, .file:focus-within { outline: 2px solid var(--accent); outline-offset: 2px; }
`;
