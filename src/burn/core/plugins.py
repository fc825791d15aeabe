"""Plugins: other people's code that registers methods, backbones, protocols and recipes.

A plugin is a Python file or a module, which `--import` names, or the entry point of an installed
package in the group `burn.plugins`. What it registers remembers it, so that runs and checkpoints
can say which plugins they need.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_type_hints

from burn.core.errors import UserError, printable, shortened, shown
from burn.core.inputs import sha256_of
from burn.core.paths import expand

GROUP = "burn.plugins"
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Plugin:
    """Origin of a registered part: `name` is what `--import` was given, or the registering module.

    `sha256` is the hash of the plugin's file, or None where it is a module.
    """

    name: str
    sha256: str | None = None


_loaded: dict[str, str | None] = {}  # values of --import to the files of their code
_installed: dict[str, str | None] = {}  # entry points to their files
_loading: list[Plugin] = []
_registered: list[str] = []  # the module of each part


def registering(module: str) -> Plugin:
    """Return the plugin that registers a part now: the one being loaded, or `module` itself."""
    _registered.append(module)
    return _loading[-1] if _loading else Plugin(module)


def imports() -> tuple[str, ...]:
    """Return the values that `--import` was given, to pass on to other processes."""
    return tuple(_loaded)


def load_plugin(name: str) -> None:
    """Import a plugin, unless it is loaded already.

    Args:
        name: A file that ends in .py, or a module that Python finds. A file's folder is added to
            the end of `sys.path`, so that it can import the files beside it.

    Raises:
        UserError: There is no such plugin, its name is another module's, it cannot be imported, or
            it registers nothing.
    """
    if name in _loaded:
        return
    if not name:
        raise UserError("--import is empty: give a Python file, such as my_method.py, or a module")
    path = expand(name)
    if path.suffix == ".py" or "/" in name:
        module, plugin = _module_of(path, name), Plugin(name, _digest(path, name))
    else:
        module, plugin = name, Plugin(name)
        if not all(part.isidentifier() for part in name.split(".")):
            raise UserError(f"--import {shortened(name)}: give a Python file or a module's name")
    before, there_before = len(_registered), module in sys.modules
    _loading.append(plugin)
    try:
        imported = importlib.import_module(module)
    except UserError:
        raise
    except BaseException as error:
        if type(error) is KeyboardInterrupt:  # Ctrl-C; a plugin may raise its own kind
            raise
        if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            raise UserError(
                f"--import {name}: Python finds no module of that name: give the file, {name}.py, "
                "or install the package"
            ) from error
        raise UserError(f"--import {name}: {_described(error, str(path))}") from error
    finally:
        _loading.pop()
    earlier = there_before and any(
        f"{registrant}.".startswith(f"{module}.") for registrant in _registered
    )
    if len(_registered) == before and not earlier:
        raise UserError(
            f"--import {name} registers nothing: decorate a class with burn.register_method, "
            "burn.register_backbone or burn.register_protocol"
        )
    _loaded[name] = getattr(imported, "__file__", None)


def load_installed(warn: Callable[[str], None]) -> None:
    """Import the plugins of installed packages; `warn` receives one line about each that fails."""
    for entry in entry_points(group=GROUP):
        if entry.name in _installed:
            continue
        _installed[entry.name] = None
        _loading.append(Plugin(entry.value))
        try:
            loaded = entry.load()
            _installed[entry.name] = getattr(loaded, "__file__", None)
        except BaseException as error:
            if type(error) is KeyboardInterrupt:
                raise
            package = entry.dist.name if entry.dist else entry.value
            warn(f"plugin {entry.name} of package {package} is left out: {_described(error, '')}")
        finally:
            _loading.pop()


def fault_in_plugin(error: BaseException) -> str | None:
    """Return the innermost line in a plugin's file that raised an exception, with it; or None."""
    files = _files()
    current: BaseException | None = error
    while current is not None:
        for frame in reversed(traceback.extract_tb(current.__traceback__)):
            if frame.filename in files:
                what = shortened(printable(f"{type(current).__name__}: {current}"), 200)
                return f"{files[frame.filename]} line {frame.lineno}: {what}"
        current = current.__cause__
    return None


def all_plugins() -> list[str]:
    """Return the names of all plugins that are loaded, for the message of an unforeseen error."""
    return list(_files().values())


def _files() -> dict[str, str]:
    return {file: name for name, file in [*_loaded.items(), *_installed.items()] if file}


def require_plugins(needed: Any, kind: str, registered: Mapping[str, Any], what: str) -> None:
    """Raise UserError unless the plugins' parts of a kind that a file needs are registered.

    `needed` is what the file says of its plugins, as `describe_plugin` gives it; it is not trusted.
    `what` names the file.
    """
    for part in needed if isinstance(needed, list) else ():
        if (
            not isinstance(part, dict)
            or part.get("kind") != kind
            or str(part.get("name")) in registered
        ):
            continue
        name, import_name = (shortened(printable(str(part.get(key)))) for key in ("name", "import"))
        raise UserError(
            f"{what} needs {kind} {name} of {import_name}, which is not loaded: give --import "
            f"{import_name}, or import it first"
        )


def describe_plugin(kind: str, name: str, plugin: Plugin | None) -> list[dict[str, Any]]:
    """Return what runs and checkpoints say of a plugin's part, in JSON; [] for burn's own."""
    if plugin is None:
        return []
    return [{"kind": kind, "name": name, "import": plugin.name, "sha256": plugin.sha256}]


def changed_plugins(before: Any, now: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each plugin whose file has changed since a run began.

    Both arguments are as `describe_plugin` gives them; `before` is from run.json and not trusted.
    """
    parts = [part for part in before if isinstance(part, dict)] if isinstance(before, list) else []
    hashes = {(part.get("kind"), part.get("name")): part.get("sha256") for part in parts}
    return [
        f"{part['kind']} {part['name']}: {part['import']} has changed since the run began, so the "
        "result may differ from that of a run with either version"
        for part in now
        if part["sha256"] != hashes.get((part["kind"], part["name"]))
    ]


def resolve(target: Any) -> Any:
    """Import what a table names as MODULE:NAME, and return anything else as it is."""
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def check_config(kind: str, name: str, config: Any) -> None:
    """Raise UserError unless `config` is a frozen dataclass with defaults and types that exist."""
    if not dataclasses.is_dataclass(config) or not isinstance(config, type):
        raise UserError(f"{kind} {name}: config must be a dataclass, got {shown(config)}")
    if not config.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise UserError(f"{kind} {name}: write @dataclass(frozen=True) above {config.__name__}")
    try:
        get_type_hints(config)
    except Exception as error:
        raise UserError(f"{kind} {name}: types of {config.__name__}: {error}") from error
    for field in dataclasses.fields(config):
        if not field.init:
            raise UserError(f"{kind} {name}: field {field.name} of its config has init=False")
        if field.default is field.default_factory is dataclasses.MISSING:
            raise UserError(f"{kind} {name}: field {field.name} of its config has no default")


def check_words(part: str, what: str, given: object, allowed: Collection[str]) -> frozenset[str]:
    """Return the words that a plugin gives `part` as its argument `what`, if they are allowed."""
    words = given if isinstance(given, (list, tuple, set, frozenset, dict)) else [None]
    if not all(isinstance(word, str) and word in allowed for word in words):
        raise UserError(f"{part}: {what} must be a list of {', '.join(allowed)}")
    return frozenset(str(word) for word in words)


def check_callable(part: str, given: object, what: str) -> None:
    """Raise UserError unless what a plugin registers can be called."""
    if not callable(given):
        raise UserError(f"{part}: {shown(given)} is not {what}")


def check_name(kind: str, name: object, taken: Mapping[str, Any]) -> str:
    """Return the name of a part that is being registered, if it may have it.

    A plugin's part may be registered again, as when a notebook's cell is run again, but not by
    another plugin that is being loaded. `taken` are the registered parts by name.
    """
    usable = isinstance(name, str) and name.isidentifier() and len(name) <= _LONGEST_NAME
    if not isinstance(name, str) or not usable or name != name.lower():
        raise UserError(
            f"{kind} {shown(name, 60)}: use up to {_LONGEST_NAME} lower-case letters, digits and _"
        )
    if name in taken:
        check_owner(kind, name, taken[name].plugin)
    return name


def check_owner(kind: str, name: str, owner: Plugin | None) -> None:
    """Raise UserError if a name belongs to burn itself (`owner` None) or to another plugin.

    A plugin may take its own name again, and so may anyone while no plugin is being loaded.
    """
    if owner is None:
        raise UserError(f"{kind} {name} is one of burn's own: choose another name")
    if _loading and owner != _loading[-1]:
        raise UserError(f"{kind} {name} is already registered by {owner.name}: choose another name")


def _module_of(path: Path, name: str) -> str:
    """Return the name by which a file is imported, after adding its folder to `sys.path`."""
    if path.suffix != ".py":
        raise UserError(f"--import {name} is not a Python file: its name must end in .py")
    if not path.is_file():
        raise UserError(f"--import {name}: there is no such file")
    file, module = path.resolve(), path.stem
    if not module.isidentifier():
        raise UserError(f"--import {name}: the file's name may have only letters, digits and _")
    folder = str(file.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()
    there = sys.modules.get(module)
    other_file = getattr(there, "__file__", None)
    if there is None:
        spec = importlib.util.find_spec(module)
        other_file = spec.origin if spec else None
    if other_file is None or Path(other_file).resolve() != file:
        raise UserError(
            f"--import {name}: {module} is also the name of another module, in "
            f"{other_file or 'Python itself'}: rename the file"
        )
    return module


def _digest(path: Path, name: str) -> str:
    try:
        return sha256_of(path)
    except UserError as error:
        raise UserError(f"--import {name}: {error}") from error


def _described(error: BaseException, file: str) -> str:
    """Return an exception in one line, with the last line of `file` in its traceback."""
    text = shortened(printable(f"{type(error).__name__}: {error}"), 200)
    if isinstance(error, SyntaxError):
        return text
    plugin_file = str(Path(file).resolve()) if file else ""
    lines = [
        f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == plugin_file
    ]
    return f"line {lines[-1]}: {text}" if lines else text
