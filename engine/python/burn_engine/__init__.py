"""Run packed binary networks: `load("photos").features("photo.jpg")`. It needs only NumPy.

`load` takes a file that `burn pack` wrote, or the name of a network that comes with the package.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from burn_engine.classifier_file import none_of_these, write_classifier
from burn_engine.clustering import Clusters, cluster
from burn_engine.copies import Copy, duplicates
from burn_engine.errors import ModelError
from burn_engine.index import Index, Match
from burn_engine.learning import Learned, learn
from burn_engine.model import Model, load
from burn_engine.native import isas

try:
    __version__ = version("burn-engine")
except PackageNotFoundError:  # run from a source tree
    __version__ = "0+unknown"

__all__ = [
    "Clusters",
    "Copy",
    "Index",
    "Learned",
    "Match",
    "Model",
    "ModelError",
    "__version__",
    "cluster",
    "duplicates",
    "isas",
    "learn",
    "load",
    "none_of_these",
    "write_classifier",
]
