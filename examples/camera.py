"""Say of each picture of a camera or a video file what it is, or which known image is most like it.

    python examples/camera.py 0 --model mine.bnn
    python examples/camera.py film.mp4 --index photos.index --out answered.mp4

`--model` takes a packed file with a classifier (`burn-engine learn`, `burn pack --head`), `--index`
what `burn-engine index` wrote with the network `--network`. The answer is drawn into the pictures,
and printed with the time whenever it changes. Pictures are shown in a window, which Esc closes and
which opencv-python has (burn's own, opencv-python-headless, has none); with `--out` they
are written to a video file instead.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

import burn_engine

Answer = tuple[str, float]  # what it is, and how sure that is, or how similar


def classes(path: str) -> Callable[[Image.Image], Answer]:
    """Return a function that gives an image's class and its probability."""
    model = burn_engine.load(path)
    if not model.classes:
        raise ValueError(f"{path} has no classes: learn some with burn-engine learn")

    def of(image: Image.Image) -> Answer:
        scores = model(image).astype(np.float64)
        refused = burn_engine.none_of_these(model, model.features(image)[None])
        if refused is not None and refused[0]:
            return "none of these", 0
        powers = np.exp(scores - scores.max())
        best = int(scores.argmax())
        return model.classes[best], float(powers[best] / powers.sum())

    return of


def similar(path: str, network: str) -> Callable[[Image.Image], Answer]:
    """Return a function that gives the name of the most similar image, and its similarity."""
    model, index = burn_engine.load(network), burn_engine.Index.load(path)
    if index.network and index.network != model.fingerprint:
        raise ValueError(f"{path} was written with another network than {network}: give --network")
    if not len(index):
        raise ValueError(f"{path} has no images")

    def of(image: Image.Image) -> Answer:
        (match,) = index.search(model.embed(image), k=1)
        return Path(match.name).name, match.similarity or 0

    return of


def opened(source: str) -> cv2.VideoCapture:
    """Open a video file, or a camera by its number."""
    if source.isdecimal():
        video = cv2.VideoCapture(min(int(source), 10_000))
        if not video.isOpened():
            raise ValueError(f"there is no camera {source}")
        return video
    if not Path(source).exists():
        raise ValueError(f"{source}: there is no such file")
    video = cv2.VideoCapture(source)
    if not video.isOpened():
        raise ValueError(f"{source} is no video that OpenCV reads")
    return video


def pictures(video: cv2.VideoCapture) -> Iterator[tuple[float, np.ndarray]]:
    """Give the seconds and pixels (height, width, blue green red) of each picture."""
    while True:
        there, pixels = video.read()
        if not there:
            return
        yield video.get(cv2.CAP_PROP_POS_MSEC) / 1000, pixels


def drawn(pixels: np.ndarray, text: str) -> np.ndarray:
    """Return the picture with a line of text at its bottom."""
    height, width = pixels.shape[:2]
    ascii_text = text.encode("ascii", "replace").decode()  # OpenCV's letters
    scale = height / 400
    cv2.rectangle(pixels, (0, height - int(36 * scale)), (width, height), (0, 0, 0), -1)
    at = int(8 * scale), height - int(10 * scale)
    white = (255, 255, 255)
    cv2.putText(
        pixels, ascii_text, at, cv2.FONT_HERSHEY_SIMPLEX, scale * 0.8, white, 1, cv2.LINE_AA
    )
    return pixels


def show(pixels: np.ndarray) -> bool:
    """Show a picture in a window; return whether it is still wanted."""
    try:
        cv2.imshow("burn", pixels)
        return cv2.waitKey(1) != 27
    except cv2.error:
        raise ValueError(
            "this OpenCV has no windows: pip install opencv-python, or give --out FILE"
        ) from None


def written(out: str, video: cv2.VideoCapture, pixels: np.ndarray) -> cv2.VideoWriter:
    """Return a video file to write pictures of this size to, as many a second as there were."""
    height, width = pixels.shape[:2]
    rate = video.get(cv2.CAP_PROP_FPS) or 25
    writer = cv2.VideoWriter(out, cv2.VideoWriter.fourcc(*"mp4v"), rate, (width, height))
    if not writer.isOpened():
        raise ValueError(f"{out} cannot be written as a video")
    return writer


def check_out(out: Path) -> None:
    """Raise ValueError if no video can be written there."""
    if out.exists():
        raise ValueError(f"{out} exists already: give another name")
    if out.suffix.lower() != ".mp4":
        raise ValueError(f"--out {out} does not end in .mp4")
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.parent}")


def main() -> None:
    """Read the options, and answer picture by picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", help="a video file, or the number of a camera, such as 0")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", help="packed file with classes")
    which.add_argument("--index", help="index of images")
    parser.add_argument("--network", default="photos", help="the index's (default: photos)")
    parser.add_argument("--out", help="video file to write, *.mp4, instead of a window")
    options = parser.parse_args()
    if options.out:
        check_out(Path(options.out))
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # errors are said below
    answer = classes(options.model) if options.model else similar(options.index, options.network)
    video, writer, before = opened(options.source), None, ""
    try:
        for seconds, pixels in pictures(video):
            name, share = answer(Image.fromarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)))
            text = f"{name} {share:.0%}" if share else name
            if name != before:
                print(f"{seconds:.2f} s: {text}", flush=True)
                before = name
            drawn(pixels, text)
            if options.out:
                writer = writer or written(options.out, video, pixels)
                writer.write(pixels)
            elif not show(pixels):
                break
    finally:
        video.release()
        if writer is not None:
            writer.release()
    if not before:
        raise ValueError(f"{options.source} has no pictures")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        print(f"camera.py: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
