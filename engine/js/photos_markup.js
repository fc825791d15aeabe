// What the panel that finds photographs consists of, and how it looks. The page around it sets the
// colours of controls.js, and --bar.
import { CONTROLS } from "./controls.js";

export const STYLE = `${CONTROLS}
.panel { display: grid; gap: 1rem; grid-template-columns: minmax(0, 1fr); }
.box { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: .9rem; }
#choice { border-style: dashed; }
.over #choice { outline: 2px dashed var(--accent); outline-offset: -4px; }
#choice.empty { padding: 3rem .9rem; text-align: center; }
#choice.empty .row { justify-content: center; }
#doing { position: sticky; bottom: .5rem; z-index: 2; box-shadow: 0 .2rem 1rem #0003; }
#doing progress { width: 100%; accent-color: var(--accent); }
#what { flex: 1 1 12rem; min-width: 0; }
summary { cursor: pointer; }
details ul { margin: .3rem 0 0; padding-left: 1.1rem; max-height: 12rem; overflow-y: auto;
  overflow-wrap: anywhere; }
[role=tablist] { display: flex; gap: .25rem; border-bottom: 1px solid var(--line);
  position: sticky; top: 0; z-index: 1; background: var(--page); padding-top: .5rem; }
[role=tab] { border: 0; border-bottom: 3px solid transparent; border-radius: .4rem .4rem 0 0;
  background: none; padding: .4rem .7rem; color: var(--quiet); white-space: nowrap; }
[role=tab][aria-selected=true] { border-bottom-color: var(--accent); color: var(--text);
  font-weight: 600; }
[role=tab]:focus-visible { outline-offset: -2px; }
[role=tab] span { font-weight: 400; font-size: .85em; color: var(--quiet); }
[role=tabpanel] { display: grid; gap: 1rem; grid-template-columns: minmax(0, 1fr);
  margin-top: .75rem; }
.groups { display: grid; gap: 1rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); }
#groups .content { display: grid; gap: 1rem; }
#list { margin-top: .5rem; }
[role=tabpanel]:focus-visible { outline: none; }
.group { content-visibility: auto; contain-intrinsic-size: auto 14rem; }
.group header { display: flex; flex-wrap: wrap; gap: .25rem 1rem; align-items: center;
  justify-content: space-between; margin-bottom: .4rem; }
.group h2 { margin: 0; }
.group label { font-size: .85rem; color: var(--quiet); display: flex; gap: .4rem;
  align-items: center; min-height: 1.75rem; cursor: pointer; }
.group label input { margin: 0; width: 1rem; height: 1rem; accent-color: var(--accent); }
.content > button, .group div > button { margin-top: .75rem; }
.photos { display: grid; gap: .75rem; list-style: none; margin: 0; padding: 0;
  grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); }
.photos li { min-width: 0; }
.photos button { display: grid; place-items: center; width: 100%; height: 8.5rem; padding: 0;
  background: var(--page); overflow: hidden; }
.photos button:hover { border-color: var(--accent); }
.photos img { max-width: 100%; max-height: 100%; display: block; }
.about { font-size: .8rem; line-height: 1.35; overflow-wrap: anywhere; margin-top: .2rem; }
.about span { display: block; }
.photos .name, .folder { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.about .facts, .folder { color: var(--quiet); }
.best .facts::before { content: "best copy"; color: var(--on-accent); background: var(--accent);
  border-radius: .3rem; padding: 0 .35rem; margin-right: .35rem; display: inline-block; }
.kept button { border-color: var(--accent); box-shadow: 0 0 0 1px var(--accent); }
input[type=search] { font: inherit; padding: .4rem .6rem; border: 1px solid var(--line);
  border-radius: .4rem; background: var(--card); color: inherit; min-height: 2.5rem;
  flex: 1 1 10rem; max-width: 24rem; min-width: 0; }
input[type=range] { accent-color: var(--accent); flex: 1 1 6rem; max-width: 24rem; min-width: 0; }
output { min-width: 2.2em; font-weight: 600; }
#asked { margin: 0; text-align: center; }
#asked img { max-width: 100%; max-height: min(26rem, 60vh); border-radius: .4rem; }
@container (max-width: 30rem) {
  .photos { grid-template-columns: repeat(3, minmax(0, 1fr)); gap: .5rem; }
  .photos button { height: 6.5rem; }
  #copies .photos { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  #copies .photos button { height: 8.5rem; }
  [role=tab] { padding: .4rem .5rem; }
}
`;

export const MARKUP = `
<p id="problem" class="warning" role="alert" hidden></p>
<div class="panel">
  <section id="choice" class="box empty" aria-label="Photographs to look at">
    <div class="row">
      <label class="file">Choose photographs…<input type="file" id="chosen" accept="image/*"
        multiple></label>
      <label class="file">Choose a folder…<input type="file" id="folder" webkitdirectory></label>
      <span class="quiet">or drop them here</span>
    </div>
    <p id="count" class="quiet" role="status">Copies of one another are found, groups of similar
      ones, and for each photograph the most similar.</p>
  </section>
  <details id="unread" class="box warning" hidden>
    <summary role="alert"></summary>
    <ul></ul>
  </details>
  <div id="results" hidden>
    <div role="tablist" aria-label="What is found">
      <button type="button" role="tab" id="tab-copies" aria-controls="copies">Copies
        <span></span></button>
      <button type="button" role="tab" id="tab-groups" aria-controls="groups">Groups
        <span></span></button>
      <button type="button" role="tab" id="tab-similar" aria-controls="similar">Similar</button>
    </div>
    <div role="tabpanel" id="copies" aria-labelledby="tab-copies">
      <div>
        <p class="facts" role="status"></p>
        <div class="row" id="list" hidden>
          <button type="button" id="copy">Copy the list</button>
          <button type="button" id="save">Save the list as copies.txt</button>
          <span id="copied" class="quiet" role="status"></span>
        </div>
      </div>
      <div class="content"></div>
    </div>
    <div role="tabpanel" id="groups" aria-labelledby="tab-groups">
      <div>
        <div class="row">
          <label for="number">Number of groups</label>
          <input type="range" id="number" min="1" max="1">
          <output for="number"></output>
        </div>
        <p class="quiet">The largest group first, and in each the photographs that are most typical
          of it.</p>
      </div>
      <div class="content"></div>
    </div>
    <div role="tabpanel" id="similar" aria-labelledby="tab-similar">
      <div class="row">
        <button type="button" id="back" hidden>← Back</button>
        <input type="search" id="filter" placeholder="Part of a name" aria-label="Part of a name">
      </div>
      <figure id="asked" hidden tabindex="-1">
        <img alt=""><figcaption class="about"></figcaption>
      </figure>
      <h2></h2>
      <div class="content"></div>
    </div>
  </div>
  <section id="doing" class="box" hidden aria-label="Progress">
    <div class="row"><span id="what"></span>
      <button type="button" id="stop">Stop</button></div>
    <progress id="share" aria-labelledby="what"></progress>
  </section>
</div>
`;
