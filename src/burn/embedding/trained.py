"""A checkpoint or a teacher that embeds images as `burn evaluate` does."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burn.checkpoints.classifier import Classifier, fingerprint, own_classifier
from burn.checkpoints.foreign.weights import backbone_from
from burn.checkpoints.native import find_checkpoint, load_checkpoint
from burn.checkpoints.pretrained import names_checkpoint
from burn.core.paths import expand
from burn.data.augment import plain_view
from burn.deploy.pack import read_head
from burn.embedding.network import Outputs
from burn.embedding.settings import EmbedConfig
from burn.evaluation.context import Model, model_of, open_model
from burn.runtime.compute import default_workers, torch_device, uses_bfloat16
from burn.runtime.gpu import gpu_arithmetic, gpu_failures_named


class TrainedNetwork:
    """A checkpoint or a teacher as a `Network`."""

    tensors = True

    def __init__(self, config: EmbedConfig) -> None:
        device = torch_device(config.device)
        model, classifier = _open(config)
        model.backbone.to(device).eval()
        self._views, self._device = model.views, device
        self._bfloat16 = uses_bfloat16(config.compute, config.device)
        dtype = torch.bfloat16 if self._bfloat16 else torch.float32
        self._features = model.backbone.folded(dtype) or model.backbone
        self._weight = self._bias = None
        if classifier is not None:
            self._weight, self._bias = classifier.weight.to(device), classifier.bias.to(device)
        self.name = model.name
        self.num_features = model.backbone.num_features
        self.classes = classifier.classes if classifier else ()
        self.fingerprint = _fingerprint(model, classifier)
        self.batch_size = config.batch_size
        self.threads = config.threads or default_workers(config.device)
        self.settings: dict[str, Any] = {
            "device": device.type,
            "compute": "bfloat16" if self._bfloat16 else "float32",
            "batch_size": config.batch_size,
        }
        self.notes = tuple(model.labels_notes)

    def prepare(self, image: Tensor) -> Tensor:
        """Return the plain view of an image, uint8 (3, size, size), as evaluations take it."""
        return plain_view(image, self._views)

    def finish(self, prepared: Sequence[Tensor]) -> Outputs:
        """Return the outputs of a batch of views; too little memory of a GPU is a UserError."""
        smaller = f"a batch of {len(prepared)} images does not fit; give a smaller --batch-size"
        autocast = torch.autocast(self._device.type, torch.bfloat16, enabled=self._bfloat16)
        with (
            gpu_failures_named(smaller),
            gpu_arithmetic(self._device, fixed_shapes=True),
            torch.inference_mode(),
        ):
            with autocast:
                features = self._features(torch.stack(list(prepared)).to(self._device)).float()
            scores = None
            if self._weight is not None:
                scores = torch.nn.functional.linear(features, self._weight, self._bias)
            return Outputs(features.cpu().numpy(), None if scores is None else scores.cpu().numpy())


def _open(config: EmbedConfig) -> tuple[Model, Classifier | None]:
    """Return the network, and the classifier of --head or else the checkpoint's own."""
    checkpoint = None
    if names_checkpoint(config.model):
        checkpoint = load_checkpoint(find_checkpoint(Path(config.model)))
        model = model_of(checkpoint, backbone_from(checkpoint))
    else:
        model = open_model(config.model, fresh=False, seed=0)
    if config.head is not None:
        head = read_head(expand(config.head), model.backbone)
        weight, bias = head.weight.detach(), head.bias.detach()
        return model, Classifier(weight, bias, head.classes, head.backbone)
    return model, None if checkpoint is None else own_classifier(checkpoint, model.backbone)


def _fingerprint(model: Model, classifier: Classifier | None) -> str:
    digest = hashlib.sha256(fingerprint(model.backbone).encode())
    digest.update(repr((model.views.size, model.views.resize)).encode())
    if classifier is not None:
        digest.update(repr(classifier.classes).encode(errors="surrogateescape"))
        for tensor in (classifier.weight, classifier.bias):
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
