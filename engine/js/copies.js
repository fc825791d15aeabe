// Groups of near-duplicates: what copies.py of burn_engine does, with the same result.
import {
  agreement, ALTERATIONS, alteredCodes, appearance, areCopies, CODE_BYTES, codeOf, compared,
  fineDetails, mostBits, textOf, UNALTERED,
} from "./appearance.js";
import { openSearch } from "./index.js";

const AT_ONCE = 32; // images that are compared with all others at once
const MOST_NEAR = 8; // nearest codes that are looked at first; more if all of them are of copies

export async function duplicates(images, { wasm, onProgress } = {}) {
  const seen = new Appearances(await openSearch({ wasm }));
  for (const image of images) seen.add(appearance(image));
  return seen.groups({ onProgress });
}

export class Appearances {
  #search;
  #seen = []; // {square, code, key, rank} of each image

  constructor(search) {
    this.#search = search;
  }

  add({ square, digest, height, width, sharpness }, numBytes = 0) {
    const key = `${height} ${width} ${digest}`;
    const rank = [height * width, sharpness, numBytes];
    this.#seen.push({ square, code: codeOf(square), key, rank });
  }

  // The images are taken from the best to the worst. An image that is a copy of the best one of a
  // group joins the group that it agrees with best; any other begins a group.
  groups({ onProgress } = {}) {
    const order = [...this.#seen.keys()].sort((a, b) => this.#compare(b, a));
    const twins = new Map(); // positions of images that look the same, the best first
    for (const i of order) {
      const { key } = this.#seen[i];
      if (twins.has(key)) twins.get(key).push(i);
      else twins.set(key, [i]);
    }
    const found = new Map();
    const unique = [...twins.values()].map(([i]) => i);
    for (const [best, copy] of this.#stars(unique, onProgress)) {
      if (!found.has(best)) found.set(best, []);
      for (const position of twins.get(this.#seen[copy.position].key)) {
        found.get(best).push({ ...copy, position });
      }
    }
    const place = new Map(order.map((i, at) => [i, at]));
    return [...found.keys()]
      .sort((a, b) => a - b)
      .map((i) => found.get(i).sort((a, b) => place.get(a.position) - place.get(b.position)))
      .filter((group) => group.length > 1);
  }

  #compare(a, b) {
    const [one, other] = [this.#seen[a].rank, this.#seen[b].rank];
    const at = one.findIndex((value, i) => value !== other[i]);
    return at < 0 ? 0 : one[at] - other[at];
  }

  // Yields each image with the best image of its group.
  // order: positions of the images, from the best to the worst.
  *#stars(order, onProgress) {
    const joined = new Array(order.length).fill(false); // to the group of a better image; by rank
    const begun = new Array(order.length).fill(false);
    let members = [...order.keys()]; // by rank: those that are looked for
    let table = this.#codes(order, members);
    const copyOf = (rank, { agreement, way }) => {
      return { position: order[rank], agreement, alteration: textOf(ALTERATIONS[way]) };
    };
    for (let begin = 0; begin < order.length; begin += AT_ONCE) {
      const end = Math.min(begin + AT_ONCE, order.length);
      const ranks = [];
      for (let rank = begin; rank < end; ++rank) if (!joined[rank]) ranks.push(rank);
      if (members.filter((rank) => joined[rank]).length / members.length > 0.1) {
        members = [...order.keys()].filter((rank) => !joined[rank]);
        table = this.#codes(order, members);
      }
      const near = this.#near(order, ranks, table, members, MOST_NEAR);
      for (const [i, rank] of ranks.entries()) {
        if (joined[rank]) continue;
        const earlier = near[i].copies.filter((copy) => begun[copy.rank]);
        if (earlier.length) {
          const best = earlier.reduce((a, b) => (b.agreement > a.agreement ? b : a));
          joined[rank] = true;
          yield [order[best.rank], copyOf(rank, best)];
          continue;
        }
        let found = near[i];
        for (let wanted = MOST_NEAR; found.mayBeMore && wanted < members.length; ) {
          wanted *= 8;
          [found] = this.#near(order, [rank], table, members, wanted);
        }
        begun[rank] = true;
        yield [order[rank], copyOf(rank, { agreement: 1, way: UNALTERED })];
        for (const copy of found.copies) {
          if (joined[copy.rank] || begun[copy.rank]) continue;
          joined[copy.rank] = true;
          yield [order[rank], copyOf(copy.rank, copy)];
        }
      }
      onProgress?.(end / order.length);
    }
  }

  #codes(order, ranks) {
    const codes = new Uint8Array(ranks.length * CODE_BYTES);
    ranks.forEach((rank, i) => codes.set(this.#seen[order[rank]].code, i * CODE_BYTES));
    return codes;
  }

  // Returns the copies of images. Of each alteration the nearest codes are looked at: where images
  // have little in them, many that are no copies are as near as copies may be.
  // ranks: the images. table, members: codes among which copies are looked for, and their ranks.
  // wanted: number of nearest codes that are looked at for each alteration.
  #near(order, ranks, table, members, wanted) {
    wanted = Math.min(wanted, members.length);
    const ways = ALTERATIONS.length;
    const queries = new Uint8Array(ranks.length * ways * CODE_BYTES);
    ranks.forEach((rank, i) => {
      queries.set(alteredCodes(this.#seen[order[rank]].square), i * ways * CODE_BYTES);
    });
    const { positions, distances } = this.#search.nearest(table, queries, CODE_BYTES, wanted);
    const whole = new Map(); // what is compared of images that are not altered, by rank
    return ranks.map((rank, i) => {
      const begin = i * ways * wanted;
      const hits = [];
      for (let at = begin; at < begin + ways * wanted; ++at) {
        if (distances[at] > mostBits()) continue;
        const way = Math.floor((at - begin) / wanted);
        hits.push({ rank: members[positions[at]], way, bits: distances[at] });
      }
      const copies = this.#copiesAmong(order, rank, hits, whole);
      const ranksOfCopies = new Set([rank, ...copies.map((copy) => copy.rank)]);
      const numbers = new Array(ways).fill(0);
      for (const hit of hits) if (ranksOfCopies.has(hit.rank)) ++numbers[hit.way];
      return { copies, mayBeMore: Math.max(...numbers) >= wanted };
    });
  }

  // Returns the hits that are copies of an image, by rank. Of each pair the details are compared
  // unaltered, and by the alteration with fewest bits.
  #copiesAmong(order, rank, hits, whole) {
    const best = new Map();
    for (const hit of hits) {
      const pair = 2 * hit.rank + (hit.way === UNALTERED ? 0 : 1);
      // Those of one way come before those of the next one.
      if (hit.rank !== rank && !(best.get(pair)?.bits <= hit.bits)) best.set(pair, hit);
    }
    const detailsOf = (one) => fineDetails(this.#seen[order[one]].square);
    const mine = best.size ? detailsOf(rank) : null;
    const altered = new Map(); // what is compared of this image, by way
    return [...best.keys()]
      .sort((a, b) => a - b)
      .map((pair) => {
        const { rank: other, way } = best.get(pair);
        if (!whole.has(other)) whole.set(other, compared(detailsOf(other), UNALTERED));
        if (!altered.has(way)) altered.set(way, compared(mine, way));
        return { rank: other, way, agreement: agreement(altered.get(way), whole.get(other)) };
      })
      .filter((pair) => areCopies(pair.agreement, pair.way));
  }
}
