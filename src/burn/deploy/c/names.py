"""Names that an export to C can take: they begin names in C, and NAME.h is a file."""

from __future__ import annotations

import re

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
