// What the panel that learns classes consists of, and how it looks. The page around it sets the
// colours of controls.js, --bar, and --top, what covers the upper edge of the window, if anything
// does.
import { CONTROLS } from "./controls.js";

export const STYLE = `${CONTROLS}
.panel { display: grid; gap: 1rem; align-items: start; grid-template-columns: minmax(0, 1fr); }
.teaching, .classes { display: grid; gap: .75rem; grid-template-columns: minmax(0, 1fr); }
/* Where it is narrow, what the camera sees stays in sight while it takes photographs. */
.answers { display: contents; }
#viewer { order: -1; position: sticky; top: var(--top, 0px); z-index: 1; }
#viewer video { max-height: 9rem; }
@media (max-height: 22rem) { #viewer { position: static; } } /* it would leave too little */
#unread { max-height: 12rem; overflow-y: auto; }
#trial { order: 1; }
#learned { order: 2; }
@container (min-width: 46rem) {
  .panel { grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); }
  /* As high as leaves room for #doing; what stays in sight can only be scrolled by itself. */
  .answers { display: grid; gap: 1rem; position: sticky; top: calc(var(--top, 0px) + 1rem);
    max-height: calc(100vh - var(--top, 0px) - 6rem); overflow-y: auto; }
  #viewer { position: static; }
  #viewer video { max-height: 15rem; }
  #viewer, #trial, #learned { order: 0; }
}
section, .class { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: .9rem; min-width: 0; }
#viewer { margin: 0; min-width: 0; }
#said { background: var(--card); border: 1px solid var(--line); border-top: 0; padding: .2rem .6rem;
  border-radius: 0 0 .4rem .4rem; font-weight: 600; white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis; min-height: 2rem; }
.class.over, #trial.over { outline: 2px dashed var(--accent); outline-offset: -4px; }
.class header { display: flex; gap: .5rem; align-items: center; margin-bottom: .6rem; }
.class header input { flex: 1; min-width: 0; font: inherit; font-weight: 600; padding: .3rem .5rem;
  border: 1px solid var(--line); border-radius: .4rem; background: transparent; color: inherit; }
button.hold { touch-action: none; user-select: none; -webkit-user-select: none; }
.photos { display: flex; flex-wrap: wrap; gap: .3rem; margin: .6rem -.2rem -.2rem; padding: .2rem;
  list-style: none; max-height: 13.2rem; overflow-y: auto; }
.photos button { padding: 0; min-height: 0; border: 0; background: none; display: block;
  position: relative; line-height: 0; }
.photos img { width: 3.6rem; height: 3.6rem; border-radius: .3rem; object-fit: cover; }
.photos button::after { content: "×"; position: absolute; top: 0; right: 0; width: 1.2rem;
  height: 1.2rem; line-height: 1.15rem; color: #fff; background: #000b; border-radius: 0 .3rem; }
.photos button:hover::after, .photos button:focus-visible::after { background: #b3261e; }
.more { margin-top: .6rem; }
.removed { margin: 0; }
.removed:has(> :not(:empty)) { margin-top: .6rem; }
.removed > * { overflow-wrap: anywhere; min-width: 0; }
video, #shown { width: 100%; max-height: 15rem; object-fit: contain; display: block; }
video { background: #000; border-radius: .4rem .4rem 0 0; }
#shown { object-position: left; }
ol { list-style: none; margin: .6rem 0 0; padding: 0; display: grid; gap: .3rem; }
ol li { position: relative; display: flex; justify-content: space-between; gap: 1rem; z-index: 0;
  padding: .25rem .5rem; border-radius: .3rem; overflow: hidden; border: 1px solid var(--line); }
ol li span:first-child { overflow-wrap: anywhere; }
ol li span:last-child { white-space: nowrap; }
ol li::before { content: ""; position: absolute; inset: 0 auto 0 0; width: var(--share);
  background: var(--bar); opacity: .55; z-index: -1; }
#facts ul { margin: .25rem 0; padding-left: 1.1rem; }
#facts { overflow-wrap: anywhere; }
.old { opacity: .5; }
code { font-size: .9em; overflow-wrap: anywhere; }
#doing { order: 3; grid-column: 1 / -1; position: sticky; bottom: .5rem; z-index: 2; display: flex;
  flex-wrap: wrap; gap: .3rem .8rem; align-items: center; background: var(--card);
  border: 1px solid var(--line); border-radius: .6rem; padding: .4rem .9rem;
  box-shadow: 0 .2rem 1rem #0003; }
#doing span { overflow-wrap: anywhere; flex: 1 1 9rem; }
#doing progress { flex: 1 1 4rem; min-width: 0; accent-color: var(--accent); }
`;

// level: of its headings.
export const markup = (level) => `
<p id="problem" class="warning" role="alert" hidden></p>
<div class="panel">
  <div class="teaching">
    <div id="classes" class="classes"></div>
    <div class="row">
      <button type="button" id="add">Add a class</button>
      <button type="button" id="camera">Switch the camera on</button>
    </div>
    <section id="unread" class="warning" role="alert" hidden></section>
  </div>
  <div class="answers">
    <figure id="viewer" hidden>
      <video id="live" muted playsinline aria-label="What the camera sees"></video>
      <figcaption id="said"></figcaption>
    </figure>
    <section id="learned" aria-labelledby="learned-name">
      <h2 id="learned-name" aria-level="${level}" tabindex="-1">What it learned</h2>
      <div id="facts" role="status"></div>
      <p class="row"><button type="button" id="save" class="main" disabled>Save mine.bnn</button>
        <span class="quiet">for <code>burn-engine run mine.bnn photo.jpg</code></span></p>
    </section>
    <section id="trial" aria-labelledby="trial-name">
      <h2 id="trial-name" aria-level="${level}">Try it</h2>
      <canvas id="shown" hidden role="img"></canvas>
      <div id="found"></div>
      <p class="row"><label class="file">Try a photograph…<input type="file" id="tried"
        accept="image/*"></label> <span class="quiet">or drop one here</span></p>
    </section>
  </div>
  <div id="doing" hidden>
    <span id="what"></span>
    <progress id="share" aria-labelledby="what"></progress>
    <button type="button" id="stop">Stop</button>
  </div>
</div>
<template id="class">
  <div class="class" role="group">
    <header>
      <input type="text" aria-label="Name of the class" maxlength="100" spellcheck="false"
        autocomplete="off">
      <span class="quiet count"></span>
      <button type="button" class="remove">Remove</button>
    </header>
    <div class="row">
      <label class="file">Add photographs…<input type="file" accept="image/*" multiple></label>
      <button type="button" class="hold">Hold to take photographs</button>
    </div>
    <ul class="photos" role="list" hidden></ul>
    <button type="button" class="more" hidden></button>
    <p class="row removed"><span class="quiet" role="status"></span><button type="button"
      hidden></button></p>
  </div>
</template>
`;
