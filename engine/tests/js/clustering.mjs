// Divides features into groups as the JSON on standard input says, with the JavaScript package, and
// prints JSON.
//
//     node clustering.mjs PACKAGE < [{"features": [[…], …], "k": 3, "seed": 0}, …]
//
// Of each it prints the groups and how far it said to be, or the error. A number may be "nan".
import { pathToFileURL } from "node:url";
import { answerAll } from "./answers.mjs";

const folder = pathToFileURL(`${process.argv[2]}/`);
const { cluster } = await import(new URL("clustering.js", folder));

await answerAll(({ features, k, seed }) => {
  const progress = [];
  const onProgress = (share) => progress.push(share);
  const rows = features.map((row) => row.map((one) => (one === "nan" ? NaN : one)));
  const { labels, centrality } = cluster(rows, { k, seed, onProgress });
  return { labels: Array.from(labels), centrality: Array.from(centrality), progress };
});
