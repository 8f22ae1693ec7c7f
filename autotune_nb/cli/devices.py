"""The verb about devices that measure: rpc-up, a tracker and servers for trying out."""

from __future__ import annotations

import argparse
import signal

from autotune_nb.cli.arguments import Verbs, add_verb


def add_verbs(verbs: Verbs) -> None:
    """Add these verbs."""
    verb = add_verb(
        verbs,
        "rpc-up",
        _rpc_up,
        "start a TVM tracker and servers on this machine, to try out measuring over them",
    )
    verb.add_argument(
        "--servers", type=int, default=2, metavar="N", help="servers (default: %(default)s)"
    )
    verb.add_argument("--key", default="local", help="their key (default: %(default)s)")
    verb.add_argument(
        "--port",
        type=int,
        default=9190,
        metavar="PORT",
        help="port of the tracker, 0 for a free one (default: %(default)s)",
    )
    verb.add_argument(
        "--host",
        default="127.0.0.1",
        help="address of this machine to listen at (default: %(default)s). Whoever reaches it can "
        "run programs here: never one of an open network",
    )


def _rpc_up(options: argparse.Namespace) -> int:
    from autotune_nb.tuning.rpc_up import LOOPBACK, RpcUp

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        with RpcUp(options.servers, key=options.key, host=options.host, port=options.port) as up:
            print(f"Tracker {up.measure.tracker}; servers {', '.join(up.servers)}")
            if options.host != LOOPBACK:
                print("Whoever reaches these ports can run programs here: use a closed network")
            print(
                f"Tune with --tracker {up.measure.tracker} --key {options.key}; Ctrl-C ends them",
                flush=True,
            )
            up.wait()
            return 1  # they end on request only
    except KeyboardInterrupt:
        return 0
