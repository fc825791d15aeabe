"""Search among codes: every instruction set against a sort of all distances, and JavaScript's."""

from __future__ import annotations

import numpy as np
import pytest

import burn_engine
from burn_engine.search import nearest
from burn_engine.vectors import normalized, signs


def sorted_by_distance(codes, queries, k):
    """Return what `nearest` returns, by counting and sorting everything."""
    distances = np.unpackbits(codes[None] ^ queries[:, None], axis=2).sum(axis=2)
    positions = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return positions, np.take_along_axis(distances, positions, axis=1)


@pytest.mark.parametrize("isa", burn_engine.isas())
@pytest.mark.parametrize("length", [1, 5, 8, 40, 63, 64, 65, 200])
def test_every_instruction_set_finds_what_a_sort_finds(isa, length):
    random = np.random.default_rng(length)
    codes = random.integers(0, 256, (700, length), np.uint8)
    codes[100:200] = codes[0]  # many of the same distance: the first ones are found
    queries = random.integers(0, 256, (3, length), np.uint8)
    queries[1] = codes[0]
    for k in (1, 7, 150, 700):
        positions, distances = nearest(codes, queries, k, isa)
        expected = sorted_by_distance(codes, queries, k)
        assert (positions == expected[0]).all()
        assert (distances == expected[1]).all()


def test_many_codes_are_searched_block_by_block():
    random = np.random.default_rng(0)
    codes = random.integers(0, 256, (20_000, 40), np.uint8)
    queries = codes[[19_999, 5]]
    positions, distances = nearest(codes, queries, 25)
    expected = sorted_by_distance(codes, queries, 25)
    assert (positions == expected[0]).all()
    assert (distances == expected[1]).all()
    assert positions[:, 0].tolist() == [19_999, 5]


def test_nothing_is_found_of_nothing():
    codes = np.zeros((3, 8), np.uint8)
    assert nearest(codes, codes[:0], 2)[0].shape == (0, 2)
    assert nearest(codes, codes, 0)[1].shape == (3, 0)


def test_core_refuses_what_is_out_of_range():
    core = pytest.importorskip("burn_engine._core", exc_type=ImportError)
    codes = np.zeros((3, 8), np.uint8)
    for k, other, message in (
        (4, codes, "k is not 1 to the number of codes"),
        (0, codes, "k is not 1 to the number of codes"),
        (1, codes[:, :4].copy(), "codes differ in length"),
    ):
        with pytest.raises(ValueError, match=message):
            core.nearest(codes, other, k, None)
    with pytest.raises(ValueError, match="instruction set 'mmx' is not available"):
        core.nearest(codes, codes, 1, "mmx")


def test_a_sign_is_one_where_a_feature_is_at_least_zero():
    features = np.array([[0.0, -1.0, 2.0, -0.5, 1.0, 1.0, 1.0, 1.0, -3.0, 4.0]], np.float32)
    assert signs(features).tolist() == [[0b11110101, 0b10]]


def test_vectors_have_length_1_or_are_refused():
    vectors = normalized(np.array([[3.0, 4.0], [1e-30, 0.0], [1e30, 1e30]], np.float32))
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    with pytest.raises(ValueError, match="all features of an image are 0"):
        normalized(np.zeros((1, 2)))
    with pytest.raises(ValueError, match="not finite"):
        normalized(np.array([[np.nan, 1.0]]))
