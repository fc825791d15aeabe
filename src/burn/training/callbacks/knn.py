"""A callback that measures the kNN accuracy of the backbone during training."""

from __future__ import annotations

import numpy as np
import torch

from burn.data.base import Source
from burn.data.formats.shards import ShardedImages
from burn.data.view_config import ViewConfig
from burn.evaluation.features import extract_features
from burn.evaluation.knn import knn_accuracy
from burn.learning.loop import Callback, Loop
from burn.runtime.signals import StopRequest
from burn.training.callbacks.monitor import Monitor
from burn.training.pretraining import Pretraining
from burn.training.records.summary import WatchedKnn
from burn.training.records.writer import Record

LEAST_IMAGES = 10
_KNN_IMAGES = 1000


class OnlineKnn(Callback):
    """Measures kNN accuracy after every epoch, on up to 1,000 labelled training images.

    A fixed fifth of these images is classified by the others. Labels never reach the loss. The
    measurement is cancelled if the run is asked to stop.
    """

    def __init__(
        self,
        source: Source,
        views: ViewConfig,
        monitor: Monitor,
        record: Record,
        stop: StopRequest,
    ) -> None:
        self._monitor, self._record, self._stop = monitor, record, stop
        self._views = views
        # Random access to images of shards is slow: some neighbours are read once and kept.
        sharded = isinstance(source, ShardedImages)
        self._source = source.sample(_KNN_IMAGES) if sharded else source
        assert self._source.labels is not None
        labelled = np.flatnonzero(self._source.labels >= 0)
        random = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(labelled), generator=random)[:_KNN_IMAGES]
        self._indices = labelled[chosen.numpy()].tolist()

    def on_start(self, loop: Loop[Pretraining]) -> None:
        # A state that was saved at the last step of an epoch is older than that epoch's accuracy.
        if loop.ends_epoch:
            self._measure(loop, is_written=self._record.has(loop.step, "knn"))

    def on_epoch_end(self, loop: Loop[Pretraining]) -> None:
        self._measure(loop, is_written=False)

    def _measure(self, loop: Loop[Pretraining], *, is_written: bool) -> None:
        """Measure the accuracy, and write it unless the step's row has it already."""
        if self._stop.requested or len(self._indices) < LEAST_IMAGES:
            return

        def check_stop(_: int) -> None:
            if self._stop.requested:
                raise _Stopped

        try:
            features = extract_features(
                loop.learner.method.backbone,
                self._source,
                self._views,
                indices=self._indices,
                advance=check_stop,
            )
        except _Stopped:
            return
        labels = features.labels
        assert labels is not None
        cut = len(labels) // 5
        accuracy = knn_accuracy(
            features.values[cut:], labels[cut:], features.values[:cut], labels[:cut]
        )
        chance = float(labels[:cut].bincount().max()) / cut
        self._monitor.knn = WatchedKnn(accuracy, cut, chance)
        if not is_written:
            self._record.metrics(loop.step, loop.epoch, {"knn": accuracy})


class _Stopped(Exception):
    """Raised to leave the extraction of features between two batches."""
