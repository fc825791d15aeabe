"""Pretraining methods, a folder each: `settings.py`, which needs no torch, and `method.py`.

To import any module of this package is to import the settings of all methods, which put them into
the table `burn.methods.entries.METHODS`.
"""

import importlib
import pkgutil

for _folder in pkgutil.iter_modules(__path__):
    if _folder.ispkg and _folder.name != "shared":
        importlib.import_module(f"{__name__}.{_folder.name}.settings")
