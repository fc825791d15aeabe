"""Boards that QEMU emulates, and how firmware for them is compiled and run.

`microcontroller.py` and tests/deploy use them. The firmware is in examples/microcontroller, and
takes nothing of a C library.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "microcontroller"


@dataclass(frozen=True)
class Board:
    """A board.

    Attributes:
        tools: What the names of the compiler and its tools begin with.
        flags: Of the compiler, for the processor.
        library: Of the linker, to find the compiler's library for the processor.
        script: The linker's, in `EXAMPLE`.
        emulator: Command that runs firmware.elf in the current folder, and counts instructions.
    """

    tools: str
    flags: tuple[str, ...]
    library: tuple[str, ...]
    script: str
    emulator: tuple[str, ...]

    @property
    def programs(self) -> tuple[str, ...]:
        """All programs that are needed."""
        tools = (f"{self.tools}-{tool}" for tool in ("gcc", "size", "nm"))
        return (*tools, self.emulator[0])

    def compile(self, source: Path, *options: str) -> list[str | Path]:
        """Return the command that compiles a network's C to an object file beside it."""
        to = source.with_suffix(".o")
        return [f"{self.tools}-gcc", *_C, *self.flags, *options, "-c", source, "-o", to]

    def link(self, folder: Path, firmware: str) -> list[list[str | Path]]:
        """Return the commands that compile an example, and link it with the network `student`.

        Args:
            folder: Folder of the network's object file.
            firmware: Source of the example.
        """
        gcc, example = f"{self.tools}-gcc", folder / "example.o"
        strict = ("-Wall", "-Wextra", "-Werror", "-Os")
        compiled: list[str | Path] = [gcc, *_C, *self.flags, *strict, f"-I{folder}", "-c"]
        compiled += [EXAMPLE / firmware, "-o", example]
        linked = [gcc, *self.library, "-nostdlib", "-T", EXAMPLE / self.script, example]
        return [compiled, [*linked, folder / "student.o", "-lgcc", "-o", folder / "firmware.elf"]]


_C = ("-std=c99", "-ffreestanding")
_OPTIONS = (
    "-nographic", "-monitor", "none", "-serial", "none",
    "-semihosting-config", "enable=on,target=native", "-kernel", "firmware.elf",
)  # fmt: skip


def _arm(board: str, *flags: str) -> Board:
    emulator = ("qemu-system-arm", "-M", board, "-icount", "shift=6", *_OPTIONS)
    return Board("arm-none-eabi", ("-mthumb", *flags), ("-mthumb", *flags), "mps2.ld", emulator)


def _riscv(architecture: str, processor: str) -> Board:
    flags = (f"-march={architecture}", "-mabi=ilp32", "-mcmodel=medany")
    library = ("-march=rv32imac", "-mabi=ilp32")
    emulator = ("qemu-system-riscv32", "-M", "virt", "-cpu", processor, "-bios", "none",
                "-icount", "shift=0", *_OPTIONS)  # fmt: skip
    return Board("riscv64-unknown-elf", flags, library, "virt.ld", emulator)


BOARDS = {
    "Cortex-M4": _arm("mps2-an386", "-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard"),
    "Cortex-M7": _arm("mps2-an500", "-mcpu=cortex-m7", "-mfpu=fpv5-sp-d16", "-mfloat-abi=hard"),
    "Cortex-M3": _arm("mps2-an385", "-mcpu=cortex-m3"),  # without floating point
    # The Hazard3 of the RP2350 on a Pico 2 has these extensions and more.
    "RISC-V with Zbb": _riscv("rv32imac_zicsr_zba_zbb", "rv32"),
    "RISC-V": _riscv("rv32imac_zicsr", "rv32,zba=off,zbb=off"),
}
