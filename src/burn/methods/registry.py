"""Methods by name: BURN, the baselines that the paper compares it with, and those of plugins.

What is known of a method before it is built needs no torch.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from burn.core.errors import UserError, shortened
from burn.core.plugins import Plugin, check_config, check_name, registering, resolve
from burn.methods.configs import (
    BurnConfig,
    ByolConfig,
    InfominConfig,
    Mocov2Config,
    S2bnnConfig,
    SimclrConfig,
    SwavConfig,
)

if TYPE_CHECKING:
    from burn.backbones.base import Backbone
    from burn.checkpoints.foreign.weights import Teacher
    from burn.methods.base import Method

Need = Literal["labels", "teacher", "head", "classifier"]
# From the `ViewConfig` of the recipe and the method's settings to that of each view.
Views = Callable[[Any, Any], Sequence[Any]]
Class = TypeVar("Class", bound=type)


def _always(_: Any) -> bool:
    return True


@dataclass(frozen=True)
class MethodEntry:
    """What is known of a method apart from what it computes.

    Attributes:
        name: What `--method` takes.
        of: Its class, or MODULE:CLASS. It is called with the backbone and, by name, with what it
            declares: `config`, `teacher`, and `num_classes` of the labels.
        config: The dataclass of its settings, or None.
        needs: labels, or a teacher; head and classifier are a teacher's that has one.
        views: The augmentation of each view from the recipe's and the method's settings, where
            not all views have the recipe's.
        synchronize_norms: Whether BN may take its statistics from all processes' images.
        accumulates: Whether a batch may be cut into parts.
        caches_teacher: Whether, with these settings, the teacher's features of a view depend on
            nothing but the view.
        plugin: Where it comes from, or None for burn's own.
    """

    name: str
    of: type | str
    config: type | None = None
    needs: frozenset[Need] = frozenset()
    views: Views | None = None
    synchronize_norms: bool = True
    accumulates: bool = True
    caches_teacher: Callable[[Any], bool] = _always
    plugin: Plugin | None = None

    @property
    def needs_teacher(self) -> bool:
        return bool(self.needs - {"labels"})

    @property
    def needs_labels(self) -> bool:
        return "labels" in self.needs

    def load(self) -> type:
        """Its class."""
        return resolve(self.of)  # type: ignore[no-any-return]


def _swav_views(view: Any, config: SwavConfig) -> tuple[Any, ...]:
    """Two of full size and the small crops."""
    small = dataclasses.replace(
        view, size=config.small_size, resize=None, crop_scale=config.small_scale
    )
    return (view,) * 2 + (small,) * config.small_crops


_TEACHER: frozenset[Need] = frozenset({"teacher"})
METHODS: dict[str, MethodEntry] = {
    entry.name: entry
    for entry in (
        MethodEntry(
            "burn", "burn.methods.burn:Burn", BurnConfig, _TEACHER,
            caches_teacher=lambda config: config.teacher_batch_norm == "running",
        ),
        MethodEntry(
            "supervised", "burn.methods.supervised:Supervised", needs=frozenset({"labels"})
        ),
        MethodEntry(
            "supervised_kl", "burn.methods.supervised:SupervisedKl",
            needs=frozenset({"classifier"}),
        ),
        MethodEntry("byol", "burn.methods.byol:Byol", ByolConfig),
        MethodEntry("swav", "burn.methods.swav:Swav", SwavConfig, views=_swav_views),
        # With BN over all processes' images, queries and keys could be told by their statistics.
        MethodEntry(
            "mocov2", "burn.methods.mocov2:Mocov2", Mocov2Config, synchronize_norms=False
        ),
        MethodEntry(
            "s2bnn", "burn.methods.s2bnn:S2bnn", S2bnnConfig, _TEACHER, synchronize_norms=False
        ),
        # An image's negatives are the others of its batch.
        MethodEntry("simclr", "burn.methods.simclr:Simclr", SimclrConfig, accumulates=False),
        MethodEntry(
            "infomin", "burn.methods.infomin:Infomin", InfominConfig, synchronize_norms=False
        ),
    )
}  # fmt: skip
PAPERS_METHODS = tuple(METHODS)  # and its own, BURN: without those of plugins


def find_method(name: str) -> MethodEntry:
    """The entry of that name. Raises UserError suggesting the nearest one."""
    if name in METHODS:
        return METHODS[name]
    near = difflib.get_close_matches(name, METHODS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(METHODS)}"
    raise UserError(f"unknown method {shortened(name)}: {hint} (--import FILE adds your own)")


def registered_configs() -> dict[str, type]:
    """The settings of registered methods that have some, by name."""
    return {name: entry.config for name, entry in METHODS.items() if entry.plugin and entry.config}


def register_method(
    name: str,
    *,
    config: type | None = None,
    needs: Collection[Need] = (),
    views: Views | None = None,
    synchronize_norms: bool = True,
    accumulates: bool = True,
) -> Callable[[Class], Class]:
    """Decorate a `burn.Method` so that recipes, `burn pretrain` and `burn compare` know it.

    The class is called with the backbone and, by name, with what it declares here: `config`,
    `teacher` (a `burn.Teacher`), `num_classes`.

    Args:
        name: What `--method` takes; its settings are `--NAME.FIELD`.
        config: A frozen dataclass, every field of which has a default; a method `check`, if it has
            one, raises UserError for values out of range.
        needs: labels; teacher; head or classifier, for a teacher that must have one.
        views: Gives the `ViewConfig` of each view from the recipe's and the method's settings.
            Default: every view has the recipe's.
        synchronize_norms: Whether BN may take its statistics from all processes' images.
        accumulates: Whether a batch may be cut into parts, `--accumulate`.

    Raises:
        UserError: The name is taken or no identifier, or something declared is not usable.
    """
    check_name("method", name, METHODS)
    if config is not None:
        check_config("method", name, config)
    unknown = set(needs) - set(get_args(Need))
    if isinstance(needs, str) or unknown:
        raise UserError(f"method {name}: needs is a list of {', '.join(get_args(Need))}")

    def register(cls: Class) -> Class:
        from burn.methods.base import Method

        if not isinstance(cls, type) or not issubclass(cls, Method):
            raise UserError(f"method {name}: {getattr(cls, '__name__', cls)} is no burn.Method")
        METHODS[name] = MethodEntry(
            name, cls, config, frozenset(needs), views, synchronize_norms, accumulates,
            plugin=registering(cls.__module__),
        )  # fmt: skip
        return cast(Class, cls)

    return register


def build_method(
    name: str, config: Any, backbone: Backbone, teacher: Teacher | None, num_classes: int
) -> Method:
    """The method of that name around `backbone`, with fresh heads by torch's global random state.

    Args:
        name: Of the method.
        config: The method's own settings, None where it has none.
        backbone: What is trained.
        teacher: For a method that needs one.
        num_classes: Of the labels, for a method that needs them.

    Raises:
        UserError: The teacher lacks the head or classifier that the method learns from, or a
            plugin's class is no method.
    """
    entry = find_method(name)
    given: dict[str, Any] = {}
    if entry.config is not None:
        given["config"] = config
    if entry.needs_teacher:
        assert teacher is not None
        given["teacher"] = teacher
        for part in ("head", "classifier"):
            if part in entry.needs and getattr(teacher, part) is None and entry.plugin:
                raise UserError(f"method {name} needs a teacher with its {_PARTS[part]}")
    if entry.needs_labels:
        given["num_classes"] = num_classes
    method = cast("Method", entry.load()(backbone, **given))
    if entry.plugin is not None:
        _check_method(entry, method)
    return method


_PARTS = {"head": "projection head", "classifier": "classifier"}


def _check_method(entry: MethodEntry, method: Method) -> None:
    """Raise UserError where a plugin's class does not keep what `Method` asks of it."""
    from burn.methods.shared.frozen import FrozenTarget

    name, views = entry.name, getattr(method, "num_views", None)
    if not isinstance(views, int) or views < 1:
        raise UserError(f"method {name}: set num_views, the views that it takes of an image")
    if not 0 <= method.num_taught <= views:
        raise UserError(f"method {name}: num_taught is at most num_views, {views}")
    if entry.needs_teacher:
        held = sum(isinstance(module, FrozenTarget) for module in method.modules())
        if held != 1 or not method.num_taught:
            raise UserError(
                f"method {name}: hold the teacher as one burn.FrozenTarget, and set num_taught, "
                "the views that it sees"
            )
    trained = [part.name for part in method.parts() if part.trained]
    if not any(part.module is method.backbone for part in method.parts()):
        raise UserError(f"method {name}: parts() lacks the backbone; it has {', '.join(trained)}")
