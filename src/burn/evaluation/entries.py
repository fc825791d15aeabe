"""Protocols by name: the paper's, and those of plugins; no torch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from burn.core.errors import UserError
from burn.core.plugins import Plugin, check_config, check_name, registering, resolve
from burn.evaluation.configs import (
    DetectionConfig,
    KnnConfig,
    LinearConfig,
    SemiConfig,
    SvmConfig,
    TransferConfig,
)

if TYPE_CHECKING:
    from rich.console import Console

    from burn.core.results import Result
    from burn.evaluation.context import EvaluationContext

    Run = Callable[[EvaluationContext, Any, Console], list[Result]]

Images = Literal["labels", "boxes", "either"]
Function = TypeVar("Function", bound="Run")


@dataclass(frozen=True)
class ProtocolEntry:
    """What is known of a protocol before it runs.

    Attributes:
        name: What `burn evaluate` takes.
        of: What runs it, a function of an `EvaluationContext`, the settings and a console, or
            MODULE:FUNCTION.
        config: The dataclass of its settings.
        images: What its images have: labels, boxes in VOC's layout, or either.
        shares: Whether several processes may run it together.
        plugin: Where it comes from, or None for burn's own.
    """

    name: str
    of: Run | str
    config: type
    images: Images = "labels"
    shares: bool = False
    plugin: Plugin | None = None

    def load(self) -> Run:
        """What runs it."""
        return cast("Run", resolve(self.of))


PROTOCOLS: dict[str, ProtocolEntry] = {
    entry.name: entry
    for entry in (
        ProtocolEntry("knn", "burn.evaluation.knn:run_knn", KnnConfig),
        ProtocolEntry("linear", "burn.evaluation.linear:run_linear", LinearConfig),
        ProtocolEntry("semi", "burn.evaluation.semi:run_semi", SemiConfig),
        ProtocolEntry("transfer", "burn.evaluation.linear:run_transfer", TransferConfig),
        ProtocolEntry("svm", "burn.evaluation.svm.protocol:run_svm", SvmConfig, "either"),
        ProtocolEntry(
            "detection", "burn.evaluation.detection.protocol:run_detection", DetectionConfig,
            "boxes", shares=True,
        ),
    )
}  # fmt: skip


def register_protocol(
    name: str, *, config: type, images: Images = "labels"
) -> Callable[[Function], Function]:
    """Decorate a function so that `burn evaluate` knows it as a protocol.

    It is called with a `burn.EvaluationContext`, the settings and a console for progress, and
    returns the results that `EvaluationContext.results` makes of its numbers.

    Args:
        name: What `burn evaluate` takes.
        config: A frozen dataclass of its settings, every field of which has a default; a method
            `check`, if it has one, raises UserError for values out of range.
        images: What its images have: labels, boxes in VOC's layout, or either.

    Raises:
        UserError: The name is taken or no identifier, or config is no frozen dataclass.
    """
    check_name("protocol", name, PROTOCOLS)
    check_config("protocol", name, config)
    if images not in get_args(Images):
        raise UserError(f"protocol {name}: images is one of {', '.join(get_args(Images))}")

    def register(function: Function) -> Function:
        plugin = registering(getattr(function, "__module__", "?"))
        PROTOCOLS[name] = ProtocolEntry(name, function, config, images, plugin=plugin)
        return function

    return register
