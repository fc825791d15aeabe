"""Write the fuzzer's first corpus: valid files of every kind, and the malformed ones in the tests.

python engine/fuzz/seeds.py FOLDER
"""

import shutil
import sys
from pathlib import Path

ATTACKS = Path(__file__).parents[2] / "tests" / "attacks" / "packed"
sys.path.insert(0, str(ATTACKS))

import make  # noqa: E402


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, packed in make.valid().items():
        (folder / f"{name}.bnn").write_bytes(packed.write())
    packed = make.projected()
    escaped = make.compact(packed.program).replace("é", r"\ud83d\ude00\u00e9")
    (folder / "escapes.bnn").write_bytes(packed.write_program(escaped))
    for path in ATTACKS.glob("*.bnn"):
        shutil.copy(path, folder)


if __name__ == "__main__":
    main()
