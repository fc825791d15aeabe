"""Training steps of every method on a GPU: devices, waits, exchanges, and the number of kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import pytest
import torch
from pretend import CUDA, Gpu, OtherDevice, group_of_two, pretended
from steps import Run, build
from torch import Tensor

from burn.backbones.config import BackboneConfig
from burn.backbones.entries import BACKBONES, BNEXT, EXPERT, REACTNET, is_binary
from burn.backbones.plan import REACTNETS
from burn.backbones.registry import build_backbone
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.methods.entries import METHODS, find_method
from burn.methods.supervised.method import Supervised
from seldom import few


@dataclass(frozen=True)
class Step:
    """What a step does with the GPU at most, by SGD.

    Attributes:
        kernels: Number of kernels in bfloat16, each of which is a few microseconds of a GPU's and
            of Python's time.
        float32: Likewise in float32.
        together: Likewise in bfloat16, as one of two processes.
        exchanges: The number of exchanges between these: of tensors on the GPU, and on the CPU,
            where processes wait for each other but for no GPU. Gradients are left out.
        waits: What is waited for, by function. (The first steps also wait for the guard of the
            gradient flow, for the seed of shuffled BN, and until SwAV's queue is full.)
    """

    kernels: int
    float32: int = 0
    together: int = 0
    exchanges: tuple[int, int] = (0, 0)
    waits: dict[str, int] = field(default_factory=dict[str, int])


# By method: with a small student whose weights and activations are binary.
TABLE = {
    "burn": Step(529, 445, 782, (14, 1)),
    "burn joint": Step(557, 468, 824, (15, 1)),
    "burn released": Step(1060, 904, 1593, (29, 1)),
    "burn heaviside": Step(540, 451, 807, (15, 1)),
    "burn without classifiers": Step(463, 396, 654, (11, 1)),
    "supervised": Step(376, 331, 567, (11, 1)),
    "supervised_kl": Step(448, 377, 639, (11, 1)),
    "byol": Step(1032, 896, 1853, (41, 1)),
    "simclr": Step(816, 730, 1429, (35, 1)),
    "swav": Step(868, 784, 1295, (31, 1)),
    "swav with a queue": Step(868, 784, 1295, (31, 1)),
    "mocov2": Step(542, 470, 549, (3, 3)),
    "mocov2 in groups": Step(964, 833, 971, (3, 3)),
    "infomin": Step(964, 833, 971, (3, 3)),
    "s2bnn": Step(483, 406, 484, (1, 1)),
    "s2bnn contrastive": Step(657, 555, 664, (3, 3)),
}
# By network: method supervised, with one view. Two processes train the last stage's.
NETWORKS = {
    (REACTNET, Precision.FLOAT): Step(1177, 931),
    (REACTNET, Precision.BINARY_ACTIVATIONS): Step(1679, 1433),
    (REACTNET, Precision.BINARY): Step(2069, 1823, 3096, (55, 1)),
    ("bnext_t", Precision.FLOAT): Step(2738, 2154),
    ("bnext_t", Precision.BINARY_ACTIVATIONS): Step(3141, 2526),
    ("bnext_t", Precision.BINARY): Step(3730, 3115, 6125, (127, 1)),
    (EXPERT, Precision.FLOAT): Step(2458, 1781),
    (EXPERT, Precision.BINARY_ACTIVATIONS): Step(2788, 2078),
    (EXPERT, Precision.BINARY): Step(4011, 3235, 5722, (91, 1)),
    ("resnet10t", Precision.FLOAT): Step(238, 199, 771, (29, 1)),
    ("test_efficientnet", Precision.FLOAT): Step(338, 285, 833, (27, 1)),
    ("test_vit", Precision.FLOAT): Step(467, 320, 468, (1, 1)),
}
# By optimizer: method supervised. LARS itself does not wait (timm's), but cannot skip a step; a GPU
# has fewer kernels for it, each for many parameters.
OPTIMIZERS = {
    "sgd": Step(376),
    "adam": Step(384),
    "lars": Step(539, waits={"checks.on_before_step": 1}),
}


def last_step(run: Run, *, bfloat16: bool = True, after: int = 3) -> Step:
    """What a step does after some others; networks need but one."""
    gpu = Gpu.current
    assert gpu is not None
    run.learner.in_bfloat16 = bfloat16
    while run.loop.step < after:
        run.step()
    before = gpu.kernels
    gpu.waits.clear()
    gpu.exchanges.clear()
    run.step()
    exchanges = gpu.exchanges["cuda"], gpu.exchanges["cpu"]
    return Step(gpu.kernels - before, exchanges=exchanges, waits=dict(gpu.waits))


# A method's other settings, which tests of graphs and of the loss have too.
CASES = [pytest.param(c, marks=() if c in METHODS else pytest.mark.long) for c in TABLE]


@pytest.mark.parametrize("case", CASES)
def test_a_step_stays_within_its_kernels_and_waits(case: str):
    most = TABLE[case]
    with pretended():
        run = build(case)
        found, float32 = last_step(run), last_step(run, bfloat16=False)
    assert found.waits == float32.waits == most.waits
    assert found.exchanges == float32.exchanges == (0, 0)
    assert found.kernels <= most.kernels
    assert float32.kernels <= most.float32


@pytest.mark.parametrize("case", few(CASES, 3))
def test_a_step_of_two_processes_stays_within_its_kernels_waits_and_exchanges(case: str):
    most = TABLE[case]
    with group_of_two(), pretended():
        found = last_step(build(case, synchronize=find_method(case.split()[0]).synchronize_norms))
    assert found.waits == most.waits
    assert found.exchanges == most.exchanges
    assert found.kernels <= most.together


def test_every_method_is_in_the_table():
    assert {case.split()[0] for case in TABLE} == set(METHODS)


def network(name: str, precision: Precision) -> Run:
    settings = {"width": 0.25, "stage_strides": (2, 2, 2, 1)} if is_binary(name) else {}
    torch.manual_seed(0)
    backbone = build_backbone(BackboneConfig(name, **settings), precision)
    return Run(Supervised(backbone, 3), (32,), synchronize=True)


QUICK = [key for key in NETWORKS if REACTNET in key]


@pytest.mark.parametrize(
    ("name", "precision"),
    [pytest.param(*key, marks=() if key in QUICK else pytest.mark.long) for key in NETWORKS],
)
def test_a_step_of_a_network_stays_within_its_kernels_and_waits(name: str, precision: Precision):
    most = NETWORKS[name, precision]
    with pretended():
        run = network(name, precision)
        found, float32 = last_step(run, after=1), last_step(run, bfloat16=False)
    assert found.waits == float32.waits == most.waits
    assert found.kernels <= most.kernels
    assert float32.kernels <= most.float32
    if most.together:
        with group_of_two(), pretended():
            found = last_step(network(name, precision), after=1)
        assert found.waits == most.waits
        assert found.exchanges == most.exchanges
        assert found.kernels <= most.together


def test_every_binary_network_is_in_the_table_at_every_precision():
    differ_in_size_alone = {*BNEXT[1:], *REACTNETS} - {REACTNET}
    binary = set(BACKBONES) - differ_in_size_alone
    assert {key for key in NETWORKS if is_binary(key[0])} == set(product(binary, Precision))


@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_a_step_of_an_optimizer_stays_within_its_kernels_and_waits(optim: str):
    most = OPTIMIZERS[optim]
    with pretended():
        found = last_step(build("supervised", optim=optim))
    assert found.waits == most.waits
    assert found.kernels <= most.kernels


def infinite(loss: Tensor) -> Tensor:
    return loss * torch.inf


@pytest.mark.parametrize("optim", ["sgd", "adam"])
def test_a_loss_that_is_not_finite_is_told_to_the_optimizer_and_read_a_step_later(optim: str):
    with pretended():
        run = build("supervised", optim=optim, tolerated=1)
        for _ in range(3):
            run.step()
        before = run.weights()
        run.step(infinite)
        assert run.said.getvalue() == ""
        assert all(torch.equal(tensor, before[name]) for name, tensor in run.weights().items())
        run.step()
        assert "step 4 is skipped (1 of 1): the gradient of" in run.said.getvalue()
        after = run.weights()
        assert all(tensor.isfinite().all() for tensor in after.values())
        assert not torch.equal(after["classifier.weight"], before["classifier.weight"])
        run.step(infinite)
        with pytest.raises(UserError, match=r"stopped at step 6 \(after 1 such steps\)"):
            run.finite.state_dict()  # so that no resume file holds what came of it


@pytest.mark.parametrize(
    ("optim", "number"), [("sgd", 0), ("lars", 2)], ids=["momentum is not there yet", "lars"]
)
def test_an_optimizer_that_cannot_skip_by_itself_is_waited_for(optim: str, number: int):
    with pretended() as gpu:
        run = build("supervised", optim=optim, tolerated=1)
        for _ in range(number):
            run.step()
        before = run.weights()
        gpu.waits.clear()
        run.step(infinite)
        assert gpu.waits["checks.on_before_step"] == 1
        assert f"step {number + 1} is skipped" in run.said.getvalue()
        assert all(torch.equal(tensor, before[name]) for name, tensor in run.weights().items())
        run.step()
        assert all(tensor.isfinite().all() for tensor in run.weights().values())


def test_the_end_reads_what_is_left():
    with pretended():
        run = build("supervised")
        run.step()
        run.step(infinite)
        assert run.learner.learned
        with pytest.raises(UserError, match="stopped at step 2"):
            run.finite.on_end(run.loop)


def test_a_tensor_of_the_cpu_and_random_numbers_of_the_gpu_are_found():
    with pretended():
        x = torch.zeros(3).to(CUDA)
        with pytest.raises(OtherDevice, match="add of tensors on the CPU and on the GPU"):
            _ = x + torch.zeros(3)
        with pytest.raises(OtherDevice, match="draws from the GPU's own generator"):
            x.normal_()
        with pytest.raises(OtherDevice, match="draws from the GPU's own generator"):
            torch.randn(3, device=CUDA)
        assert torch.equal((x + 1).cpu(), torch.ones(3))
        with pytest.raises(OtherDevice, match="on the CPU by indices on the GPU"):
            _ = torch.zeros(3)[torch.arange(2, device=CUDA)]
