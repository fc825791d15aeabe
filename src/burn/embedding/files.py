"""The files that `burn embed` writes: a manifest, and a parquet file for each part.

Of a part there is the whole file or none. Its metadata say what it was computed from, so
that a file of other images, another network or other settings is not taken for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from burn.core.errors import UserError, printable
from burn.core.files import remove_abandoned, write_beside, write_text
from burn.core.inputs import open_regular, parse_json, read_text, status_of
from burn.core.paths import expand, run_around
from burn.embedding.network import Network, Outputs
from burn.embedding.parts import Collection, Images, Part
from burn.embedding.settings import EmbedConfig
from burn.runtime.bounds import require_share

FORMAT = 1
MANIFEST = "embed.json"
_KEY = b"burn"  # of the file's metadata
_GROUP_ROWS = 4096  # least number of rows of a row group, but for the last


@dataclass(frozen=True)
class Rows:
    """Outputs for some images of a part, and those among them that cannot be read."""

    positions: list[int]  # of the readable images in their source
    outputs: Outputs | None  # None if there are no readable images
    unreadable: list[tuple[int, str]]  # position of each other image, and why


@dataclass(frozen=True)
class Written:
    """A complete part: the number of images in its file, and of those that were left out."""

    images: int
    unreadable: int


class LostPart(UserError):
    """Error for a part that cannot be computed, because of its own images."""


def require_folder(path: Path) -> None:
    """Raise UserError if an output folder is something else; it need not exist."""
    if status_of(path) is not None and not path.is_dir():
        raise UserError(f"--out {path} is a file: give a folder")


class OutputFolder:
    """The folder, made if it does not exist, of the outputs of one network for one collection.

    Its manifest is what all of its files have in common; a folder with another is a UserError.
    """

    def __init__(self, config: EmbedConfig, network: Network, collection: Collection) -> None:
        assert config.out is not None
        self.path = path = expand(config.out)
        self._dtype: Any = np.dtype(config.dtype)
        self._max_bad = require_share(config.max_bad)
        settings: dict[str, Any] = {"dtype": config.dtype, **network.settings}
        if collection.num_images is not None:
            settings["part_size"] = config.part_size
        self._manifest = {
            "format": FORMAT,
            "model": {
                "name": printable(network.name),
                "fingerprint": network.fingerprint,
                "features": network.num_features,
                "classes": list(network.classes),
            },
            "data": {
                "name": printable(collection.name),
                "fingerprint": collection.fingerprint,
                "images": collection.num_images,
            },
            "settings": settings,
        }
        if (run := run_around(path)) is not None:
            raise UserError(f"--out {path} lies in {run}, the folder of a run: give another --out")
        path.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path)
        file = path / MANIFEST
        if status_of(file) is None:
            try:
                text = json.dumps(self._manifest, indent=2) + "\n"
                write_beside(file, lambda to: to.write_text(text, encoding="utf-8"), new=True)
            except UserError:
                if status_of(file) is None:
                    raise
                # Another process that shares the work was faster.
        self._require_same(file)

    def _require_same(self, file: Path) -> None:
        manifest = parse_json(read_text(file), str(file))
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise UserError(f"{file} is not a manifest of this burn's: give another --out")
        model, ours = manifest.get("model"), self._manifest["model"]
        if not isinstance(model, dict) or model.get("fingerprint") != ours["fingerprint"]:
            other = printable(str(model.get("name") if isinstance(model, dict) else model))[:80]
            raise UserError(
                f"{self.path} holds features of another model, {other}: give another --out for "
                f"{ours['name']}"
            )
        settings = manifest.get("settings")
        for name, value in self._manifest["settings"].items():
            before = settings.get(name) if isinstance(settings, dict) else None
            if before != value:
                option = "--" + name.replace("_", "-")
                raise UserError(
                    f"{self.path} was begun with {option} {printable(str(before))[:40]}, not "
                    f"{value}: give the same, or another --out"
                )
        data, ours = manifest.get("data"), self._manifest["data"]
        if not isinstance(data, dict) or data.get("fingerprint") != ours["fingerprint"]:
            other = printable(str(data.get("name") if isinstance(data, dict) else data))[:200]
            raise UserError(
                f"{self.path} holds features of {other} as it was then, not of {ours['name']} as "
                "it is now, or an earlier burn began it, which did not look at the pixels: give "
                "another --out"
            )

    def file(self, part: Part) -> Path:
        return self.path / f"{part.name}.parquet"

    def require_no_others(self, collection: Collection) -> None:
        """Raise UserError if the folder holds files of parts that the collection does not have."""
        names = {self.file(part).name for part in collection.parts}
        others = sorted(f.name for f in self.path.glob("*.parquet") if f.name not in names)
        if others:
            raise UserError(
                f"{self.path / others[0]} is of other data than {collection.name}: give another "
                "--out, or remove it"
            )

    def find(self, part: Part) -> Written | None:
        """Return what is there of a part, or None if it is not there yet."""
        path = self.file(part)
        if status_of(path) is None:
            return None
        try:
            with open_regular(path) as opened, pq.ParquetFile(opened) as file:
                about = json.loads((file.metadata.metadata or {})[_KEY])
                written = Written(file.metadata.num_rows, int(about["unreadable"]))
                expected = self._about(part, written.unreadable)
                same = all(about.get(name) == value for name, value in expected.items())
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as bad:
            raise UserError(
                f"{path} is damaged, or burn embed did not write it: remove it, and the same "
                "command computes it again"
            ) from bad
        if not same:
            raise UserError(
                f"{path} was computed from other images, by another model, with other settings or "
                "by an earlier burn: remove it, and the same command computes it again"
            )
        return written

    def _about(self, part: Part, unreadable: int) -> dict[str, Any]:
        """Return the metadata of a part's file that say what it was computed from."""
        return {
            "format": FORMAT,
            "model": self._manifest["model"]["fingerprint"],
            "settings": self._manifest["settings"],
            "images": part.fingerprint,
            "unreadable": unreadable,
        }

    def write(self, part: Part, images: Images, batches: Iterable[Rows]) -> Written:
        """Compute and write a part's file, and before it the names of the unreadable images.

        `batches` are the outputs in the order of the images, computed while they are taken. Too
        many unreadable images raise LostPart, a number that is not finite UserError.
        """

        def fill(beside: Path) -> Written:
            bad: list[tuple[int, str]] = []
            # Features do not repeat, and a dictionary of them would only be given up late.
            # Absolute: of a relative path, pyarrow would take a colon for the end of a scheme.
            with pq.ParquetWriter(
                beside.absolute(), self._schema(images), compression="zstd", use_dictionary=False,
                write_page_checksum=True,
            ) as file:  # fmt: skip
                count = 0
                for table in self._tables(images, batches, bad):
                    file.write_table(table)
                    count += len(table)
                total = count + len(bad)
                self._name_unreadable(part, bad)
                if len(bad) > self._max_bad * total:
                    raise LostPart(
                        f"{len(bad):,} of {total:,} images cannot be read, more than "
                        f"{100 * self._max_bad:g} % by --max-bad: {bad[0][1]}"
                    )
                about = {
                    **self._about(part, len(bad)),
                    "classes": self._manifest["model"]["classes"],
                    "label_names": list(images.source.classes),
                }
                file.add_key_value_metadata({_KEY.decode(): json.dumps(about)})
            return Written(count, len(bad))

        return write_beside(self.file(part), fill)

    def _schema(self, images: Images) -> pa.Schema:
        number = pa.from_numpy_dtype(self._dtype)
        model = self._manifest["model"]
        fields = [
            pa.field("index", pa.int64(), nullable=False),
            pa.field("name", pa.string(), nullable=False),
            pa.field("label", pa.int64()),
            pa.field("features", pa.list_(number, model["features"]), nullable=False),
        ]
        if model["classes"]:
            kind = pa.list_(number, len(model["classes"]))
            fields.append(pa.field("scores", kind, nullable=False))
        return pa.schema(fields)

    def _tables(
        self, images: Images, batches: Iterable[Rows], bad: list[tuple[int, str]]
    ) -> Iterator[pa.Table]:
        """Yield tables of at least `_GROUP_ROWS` rows; unreadable images are added to `bad`."""
        schema, names = self._schema(images), images.names()
        waiting: list[pa.Table] = []
        for rows in batches:
            bad.extend(rows.unreadable)
            if rows.outputs is not None:
                waiting.append(self._table(schema, images, names, rows, rows.outputs))
            if sum(map(len, waiting)) >= _GROUP_ROWS:
                yield pa.concat_tables(waiting)
                waiting = []
        if waiting:
            yield pa.concat_tables(waiting)

    def _table(
        self, schema: pa.Schema, images: Images, names: Any, rows: Rows, outputs: Outputs
    ) -> pa.Table:
        places = np.array(rows.positions) - images.positions.start
        labels = images.labels
        columns: list[Any] = [
            pa.array(rows.positions, pa.int64()),
            # A name on a disk need not be text in UTF-8, but a string in parquet must be.
            pa.array([os.fsencode(names[i]).decode("utf-8", "replace") for i in places.tolist()]),
            pa.nulls(len(places), pa.int64())
            if labels is None
            else pa.array(labels[places], mask=labels[places] < 0),
        ]
        for what, values in (("features", outputs.features), ("scores", outputs.scores)):
            if values is None:
                continue
            with np.errstate(over="ignore"):
                stored = np.ascontiguousarray(values, self._dtype)
            if not np.isfinite(stored).all():
                row = int(np.flatnonzero(~np.isfinite(stored).all(axis=1))[0])
                name = names[int(places[row])]
                if np.isfinite(values).all():
                    raise UserError(f"{name}: {what} beyond float16's range: give --dtype float32")
                raise UserError(f"{name}: its {what} are not finite: the network diverged")
            columns.append(
                pa.FixedSizeListArray.from_arrays(pa.array(stored.reshape(-1)), values.shape[1])
            )
        return pa.Table.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, schema, strict=True)],
            schema=schema,
        )

    def _name_unreadable(self, part: Part, bad: list[tuple[int, str]]) -> None:
        file = self.path / f"{part.name}.unreadable.jsonl"
        if not bad:
            file.unlink(missing_ok=True)  # of an attempt that was killed
            return
        lines = (json.dumps({"index": index, "why": printable(why)}) for index, why in bad)
        write_text(file, "".join(f"{line}\n" for line in lines))
