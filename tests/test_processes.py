import pytest
import torch

from burn.errors import UserError
from burn.processes import Processes

CPU = torch.device("cpu")


def test_one_process_has_everything_to_itself():
    alone = Processes.start(CPU)
    assert (alone.count, alone.rank, alone.first) == (1, 0, True)
    module = torch.nn.BatchNorm2d(3)
    assert alone.wrap(module) is module
    assert alone.synchronize_norms(module) is module
    assert alone.share([1, 2, 3]) == [1, 2, 3]
    alone.stop()


def test_shares_part_a_batch():
    shares = [Processes(CPU, 3, rank).share(list(range(6))) for rank in range(3)]
    assert sorted(item for share in shares for item in share) == list(range(6))
    assert {len(share) for share in shares} == {2}


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "0", "WORLD_SIZE": "abc"},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
    ],
)
def test_an_environment_that_is_not_torchruns_is_said(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="are not torchrun's"):
        Processes.start(CPU)
