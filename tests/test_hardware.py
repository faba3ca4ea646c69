from dataclasses import replace

import pytest

from nanochat.hardware import ACCELERATORS, PRICE, Accelerator, find_accelerator, given_price, parse_hardware

# The last ones only resemble a known one.
DEVICES = """
NVIDIA H100 80GB HBM3 → H100
NVIDIA H100 PCIe → H100-PCIe
NVIDIA H200 → H200
NVIDIA A100-SXM4-80GB → A100
NVIDIA A100-SXM4-40GB → A100-40GB
NVIDIA L4 → L4
Tesla T4 → T4
NVIDIA GeForce RTX 4090 → RTX-4090
AMD Instinct MI300X → MI300X
NVIDIA GeForce RTX 4090 Laptop GPU → unknown
NVIDIA H100 80GB HBM3 MIG 1g.10gb → unknown
NVIDIA L40 → unknown
 → unknown
"""


def test_names_find_their_rows() -> None:
    for case in DEVICES.strip("\n").splitlines():
        device, name = case.split(" → ")
        assert find_accelerator(device) == (Accelerator(device) if name == "unknown" else find_accelerator(name)), case
    for accelerator in ACCELERATORS:
        for name in (accelerator.name, accelerator.name.lower().replace("-", " ")):
            assert find_accelerator(name) is accelerator
        assert not accelerator.bf16 or accelerator.peak("fp16") > 0.99 * accelerator.peak("bf16")
    assert find_accelerator("4090").name == "RTX-4090"
    assert parse_hardware("8xH100") == (8, find_accelerator("H100"))
    assert parse_hardware("h200") == (1, find_accelerator("H200"))
    assert parse_hardware("2 x rtx 3090") == (2, find_accelerator("RTX-3090"))
    assert parse_hardware("4xQ9000") == (4, Accelerator("Q9000"))
    assert parse_hardware("8xH100@98") == (8, replace(find_accelerator("H100"), dollars=98 / 8))
    assert parse_hardware("16xH100@196") == (16, replace(find_accelerator("H100"), dollars=196 / 16))
    for wrong in ("", "8x", "0xH100", "-1xH100", "@98"):
        with pytest.raises(ValueError, match="8xH100"):
            parse_hardware(wrong)
    for price in ("cheap", "", "-3", "nan", "1e9"):
        with pytest.raises(ValueError, match=f"^--on=8xH100@{price} has no price: give the dollars an hour"):
            parse_hardware(f"8xH100@{price}")


def test_the_price_of_a_run_by_the_environment(monkeypatch) -> None:
    for text, price in {"": None, "98.50": 98.5}.items():
        monkeypatch.setenv(PRICE, text)
        assert given_price() == price
    monkeypatch.setenv(PRICE, "cheap")
    with pytest.raises(ValueError, match=r"^NANOCHAT_DOLLARS_AN_HOUR=cheap has no price: give the dollars an hour"):
        given_price()
