"""A page's script in one: a JavaScript module with all that it imports of the package's."""

from __future__ import annotations

import re
from importlib.resources import files

_MISSING = (
    "this burn-engine was installed without its module for pages, as where there was no C++ "
    "compiler; install it again with one"
)
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.MULTILINE)
_PASSED_ON = re.compile(r'^export \{([^}]*)\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b.*|import\.meta", re.MULTILINE)


def page_file(name: str) -> bytes:
    """Return a file of the package for pages.

    Args:
        name: Its name, such as "burn_engine.wasm".

    Raises:
        ValueError: The package was installed without its module for pages.
    """
    try:
        return (files("burn_engine") / "web" / name).read_bytes()
    except OSError:
        raise ValueError(_MISSING) from None


def page_code(module: str) -> str:
    """Return a script that does what a module does, and imports nothing.

    It is no module itself, because Chromium starts no worker from a module that has no address,
    as in a page on file://. Each imported module becomes a function that is called once, so its
    names stay its own. That takes modules that are written as the package's are: named imports
    from files beside them, and functions, classes and constants that are exported where they are
    defined.

    Args:
        module: The text of the module.

    Returns:
        The text for an element `<script>`, and for a worker.

    Raises:
        ValueError: The package was installed without its module for pages.
    """
    done: dict[str, str] = {}
    code = _without_imports(module, done)
    # Only what is not given is looked for beside a script.
    code = "\n".join(['"use strict";', *done.values(), code]).replace(
        "import.meta.url", "undefined"
    )
    assert not (left := _LEFT.search(code)), left
    assert not re.search("</script|<!--", code, re.IGNORECASE), "it would end the element"
    return code


def _without_imports(text: str, done: dict[str, str]) -> str:
    """Return a module whose imports are constants, after those that it imports are done."""
    for _, name in [*_IMPORT.findall(text), *_PASSED_ON.findall(text)]:
        if name not in done:
            source = page_file(f"{name}.js").decode().replace("\r\n", "\n")
            done[name] = _as_constant(name, source, done)
    return _IMPORT.sub(_constants, _PASSED_ON.sub(_constants, text))


def _constants(match: re.Match[str]) -> str:
    return f"const {{{match[1]}}} = ${match[2]};\n"


def _as_constant(name: str, text: str, done: dict[str, str]) -> str:
    """Return a module as an object of what it exports."""
    passed_on = ", ".join(names.strip() for names, _ in _PASSED_ON.findall(text))
    text = _without_imports(text, done)
    exported = ", ".join(filter(None, [*_EXPORT.findall(text), passed_on]))
    text = _EXPORT.sub("", text)
    return f"const ${name} = (() => {{\n{text}\nreturn {{ {exported} }};\n}})();\n"
