"""Measure `burn_engine.learn` with few images of each class, against `burn evaluate svm`.

    python benchmarks/few_shot.py features.npz [more.npz …] [--draws 20] [--shots 1 5 20] [--json]
        [--widths 512 256 256 512]

A file holds arrays: `a`, features of images to learn from, float32 (images, features), and `la`,
their classes, int64 (images,); `b` and `lb`, the same of the test images. For each number of images
and each draw, of a fixed seed, both learn from the same images of each class:

- learn: `burn_engine.learn`;
- means: the class whose mean of features of length 1 has the nearest direction, as microcontrollers
  learn (`burn export --classes-on-device`), of which the accuracy is given;
- svm: one linear SVM a class on features of norm 1, each with the cost that cross-validation on its
  own images chooses, which is the few-shot protocol of `burn evaluate svm`; the answer is the class
  with the highest value. With so few images a class's negatives are all images of the others.

Numbers are percent of the test images, mean and standard deviation over the draws: accuracy, and
mAP, which is what `burn evaluate svm` reports. `above` is the mean of the draws' differences in
accuracy and its standard error; `left out` is the accuracy that `learn` itself expects.

With `--widths` the features are means of several maps, the last map's first, and only these are
compared, as JSON: `last` learns from the last map's, `several` from all, each map's with the same
mean length, and `chosen` from what `burn-engine learn` chooses without the test images.

"None of these" is measured with 20 images a class, each class left out once for each of 5 draws:
the share of test images of known classes that are refused, of the unknown class, and of the test
images of the other files.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import burn_engine
from burn.evaluation.svm.solver import COSTS, SvmData, average_precision, fit_svm, svm_full
from burn_engine.learning import cosine_to, softmax
from burn_engine.maps import equal_lengths, is_better

Array = NDArray[Any]


def draw(labels: Array, shots: int, seed: int) -> Array:
    """Draw rows: `shots` of each class."""
    random = np.random.default_rng((seed, shots))
    classes = range(labels.max() + 1)
    return np.concatenate(
        [random.choice(np.flatnonzero(labels == c), shots, False) for c in classes]
    )


def mean_ap(scores: Array, labels: Array) -> float:
    """Compute the mean over the classes of the average precision, in [0, 1]."""
    columns = enumerate(scores.T)
    return float(np.mean([average_precision(s, _signs(labels == c)) for c, s in columns]))


def _signs(present: Array) -> NDArray[np.int8]:
    return np.where(present, 1, -1).astype(np.int8)


def learn_scores(a: Array, la: Array, b: Array) -> tuple[Array, burn_engine.Learned]:
    """Return the logarithms of the test images' probabilities, and what was learned."""
    learned = burn_engine.learn(a, la, [str(c) for c in range(la.max() + 1)])
    scores = b.astype(np.float64) @ learned.weight.T + learned.bias
    return np.log(softmax(scores) + 1e-300), learned


def svm_scores(a: Array, la: Array, b: Array, lb: Array) -> Array:
    """Return the SVMs' values of the test images, each with the cost of its cross-validation."""
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    names = tuple(str(c) for c in range(la.max() + 1))
    ta, tb = (np.stack([_signs(y == c) for c in range(len(names))], axis=1) for y in (la, lb))
    costs = svm_full(SvmData(a, ta, b, tb, names), 0).cost_cv
    columns = []
    for c, cost in enumerate(costs):
        weight = fit_svm(a, la == c, [each for each in COSTS if each <= cost])[:, -1]
        columns.append(b @ weight[:-1] + weight[-1])
    return np.stack(columns, axis=1)


def means_accuracy(a: Array, la: Array, b: Array, lb: Array) -> float:
    """Return the share of test images whose nearest class mean is that of their class."""
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    means = np.stack([a[la == c].mean(axis=0) for c in range(la.max() + 1)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return float(((b @ means.T).argmax(axis=1) == lb).mean())


def measure_maps(data: Any, widths: list[int], shots: int, draws: int) -> dict[str, Any]:
    """Compare the last map's means with those of several, with `shots` images of each class."""
    a, la, b, lb = (data[key] for key in ("a", "la", "b", "lb"))
    rows = []
    for seed in range(draws):
        chosen = draw(la, shots, seed)
        factors = equal_lengths(a[chosen], widths)
        found = []
        for columns in (slice(widths[0]), slice(None)):
            each, tests = (x[:, columns] * factors[columns] for x in (a[chosen], b))
            scores, learned = learn_scores(each, la[chosen], tests)
            found.append((100 * float((scores.argmax(axis=1) == lb).mean()), learned))
        (last, of_last), (several, of_several) = found
        taken = is_better(of_several, of_last)
        rows.append([last, several, several if taken else last, float(taken)])
    each = np.array(rows)
    gain = each[:, 1] - each[:, 0]
    result: dict[str, Any] = {"shots": shots, "draws": draws}
    for i, way in enumerate(("last", "several", "chosen")):
        result[f"{way} accuracy"] = [each[:, i].mean(), each[:, i].std()]
    result["several above last"] = [gain.mean(), gain.std() / np.sqrt(draws)]
    return result | {"several chosen": int(each[:, 3].sum())}


def measure(data: Any, shots: int, draws: int) -> dict[str, Any]:
    """Compare both with `shots` images of each class."""
    a, la, b, lb = (data[key] for key in ("a", "la", "b", "lb"))
    rows, means, expected, seconds = [], [], [], []
    for seed in range(draws):
        chosen = draw(la, shots, seed)
        began = time.process_time()
        ours, learned = learn_scores(a[chosen], la[chosen], b)
        seconds.append(time.process_time() - began)
        theirs = svm_scores(a[chosen], la[chosen], b, lb)
        found = [((s.argmax(axis=1) == lb).mean(), mean_ap(s, lb)) for s in (ours, theirs)]
        rows.append(100 * np.array(found))
        means.append(100 * means_accuracy(a[chosen], la[chosen], b, lb))
        expected.append(np.nan if learned.accuracy is None else 100 * learned.accuracy)
    each = np.array(rows)  # (draws, ways, metrics)
    gain = each[:, 0, 0] - each[:, 1, 0]
    result: dict[str, Any] = {"shots": shots, "draws": draws}
    for i, way in enumerate(("learn", "svm")):
        for j, metric in enumerate(("accuracy", "mAP")):
            result[f"{way} {metric}"] = [each[:, i, j].mean(), each[:, i, j].std()]
    result["means accuracy"] = [float(np.mean(means)), float(np.std(means))]
    result["above"] = [gain.mean(), gain.std() / np.sqrt(draws)]
    result["left out"] = None if shots == 1 else float(np.mean(expected))
    return result | {"seconds": float(np.median(seconds))}


def none_of_these(
    data: Any, others: list[Array], shots: int = 20, draws: int = 5
) -> dict[str, Any]:
    """Return the shares in percent of images that are refused: known, unknown, and of others."""
    a, la, b, lb = (data[key] for key in ("a", "la", "b", "lb"))
    shares = []
    for out in range(la.max() + 1):
        kept = la != out
        labels = la[kept] - (la[kept] > out)
        for seed in range(draws):
            chosen = draw(labels, shots, seed)
            _, learned = learn_scores(a[kept][chosen], labels[chosen], b)
            assert learned.threshold is not None
            sets = (b[lb != out], b[lb == out], *others)
            cosines = (cosine_to(learned.towards, each) for each in sets)
            shares.append([100 * (each < learned.threshold).mean() for each in cosines])
    known, unknown, *far = np.mean(shares, axis=0).tolist()
    return {"known": known, "unknown": unknown, "other files": far}


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 5, 20])
    parser.add_argument("--widths", type=int, nargs="+", default=[])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    loaded = {file: dict(np.load(file)) for file in options.files}
    for file, data in loaded.items():
        if options.widths:
            for shots in options.shots:
                found = measure_maps(data, options.widths, shots, options.draws)
                print(json.dumps({"file": file.stem, **found}), flush=True)
            continue
        for shots in options.shots:
            found = measure(data, shots, options.draws)
            if options.json:
                print(json.dumps({"file": file.stem, **found}), flush=True)
                continue
            pairs = (
                f"{k} {v[0]:.1f} ± {v[1]:.1f}" for k, v in found.items() if isinstance(v, list)
            )
            left = "" if found["left out"] is None else f" · left out {found['left out']:.1f}"
            print(
                f"{file.stem} {shots:2}: {' · '.join(pairs)}{left} · {found['seconds']:.2f} s CPU"
            )
        refused = none_of_these(data, [other["b"] for f, other in loaded.items() if f != file])
        if options.json:
            print(json.dumps({"file": file.stem, "none of these": refused}), flush=True)
        else:
            print(
                f"{file.stem} none of these: {refused['known']:.1f} % of known images refused, "
                f"{refused['unknown']:.1f} % of an unknown class, of other files "
                + (", ".join(f"{share:.1f} %" for share in refused["other files"]) or "none given"),
                flush=True,
            )


if __name__ == "__main__":
    main()
