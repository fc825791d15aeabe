"""Table of the protocols, burn's own and those of plugins, by name, without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from burn.core.errors import UserError
from burn.core.plugins import Plugin, check_callable, check_config, check_name, registering, resolve
from burn.evaluation.configs import (
    DetectionConfig,
    KnnConfig,
    LinearConfig,
    Request,
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
    """Description of a protocol that is known before it runs.

    A frozen one needs nothing of the network but features of views, so that burn-engine may compute
    them.
    """

    name: str  # for `burn evaluate`
    target: Run | str  # the function that runs it, or the text MODULE:FUNCTION
    config: type  # the dataclass of its settings
    images: Images = "labels"  # what its images must have; boxes are in VOC's layout
    shares: bool = False  # whether several processes may run it together
    frozen: bool = False
    plugin: Plugin | None = None  # that registered it, or None for burn's own

    def load(self) -> Run:
        return cast("Run", resolve(self.target))


PROTOCOLS: dict[str, ProtocolEntry] = {
    entry.name: entry
    for entry in (
        ProtocolEntry("knn", "burn.evaluation.knn:run_knn", KnnConfig, frozen=True),
        ProtocolEntry("linear", "burn.evaluation.linear:run_linear", LinearConfig, frozen=True),
        ProtocolEntry("semi", "burn.evaluation.semi:run_semi", SemiConfig),
        ProtocolEntry(
            "transfer", "burn.evaluation.linear:run_transfer", TransferConfig, frozen=True
        ),
        ProtocolEntry(
            "svm", "burn.evaluation.svm.protocol:run_svm", SvmConfig, "either", frozen=True
        ),
        ProtocolEntry(
            "detection",
            "burn.evaluation.detection.protocol:run_detection",
            DetectionConfig,
            "boxes",
            shares=True,
        ),
    )
}


def register_protocol(
    name: str, *, config: type, images: Images = "labels"
) -> Callable[[Function], Function]:
    """Decorate a function to register it as a protocol of `burn evaluate`.

    The function is called with a `burn.EvaluationContext`, the settings and a console for progress,
    and returns the results that `EvaluationContext.results` makes of its numbers.

    Args:
        name: Name of the protocol for `burn evaluate`.
        config: A frozen dataclass of its settings, every field of which has a default; a method
            `check`, if it has one, raises UserError for values out of range.
        images: What its images must have: labels, boxes in VOC's layout, or either.

    Raises:
        UserError: The name is taken or is not an identifier, config is not a frozen dataclass or
            has a field that `burn evaluate` has an option for, or images is something else.
    """
    check_name("protocol", name, PROTOCOLS)
    check_config("protocol", name, config)
    taken = {field.name for field in fields(Request)} | {"protocol", "json"}
    if clashes := sorted(taken & {field.name for field in fields(config)}):
        raise UserError(
            f"protocol {name}: burn evaluate has an option --{clashes[0]}: rename it in "
            f"{config.__name__}"
        )
    if not isinstance(images, str) or images not in get_args(Images):
        raise UserError(f"protocol {name}: images must be one of {', '.join(get_args(Images))}")

    def register(function: Function) -> Function:
        check_callable(f"protocol {name}", function, "a function")
        plugin = registering(getattr(function, "__module__", "?"))
        PROTOCOLS[name] = ProtocolEntry(name, function, config, images, plugin=plugin)
        return function

    return register
