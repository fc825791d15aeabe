"""Places everything that a network exported as C needs at run time in one block of memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Places (y, x) of the pixels of a 3×3 kernel that can be outside the map; at an even size and
# stride 2 only the first five.
TAPS = ((0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (1, 2), (2, 1), (2, 2))

_LONGEST_LIST = 768  # ones among signs that are counted at once; more of them take more memory


@dataclass(frozen=True)
class Geometry:
    """Sizes of a layer from map to map, or of the convolution of the image, in pixels and channels.

    `parts` is the number of binary convolutions of the input whose outputs a gate scales, 0 without
    a gate, and `hidden` that of the gate's values between its two matrices.
    """

    in_size: int
    out_size: int
    in_channels: int
    out_channels: int
    kernel: int
    stride: int
    shortcut: bool
    is_binary: bool
    parts: int = 0
    hidden: int = 0

    @property
    def counted(self) -> int:
        """Number of outputs that are counted together."""
        return self.out_channels // max(1, self.parts)

    @property
    def sign_words(self) -> int:
        """Number of 32-bit words of the signs of one input pixel."""
        return -(-self.in_channels // 32)

    @property
    def inputs(self) -> int:
        """Number of inputs of an output."""
        return self.kernel**2 * self.in_channels

    @property
    def outer_taps(self) -> int:
        """Number of pixels of the kernel that may be outside the map, of the first of `TAPS`."""
        if self.kernel == 1:
            return 0
        below = (self.out_size - 1) * self.stride - self.kernel // 2 + self.kernel > self.in_size
        return len(TAPS) if below else 5

    @property
    def reach(self) -> int:
        """Number of input rows below the first one of an output row that this row needs."""
        return max(self.kernel // 2, self.stride - 1 if self.shortcut else 0)

    @property
    def signs_rows(self) -> int:
        """Number of rows of the input whose signs are kept."""
        return min(self.in_size, self.kernel // 2 + self.reach + 1)

    @property
    def input_rows(self) -> int:
        """Number of rows of the input's values that are kept where it is not kept whole."""
        return min(self.in_size, self.reach + 1) if self.shortcut else 1


@dataclass(frozen=True)
class Arena:
    """The arena of a network. Places are offsets in bytes and multiples of 4.

    Of each layer it has the place of the output and of the signs of the input, 0 for the first
    layer, which has none, and how many rows of the output are kept; of each phase, the first and
    last layer. `places` are those of what all layers share, by its name in the code. `vectors_at`
    are those of linear layers' outputs; the last one's is not in the arena.
    """

    bytes: int
    phases: tuple[tuple[int, int], ...]
    values_at: tuple[int, ...]
    values_rows: tuple[int, ...]
    signs_at: tuple[int, ...]
    places: Mapping[str, int]
    list_length: int
    planes: int
    vectors_at: tuple[int, ...]


def plan_arena(layers: Sequence[Geometry], outputs: Sequence[int], value_bytes: int) -> Arena:
    """Choose the phases that need the smallest arena, and place everything.

    A phase is a sequence of layers that run together, row by row, and keep only the rows between
    them that are still needed. The maps between two phases are kept whole: the input of a phase at
    one end of the arena and its output at the other. A layer with a gate is a phase of its own,
    since what it computes depends on whole maps. The layers are the convolution of the image and
    the binary ones; `outputs` are the numbers of outputs of the linear ones.
    """
    binary = [layer for layer in layers if layer.is_binary]
    inputs = max(layer.inputs for layer in binary)
    blocks = max(-(-layer.counted // 32) for layer in binary)
    list_length = _up_to(8, min(_LONGEST_LIST, max(inputs // 3, 80)))
    planes = 16 if inputs > 255 else 10
    taps = layers[0].kernel ** 2
    shared = {
        "rows": _up_to(4, 2 * len(layers)),  # numbers of rows that are left to compute
        # Ones among signs; or of an output pixel at the edge of the map, all outputs' offsets; or
        # of the first layer, three numbers for each tap of its kernel and a byte.
        "list": _up_to(4, max(2 * list_length, 13 * taps, *(2 * one.counted for one in binary))),
        "eights": 4 * _up_to(8, list_length // 8),  # carries, while rows of weights are counted
        "more": 4 * planes,  # counts that are added to those of 32 outputs
        "planes": 4 * planes * blocks,  # a pixel's counts, in binary digits of 32 outputs each
        "counts": 64 * blocks,  # a pixel's counts as numbers
        # A gate's factors, and what is between its matrices.
        "gates": max((4 * (g.out_channels + g.hidden) for g in layers if g.parts), default=0),
        "sums": 0,  # of the last map's channels, behind all others
    }
    places = dict(zip(shared, itertools.accumulate(shared.values(), initial=0), strict=False))
    base = places["sums"]

    # The last linear layer writes to the caller's memory; without one the sums are there.
    sums = 4 * layers[-1].out_channels if outputs else 0
    vectors = [sums, *(4 * count for count in outputs[:-1])]
    sizes = _Sizes(layers, value_bytes, sums)
    phases = _best_phases(sizes)
    needed = max(sizes.of_phase(*phase) for phase in phases)
    needed = max(needed, max(vectors[::2]) + max(vectors[1::2], default=0))
    total = base + needed
    vectors_at = [base + (max(vectors[::2]) if index % 2 else 0) for index in range(len(vectors))]

    values_at, signs_at = [0] * len(layers), [0] * len(layers)
    values_rows = [0] * len(layers)
    for from_end, (first, last) in enumerate(reversed(phases)):
        input_is_high = from_end % 2 == 0  # so the sums, the last output, are at the low end
        at = base
        if first > 0:
            size = sizes.whole(first - 1)
            values_at[first - 1] = total - size if input_is_high else at
            values_rows[first - 1] = layers[first - 1].out_size
            at += 0 if input_is_high else size
        if last == len(layers) - 1:
            at += sums
            values_at[last] = at
            values_rows[last] = layers[last].out_size if layers[last].parts else 1
            at += sizes.last(last)
        elif input_is_high:  # its output is at the low end
            at += sizes.whole(last)
        for index in range(first, last + 1):
            if index > 0:
                signs_at[index] = at
                at += sizes.signs(index)
            if index > first:
                values_at[index - 1], values_rows[index - 1] = at, layers[index].input_rows
                at += sizes.ring(index)
    return Arena(
        bytes=total,
        phases=tuple(phases),
        values_at=tuple(values_at),
        values_rows=tuple(values_rows),
        signs_at=tuple(signs_at),
        places=places,
        list_length=list_length,
        planes=planes,
        vectors_at=tuple(vectors_at[1:]) + ((0,) if outputs else ()),
    )


class _Sizes:
    """Sizes in bytes of maps, signs and phases, each a multiple of 4."""

    def __init__(self, layers: Sequence[Geometry], value_bytes: int, sums: int) -> None:
        self.layers = layers
        self._value_bytes = value_bytes
        self._sums = sums
        inner = range(1, len(layers))
        self._signs_before = [0, 0, *itertools.accumulate(map(self.signs, inner))]
        self._rings_before = [0, 0, *itertools.accumulate(map(self.ring, inner))]

    def _rows(self, index: int, rows: int) -> int:
        layer = self.layers[index]
        return _up_to(4, rows * layer.out_size * layer.out_channels * self._value_bytes)

    def last(self, index: int) -> int:
        """Return the size of the rows that are kept of the last layer's output."""
        return self.whole(index) if self.layers[index].parts else self._rows(index, 1)

    def whole(self, index: int) -> int:
        return self._rows(index, self.layers[index].out_size)

    def ring(self, index: int) -> int:
        """Return the size of the rows that are kept of a layer's input."""
        return self._rows(index - 1, self.layers[index].input_rows)

    def signs(self, index: int) -> int:
        """Return the size of the signs that are kept of a layer's input."""
        layer = self.layers[index]
        return 4 * max(1, layer.parts) * layer.signs_rows * layer.in_size * layer.sign_words

    def of_phase(self, first: int, last: int) -> int:
        """Return the size of all that the layers from `first` to `last` need as one phase."""
        size = self.whole(first - 1) if first else 0
        size += self._signs_before[last + 1] - self._signs_before[first]
        size += self._rings_before[last + 1] - self._rings_before[first + 1]
        if last == len(self.layers) - 1:
            return size + self.last(last) + self._sums
        return size + self.whole(last)


def _best_phases(sizes: _Sizes) -> list[tuple[int, int]]:
    """Return the phases whose largest is smallest, and of these the fewest phases."""
    count = len(sizes.layers)
    best: list[tuple[int, int, int]] = []  # peak, number of phases, first layer of the last one
    for last in range(count):
        options: list[tuple[int, int, int]] = []
        for first in range(last + 1):
            if first < last and any(layer.parts for layer in sizes.layers[first : last + 1]):
                continue
            peak, phases = best[first - 1][:2] if first else (0, 0)
            options.append((max(peak, sizes.of_phase(first, last)), phases + 1, first))
        best.append(min(options))
    chosen: list[tuple[int, int]] = []
    last = count - 1
    while last >= 0:
        first = best[last][2]
        chosen.insert(0, (first, last))
        last = first - 1
    return chosen


def _up_to(multiple: int, size: int) -> int:
    return -(-size // multiple) * multiple
