"""Faster R-CNN with a C4 backbone, on torchvision's parts (Ren et al., 2015; MoCo's VOC setting).

The proposal network looks at the map before the backbone's last stage; the last stage, with a BN
behind it, classifies the regions cut out of that map. Only the layers of the proposal network and
of the predictor are new, and float: trunk and last stage keep the backbone's precision.

The losses of boxes are detectron2's, with which MoCo and the paper were evaluated: absolute
differences, where torchvision rounds off those below 1/9 and divides the proposals' by fewer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import roi_align

from burn.backbones.base import Backbone
from burn.evaluation.configs import DetectorConfig

_RATIOS = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Images:
    """Images of several sizes in one uint8 tensor (batch, 3, height, width), padded right and
    below with the mean colour; sizes: (height, width) of each without padding."""

    pixels: Tensor
    sizes: list[tuple[int, int]]


class Detector(nn.Module):
    """Images and, in training, their boxes -> losses, or detections.

    boxes are in pixels of the (resized) images: left, top, right, bottom. bfloat16: trunk and last
    stage run under autocast; boxes stay float32.
    """

    def __init__(
        self, backbone: Backbone, num_classes: int, config: DetectorConfig, *, bfloat16: bool
    ) -> None:
        super().__init__()
        self.backbone, self._reduced = backbone, bfloat16
        with torch.no_grad():
            device = next(backbone.parameters()).device
            probe = torch.zeros(1, 3, 64, 64, dtype=torch.uint8, device=device)
            trained = backbone.training
            shape = backbone.eval().trunk(probe).shape
            backbone.train(trained)
        stride, channels = 64 // shape[-1], shape[1]
        num_anchors = len(config.anchors) * len(_RATIOS)
        self.proposals = _Proposals(
            AnchorGenerator((config.anchors,), (_RATIOS,)),
            RPNHead(channels, num_anchors),
            fg_iou_thresh=0.7,
            bg_iou_thresh=0.3,
            batch_size_per_image=256,
            positive_fraction=0.5,
            pre_nms_top_n={"training": 12000, "testing": 6000},
            post_nms_top_n={"training": 2000, "testing": config.proposals},
            nms_thresh=0.7,
        )
        self.regions = _Regions(
            _RegionPool(config.roi_size, stride),
            _RegionHead(backbone, bfloat16=bfloat16),
            FastRCNNPredictor(backbone.num_features, num_classes + 1),
            fg_iou_thresh=0.5,
            bg_iou_thresh=0.5,
            batch_size_per_image=config.rois,
            positive_fraction=0.25,
            bbox_reg_weights=(10.0, 10.0, 5.0, 5.0),
            score_thresh=config.score_threshold,
            nms_thresh=0.5,
            detections_per_img=config.detections,
        )

    def forward(
        self, images: Images, targets: list[dict[str, Tensor]] | None = None
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Detections (in eval mode) and losses (in training mode, which needs `targets`).

        A target has boxes (objects, 4) and labels int64 (objects,), counted from 1; so has a
        detection, and scores.
        """
        with torch.autocast(images.pixels.device.type, torch.bfloat16, enabled=self._reduced):
            features = {"0": self.backbone.trunk(images.pixels)}
        features = {"0": features["0"].float()}
        listed = ImageList(images.pixels, images.sizes)
        proposals, proposal_losses = self.proposals(listed, features, targets)
        detections, region_losses = self.regions(features, proposals, images.sizes, targets)
        return detections, {**proposal_losses, **region_losses}


class _Proposals(RegionProposalNetwork):
    """With detectron2's losses."""

    def compute_loss(
        self, objectness: Tensor, pred_bbox_deltas: Tensor, labels: list[Tensor],
        regression_targets: list[Tensor],
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The losses of objectness and of boxes, over as many anchors as are sampled at most.

        torchvision divides by those that were sampled, which are fewer where an image's edge leaves
        too few anchors.
        """
        positive, negative = (
            torch.where(torch.cat(found))[0] for found in self.fg_bg_sampler(labels)
        )
        sampled = torch.cat([positive, negative])
        most = self.fg_bg_sampler.batch_size_per_image * len(labels)
        boxes = F.l1_loss(
            pred_bbox_deltas[positive], torch.cat(regression_targets)[positive], reduction="sum"
        )
        scores = F.binary_cross_entropy_with_logits(
            objectness.flatten()[sampled], torch.cat(labels)[sampled], reduction="sum"
        )
        return scores / most, boxes / most


class _Regions(RoIHeads):
    """With detectron2's losses."""

    def forward(
        self, features: dict[str, Tensor], proposals: list[Tensor],
        image_shapes: list[tuple[int, int]], targets: list[dict[str, Tensor]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:  # fmt: skip
        if not self.training:
            return super().forward(features, proposals, image_shapes, targets)
        proposals, _, labels, aims = self.select_training_samples(proposals, targets)
        pooled = self.box_roi_pool(features, proposals, image_shapes)
        scores, boxes = self.box_predictor(self.box_head(pooled))
        classes, box_loss = region_losses(scores, boxes, torch.cat(labels), torch.cat(aims))
        return [], {"loss_classifier": classes, "loss_box_reg": box_loss}


def region_losses(
    scores: Tensor, boxes: Tensor, labels: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the classes, and absolute differences of the boxes, over all regions.

    scores: (regions, classes + 1). boxes: (regions, 4 · (classes + 1)), a box for each class.
    labels: int64 (regions,), 0 for background, whose boxes do not count. targets: (regions, 4).
    """
    positive = torch.where(labels > 0)[0]
    own = boxes.reshape(len(boxes), -1, 4)[positive, labels[positive]]
    apart = F.l1_loss(own, targets[positive], reduction="sum")
    return F.cross_entropy(scores, labels), apart / max(1, len(labels))


class _RegionPool(nn.Module):
    """Cuts regions out of the map. torchvision's own pooler knows no half-pixel alignment."""

    def __init__(self, size: int, stride: int) -> None:
        super().__init__()
        self.size, self.stride = size, stride

    def forward(
        self, features: dict[str, Tensor], proposals: list[Tensor], _sizes: list[tuple[int, int]]
    ) -> Tensor:
        return roi_align(
            features["0"], proposals, self.size, 1 / self.stride, sampling_ratio=0, aligned=True
        )


class _RegionHead(nn.Module):
    """The backbone's last stage, BN, and the mean over the region: (regions, num_features)."""

    def __init__(self, backbone: Backbone, *, bfloat16: bool) -> None:
        super().__init__()
        self._backbone = [backbone]  # in a list: its parameters are the detector's already
        self.norm = nn.BatchNorm2d(backbone.num_features)
        self._reduced = bfloat16

    def forward(self, regions: Tensor) -> Tensor:
        regions = regions.contiguous(memory_format=torch.channels_last)
        with torch.autocast(regions.device.type, torch.bfloat16, enabled=self._reduced):
            features = self._backbone[0].top(regions)
        return self.norm(features.float()).mean(dim=(2, 3))
