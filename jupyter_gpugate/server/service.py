"""``jupyter gpugate serve --user``: a gate and run side of one user without a Jupyter server."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from collections.abc import Sequence

from jupyter_gpugate.server.host import Host, HostSettings
from jupyter_gpugate.server.paths import UnsafePath

IDLE_S = 600.0
LOOK_S = 1.0


def main(argv: Sequence[str]) -> int:
    """Serve until a signal, or until there were no requests and no runs for a while."""
    parser = argparse.ArgumentParser(
        prog="jupyter gpugate serve", description="Hosts a gate without a Jupyter server."
    )
    parser.add_argument("--user", action="store_true", required=True, help="for this user alone")
    parser.add_argument(
        "--idle",
        type=float,
        default=IDLE_S,
        metavar="SECONDS",
        help=f"end after this time without use (default: {IDLE_S:.0f})",
    )
    # A server passes its own settings to the process that continues its runs.
    parser.add_argument("--settings", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    given = options.settings
    try:
        settings = HostSettings.from_text(given) if given else HostSettings()
    except (OSError, UnsafePath) as error:
        logging.error("the gate cannot be hosted here: %s", error)  # noqa: LOG015, TRY400
        return 1
    return asyncio.run(_serve(settings, options.idle))


async def _serve(settings: HostSettings, idle_s: float) -> int:
    host = Host(settings)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await host.start()
    if host.backend is None:
        fault = host.fault
        if not fault:
            host.log.info("this user already has a gate")
        await host.stop()
        return 1 if fault else 0
    while not stopping.is_set() and host.idle_s() < idle_s:
        try:
            await asyncio.wait_for(stopping.wait(), LOOK_S)
        except asyncio.TimeoutError:
            continue
    # The end of this process is intended: unfinished runs wait for the next one.
    await host.stop(successor=False)
    return 0
