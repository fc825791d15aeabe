// What a page says of a classifier that it learned: as `burn-engine learn` prints it.
import { LEAST_IMAGES } from "./maps.js";

const MOST_MISTAKES = 5;

const percent = (share) => `${(100 * share).toFixed(1)} %`;
export const thousands = (number) => Math.round(number).toLocaleString("en");
export const counted = (number, one, many = `${one}s`) =>
  `${thousands(number)} ${number === 1 ? one : many}`;

// Returns {text, kind} of each paragraph, and of the mistakes {texts}.
export function factsOf(learned, { hasFrames, empty, milliseconds }) {
  const facts = [];
  if (learned.accuracy === null) {
    facts.push({
      text: "Accuracy: unknown; two photographs of each class are the least to measure it.",
    });
  } else {
    const checked = learned.confusion.flat().reduce((a, b) => a + b);
    facts.push({
      text:
        `Accuracy: ${percent(learned.accuracy)} ± ${percent(learned.error)} of ` +
        `${counted(checked, "photograph")}, each classified by what the others teach. Always ` +
        `the largest class: ${percent(learned.largest)}.`,
    });
    const texts = mistakesOf(learned);
    if (texts.length) facts.push({ texts });
  }
  const alone = learned.counts.filter((count) => count === 1).length;
  if (alone) {
    facts.push({
      text:
        `${counted(alone, "class has", "classes have")} a single photograph, so how certain the ` +
        "probabilities are is a guess.",
      kind: "warning",
    });
  }
  if (hasFrames && learned.accuracy !== null) {
    facts.push({
      text:
        "Pictures of one scene resemble each other, so for those of the camera the accuracy is " +
        "too high: move the thing, turn it, change what is behind it.",
      kind: "warning",
    });
  }
  if (empty.length) {
    facts.push({ text: `Without photographs: ${empty.join(", ")}.`, kind: "quiet" });
  }
  facts.push(...featuresOf(learned.maps));
  facts.push({ text: `Learned in ${thousands(milliseconds)} ms.`, kind: "quiet" });
  return facts;
}

// What was learned from, of a network with more than one map, and when the others are tried.
function featuresOf(maps) {
  if (!maps) return [];
  const { factors, accuracies } = maps;
  let text = "Learned from the network's last map alone.";
  if (factors) {
    text =
      "Learned from several maps of the network; from its last map alone the accuracy is " +
      `${percent(accuracies.last)}.`;
  } else if (accuracies.several !== undefined) {
    text =
      "Learned from the network's last map; from several maps the accuracy is " +
      `${percent(accuracies.several)}, not clearly better.`;
  }
  text += ` It tries several maps only where each class has ${LEAST_IMAGES} photographs or more.`;
  return [{ text, kind: "quiet" }];
}

function mistakesOf({ classes, confusion, counts }) {
  const pairs = confusion.flatMap((row, c) =>
    row.map((times, said) => ({ times: c === said ? 0 : times, of: counts[c], c, said })),
  );
  return pairs
    .filter(({ times }) => times)
    .sort((a, b) => b.times - a.times)
    .slice(0, MOST_MISTAKES)
    .map(({ times, of, c, said }) => {
      return `${times} of ${of} of ${classes[c]} were taken for ${classes[said]}`;
    });
}
