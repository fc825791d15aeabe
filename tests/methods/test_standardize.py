"""The statistics of a teacher's features: of all images so far, of every process."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from burn.methods.shared.standardize import Standardize
from method_checks import in_two_processes

FEATURES = 5 + 3 * torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(0))
FEATURES[..., 3] = 7  # the same in all images


def standardized(batches: Tensor) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Of some batches one after another: the outputs, and what is kept."""
    module = Standardize(FEATURES.shape[-1])
    return [module(batch) for batch in batches], module.state_dict()


def test_they_are_those_of_all_images_so_far():
    outputs, kept = standardized(FEATURES)
    for step, output in enumerate(outputs, 1):
        seen = FEATURES[:step].flatten(0, 1).double()
        deviation = seen.std(dim=0, unbiased=False)
        expected = (FEATURES[step - 1] - seen.mean(dim=0)) / torch.where(
            deviation > 0, deviation, 1.0
        )
        torch.testing.assert_close(output, expected.float(), rtol=1e-4, atol=1e-5)
    module = Standardize(4).eval()
    module.load_state_dict(kept)
    assert torch.equal(module(FEATURES[-1]), outputs[-1]), "evaluation adds nothing"
    assert float(module.count) == 24


def _half(rank: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    return standardized(FEATURES[:, 4 * rank : 4 * rank + 4])


def test_two_processes_have_the_images_of_both(tmp_path: Path):
    outputs, kept = standardized(FEATURES)
    (first, of_first), (second, of_second) = in_two_processes(_half, tmp_path)
    assert all(torch.equal(of_first[name], of_second[name]) for name in kept)
    for name, expected in kept.items():
        torch.testing.assert_close(of_first[name], expected, rtol=1e-5, atol=1e-4)
    for output, *parts in zip(outputs, first, second, strict=True):
        torch.testing.assert_close(torch.cat(parts), output, rtol=1e-4, atol=1e-5)
