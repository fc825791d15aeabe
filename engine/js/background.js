// Has workers do what takes long, so that the page goes on. A page that cannot have workers, as by
// its Content-Security-Policy, does it itself and stands still meanwhile.
import { Tasks } from "./worker.js";

// Returns what makes workers of a page's own script, which calls `serve` where it is a worker's.
// A script that is in the page has no address, so they are made of its text, which is no module.
export function workersOf(script) {
  if (script.src) return () => new Worker(script.src, { type: "module" });
  const address = URL.createObjectURL(new Blob([script.text], { type: "text/javascript" }));
  return () => new Worker(address);
}

// Returns a network that runs in the background, with what `open` of the tasks tells of it.
// network: a packed file's bytes. makeWorker: returns a worker; it may throw. tasks: what those do.
export async function openBackground({ network, wasm, makeWorker, tasks = new Tasks() }) {
  const worker = await started(makeWorker);
  const background = new Background(worker ?? new Here(tasks), worker ? makeWorker : null);
  await background.open(network, wasm);
  return background;
}

class Background {
  #network; // does what takes the network
  #makeWorker;
  #other = null; // does what does not, and is ended to stop it

  constructor(network, makeWorker) {
    this.#network = network;
    this.#makeWorker = makeWorker;
  }

  get isBeside() {
    return this.#makeWorker !== null;
  }

  // Whether the worker with the network is no more, as when its memory did not suffice.
  get hasEnded() {
    return Boolean(this.#network.hasEnded);
  }

  async open(network, wasm) {
    Object.assign(this, await this.#network.ask("open", [network, wasm]));
  }

  // photo: a file or pixels. What it and `run` give says worker.js.
  features(photo) {
    return this.ask("features", [photo]);
  }

  run(photo) {
    return this.ask("run", [photo]);
  }

  // As `learn` of learn.js, from the network's features. The signal of an AbortController stops it.
  learn(features, labels, classes, options) {
    return this.askOther("learn", [features, labels, classes, this.widths], options);
  }

  // Has a task done that takes the network.
  ask(name, values) {
    return this.#network.ask(name, values);
  }

  // Has a task done that does not, beside those that do. The signal of an AbortController stops it.
  async askOther(name, values, { signal, onProgress } = {}) {
    const other = this.#other ?? (this.#makeWorker && (await started(this.#makeWorker)));
    this.#other = null;
    if (!other) {
      await new Promise((resume) => setTimeout(resume, 50)); // to be drawn before it stands still
      if (signal?.aborted) throw signal.reason;
      return this.#network.ask(name, values, onProgress);
    }
    const stop = () => other.end(signal.reason);
    signal?.addEventListener("abort", stop);
    if (signal?.aborted) stop();
    try {
      return await other.ask(name, values, onProgress);
    } finally {
      signal?.removeEventListener("abort", stop);
      if (this.#other) other.end(new Error("it is not needed any more"));
      else if (!other.hasEnded) this.#other = other;
    }
  }
}

// A worker that answers.
class Beside {
  #worker;
  #asked = new Map(); // by number: {resolve, reject, onProgress}
  #number = 0;
  #end = null; // why it is no more

  constructor(worker) {
    this.#worker = worker;
    worker.onmessage = ({ data: { id, share, result, refused } }) => {
      const one = this.#asked.get(id);
      if (!one) return;
      if (share !== undefined) {
        one.onProgress?.(share);
        return;
      }
      this.#asked.delete(id);
      if (refused === undefined) one.resolve(result);
      else one.reject(new Error(refused));
    };
    worker.onerror = (event) => {
      event.preventDefault();
      this.end(new Error(event.message || "the page's worker ended"));
    };
  }

  get hasEnded() {
    return this.#end !== null;
  }

  ask(name, values, onProgress) {
    return new Promise((resolve, reject) => {
      if (this.#end) throw this.#end;
      const id = ++this.#number;
      this.#worker.postMessage({ id, name, values });
      this.#asked.set(id, { resolve, reject, onProgress });
    });
  }

  end(reason) {
    this.#end = reason;
    this.#worker.terminate();
    for (const { reject } of this.#asked.values()) reject(reason);
    this.#asked.clear();
  }
}

// The page itself, in place of a worker.
class Here {
  #tasks;

  constructor(tasks) {
    this.#tasks = tasks;
  }

  async ask(name, values, onProgress) {
    return this.#tasks[name](...values, onProgress);
  }
}

// Returns a worker that runs; null if there can be none.
function started(makeWorker) {
  return new Promise((resolve) => {
    let worker;
    try {
      worker = makeWorker();
    } catch {
      resolve(null);
      return;
    }
    worker.onmessage = () => resolve(new Beside(worker));
    worker.onerror = (event) => {
      event.preventDefault();
      resolve(null);
    };
  });
}
