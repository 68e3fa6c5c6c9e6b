"""The URLs by which a service may show that it is ready."""

from __future__ import annotations

import pytest

from jupyter_gpugate.core.ready_url import EXAMPLE, problem_of


@pytest.mark.parametrize(
    "url",
    [
        EXAMPLE,
        "http://localhost:1",
        "http://127.1.2.255:65535/",
        "http://[::1]:8000/v1/models?limit=1",
        "http://127.0.0.1:80?x=/y@z:1",
    ],
)
def test_loopback_with_a_port_is_asked(url: str) -> None:
    """By name, by number, with or without a path."""
    assert problem_of(url) == ""


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "a URL"),
        ("http://127.0.0.1:80/a b", "printable"),
        ("http://127.0.0.1:80/\r\nHost: x", "printable"),
        ("http://127.0.0.1:80/" + "x" * 1000, "1000"),
        ("127.0.0.1:8000", "http://"),
        ("https://127.0.0.1:8000", "http://"),
        ("unix:///tmp/socket", "http://"),
        ("http://me@127.0.0.1:80", "user"),
        ("http://127.0.0.1:80/#top", "fragment"),
        ("http://example.org:80", "localhost"),
        ("http://localhost.example.org:80", "localhost"),
        ("http://0.0.0.0:80", "localhost"),
        ("http://127.0.0.256:80", "localhost"),
        ("http://127.1:80", "localhost"),
        ("http://[::2]:80", "localhost"),
        ("http://::1:80", "localhost"),
        ("http://127.0.0.1:80:80", "localhost"),
        ("http://:80", "localhost"),
        ("http://127.0.0.1", "port"),
        ("http://localhost/x:80", "port"),
        ("http://127.0.0.1:0", "port"),
        ("http://127.0.0.1:080", "port"),
        ("http://127.0.0.1:80x", "localhost"),
        ("http://127.0.0.1:65536", "port"),
        ("http://127.0.0.1:x", "localhost"),
    ],
)
def test_anything_else_is_refused_with_what_to_write(url: str, says: str) -> None:
    """Each message has an example."""
    assert says in problem_of(url)
    assert EXAMPLE in problem_of(url)
