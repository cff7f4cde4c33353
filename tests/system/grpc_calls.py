"""gRPC: calls and streams between programs under libbypass, compared with the same on the kernel's sockets.
grpc_calls.py NAME...   (no name: lists them)"""
import json
import os

from harness import BUILD, LONG, Skip, check, free_port, run_named
from sides import leaves_nobody_to_ask, on

SCENARIOS = {}
PROGRAM = os.path.join(BUILD, "bin", "grpc_ends")
MEBIBYTE = 1 << 20
WIRES = ("vhost", "local", "rc", "shm", "veth")


def scenario(*wires):
    return on(SCENARIOS, *wires)


def start(side, address=None):
    """Starts a server. Returns it and its port."""
    if not os.path.exists(PROGRAM):
        raise Skip("libgrpc++-dev is not installed, so there is no grpc_ends")
    port = free_port()
    return side.start("server", PROGRAM, "server", address or side.address, port, until="ready"), port


def ask(side, port, *work):
    """What a client says of its work, without what differs from run to run."""
    said = json.loads(side.run("client", PROGRAM, "client", side.address, port, *work))
    return {name: value for name, value in said.items() if name not in ("per_second", "p50_us")}


@scenario(*WIRES)
def greetings(side):
    """One call at a time; many at once over four connections."""
    _, port = start(side)
    return [ask(side, port, "greeter", 200, 1, 1), ask(side, port, "greeter", 20000 if LONG else 1000, 64, 4)]


@scenario(*WIRES)
def streams(side):
    """Messages of 1 MiB from the server alone, and from both ends."""
    _, port = start(side)
    count = 1000 if LONG else 30
    return [ask(side, port, way, count, MEBIBYTE) for way in ("download", "exchange")]


@scenario("vhost", "local", "rc", "shm")
def an_address_for_all(side):
    """gRPC listens at [::] for IPv4 and IPv6 if it is given 0.0.0.0."""
    _, port = start(side, "0.0.0.0")
    return [ask(side, port, "greeter", 200, 8, 2), ask(side, port, "exchange", 10, 100_000)]


@scenario(*WIRES)
@leaves_nobody_to_ask
def refusals(side):
    """Calls that fail, and a server that ends in peace."""
    server, port = start(side)
    told = ask(side, port, "refusals")
    check(told["refused"] and told["codes"] == [0, 12, 3, 4, 1, 8, 0, 14], told)
    side.kill(server)
    check(server.returncode == 0 and " calls" in side.output(server), side.output(server))
    return told


run_named(SCENARIOS, "same on both sides")
