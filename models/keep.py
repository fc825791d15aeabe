"""Write a trained network in the form in which it comes with burn, and packed for burn-engine.

    python models/keep.py runs/photos photos --data "18,790 photographs: …" --commit dd5a28e

It writes src/burn/checkpoints/pretrained/NAME.safetensors, the backbone alone, with the latent
weights of its binary layers in 8 bits, a quarter of the size; and the packed file made from it,
engine/python/burn_engine/pretrained/NAME.bnn. It prints the SHA-256 of both, which stand in
burn/checkpoints/pretrained.py and burn_engine/pretrained.py.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from pathlib import Path

from burn.checkpoints.native import find_checkpoint, load_checkpoint, save_checkpoint
from burn.checkpoints.pretrained import in_eight_bits

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--data", required=True, help="what the network learned from, in words")
    parser.add_argument("--commit", required=True, help="of the code that trained it")
    arguments = parser.parse_args()
    held = load_checkpoint(find_checkpoint(arguments.run))
    meta = {**held.meta, "data": {**held.meta["data"], "name": arguments.data}}
    meta["machine"] = {**meta["machine"], "commit": arguments.commit}
    weights = in_eight_bits(
        {name: tensor for name, tensor in held.weights.items() if name.startswith("backbone.")}
    )
    file = ROOT / "src/burn/checkpoints/pretrained" / f"{arguments.name}.safetensors"
    file.parent.mkdir(exist_ok=True)
    save_checkpoint(file, weights, meta)
    file.with_suffix(".json").unlink()  # the same text is in the file
    packed = ROOT / "engine/python/burn_engine/pretrained" / f"{arguments.name}.bnn"
    packed.parent.mkdir(exist_ok=True)
    packed.unlink(missing_ok=True)
    subprocess.run([sys.executable, "-m", "burn", "pack", file, packed], check=True)
    for path in (file, packed):
        content = path.read_bytes()
        print(f"{path}: {len(content):,} bytes, SHA-256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
