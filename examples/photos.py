"""Write a folder of images for a first try: handwritten digits, as PNG files.

    python examples/photos.py photos

writes photos/train/CLASS/NUMBER.png (1,437 images) and photos/val/CLASS/NUMBER.png (360), 32 by 32
pixels: scikit-learn's digits, enlarged.
"""

import sys
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

digits, labels = load_digits(return_X_y=True)
for number, (pixels, label) in enumerate(zip(digits.reshape(-1, 8, 8), labels, strict=True)):
    folder = Path(sys.argv[1], "val" if number % 5 == 0 else "train", str(label))
    folder.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray((255 - pixels * 255 / 16).astype("uint8"))
    image.resize((32, 32), Image.Resampling.BICUBIC).save(folder / f"{number:04d}.png")
