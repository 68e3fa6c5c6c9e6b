"""What a person may write after an option, and what it is told when that means nothing."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpugate.client import options

MB, GB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("read", "written", "meant"),
    [
        (options.size, "2GB", 2 * GB),
        (options.size, "2GiB", 2 * GB),
        (options.size, "1500MB", 1500 * MB),
        (options.size, "1.5gib", 3 * GB // 2),
        (options.size, " 10 MiB ", 10 * MB),
        (options.duration, "90s", 90.0),
        (options.duration, "30m", 1800.0),
        (options.duration, "4h", 14400.0),
        (options.duration, "1.5H", 5400.0),
        (options.parameter, "batch=64", ("batch", "64")),
        (options.parameter, "expr=a=b", ("expr", "a=b")),
        (options.parameter, "empty=", ("empty", "")),
        (options.names, "x,y", ["x", "y"]),
        (options.names, " x , y ,", ["x", "y"]),
        (options.run_name, "resnet-val_2.1", "resnet-val_2.1"),
        (options.run_name, "n" * 64, "n" * 64),
        (options.positive, "1", 1),
        (options.count, "0", 0),
    ],
)
def test_what_is_written_is_what_is_meant(
    read: Callable[[str], Any], written: str, meant: Any
) -> None:
    """Sizes become bytes, times seconds, lists names; MB and MiB are both 2^20."""
    assert read(written) == meant


@pytest.mark.parametrize(
    ("read", "written", "advice"),
    [
        (options.size, "2", "2GB"),
        (options.size, "2TB", "1500MB"),
        (options.size, "0GB", "2GB"),
        (options.size, "-2GB", "2GB"),
        (options.size, "2GBs", "2GB"),
        (options.duration, "30", "30m"),
        (options.duration, "0s", "30m"),
        (options.duration, "2d", "4h"),
        (options.parameter, "batch", "NAME=VALUE"),
        (options.parameter, "=64", "NAME=VALUE"),
        (options.names, "x y", "separated by commas"),
        (options.names, ",", "separated by commas"),
        (options.names, "a.b", "separated by commas"),
        (options.run_name, "", "letters, digits"),
        (options.run_name, "-rf", "no hyphen at the beginning"),
        (options.workers, "65", "64 at most"),
        (options.lock_time, "3h", "2h at most"),
        (options.run_name, "../x", "letters, digits"),
        (options.run_name, "n" * 65, "up to 64"),
        (options.run_name, "a\n", "letters, digits"),
        (options.positive, "0", "from 1 on"),
        (options.positive, "1e3", "from 1 on"),
        (options.count, "-1", "from 0 on"),
    ],
)
def test_a_mistake_is_answered_with_what_to_write(
    read: Callable[[str], Any], written: str, advice: str
) -> None:
    """What means nothing is refused on one line that quotes it and shows what would do."""
    with pytest.raises(ArgumentTypeError) as refusal:
        read(written)
    assert f"`{written}`" in str(refusal.value)
    assert advice in str(refusal.value)
