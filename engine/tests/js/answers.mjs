// What scripts have in common that answer requests, a list as JSON on standard input.
import { readFileSync } from "node:fs";

// Prints a list of answers as JSON; where there is an error, what it says.
// answer: returns that of a request; also async.
export async function answerAll(answer) {
  const answers = [];
  for (const request of JSON.parse(readFileSync(0, "utf8"))) {
    try {
      answers.push(await answer(request));
    } catch (error) {
      answers.push({ refused: `${error.name}: ${error.message}` });
    }
  }
  console.log(JSON.stringify(answers));
}
