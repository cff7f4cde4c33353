"""Many small requests at a time over UD queue pairs of the software RDMA devices. The client checks each answer, and that
each request was run once.   request_loop.py CASE...   (no name: lists them)"""
import json
import os

from harness import BUILD, LONG, check, free_port, run_named
from softverbs import DropIn, Interfaces, Wire

CASES = {}
PROGRAM = os.path.join(BUILD, "bin", "request_loop")


def case(function):
    CASES[function.__name__] = function
    return function


def ask(wire, count, **shape):
    """What the client says of `count` requests. `shape`: the program's options."""
    count *= 20 if LONG else 1
    options = [word for name, value in shape.items() for word in (f"--{name}", value)]
    command = [PROGRAM, "--listen", free_port(), "--count", count, *options]
    server = wire.start("server", *command, "--role", "server", until="ready")
    said = json.loads(wire.run("client", *command, "--role", "client"))
    check(wire.end(server) == 0 and said["requests"] == count, f"{said} {wire.output(server)}")
    return said


@case
def one_at_a_time():
    with Wire() as wire:
        ask(wire, 2000)


@case
def many_at_a_time():
    """Eight sessions of eight requests, over two queue pairs of each end, on each kind of wire."""
    shape = dict(sessions=8, window=8, endpoints=2)
    for make in (Wire, lambda: Wire("virtio"), DropIn, lambda: Interfaces("tap")):
        with make() as wire:
            ask(wire, 20_000, **shape)


@case
def large_packets():
    """Packets as large as the path takes, which are not sent inline."""
    with Wire() as wire:
        ask(wire, 5000, sessions=4, window=8, size=4096)


@case
def lost_packets():
    """The server loses each twentieth packet: requests are sent again, and none is run twice."""
    with Wire() as wire:
        said = ask(wire, 5000, sessions=8, window=8, endpoints=3, lose=20)
        check(said["sent_again"] > 0 and said["lost"] > 0, said)


@case
def more_than_the_queue_has_room_for():
    """2,048 requests at a time come to a receive queue of 256 postings. What finds no posting is lost, and sent again."""
    with Wire() as wire:
        ask(wire, 20_000, sessions=64, window=32)


run_named(CASES, "shown")
