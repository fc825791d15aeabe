"""Parts of MoCo v2, InfoMin and S2-BNN's mixed loss: momentum keys, a queue of them, and InfoNCE.

He et al., Momentum Contrast for Unsupervised Visual Representation Learning, 2020: the queue and
InfoNCE in section 3.1, shuffled BN in section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from burn.backbones.base import Backbone
from burn.layers.byte_conv import constant_weights
from burn.methods.shared.momentum import MomentumTarget


def l2_normalize(vectors: Tensor) -> Tensor:
    """Divide each row of (batch, dimension) by its L2 norm, in float32."""
    return F.normalize(vectors.float(), dim=1)


def info_nce(queries: Tensor, keys: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Return the mean of -log(exp(q·k / T) / (exp(q·k / T) + Σ exp(q·n / T))) (MoCo, Eq. 1).

    >>> query, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> info_nce(query, query, other, temperature=1.0)
    tensor(0.3133)

    q, k and n are unit vectors, (batch or count, dimension), and T is the temperature. Each key is
    of the same image as the query in its row.
    """
    # Cosines in bfloat16 err by 0.004, which divided by T = 0.2 is 2 % of a probability.
    with torch.autocast(queries.device.type, enabled=False):
        positive = (queries * keys).sum(dim=1, keepdim=True)
        logits = torch.cat([positive, queries @ negatives.T], dim=1) / temperature
        return (logits.logsumexp(dim=1) - logits[:, 0]).mean()


def in_parts(network: Callable[[Tensor], Tensor], images: Tensor, count: int) -> Tensor:
    """Compute the network's output in equal parts, so that BN sees one part at a time.

    There are fewer than `count` where a part would have a single image.
    """
    count = max(1, min(count, len(images) // 2))
    with constant_weights():
        return torch.cat([network(part) for part in images.tensor_split(count)])


def gather(rows: Tensor) -> list[Tensor]:
    """Return the rows of every process in the order of their ranks; they may differ in number.

    No gradient passes to the rows of other processes or to this one's.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return [rows]
    number = torch.tensor([len(rows)])  # on the CPU: to read it from a GPU would wait for that
    numbers = [torch.empty_like(number) for _ in range(distributed.get_world_size())]
    distributed.all_gather(numbers, number)
    lengths = [int(n) for n in numbers]
    padded = rows.new_zeros(max(lengths), *rows.shape[1:])
    padded[: len(rows)] = rows
    shares = [torch.empty_like(padded) for _ in lengths]
    distributed.all_gather(shares, padded)
    return [share[:length] for share, length in zip(shares, lengths, strict=True)]


class KeyQueue(nn.Module):
    """Ring of the newest keys, which holds random unit vectors until it has filled up."""

    keys: Tensor
    pointer: Tensor

    def __init__(self, size: int, dimension: int) -> None:
        super().__init__()
        self.register_buffer("keys", l2_normalize(torch.randn(size, dimension)))
        self.register_buffer("pointer", torch.tensor(0))

    @torch.no_grad()
    def add(self, keys: Tensor) -> None:
        """Replace the oldest keys by these, (batch, dimension); of too many, the last stay."""
        size = len(self.keys)
        newest = keys[-size:]
        end = self.pointer + len(keys)
        slots = torch.arange(-len(newest), 0, device=keys.device) + end
        self.keys[slots % size] = newest
        self.pointer.copy_(end % size)


class ShuffledEncoder(nn.Module):
    """Encoder of keys in other batches than those of their queries, because of BN.

    All keys in the queue come from other batches. A network whose BN sees a query and its key among
    the same images can mark both by those images' statistics, and need not look at the images.
    Therefore the images of all processes are permuted together, every process encodes its share, in
    `groups` parts each with statistics of its own, and the keys are put back in order.

    Queries are encoded in as many parts, unshuffled: what matters is the number of processes times
    `groups`.
    """

    seed: Tensor
    count: Tensor

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups
        # The permutations depend on these two alone. All processes begin with the same weights and
        # thus with the same seed, so the permutations are the same on each, and a resumed run goes
        # on with them.
        self.register_buffer("seed", torch.randint(2**40, ()))
        self.register_buffer("count", torch.tensor(0))
        # seed + count, once they were read: a GPU must be waited for.
        self._place: int | None = None

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._place = None

    def next_order(self, length: int) -> Tensor:
        """Return a new permutation of 0 … length - 1 on the CPU."""
        if self._place is None:
            self._place = int(self.seed) + int(self.count)
        generator = torch.Generator().manual_seed(self._place)
        self._place += 1
        self.count += 1
        return torch.randperm(length, generator=generator)

    @torch.no_grad()
    def forward(self, encode: Callable[[Tensor], Tensor], images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys of this process's images, and those of all processes' images.

        They are unit vectors, (batch, dimension) along the embeddings that `encode` gives.
        """
        shares = gather(images)
        rank = distributed.get_rank() if len(shares) > 1 else 0
        first = sum(len(share) for share in shares[:rank])
        local = slice(first, first + len(images))
        everything = torch.cat(shares)
        # To wait for the copy would be to wait for all that the GPU has been given.
        order = self.next_order(len(everything)).to(images.device, non_blocking=True)
        shuffled = l2_normalize(in_parts(encode, everything[order[local]], self.groups))
        shuffled = torch.cat(gather(shuffled))
        keys = torch.empty_like(shuffled)
        keys[order] = shuffled
        return keys[local], keys


class MomentumContrast(nn.Module):
    """Momentum encoder, the queue of its keys, and the loss of queries against both.

    A second stage goes on with the queue of the first. Its keys are of the same network with other
    weights, which makes them better negatives than random vectors, and they are soon replaced.
    `queue` is the number of its keys, and `groups` that of the parts in which queries and keys are
    encoded.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: nn.Module,
        dimension: int,
        *,
        queue: int,
        temperature: float,
        momentum: float,
        groups: int,
    ) -> None:
        super().__init__()
        self.temperature, self.momentum = temperature, momentum
        self.target = MomentumTarget(backbone, head)
        self.queue = KeyQueue(queue, dimension)
        self.shuffle = ShuffledEncoder(groups)

    def encode(self, backbone: Backbone, images: Tensor) -> Tensor:
        """Encode queries to (batch, num_features), in as many parts as their keys will be."""
        return in_parts(backbone, images, self.shuffle.groups)

    def forward(self, embeddings: Tensor, images: Tensor) -> Tensor:
        """Return InfoNCE, a scalar, of queries' embeddings and the keys' images; add the keys."""
        keys, all_keys = self.shuffle(self.target, images)
        # The backward pass needs the queue as it is now, hence the copy.
        negatives = self.queue.keys.clone()
        loss = info_nce(l2_normalize(embeddings), keys, negatives, self.temperature)
        self.queue.add(all_keys)
        return loss

    def follow(self, backbone: Backbone, head: nn.Module) -> None:
        """Update the momentum encoder; to be called after every optimizer step."""
        self.target.follow(backbone, head, self.momentum)
