"""The recipe: one frozen value with everything that decides what a training run computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from burn.backbones.config import BackboneConfig
from burn.backbones.entries import is_binary
from burn.core.errors import UserError, shown
from burn.core.settings import from_plain
from burn.core.types import Precision
from burn.data.view_config import ViewConfig
from burn.methods.entries import METHODS, MethodEntry, find_method
from burn.runtime.bounds import require_within
from burn.runtime.compute import Compute


@dataclass(frozen=True)
class OptimConfig:
    """Settings of the optimizer and of the learning-rate schedule, which restarts in every stage.

    Attributes:
        name: lars (timm's), adam or sgd.
        lr: learning rate after warm-up, for the recipe's whole batch.
        weight_decay: L2 penalty; biases, BN, shifts and slopes get none. lars adapts only the
            parameters that decay, so that with 0 it is sgd.
        momentum: momentum of lars and sgd, beta1 of adam.
        beta2: beta2 of adam. Short runs with KL want 0.98: the first gradients are up to a hundred
            times later ones and would inflate the second moment for a thousand steps.
        schedule: course of the learning rate after warm-up.
        warmup_epochs: epochs of linear warm-up.
    """

    name: Literal["lars", "adam", "sgd"] = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.9
    beta2: float = 0.999
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_epochs: float = 0.0

    def check(self) -> None:
        """Raise UserError for values out of range."""
        for name in ("momentum", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"optim.{name} {getattr(self, name)} is not in [0, 1)")
        if not 0 < self.lr <= 1e6:
            raise UserError(f"optim.lr {self.lr} is not in (0, 1e6]")
        require_within(0, 1e3, "optim.", weight_decay=self.weight_decay)
        require_within(0, 10**6, "optim.", warmup_epochs=self.warmup_epochs)


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run; data, teacher, seed and machine are given separately.

    Attributes:
        method: burn, s2bnn and supervised_kl learn from a teacher, supervised from labels, byol,
            swav, mocov2, simclr and infomin from the images alone.
        epochs: epochs of each stage.
        batch_size: images for each optimizer step.
        accumulate: number of parts into which a batch is cut to save memory.
        stages: 2 trains a binary network with float weights first, then with binary weights; 1
            trains with binary weights from the start.
        teacher_size: side in pixels of the teacher's views, the student's crops and colours.
            Default: the student's.
        view_epochs: epochs after which an image's views repeat (default: never).
        compute: number format; auto: bfloat16 where faster, else float32.
        backbone: the network to train.
        settings: settings of the method, a value of its own dataclass or values by name; those of
            another method are replaced by the method's defaults. As plain values they stand beside
            the other settings, under the method's name.
        views: augmentation.
        optim: optimizer and learning rate.
    """

    method: str = "burn"
    epochs: int = 200
    batch_size: int = 256
    accumulate: int = 1
    stages: Literal[1, 2] = 2
    teacher_size: int | None = None
    view_epochs: int | None = None
    compute: Compute = "auto"
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    settings: Any = None
    views: ViewConfig = field(default_factory=ViewConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)

    def __post_init__(self) -> None:
        entry = METHODS.get(self.method) if isinstance(self.method, str) else None
        if entry is not None and entry.name in _names(self):
            raise UserError(f"method {entry.name}: recipes have a setting of that name")
        # An unknown method has none; `check` names it.
        settings = None if entry is None else _settings_of(entry, self.settings)
        object.__setattr__(self, "settings", settings)

    @classmethod
    def from_json(cls, values: Any) -> Recipe:
        """Return the recipe of plain values, as `to_json` returns them.

        The settings of other methods, which earlier versions of burn wrote too, are left out.

        Args:
            values: Values by name; what is not given keeps its default.

        Raises:
            UserError: A setting is unknown or has a wrong type; the message names it.
        """
        if isinstance(values, Mapping):
            values = without_other_methods(values)
            method = str(values.get("method", cls.method))
            if "settings" in values or values.get(method, {}) is None:
                raise UserError(f"{method}: expected named values in the place of its settings")
            values["settings"] = values.pop(method, None)
        return from_plain(cls, values)

    def check(self) -> None:
        """Check the settings.

        Raises:
            UserError: A value is out of range, or options contradict each other.
        """
        require_within(1, 10**6, epochs=self.epochs)
        require_within(1, 2**20, batch_size=self.batch_size, accumulate=self.accumulate)
        images, rest = divmod(self.batch_size, self.accumulate)
        if self.batch_size < 2:
            raise UserError("batch_size 1: give 2 or more images, since BN needs a batch")
        if rest or images < 2:
            raise UserError(
                f"batch_size {self.batch_size} cannot be divided into {self.accumulate} equal "
                "parts (accumulate) of at least 2 images: give --accumulate "
                f"{_parts(self.batch_size, self.accumulate)} too"
            )
        if self.stages == 2 and not is_binary(self.backbone.name):
            raise UserError(
                f"stages 2 binarises step by step, but {self.backbone.name} has no binary layers: "
                "give stages 1"
            )
        require_within(8, 4096, teacher_size=self.teacher_size)
        require_within(1, 10**6, view_epochs=self.view_epochs)
        entry = find_method(self.method)
        if self.teacher_size is not None and not entry.needs_teacher:
            raise UserError(
                f"--teacher-size {self.teacher_size}: method {self.method} has no teacher; leave "
                "it out"
            )
        if self.accumulate > 1 and not entry.accumulates:
            raise UserError(
                f"method {self.method} cannot cut a batch into accumulate {self.accumulate} parts: "
                "its loss compares the images of a whole batch"
            )
        for part in (self.settings, self.views, self.optim):
            if hasattr(part, "check"):  # a plugin's settings need none
                part.check()

    def with_settings(self, **changes: Any) -> Recipe:
        """Return the recipe with other settings of its method.

        >>> import burn
        >>> burn.recipe("burn_small").with_settings(classifier="joint").settings.classifier
        'joint'

        Args:
            changes: Values by name.

        Raises:
            UserError: The method has no such setting, or the value has a wrong type.
        """
        settings = {name: getattr(self.settings, name) for name in _names(self.settings)}
        return replace(self, settings={**settings, **changes})

    def view_epoch(self, epoch: int) -> int:
        """Return the epoch, counted from 0, whose views are shown in `epoch`."""
        return epoch if self.view_epochs is None else epoch % self.view_epochs

    def precisions(self) -> tuple[Precision, ...]:
        """Return the precision of each stage (paper, section 3.4)."""
        if not is_binary(self.backbone.name):
            return (Precision.FLOAT,)
        if self.stages == 1:
            return (Precision.BINARY,)
        return (Precision.BINARY_ACTIVATIONS, Precision.BINARY)

    def without_foreign_strides(self, before: Recipe) -> Recipe:
        """Reset strides that come from a recipe for another network.

        Args:
            before: The recipe that these settings started from.

        Returns:
            The recipe; if its network is not that of `before`, with its own network's default
            strides in place of those that `before` gave.
        """
        backbone, old = self.backbone, before.backbone
        if backbone.name == old.name:
            return self
        if backbone.stage_strides == old.stage_strides:
            backbone = replace(backbone, stage_strides=BackboneConfig().stage_strides)
        if backbone.resnet_strides == old.resnet_strides:
            backbone = replace(backbone, resnet_strides=None)
        return replace(self, backbone=backbone)

    def without_unused_teacher_size(self, before: Recipe) -> Recipe:
        """Reset the teacher's size for a method without a teacher.

        Args:
            before: The recipe that these settings started from.

        Returns:
            The recipe; if its method takes no teacher, without the size that `before` gave.
        """
        if self.teacher_size != before.teacher_size or find_method(self.method).needs_teacher:
            return self
        return replace(self, teacher_size=None)

    def view_configs(self, num_views: int | None = None) -> tuple[ViewConfig, ...]:
        """Return the augmentation of each view of an image.

        All views are alike, except for methods that describe their own, as SwAV does for its small
        crops.

        Args:
            num_views: Number of views that the method takes. None returns each kind of view once.

        Raises:
            UserError: A plugin's method takes another number of views than it describes.
        """
        views = find_method(self.method).views
        if views is None:
            return (self.views,) * (num_views or 1)
        configs = tuple(views(self.views, self.settings))
        if num_views not in (None, len(configs)):
            raise UserError(
                f"method {self.method} takes {num_views} views, but describes {len(configs)}"
            )
        return configs

    def teacher_view(self) -> ViewConfig:
        """Return the augmentation of the teacher's views: the student's, at the teacher's size.

        A blur is scaled with the size, so that it covers the same part of the image.
        """
        size = self.teacher_size
        if size is None or size == self.views.size:
            return self.views
        scale = size / self.views.size
        low, high = self.views.blur_sigma
        return replace(self.views, size=size, resize=None, blur_sigma=(low * scale, high * scale))

    def teacher_configs(self, num_taught: int) -> tuple[ViewConfig, ...]:
        """Return the augmentation of each view at the teacher's own size.

        Args:
            num_taught: Number of views that the teacher sees.

        Returns:
            One for each of these views, or nothing if the teacher sees the student's views.
        """
        view = self.teacher_view()
        return () if view is self.views else (view,) * num_taught

    def with_resize_of(self, before: Recipe) -> Recipe:
        """Scale evaluation's `resize` with the size of the views.

        Args:
            before: The recipe that these settings started from.

        Returns:
            The recipe with the ratio of `resize` to the views' size that `before` has.
        """
        size, resize = before.views.size, before.views.resize
        if resize is None or self.views.size == size:
            return self
        resize = round(self.views.size * resize / size)
        return replace(self, views=replace(self.views, resize=resize))

    def to_json(self) -> dict[str, Any]:
        """Return the settings as nested plain values."""
        plain = asdict(self)
        settings = plain.pop("settings")
        return plain if settings is None else {**plain, self.method: settings}


def without_other_methods(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's values, as `to_json` returns them, without the settings of other methods.

    Earlier versions of burn wrote those too.
    """
    method = values.get("method", Recipe.method)
    kept = {method, *_names(Recipe)}  # a plugin's method may be called as a field is
    return {name: v for name, v in values.items() if name not in METHODS or name in kept}


def _settings_of(entry: MethodEntry, given: Any) -> Any:
    """Return a method's settings as its own dataclass, or None if it has none.

    They are given as such, or as values by name. None, and the settings of another method, stand
    for the defaults. Raises UserError if they are something else, or a value has the wrong type.
    """
    config = entry.config
    if given is None or type(given) in {each.config for each in METHODS.values()} - {config}:
        given = {}
    if config is None:
        if given:
            raise UserError(f"{entry.name}: the method has no settings, got {shown(given)}")
        return None
    # A notebook's cell that is run again makes another class of the same name.
    if _place(type(given)) == _place(config):
        given = {name: getattr(given, name) for name in _names(given)}
    return from_plain(config, given, entry.name)


def _place(config: type) -> tuple[str, str]:
    """Return the module of a class and its name there."""
    return config.__module__, config.__qualname__


def _names(config: Any) -> list[str]:
    """Return the names of a dataclass's fields, or [] for None."""
    return [] if config is None else [each.name for each in fields(config)]


_ENOUGH = 32  # images in each part, for BN's statistics


def _parts(batch_size: int, most: int) -> int:
    """Return the largest number of equal parts, at most `most`, with enough images each."""
    fitting = (
        n
        for n in range(min(most, batch_size), 1, -1)
        if batch_size % n == 0 and batch_size // n >= _ENOUGH
    )
    return next(fitting, 1)
