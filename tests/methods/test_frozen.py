"""The teacher: whatever is done to it in training, nothing in it moves."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.checkpoints.foreign.weights import Teacher
from burn.core.types import Batch, Precision
from burn.methods.base import mlp
from burn.methods.burn.method import Burn
from burn.methods.burn.settings import BurnConfig
from burn.methods.shared.frozen import FrozenTarget, _rounded
from burn.recipes.schema import OptimConfig
from burn.training.pretraining import build_optimizer
from networks import randomize, shallow_reactnet


def float_teacher() -> Backbone:
    """A ResNet with running statistics that are not those of the images below."""
    torch.manual_seed(4)
    return randomize(build_backbone(BackboneConfig(name="test_resnet"), Precision.FLOAT))


def images(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (6, 3, 32, 32), generator=generator, dtype=torch.uint8)


def contents(module: nn.Module) -> dict[str, Tensor]:
    """Copies of every parameter and buffer, those outside the state dict too."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def unchanged(module: nn.Module, before: dict[str, Tensor]) -> bool:
    now = contents(module)
    return list(now) == list(before) and all(torch.equal(now[k], v) for k, v in before.items())


@pytest.mark.parametrize("batch_norm", ["running", "batch"])
@pytest.mark.parametrize("views", ["same", "cross"])
def test_nothing_moves_in_training(batch_norm: str, views: str):
    config = BurnConfig(
        classifier="joint", num_classes=12, hidden=16, views=views, teacher_batch_norm=batch_norm  # type: ignore[arg-type]
    )  # fmt: skip
    teacher = float_teacher()
    method = Burn(shallow_reactnet(), Teacher(teacher, None, None, {}), config)
    before = contents(method.teacher)
    student = contents(method.backbone)
    optimizer = build_optimizer(method.parts(), OptimConfig(name="sgd", lr=0.1, weight_decay=0.1))
    for step in range(3):
        method.train()
        batch = Batch(
            tuple(images(10 * step + v) for v in range(method.num_views)), torch.arange(6)
        )
        optimizer.zero_grad()
        method(batch, step / 3).loss.backward()
        optimizer.step()
    assert unchanged(method.teacher, before)
    assert not unchanged(method.backbone, student), "the student does move"
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())


def test_running_statistics_are_in_the_comparison():
    """The test above would see them move: a teacher trained for one pass has others."""
    teacher = float_teacher()
    before = contents(teacher)
    assert any(name.endswith("running_var") for name in before)
    assert any(name.endswith("num_batches_tracked") for name in before)
    teacher.train()(images(0))
    now = contents(teacher)
    moved = {name.rsplit(".", 1)[-1] for name in before if not torch.equal(now[name], before[name])}
    assert moved == {"running_mean", "running_var", "num_batches_tracked"}


def test_train_mode_leaves_every_module_in_eval_mode():
    target = FrozenTarget(float_teacher())
    assert not any(module.training for module in target.modules())
    assert target.train() is target
    nn.Sequential(target).train()
    assert not any(module.training for module in target.modules())


def test_running_statistics_give_what_the_backbone_gives_in_eval_mode():
    expected = float_teacher().eval()(images(1)).detach()
    found = FrozenTarget(float_teacher()).train()(images(1))
    # Folded, the weights are rounded once more; features have float16's eleven bits.
    torch.testing.assert_close(found, expected, rtol=6e-4, atol=1e-5)
    assert torch.equal(found, found.half().float())
    # Each image by itself is the same image: float32 kernels for other batch sizes may round else.
    alone = FrozenTarget(float_teacher())(images(1)[:1])
    torch.testing.assert_close(alone, expected[:1], rtol=6e-4, atol=1e-5)


def test_batch_statistics_give_what_the_backbone_gives_in_train_mode():
    expected = float_teacher().train()(images(1)).detach()
    target = FrozenTarget(float_teacher(), "batch")
    before = contents(target)
    found = target.train()(images(1))
    # The same float32 formula, through another kernel.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    running = FrozenTarget(float_teacher())(images(1))
    assert not torch.allclose(found, running, rtol=0.05), "they differ from the running ones"
    assert unchanged(target, before)


def test_it_gives_features_without_gradients():
    target = FrozenTarget(float_teacher())
    features = target(images(0))
    assert features.shape == (6, target.num_features)
    assert features.dtype == torch.float32
    assert not features.requires_grad


@pytest.mark.parametrize("batch_norm", ["running", "batch"])
def test_a_head_follows_the_backbone_and_is_as_frozen(batch_norm: str):
    torch.manual_seed(0)
    head = randomize(mlp(96, 16, 8))
    features = FrozenTarget(float_teacher(), batch_norm)(images(1))  # type: ignore[arg-type]
    with torch.no_grad():
        expected = copy.deepcopy(head).train(batch_norm == "batch")(features)
    target = FrozenTarget(float_teacher(), batch_norm, head)  # type: ignore[arg-type]
    before = contents(target)
    found = target.train()(images(1))
    # The same float32 formula, through another kernel where the statistics are the batch's.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert target.num_features == 96, "the backbone's"
    assert not found.requires_grad
    assert not any(p.requires_grad for p in head.parameters())
    assert not any(module.training for module in target.modules())
    assert unchanged(target, before)


def test_the_two_settings_make_different_losses():
    """`teacher_batch_norm` reaches the teacher."""
    config = BurnConfig(classifier="none")
    losses = []
    for batch_norm in ("running", "batch"):
        chosen = replace(config, teacher_batch_norm=batch_norm)
        torch.manual_seed(0)
        teacher = Teacher(float_teacher(), None, None, {})
        method = Burn(shallow_reactnet(), teacher, chosen).train()
        losses.append(method(Batch((images(1),), torch.arange(6)), 0.0).loss.item())
    assert abs(losses[0] - losses[1]) > 1e-3


# --- The folded copy that it runs as. ---


def features_of(backbone: Backbone, number: int) -> Tensor:
    with torch.no_grad():
        return backbone.eval()(images(number))


def test_a_resnet_runs_folded_and_nothing_else_does():
    found = FrozenTarget(float_teacher())
    found(images(0))
    assert found._folded[1] is not None
    batch = FrozenTarget(float_teacher(), "batch")
    batch(images(0))
    assert batch._folded[1] is None
    binary = FrozenTarget(randomize(shallow_reactnet()))
    binary(images(0))
    assert binary._folded[1] is None


def test_other_weights_are_heeded():
    """Loaded into it, or written in place, after it ran once."""
    target, other = FrozenTarget(float_teacher()), float_teacher()
    first = target(images(0))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    assert target.backbone is not None
    target.backbone.load_state_dict(other.state_dict())
    second = target(images(0))
    assert not torch.allclose(first, second, rtol=0.01)
    torch.testing.assert_close(second, features_of(other, 0), rtol=6e-4, atol=1e-4)


def test_autocast_decides_its_number_format():
    target = FrozenTarget(float_teacher())
    exact = target(images(0))
    with torch.autocast("cpu", torch.bfloat16):
        reduced = target(images(0))
    assert reduced.dtype == torch.float32
    assert not torch.equal(exact, reduced)
    assert torch.cosine_similarity(exact, reduced).min() > 0.999  # 8 bits of mantissa
    assert torch.equal(target(images(0)), exact)


def test_a_copy_has_none_of_its_own_yet_and_gives_the_same():
    target = FrozenTarget(float_teacher())
    expected = target(images(0))
    copied = copy.deepcopy(target)
    assert torch.equal(copied(images(0)), expected)
    assert not [name for name in target.state_dict() if not name.startswith("backbone.")]


def test_its_features_can_be_saved_for_a_backward_pass():
    """g(v1) trains on them where the classifier is joint: they are no inference tensors."""
    features = FrozenTarget(float_teacher())(images(0))
    weight = torch.ones(features.shape[1], requires_grad=True)
    (features * weight).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_features_too_large_for_float16_become_its_largest_number(dtype: torch.dtype):
    """In bfloat16 too, where that number itself is rounded to 65,536."""
    features = torch.tensor([[1e30, -1e30, 65504.0, 1.5]], dtype=dtype)
    expected = torch.tensor([[65504.0, -65504.0, 65504.0, 1.5]], dtype=torch.float16)
    assert torch.equal(_rounded(features), expected)
