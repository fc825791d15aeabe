from collections import Counter

import numpy as np
import pytest

from burn.core.errors import UserError
from burn.data.builtin.digits import Digits
from burn.data.splits import Subset, balanced_share, hold_out


@pytest.mark.parametrize(("share", "each"), [(0.01, 1), (0.1, 14), (0.5, 72), (0.0001, 1)])
def test_a_share_has_the_same_number_of_every_class(share: float, each: int):
    subset = balanced_share(Digits("train"), share, seed=0)
    assert subset.labels is not None
    assert Counter(subset.labels.tolist()) == dict.fromkeys(range(10), each)
    assert len(set(subset.indices.tolist())) == len(subset)


def test_a_share_is_the_seeds():
    first, again, other = (balanced_share(Digits("train"), 0.1, seed) for seed in (0, 0, 1))
    assert (first.indices == again.indices).all()
    assert (first.indices != other.indices).any()


def test_a_subset_reads_what_its_source_does():
    source = Digits("train")
    subset = Subset(Subset(source, [5, 7, 9]), [2, 0])
    assert len(subset) == 2
    assert (subset.read(0) == source.read(9)).all()
    assert subset.describe(1) == "digits:train[5]"
    assert source.labels is not None
    assert subset.labels is not None
    assert subset.labels.tolist() == source.labels[[9, 5]].tolist()


def test_a_subset_has_a_fingerprint_of_its_own_unless_it_is_all_of_the_source():
    source = Digits("train")
    parts = [Subset(source, range(start, start + 9)) for start in (0, 9)]
    assert len({source.fingerprint, *(part.fingerprint for part in parts)}) == 3
    assert Subset(source, range(9)).fingerprint == parts[0].fingerprint
    assert Subset(source, range(len(source))).fingerprint == source.fingerprint


def test_too_few_images_of_a_class_are_named():
    source = Digits("train")
    assert source.labels is not None
    few = Subset(source, np.flatnonzero((source.labels != 3) | (np.arange(len(source)) < 60)))
    with pytest.raises(UserError, match=r"50 % are \d+ images of each class, but class 3 has \d"):
        balanced_share(few, 0.5, seed=0)


def test_held_out_images_are_a_fifth_of_every_class_and_no_others():
    subset = balanced_share(Digits("train"), 0.1, seed=0)
    learn, held = hold_out(subset, 0.2, seed=0)
    assert held.labels is not None
    assert Counter(held.labels.tolist()) == dict.fromkeys(range(10), 3)
    names = [{part.describe(i) for i in range(len(part))} for part in (subset, learn, held)]
    assert names[1] | names[2] == names[0]
    assert not names[1] & names[2]


def test_one_label_cannot_be_held_out():
    with pytest.raises(UserError, match="use more labels"):
        hold_out(balanced_share(Digits("train"), 0.001, seed=0), 0.2, seed=0)
