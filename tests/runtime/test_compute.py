import pytest
import torch

from burn.runtime.compute import uses_bfloat16


@pytest.mark.parametrize(
    ("capability", "instructions", "expected"),
    [
        ("AVX512", {"avx512_bf16": True}, True),
        ("AVX512", {"avx512_bf16": False, "amx_bf16": True}, True),
        ("AVX512", {"avx512_bf16": False, "amx_bf16": False}, False),
        ("AVX2", {"avx512_bf16": True}, False),  # ATEN_CPU_CAPABILITY=avx2
        ("AVX2", {}, False),
        ("DEFAULT", {}, False),
    ],
)
def test_auto_is_bfloat16_where_pytorch_computes_in_it(
    capability: str, instructions: dict[str, bool], expected: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: instructions)
    assert uses_bfloat16("auto", "cpu") == expected
    assert uses_bfloat16("bfloat16", "cpu")
    assert not uses_bfloat16("float32", "cpu")
