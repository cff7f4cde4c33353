#!/usr/bin/env python3
"""Two programs of one host in network namespaces of their own, joined by a port. Their connections move to shared memory if
they have a run directory in common. Named cases; without arguments their list."""
import collections
import json
import os
import re
import signal

from harness import BUILD, LONG, Side, check, free_port, is_idle, run_named
from transfers import Transfers, stream_then_compute

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Neighbours(Side):
    """Each program has a network namespace of its own. The wire between them is a socket in a folder that both have."""

    def __init__(self, **options):
        super().__init__("bypass", shm=True, **options)
        self.title = "two namespaces"

    def start(self, role, *command, **options):
        return super().start(role, "unshare", "-n", *command, **options)


def counters(side, child):
    return collections.Counter(side.stat(child)["counters"])


@case
def both_ends_show_shm():
    """All connections of both ends are on shared memory, as `bypass ss` names it. The run directory has no file left of
    their meeting."""
    with Neighbours() as side:
        transfers = Transfers(side, 8)
        transfers.until_paths({"shm"})
        text = side.run("server", os.path.join(BUILD, "bypass"), "ss", "-e", LD_PRELOAD="").decode()
        check("path:shm" in text, text)
        check(side.count("shm_links") == 2 and side.count("rdma_links") == 0, side.why())
        check(not [name for name in os.listdir(side.path("run")) if name.startswith("link-")], os.listdir(side.path("run")))
        transfers.end()


@case
def stream_whose_writer_computes():
    with Neighbours() as side:
        stream_then_compute(side, "shm")


@case
def other_run_directories():
    """Each end has a run directory of its own. The connections are plain TCP over the port, and the end that was asked says
    why."""
    with Neighbours() as side:
        os.mkdir(side.path("theirs"), 0o700)
        transfers = Transfers(side, 4, BYPASS_RUN_DIR=side.path("theirs"))
        transfers.until_paths({"wire"}, transfers.server)
        text = side.why(transfers.server)
        check(re.search(f" {side.client_address} +no_shm_link .*another run directory", text), text)
        text = side.why(transfers.client, BYPASS_RUN_DIR=side.path("theirs"))
        check(re.search(f" {side.address} +peer_plain .*BYPASS_RUN_DIR", text), text)
        check(counters(side, transfers.server)["shm_lanes"] == 0, counters(side, transfers.server))
        transfers.end()


@case
def one_end_with_local_off():
    """Its SYN-ACK has no option, so its peer's connections are plain TCP. Each end says why."""
    for role, other in (("server", "client"), ("client", "server")):
        with Neighbours() as side:
            off = {"BYPASS_LOCAL": "off"}
            transfers = Transfers(side, 4, server=off) if role == "server" else Transfers(side, 4, **off)
            transfers.until_paths({"wire"})
            own, others = (side.why(getattr(transfers, end)) for end in (role, other))
            check(re.search(" - +no_shm_link .*: BYPASS_LOCAL=off", own), own)
            check(re.search(r" 10\.9\.0\.\d +peer_plain ", others) and "no_shm_link" not in others, others)
            transfers.end()


@case
def peer_is_killed_under_load():
    """The server is killed with SIGKILL. Its connections end, as over a port. Those of the next server are on shared memory
    again."""
    with Neighbours() as side:
        transfers = Transfers(side, 16)
        for turn in range(10 if LONG else 3):
            transfers.until_paths({"shm"})
            before = transfers.said("serves")
            side.kill(transfers.server, signal.SIGKILL)
            side.until(lambda: counters(side, transfers.client)["shm_links_failed"] == turn + 1, f"the link is lost: {side.why()}")
            transfers.serve()
            side.until(lambda: transfers.said("serves") >= before + transfers.count, "all connections are made anew", 60)
        transfers.until_paths({"shm"})
        check("shm_link_lost" in side.why(transfers.client), side.why())
        transfers.end(may_lose=True)


@case
def links_fail_under_load():
    """Links are made to fail, at either end, under 32 connections. No byte is lost, and no connection ends."""
    with Neighbours() as side:
        transfers = Transfers(side, 32, workers=2)
        ends = [int(pid) for pid in re.findall(r"worker (\d+)", side.output(transfers.server))] + [transfers.client.pid]

        def owners():
            out = side.run("server", os.path.join(BUILD, "bypass"), "stat", "--json", LD_PRELOAD="")
            return {p["pid"]: collections.Counter(p["counters"]) for p in json.loads(out)["processes"] if p["counters"] and p["pid"] in ends}

        def all_have_links():
            now = owners()
            return len(now) == 2 and all(c["shm_links"] > c["shm_links_failed"] for c in now.values()) and now
        for turn in range(500 if LONG else 30):
            now = side.until(all_have_links, f"both ends have a link after {turn} failures: {side.why()}", 30)
            victim = sorted(now)[turn % 2]
            side.run("server", os.path.join(BUILD, "bypass"), "set", victim, "inject=qp-error", LD_PRELOAD="")
        side.until(all_have_links, f"both ends have a link at last: {side.why()}", 30)
        check(all(c["shm_links_failed"] >= (200 if LONG else 12) for c in owners().values()), owners())
        transfers.end()


@case
def idle_ends_sleep():
    """An idle connection on shared memory costs no processor time. Its next bytes wake the reader."""
    with Neighbours() as side:
        fifo, port = side.path("fifo"), free_port()
        os.mkfifo(fifo)
        server = side.start_python("server", "asyncio_echo.py", "server", side.address, port, until="ready")
        client = side.start_python("client", "kept_connections.py", side.address, port, fifo, until="kept")
        side.until(lambda: counters(side, client)["shm_lanes"] == 3, f"all three have a lane: {side.why()}")
        side.until(lambda: is_idle(client) and is_idle(server), "both ends sleep")
        open(fifo, "w").close()
        check(side.end(client, 20) == 0, side.output(client))


run_named(CASES, "as it should be")
