"""Processes that go on in a network namespace of their own.
isolated.py NAME...   (no name: lists them)"""
import os

from harness import Skip, compare, free_port, kill_one, run_named
from sides import WIRES
from veth_wire import ip

CASES = {}


def inhabitants(side):
    """All of the server's namespace, where it has one."""
    if not hasattr(side, "namespaces"):
        return side.inhabitants()
    return [int(pid) for pid in ip("netns", "pids", side.namespaces["ours"]).split()]


def case(name, scenario, *wires):
    for wire in wires:
        CASES[f"{name}_{wire}"] = lambda wire=wire: shown(scenario, wire)


def shown(scenario, wire):
    if os.geteuid() != 0:
        raise Skip("only root has namespaces of its own")

    def with_namespaces(side):
        try:
            return scenario(side)
        finally:
            for pid in inhabitants(side):
                kill_one(pid)
    compare(with_namespaces, WIRES[wire][0], uses_fast_path=False)


def goes(how):
    def scenario(side):
        port = free_port()
        server = side.start_python("server", "in_new_network.py", side.address, port, how, until="listening")
        told = side.python("client", "asks_slowly.py", side.address, port).decode()
        return told, side.end(server), side.output(server)
    return scenario


for how in ("clone", "unshare", "forks"):
    case(how, goes(how), "vhost", "veth")

if __name__ == "__main__":
    run_named(CASES, "as on the kernel")
