"""`burn embed` on a Ray cluster: a lost node, and nodes that cannot do the work."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from burn.checkpoints.native import save_checkpoint
from burn.core.errors import UserError
from burn.data.view_config import ViewConfig
from burn.deploy.pack import pack
from burn.embedding.cluster import NodeEmbedder
from burn.embedding.run import embed
from burn.embedding.settings import EmbedConfig
from burn.runtime.cluster import Origin
from networks import randomize, shallow_reactnet
from ray_nodes import add, ray_cluster

# Ray's own.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning:ray.data.context")
COUNT, PART = 240, 10


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster on this machine whose head has no core, so that all work is on other nodes."""
    pytest.importorskip("ray.data")
    with ray_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, the same network packed, and photos of which one cannot be read."""
    folder = tmp_path_factory.mktemp("cluster")
    backbone = randomize(shallow_reactnet()).eval()
    meta = {
        "backbone": asdict(backbone.config), "precision": "binary", "stage": 2, "steps": 7,
        "recipe": {"name": "burn_small"}, "views": asdict(ViewConfig(size=32)),
    }  # fmt: skip
    weights = {f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()}
    save_checkpoint(folder / "n.safetensors", weights, meta)
    pack(folder / "n.safetensors", folder / "n.bnn")
    (folder / "photos").mkdir()
    generator = np.random.default_rng(0)
    for number in range(COUNT):
        pixels = generator.integers(0, 255, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{number:03}.png")
    (folder / "photos" / "050.png").write_bytes(b"no image")
    return folder


def config(folder: Path, out: Path, cluster: str | None = None) -> EmbedConfig:
    model, data = str(folder / "n.bnn"), str(folder / "photos")
    return EmbedConfig(model, data, str(out), part_size=PART, threads=1, cluster=cluster)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.mark.long
def test_a_lost_node_loses_nothing(folder: Path, nodes: Any, tmp_path: Path):
    whole = embed(config(folder, tmp_path / "whole"), Console(quiet=True))
    out = tmp_path / "shared"
    first, second = add(nodes), add(nodes)

    def lose_one() -> None:
        while not list(out.glob("*.parquet")):
            time.sleep(0.01)
        nodes.remove_node(second, allow_graceful=False)

    killer = threading.Thread(target=lose_one, daemon=True)
    killer.start()
    try:
        done = embed(config(folder, out, nodes.address), Console(quiet=True))
    finally:
        killer.join(1)
        nodes.remove_node(first)
    assert not killer.is_alive()
    assert done == whole
    assert done.unreadable == 1
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.long
def test_what_a_node_cannot_do_is_one_line(folder: Path, nodes: Any, tmp_path: Path):
    node = add(nodes)
    many = config(folder, tmp_path / "out", nodes.address)
    try:
        bad = folder / "photos"
        with pytest.raises(UserError, match=r"part-00005.parquet: 1 of 10 images cannot be read"):
            embed(EmbedConfig(**{**asdict(many), "max_bad": "0%"}), Console(quiet=True))
        assert len(list((tmp_path / "out").glob("*.parquet"))) == COUNT // PART - 1
        (bad / "050.png").rename(tmp_path / "050.png")
        try:
            with pytest.raises(UserError, match="holds features of"):
                embed(many, Console(quiet=True))
        finally:
            (tmp_path / "050.png").rename(bad / "050.png")
        assert embed(many, Console(quiet=True)).new == 1
        wide = EmbedConfig(**{**asdict(many), "out": str(tmp_path / "wide"), "threads": 2})
        with pytest.raises(UserError, match="--threads 2: no node that can be used has more than"):
            embed(wide, Console(quiet=True))
    finally:
        nodes.remove_node(node)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "0.0.1"}, "the command is of 0.0.1"),
        ({"folder": Path("/not/there")}, "it has no folder /not/there"),
        ({"token": "another"}, "--out needs a folder that all nodes share"),
        ({}, "gone.bnn"),
    ],
)
def test_a_node_that_cannot_work_says_why(change: dict[str, Any], words: str, tmp_path: Path):
    (tmp_path / ".cluster").write_text("token")
    origin = replace(Origin(tmp_path, tmp_path, "token", version("burn-ssl")), **change)
    row = NodeEmbedder(EmbedConfig("gone.bnn", "digits"), origin)({"part": "part-00000"})
    assert row["fault"].startswith("node ")
    assert words in row["fault"]
