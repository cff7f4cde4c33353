"""Unmodified programs of librdmacm on the software RDMA devices: Debian's rdmacm-utils, in two processes on one wire.
rdma_cm.py CASE...   (no name: lists them)"""
import os

from harness import check, run_named
from softverbs import Wire

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Managed(Wire):
    """Each end has an IPv4 and an IPv6 address."""

    def environment(self, role, **extra):
        number = {"server": 1, "client": 2}[role]
        return super().environment(role, **dict(BYPASS_ADDR=f"10.9.0.{number}/24,fd09::{number}/64") | extra)


def listens(wire, child):
    """Waits until the server has its device: the wire's socket is there, or its peer has come."""
    wire.until(lambda: child.poll() is not None or os.path.exists(wire.path("wire")), f"{child.args[0]} opens its device")


def refused(text):
    """Whether the peer had its device already, but did not listen yet."""
    return "RDMA_CM_EVENT_REJECTED, error 8" in text or "Connection refused" in text or "event: RDMA_CM_EVENT_REJECTED, error: 8" in text


def ask(wire, server, client, timeout=30):
    """Runs a client to its end, again if the server was not ready. Returns its exit code and its output."""
    while True:
        child = wire.start("client", *client)
        code = wire.end(child, timeout)
        if code == 0 or not refused(wire.output(child)) or server.poll() is not None:
            return code, wire.output(child)


def converse(wire, server, client, timeout=30):
    """Runs both programs to their ends. Returns the output of both."""
    child = wire.start("server", *server)
    listens(wire, child)
    code, said = ask(wire, child, client, timeout)
    check(code == 0, f"{client}: the client failed with {code}")
    check(wire.end(child, timeout) == 0, f"{server}: the server failed")
    return wire.output(child), said


@case
def rping():
    """Reads and writes of both ends, validated, over IPv4 and IPv6."""
    with Managed() as wire:
        for address in ("10.9.0.1", "fd09::1"):
            served, said = converse(wire, ["rping", "-s", "-v", "-C", 5, "-a", address], ["rping", "-c", "-V", "-v", "-C", 5, "-a", address])
            check(said.count("ping data: rdma-ping-") == 5, f"the client saw {said}")
            check(served.count("server ping data: rdma-ping-") == 5, f"the server saw {served}")


run_named(CASES, "shown")
