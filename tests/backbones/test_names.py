"""timm's names, which are read without importing timm."""

import pytest
import timm

from burn.backbones import names
from burn.backbones.names import require_known
from burn.core.errors import UserError


def test_the_names_in_the_source_are_those_that_timm_registers():
    found = names._names_in_source()
    assert set(timm.list_models()) <= found
    assert all(timm.is_model(name) for name in found)  # with its earlier names


@pytest.mark.parametrize("name", ["reactnet_a", "resnet50", "resnet50.a1_in1k", "bnext_t"])
def test_known_names(name: str):
    require_known(name)


@pytest.mark.parametrize("name", ["resnet500", "reactnet_z", "", "create_model", "ResNet"])
def test_unknown_names(name: str):
    with pytest.raises(UserError, match="unknown backbone"):
        require_known(name)
