"""Registers plugins' methods, and builds methods."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from burn.core.errors import UserError, shown
from burn.core.plugins import check_callable, check_config, check_name, check_words, registering
from burn.methods.entries import METHODS, MODELS, MethodEntry, Need, Views, add_method, find_method

if TYPE_CHECKING:
    from burn.backbones.base import Backbone
    from burn.checkpoints.foreign.weights import Teacher
    from burn.methods.base import Method

Class = TypeVar("Class", bound=type)


def register_method(
    name: str,
    *,
    config: type | None = None,
    needs: Collection[Need] = (),
    views: Views | None = None,
    synchronize_norms: bool = True,
    accumulates: bool = True,
) -> Callable[[Class], Class]:
    """Return a decorator that makes a `burn.Method` known to recipes and commands.

    The class is called with the backbone and, by name, with what it declares here: `config`,
    `teacher` (a `burn.Teacher`), `num_classes`.

    Args:
        name: Value of `--method` that selects it; its settings are `--NAME.FIELD`.
        config: A frozen dataclass, every field of which has a default. If it has a method `check`,
            that raises UserError for values out of range.
        needs: What it learns from: labels; teacher; head or classifier, for a teacher that must
            have one.
        views: Function that gives the `ViewConfig` of each view from the recipe's and the method's
            settings. Default: every view has the recipe's.
        synchronize_norms: Whether BN may take its statistics from the images of all processes.
        accumulates: Whether a batch may be cut into parts by `--accumulate`.

    Raises:
        UserError: The name belongs to one of burn's own methods or is not a lower-case identifier,
            or something declared is not usable.
    """
    check_name("method", name, METHODS)
    if name in MODELS:
        raise UserError(f"method {name} is a model of burn compare: choose another name")
    if config is not None:
        check_config("method", name, config)
    needed = check_words(f"method {name}", "needs", needs, get_args(Need))
    if views is not None:
        check_callable(f"method {name}", views, "a function, which views must be")

    def register(cls: Class) -> Class:
        from burn.methods.base import Method

        if not isinstance(cls, type) or not issubclass(cls, Method):
            raise UserError(
                f"method {name}: {getattr(cls, '__name__', shown(cls))} is not a burn.Method"
            )
        add_method(
            MethodEntry(
                name,
                cls,
                config,
                cast("frozenset[Need]", needed),
                views,
                synchronize_norms,
                accumulates,
                plugin=registering(cls.__module__),
            )
        )
        return cast(Class, cls)

    return register


def build_method(
    name: str, config: Any, backbone: Backbone, teacher: Teacher | None, num_classes: int
) -> Method:
    """Return the method of that name, with new heads drawn from torch's global random state.

    Raises:
        UserError: The teacher lacks the head or classifier that the method learns from, or a
            plugin's class does not behave as a `burn.Method` must.
    """
    entry = find_method(name)
    given: dict[str, Any] = {}
    if entry.config is not None:
        given["config"] = config
    if entry.needs_teacher:
        assert teacher is not None
        given["teacher"] = teacher
        for part, words in (("head", "projection head"), ("classifier", "classifier")):
            if part in entry.needs and getattr(teacher, part) is None and entry.plugin:
                raise UserError(f"method {name} needs a teacher with its {words}")
    if entry.needs_labels:
        given["num_classes"] = num_classes
    method = cast("Method", entry.load()(backbone, **given))
    if entry.plugin is not None:
        from burn.methods.checks import check_method, check_output

        check_method(name, method, taught=entry.needs_teacher)
        method.register_forward_hook(partial(check_output, name))
    return method
