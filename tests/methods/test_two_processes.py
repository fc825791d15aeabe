"""Two processes on a CPU equal one at double the batch, for every method.

Without SyncBN each process normalises its own images, so the one normalises each half by itself.
"""

from __future__ import annotations

import time

import pytest
import torch
import two_processes
from two_processes import CASES, OPTIMIZERS, Record, float64, train

from burn.methods.entries import METHODS
from warm import CONTEXT

Records = dict[tuple[str, str], Record]
_SECONDS = 120

# float64 roundings, 1e-16 of each sum, through four steps: 3e-12 of SimCLR's gradients of size 12.
# Behind a bias before BN there is no gradient but rounding, some 1e-14, which Adam makes larger
# when it divides by 1e-8 + its size: up to 1e-9 of its steps of 1e-3.
_RELATIVE = 1e-9
_ABSOLUTE = {"sgd": 1e-11, "adam": 1e-8}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Records, Records]:
    """What the two processes recorded of every case and optimizer."""
    folder = tmp_path_factory.mktemp("two-processes")
    processes = [CONTEXT.Process(target=two_processes.main, args=(r, folder)) for r in range(2)]
    end = time.monotonic() + _SECONDS
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=max(0, end - time.monotonic()))
        process.kill()  # nothing where it has ended
        process.join()
    codes = [process.exitcode for process in processes]
    if any(codes):
        told = "\n".join((folder / f"{rank}.txt").read_text()[-5000:] for rank in range(2))
        pytest.fail(f"exit codes {codes} within {_SECONDS} s\n{told}", pytrace=False)
    first, second = (torch.load(folder / f"{rank}.pt") for rank in range(2))
    return first, second


def alone(case: str, optim: str, *, as_two: bool) -> Record:
    """What one process records, which normalises each half of a batch by itself, or does not."""
    with float64():
        return train(CASES[case], OPTIMIZERS[optim], rank=None, as_two=as_two)


def differing(alone: Record, first: Record, second: Record, optim: str) -> list[str]:
    """Names of what the two processes have otherwise than the one; of their losses the mean."""
    assert list(alone) == list(first) == list(second)
    names = []
    for name, expected in alone.items():
        found = (first[name] + second[name]) / 2 if name.startswith("loss") else first[name]
        limit = 0.0  # of counters and seeds
        if expected.is_floating_point() and expected.numel():
            limit = _RELATIVE * float(expected.abs().max()) + _ABSOLUTE[optim]
        if not torch.allclose(found, expected, rtol=0, atol=limit):
            names.append(name)
    return names


@pytest.mark.parametrize("optim", OPTIMIZERS)
@pytest.mark.parametrize("case", CASES)
def test_two_processes_are_one(both: tuple[Records, Records], case: str, optim: str):
    """In losses, gradients, weights, momentum networks, queues, counters, running statistics."""
    first, second = (records[case, optim] for records in both)
    expected = alone(case, optim, as_two=True)
    assert not differing(expected, first, second, optim)
    # What they have in common is the same bit for bit; the first has the running statistics.
    assert {
        name.rpartition("_")[2]
        for name in first
        if not name.startswith("loss") and not torch.equal(first[name], second[name])
    } == {"mean", "var"}


@pytest.mark.parametrize("case", CASES)
def test_the_halves_of_the_norm_matter(both: tuple[Records, Records], case: str):
    """So the test above would see another composition of what is normalised together."""
    first, second = (records[case, "sgd"] for records in both)
    names = differing(alone(case, "sgd", as_two=False), first, second, "sgd")
    assert {name.split()[0] for name in names} == {"loss", "gradient", "state"}


def test_the_processes_see_other_images(both: tuple[Records, Records]):
    for case, optim in both[0]:
        first, second = (records[case, optim] for records in both)
        for name in (name for name in first if name.startswith("loss")):
            assert abs(first[name] - second[name]) > 1e-6, (case, name)


def test_swavs_queue_is_used(both: tuple[Records, Records]):
    """It fills up in the third step; codes of the last are also of what is in it."""
    without, queued = (both[0][case, "sgd"] for case in ("swav", "swav with a queue"))
    assert queued["state queue"].any(dim=2).all()
    same = [torch.equal(without[f"loss {step} 0"], queued[f"loss {step} 0"]) for step in range(4)]
    assert same == [True, True, True, False]


def test_swavs_prototypes_are_frozen_at_first(both: tuple[Records, Records]):
    gradients = [both[0]["swav", "sgd"][f"gradient {step} prototypes.weight"] for step in range(4)]
    assert [bool(gradient.any()) for gradient in gradients] == [False, False, True, True]


def test_every_method_has_a_case():
    assert {case.split()[0] for case in CASES} == set(METHODS)
