"""Pretraining methods, a folder each: `settings.py`, which needs no torch, and `method.py`.

To import any module of this package is to import the settings of all methods, which put them into
the table `burn.methods.entries.METHODS`.
"""

import importlib
import pkgutil
from importlib.util import find_spec

for _folder in pkgutil.iter_modules(__path__, f"{__name__}."):
    if _folder.ispkg and find_spec(f"{_folder.name}.settings"):
        importlib.import_module(f"{_folder.name}.settings")
