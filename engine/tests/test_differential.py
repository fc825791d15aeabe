"""Tests that the C++ and the Python reader of packed files accept and refuse the same files."""

import itertools
import random
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

core = pytest.importorskip("burn_engine._core")

import burn_engine  # noqa: E402
from burn_engine import format as python_format  # noqa: E402

ATTACKS = Path(__file__).parents[2] / "tests" / "attacks" / "packed"
if not ATTACKS.is_dir():
    pytest.skip("without the repository around the engine", allow_module_level=True)
sys.path.insert(0, str(ATTACKS))

import make  # noqa: E402

# Replacements of a program's words: numbers at the edges of every range, words that have a meaning
# elsewhere, and text that some JSON readers accept and others refuse.
WORDS = [
    *("0", "1", "2", "3", "7", "40", "41", "4096", "4097", "-0", "-1", "1.0", "1e0", "1e999", "01"),
    *("18446744073709551616", "9" * 5000, "NaN", "Infinity", "true", "false", "null", "[]", "{}"),
    *('""', '"image"', '"stem"', '"b.1"', '"mean"', '"top"', '"kind"', '"name"', '"input"'),
    *('"stride"', '"shortcut"', '"relu"', '"convolution"', '"binary_convolution"', '"linear"'),
    *('"global_mean"', '"features"', '"classes"', '"origin"', '"resize"', '"size"', '"layers"'),
    *("9" * 100, "9" * 101, "0" * 2, "1.7976931348623158e308", "1.7976931348623159e308", "1e309"),
    *("0e9999", "1e-9999", "0." + "0" * 92 + "1e401", "-0." + "0" * 98, r'"a\u007f"', r'"\u0080"'),
    *('"é"', r'"\ud800"', r'"\ud83d\ude00"', r'"\u0000"', r'"\x"', '"a\tb"', "[" * 17 + "]" * 17),
]
LENGTHS = [0, 1, 2, 3, 4, 8, 9, 4096, 4097, 2**32, 2**62, 2**64 - 1, 2**64, -1, 1.0, True, None]


def refusal(read: Callable[[bytes], object], error: type[Exception], data: bytes) -> str | None:
    """Return the reader's message, or None if it accepts the file."""
    try:
        read(data)
    except error as refused:
        return str(refused)
    return None


def check_agreement(data: bytes, what: str) -> bool:
    """Check that both readers agree, and return whether they accept the file."""
    cpp = refusal(lambda data: core.Model(data, None), ValueError, data)
    python = refusal(python_format.parse_program, burn_engine.ModelError, data)
    assert (cpp is None) == (python is None), f"{what}: C++: {cpp}; Python: {python}"
    return cpp is None


def change_bytes(packed: make.Packed, rng: random.Random) -> bytes:
    data = bytearray(packed.write())
    for _ in range(rng.choice([1, 1, 2, 5])):
        data[rng.randrange(len(data))] = rng.choice(
            [0, 1, 0x22, 0x30, 0x7F, 0xFF, rng.randrange(256)]
        )
    return bytes(data[: rng.choice([len(data), len(data), rng.randrange(len(data))])])


def change_words(text: str, rng: random.Random) -> str:
    for _ in range(rng.choice([1, 1, 1, 2])):
        word = rng.choice(list(re.finditer(r"[^{}\[\],: ]+", text)))
        text = text[: word.start()] + rng.choice(WORDS) + text[word.end() :]
    return text


def change_program(packed: make.Packed, rng: random.Random) -> bytes:
    return packed.write_program(change_words(make.compact(packed.program), rng))


def change_header(packed: make.Packed, rng: random.Random) -> bytes:
    return make.assemble(change_words(make.compact(packed.header()), rng), packed.data())


def change_layers(packed: make.Packed, rng: random.Random) -> bytes:
    layers = packed.program["layers"]
    first, second = rng.randrange(len(layers)), rng.randrange(len(layers))
    layers[first], layers[second] = layers[second], layers[first]
    if rng.random() < 0.5:
        layers.pop(rng.randrange(len(layers)))
    for before, layer in itertools.pairwise(layers):
        layer["input"] = before["name"]
    return packed.write()


def change_tensor(packed: make.Packed, rng: random.Random) -> bytes:
    header = packed.header()
    entry = header[rng.choice(list(packed.tensors))]
    numbers = entry[rng.choice(["shape", "data_offsets"])]
    numbers[rng.randrange(len(numbers))] = rng.choice(LENGTHS)
    return make.assemble(make.compact(header), packed.data())


def change_values(packed: make.Packed, rng: random.Random) -> bytes:
    tensor = packed.tensors[rng.choice(list(packed.tensors))].reshape(-1).view("u1")
    tensor[rng.randrange(len(tensor))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
    return packed.write()


CHANGES = [change_bytes, change_program, change_header, change_layers, change_tensor, change_values]


@pytest.mark.parametrize("path", sorted(ATTACKS.glob("*.bnn")), ids=lambda path: path.stem)
def test_malformed(path: Path):
    assert not check_agreement(path.read_bytes(), path.stem)


def test_what_the_fuzzer_made():
    """The corpus of a ten-minute run, merged: it reaches every branch that the run found."""
    with zipfile.ZipFile(ATTACKS.with_name("fuzzed.zip")) as corpus:
        names = corpus.namelist()
        taken = sum(check_agreement(corpus.read(name), name) for name in names)
    assert 0 < taken < len(names)


@pytest.mark.parametrize("name", list(make.valid()))
def test_valid(name: str):
    assert check_agreement(make.valid()[name].write(), name)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changed(change: Callable[[make.Packed, random.Random], bytes]):
    for seed in range(100):
        rng = random.Random(seed)
        packed = rng.choice(list(make.valid().values()))
        check_agreement(change(packed, rng), f"{change.__name__}, seed {seed}")
