"""Write a packed file of each of the tests' networks, for the tests in C.

python engine/tests/cc/models.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import packed


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, settings in packed.NETWORKS.items():
        (folder / f"{name}.bnn").write_bytes(packed.random_network(**settings).to_bytes())


if __name__ == "__main__":
    main()
