"""Text of an export to C: templates, constants, tables, and the name before all others.

A name begins names in C, and NAME.h is a file.
"""

from __future__ import annotations

import re
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from burn.core.errors import UserError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,40}")
_NETWORK_NAME = re.compile(r"\b(network|NETWORK)(_\w+)")
_COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
# Of the C standard, POSIX, glibc, newlib and picolibc: `gcc -I` finds NAME.h before these.
_HEADERS = """
    aio aliases alloca ar argp argz assert byteswap complex cpio crypt ctype devctl dirent dlfcn
    elf endian envlock envz err errno error execinfo fastmath fcntl features fenv float fmtmsg
    fnmatch fpu_control fstab fts ftw gconv getopt glob grp gshadow iconv ieee754 ieeefp ifaddrs
    inttypes iso646 langinfo lastlog libgen libintl limits link locale malloc math mcheck memory
    mntent monetary mqueue ndbm netdb newlib nl_types nss obstack paths picolibc picotls poll
    printf proc_service pthread pty pwd re_comp reent regdef regex regexp resolv sched search
    semaphore semihost setjmp sgtty shadow signal spawn stab stdalign stdarg stdatomic stdbit
    stdbool stdckdint stddef stdint stdio stdio_ext stdlib stdmchar stdnoreturn string strings
    stropts syscall sysexits syslog tar termio termios tgmath thread_db threads time trace
    ttyent uchar ucontext ulimit unctrl unistd utime utmp utmpx values varargs wait wchar wctype
    wordexp
"""


def filled(resource: str, parts: dict[str, str]) -> str:
    """Return a file of `c/` with parts in place of their comments."""
    text = (files("burn.deploy.c") / resource).read_text(encoding="ascii")
    for key, part in parts.items():
        text = with_part(text, key, part.strip("\n"))
    return text


def with_part(text: str, key: str, part: str) -> str:
    """Return a text with a part in place of the comment `/* @key */`."""
    comment = f"/* @{key} */"
    assert text.count(comment) == 1, comment
    return text.replace(comment, part)


def numbers(values: NDArray[np.generic]) -> list[str]:
    """Return constants of C: words in hexadecimal, float32 exactly, and integers below 2³¹."""
    if values.dtype == np.uint32:
        return [f"0x{value:08X}" for value in values.tolist()]
    if values.dtype == np.float32:
        assert np.isfinite(values).all()  # C has no constant for others
        texts = [f"{value:.9g}" for value in values.tolist()]  # nine digits determine a float32
        return [f"{text}f" if set(text) & set(".e") else f"{text}.0f" for text in texts]
    assert all(abs(value) < 2**31 for value in values.tolist())  # C has no constant -2³¹
    return [str(value) for value in values.tolist()]


def initializer(fields: dict[str, object]) -> str:
    """Return a struct's value, by the names of its fields."""
    return "{" + ", ".join(f".{key} = {value}" for key, value in fields.items()) + "}"


def string(text: str) -> str:
    """Return a string as C, in UTF-8, with an octal escape for all but the plainest characters."""
    plain = set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _-.,()/+:;")
    parts = (chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode())
    return f'"{"".join(parts)}"'


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def require_name(name: str) -> None:
    """Refuse a name that cannot begin names in C, or whose header would hide one of C."""
    if not is_name(name):
        raise UserError(
            f"--name {name!r} cannot begin names in C: give a letter and then up to 40 letters, "
            "digits and _"
        )
    if name.lower() in _HEADERS.split():  # some file systems do not tell a from A
        raise UserError(
            f"--name {name!r} would hide <{name.lower()}.h> of the C library: give another --name"
        )


def require_no_clash(name: str, code: str) -> None:
    """Refuse a name with which one identifier in the code would stand for two things.

    That is where NAME with an ending that the code has after `network` is also in the code.
    """
    bare = _COMMENT_OR_STRING.sub(" ", code)
    others = set(re.findall(r"\b[A-Za-z_]\w*", _NETWORK_NAME.sub(" ", bare)))
    network_names = {renamed(match.group(), name) for match in _NETWORK_NAME.finditer(bare)}
    if clashes := sorted(network_names & others):
        raise UserError(
            f"--name {name!r} would make {clashes[0]}, which has another meaning in the C code: "
            "give another --name"
        )


def renamed(code: str, name: str) -> str:
    """Return C code with a name in place of `network`.

    It replaces, for example, `network_run`, `NETWORK_NUM_SCORES` and `#include "network.h"`.
    """
    given = {"network": name, "NETWORK": name.upper()}  # in one pass: a name may contain these
    code_or_file = r"\b(?:(network|NETWORK)(?=_)|network(?=\.h\b))"
    return re.sub(code_or_file, lambda match: given[match.group()], code)
