"""``jupyter gpugate serve --user``: a gate and run side of one user without a Jupyter server."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from collections.abc import Sequence

from jupyter_gpugate.server.host import Host, HostSettings

IDLE_S = 600.0
LOOK_S = 1.0


def main(argv: Sequence[str]) -> int:
    """Serve until nothing was asked and nothing was unfinished for a while, or until a signal."""
    parser = argparse.ArgumentParser(
        prog="jupyter gpugate serve", description="Hosts a gate without a Jupyter server."
    )
    parser.add_argument("--user", action="store_true", required=True, help="for this user alone")
    parser.add_argument(
        "--idle", type=float, default=IDLE_S, metavar="SECONDS", help="end after so long unused"
    )
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    return asyncio.run(_serve(options.idle))


async def _serve(idle_s: float) -> int:
    host = Host(HostSettings())
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await host.start()
    if not host.leads:
        host.log.info("this user already has a gate")
        await host.stop()
        return 0
    while not stopping.is_set() and host.idle_s() < idle_s:
        try:
            await asyncio.wait_for(stopping.wait(), LOOK_S)
        except asyncio.TimeoutError:
            continue
    await host.stop()
    return 0
