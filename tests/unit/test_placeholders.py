"""Chosen amounts in the arguments of a command."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpugate.core.requests import Enforcement, Grant
from jupyter_gpugate.runs.placeholders import (
    UnknownTotalError,
    filled,
    refuse_wrong_placeholders,
)
from jupyter_gpugate.runs.record import Refused

MB, GB = 1 << 20, 1 << 30
BOTH = {"vram_bytes": 20 * GB, "ram_bytes": 8 * GB}


def grant(*totals: int) -> Grant:
    """A grant of devices with these total bytes."""
    uuids = tuple(f"GPU-{index}" for index in range(len(totals)))
    device_totals = dict(zip(uuids, totals, strict=True))
    return Grant("run", 1, 1, uuids, {}, {}, {}, Enforcement.NONE, device_totals=device_totals)


@pytest.mark.parametrize(
    ("argument", "becomes"),
    [
        ("--share={vram_fraction}", "--share=0.833333"),
        ("{vram_bytes}", str(20 * GB)),
        ("{vram_mb}m", f"{20 * 1024}m"),
        ("{ram_bytes}:{vram_mb}", f"{8 * GB}:{20 * 1024}"),
        ('{{"share": {vram_fraction}}}', '{"share": 0.833333}'),
        ("{{vram_mb}}", "{vram_mb}"),
        ("{{{vram_mb}}}", f"{{{20 * 1024}}}"),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_placeholders_are_replaced_for_the_device_of_the_grant(argument: str, becomes: str) -> None:
    """Doubled braces stand for braces."""
    refuse_wrong_placeholders({"argv": ["server", argument], "chosen": BOTH})
    assert filled(["server", argument], BOTH, grant(24 * GB)) == ["server", becomes]


@pytest.mark.parametrize("amount", [1, 3 * MB, 7 * GB + 1, 24 * GB - 1, 24 * GB])
@pytest.mark.parametrize("total", [24 * GB, 24 * GB + 7, 143771 * MB])
def test_a_fraction_never_exceeds_the_choice(amount: int, total: int) -> None:
    """It is rounded down; of several devices, the largest decides."""
    (share,) = filled(["{vram_fraction}"], {"vram_bytes": amount}, grant(total, 24 * GB))
    assert amount - total / 10**6 < float(share) * total <= amount


@pytest.mark.parametrize(
    ("argument", "chosen", "says"),
    [
        ("{vram_share}", BOTH, "{vram_share} is no placeholder"),
        ("{}", BOTH, "{} is no placeholder"),
        ('{"a": 1}', BOTH, '{"a": 1} is no placeholder'),
        ("a{b", BOTH, "a single {"),
        ("a}b", BOTH, "a single }"),
        ("{vram_mb}", {"ram_bytes": GB}, "add --vram SIZE"),
        ("{ram_bytes}", {"vram_bytes": GB, "ram_bytes": None}, "add --ram SIZE"),
        ("{vram_fraction}", {}, "add --vram SIZE"),
        ("{ram_bytes}", None, "add --ram SIZE"),
    ],
)
def test_a_wrong_placeholder_is_refused_with_its_argument(
    argument: str, chosen: Any, says: str
) -> None:
    """The message has the number and the text of the argument, and what to write instead."""
    with pytest.raises(Refused, match="argument 2") as refusal:
        refuse_wrong_placeholders({"argv": ["server", "--x", argument], "chosen": chosen})
    assert says in str(refusal.value)
    assert repr(argument) in str(refusal.value)
    assert refusal.value.detail == {"field": "argv", "argument": 2}


@pytest.mark.parametrize("argument", ['{"a": {}}', "{x}", "{{vram_mb}}", "}", "echo ${ram_bytes}"])
def test_without_a_chosen_amount_braces_mean_nothing(argument: str) -> None:
    """The arguments of other runs reach their programs unchanged."""
    refuse_wrong_placeholders({"argv": ["sh", argument], "chosen": {"vram_bytes": None}})
    assert filled(["sh", argument], {"vram_bytes": None}, grant()) == ["sh", argument]


def test_a_fraction_of_an_unknown_total_is_none() -> None:
    """It is an error, not a guess; nobody asks for the total without the placeholder."""
    with pytest.raises(UnknownTotalError, match="GPU-0"):
        filled(["{vram_fraction}"], BOTH, grant(0))
    assert filled(["{vram_mb}"], BOTH, grant(0)) == [str(20 * 1024)]


@pytest.mark.parametrize(
    ("argument", "becomes"),
    [
        ("{batch}", "8"),
        ("--out=runs/{batch}-{seed}.json", "--out=runs/8-a b.json"),
        ("{{batch}}", "{batch}"),
        ('{"a": {"b": {batch}}}', '{"a": {"b": 8}}'),
        ("${batch}", "${batch}"),
        ("{other}{}", "{other}{}"),
    ],
)
def test_the_value_of_a_parameter_replaces_its_placeholder(argument: str, becomes: str) -> None:
    """Without a chosen amount all other braces mean nothing."""
    parameters = {"batch": "8", "seed": "a b"}
    refuse_wrong_placeholders({"argv": ["eval", argument], "parameters": parameters})
    assert filled(["eval", argument], None, grant(), parameters) == ["eval", becomes]


def test_parameters_and_amounts_are_placeholders_of_one_command() -> None:
    """A name that may be either is refused, and so is one that is neither."""
    argv = ["serve", "{vram_mb}", "{batch}", "{{x}}"]
    refuse_wrong_placeholders({"argv": argv, "parameters": {"batch": "8"}, "chosen": BOTH})
    assert filled(argv, BOTH, grant(), {"batch": "8"})[1:] == [str(20 * 1024), "8", "{x}"]
    both = {"argv": argv, "parameters": {"batch": "8", "vram_mb": "1"}, "chosen": BOTH}
    with pytest.raises(Refused, match="rename the parameter"):
        refuse_wrong_placeholders(both)
    unknown = {"argv": ["serve", "{size}"], "parameters": {"batch": "8"}, "chosen": BOTH}
    with pytest.raises(Refused, match=r"\{size\} is no placeholder: known are .*\{batch\}"):
        refuse_wrong_placeholders(unknown)
