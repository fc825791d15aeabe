"""The training loop, beside the same training written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from burn.learning.loop import Callback, Learner, Loader, Loop
from burn.runtime.distributed import Processes

CPU = Processes(torch.device("cpu"))
EPOCH = 5  # micro-batches


class Line(Learner):
    """A line through points; a batch of one point is too small to learn from."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(1, 1)
        self.progress: list[float] = []

    def forward(self, batch: Tensor, progress: float) -> Tensor | None:
        self.progress.append(progress)
        if len(batch) < 2:
            return None
        return (self.line(batch[:, :1]) - batch[:, 1:]).square().mean()


class Points:
    """Batches of points, those of an epoch or the rest of it in each iteration."""

    def __init__(self, sizes: tuple[int, ...] = (4,) * EPOCH) -> None:
        random = torch.Generator().manual_seed(0)
        self.batches = [torch.rand(size, 2, generator=random) for size in sizes]
        self.used = 0

    def __len__(self) -> int:
        return EPOCH

    def state_dict(self) -> dict[str, Any]:
        return {"used": self.used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.used = state["used"]

    def __iter__(self) -> Any:
        for batch in self.batches[self.used % EPOCH :]:
            self.used += 1
            yield batch


def loop_of(
    num_steps: int,
    parts: int = 1,
    callbacks: tuple[Callback, ...] = (),
    loader: Loader | None = None,
) -> Loop[Line]:
    learner = Line()
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.5, momentum=0.9)
    loop = Loop(
        learner, loader or Points(), optimizer, lambda step: 1 / (1 + step),
        num_steps=num_steps, parts=parts, processes=CPU,
    )  # fmt: skip
    loop.callbacks = callbacks
    return loop


class Events(Callback):
    """Remembers what it is told, with the number of steps by then."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.told: list[tuple[str, int]] = []
        self._stop_at = stop_at

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def tell(loop: Loop[Any], *_: Any) -> None:
            self.told.append((name, loop.step))
            if name == "on_batch_end" and loop.step == self._stop_at:
                loop.should_stop = True

        return tell


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_it_is_the_training_written_out(parts: int):
    """With momentum, a schedule, and a last step of an epoch, whose parts may be fewer: also there
    the gradient is the mean over them."""
    loop = loop_of(7, parts)
    loop.run()
    learner = Line()
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.5, momentum=0.9)
    step = 0
    while step < 7:
        batches = Points().batches
        for first in range(0, EPOCH, parts):
            if step == 7:
                break
            optimizer.zero_grad()
            of_step = batches[first : first + parts]
            for batch in of_step:
                (learner(batch, step / 7) / len(of_step)).backward()
            optimizer.param_groups[0]["lr"] = 0.5 / (1 + step)
            optimizer.step()
            step += 1
    assert all(
        torch.equal(a, b)
        for a, b in zip(loop.learner.parameters(), learner.parameters(), strict=True)
    )
    assert loop.learner.progress == learner.progress


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_resumed_training_has_the_bits_of_a_whole_one(parts: int, at: int):
    whole = loop_of(9, parts)
    whole.run()
    begun = loop_of(9, parts, (Events(stop_at=at),))
    begun.run()
    again = loop_of(9, parts)
    again.load_state_dict(begun.state_dict())
    again.run()
    assert (again.step, again.batches) == (whole.step, whole.batches)
    assert torch.equal(again.learner.line.weight, whole.learner.line.weight)
    assert again.replanned_at == []


def test_a_longer_training_is_planned_anew():
    first = loop_of(4)
    first.run()
    longer = loop_of(8)
    longer.load_state_dict(first.state_dict())
    assert longer.replanned_at == [4]
    assert longer.progress == 0.5
    assert longer.optimizer.param_groups[0]["lr"] == 0.5 / 5, "of the next step"


def test_what_callbacks_are_told():
    events = Events()
    loop_of(3, 3, (events,)).run()
    batch = ["on_batch_start", "on_before_backward", "on_after_backward"]
    part, last = [*batch, "on_batch_end"], [*batch, "on_before_step", "on_batch_end"]
    first = [*part, *part, *last]
    epoch = [*first, *part, *last]  # five batches are a step of three and one of two
    assert [name for name, _ in events.told] == [
        "on_start", "on_epoch_start", *epoch, "on_epoch_end", "on_epoch_start", *first,
        "on_epoch_end", "on_end",
    ]  # fmt: skip
    ends = [step for name, step in events.told if name == "on_batch_end"]
    assert ends == [0, 0, 1, 1, 2, 2, 2, 3]


def test_an_exception_is_told_and_raised():
    class Fails(Callback):
        def on_before_step(self, loop: Loop[Any]) -> None:
            raise RuntimeError("no")

    events = Events()
    with pytest.raises(RuntimeError, match="no"):
        loop_of(3, 1, (events, Fails())).run()
    assert events.told[-1] == ("on_failure", 0)
    assert "on_end" not in dict(events.told)


def test_a_loader_without_batches_is_an_error():
    class Empty(Points):
        def __iter__(self) -> Any:
            return iter(())

    with pytest.raises(ValueError, match="the loader yields no batch"):
        loop_of(8, loader=Empty()).run()


def test_callbacks_with_a_state_have_names_of_their_own():
    class Kept(Callback):
        def state_dict(self) -> dict[str, Any]:
            return {"count": 1}

    with pytest.raises(AssertionError, match="two callbacks of one name"):
        loop_of(1, 1, (Kept(), Kept())).state_dict()


def test_a_batch_that_is_too_small_changes_nothing():
    """Not even by momentum; it counts as a step, so that schedules end where they should."""
    loop = loop_of(2, loader=Points((4, 1, 4, 4, 4)))
    seen: list[Tensor] = []

    class Weights(Callback):
        def on_batch_end(self, loop: Loop[Any], batch: Tensor) -> None:
            seen.append(loop.learner.line.weight.detach().clone())

    loop.callbacks = (Weights(),)
    loop.run()
    assert torch.equal(seen[0], seen[1])
    assert loop.step == 2


def test_of_one_state_each_callback_gets_its_own():
    class Counts(Callback):
        def __init__(self) -> None:
            self.count = 0

        def on_batch_end(self, loop: Loop[Any], batch: Any) -> None:
            self.count += 1

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    loop = loop_of(3, 1, (Counts(), Events()))
    loop.run()
    again = loop_of(6, 1, (Events(), counts := Counts()))
    again.load_state_dict(loop.state_dict())
    assert counts.count == 3
