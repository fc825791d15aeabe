"""Measure exact search among codes against usearch and faiss, one query on one thread.

    python benchmarks/search.py --count 1000000 --bits 512

All search the same random codes for the 10 that differ in the fewest bits, in turn in one process:
a turn's value is the median of its calls after one that is not counted. burn-engine runs every
instruction set of this processor; the others choose theirs. All find the same distances, which is
checked. usearch searches exactly by its function `search(…, exact=True)`, faiss by IndexBinaryFlat.

It needs usearch and faiss-cpu, which burn does not install; nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from burn.runtime.hardware import processor
from burn_engine.search import nearest
from engine import Contender, imported, instruction_sets, one_round

# Not by import statements: burn's environment, in which types are checked, does not have them.
faiss, usearch = imported("faiss", "faiss-cpu"), imported("usearch.index", "usearch")

K = 10


def contenders(count: int, bits: int) -> dict[Contender, Callable[[], np.ndarray]]:
    """Return the searches, each of which returns the distances that it finds, (K,)."""
    random = np.random.default_rng(0)
    codes = random.integers(0, 256, (count, bits // 8), np.uint8)
    query = random.integers(0, 256, (1, bits // 8), np.uint8)
    faiss.omp_set_num_threads(1)
    flat = faiss.IndexBinaryFlat(bits)
    flat.add(codes)
    runs: dict[Contender, Callable[[], np.ndarray]] = {
        Contender("codes", "burn-engine", isa, bits, count, 1): (
            lambda isa=isa: nearest(codes, query, K, isa)[1][0]
        )
        for isa in instruction_sets()
    }
    runs[Contender("codes", "faiss", "", bits, count, 1)] = lambda: flat.search(query, K)[0][0]
    runs[Contender("codes", "usearch", "", bits, count, 1)] = lambda: np.asarray(
        usearch.search(
            codes, query[0], K, usearch.MetricKind.Hamming, exact=True, threads=1
        ).distances
    )
    return runs


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--bits", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="write everything to this JSON file")
    options = parser.parse_args()
    runs = contenders(options.count, options.bits)
    expected = next(iter(runs.values()))()
    for who, run in runs.items():
        assert (np.asarray(run()) == expected).all(), who
    times: dict[Contender, list[float]] = {who: [] for who in runs}
    for _ in range(options.rounds):
        for who, milliseconds in one_round(runs).items():
            times[who].append(milliseconds)
    print(f"{processor()}: {options.count:,} codes of {options.bits} bits, one thread")
    rows: list[dict[str, Any]] = []
    for who, taken in times.items():
        name = f"{who.runtime} {who.isa}".strip()
        row = {"search": name, "median_ms": statistics.median(taken), "least_ms": min(taken)}
        print(f"  {name:28} {row['median_ms']:8.2f} ms, least {row['least_ms']:.2f}")
        rows.append(row)
    if options.out:
        about = {"processor": processor(), "count": options.count, "bits": options.bits}
        options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
