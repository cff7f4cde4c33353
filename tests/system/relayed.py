"""What a process finds that has given root up beside a root master on the port, and listens and connects there by a relay.
relayed.py NAME...   (no name: lists them)"""
import os

from harness import Skip, check, compare, free_port, kill_one, run_named
from pumped import inhabitants, named
from sides import WIRES

CASES = {}
RELAY = "bypass-relay"


def run(side, *steps, during=None):
    """Returns what the process has said."""
    port, free = free_port(), free_port()
    os.chmod(side.dir, 0o755)
    server = side.start_python("server", "relayed_steps.py", side.address, port, free, *steps, until="listening")
    client = side.start_python("client", "relayed_client.py", side.address, port)
    if during is not None:
        during(server)
    ended = side.end(server), side.end(client)
    check(ended == (0, 0), f"{side.title}: {side.output(server)}")
    side.until(lambda: named(side, RELAY) + named(side, "bypass-pump") == [], "relays and pumps end with the program")
    return ended, side.output(server)


def case(function):
    def with_wire(wire):
        if os.geteuid() != 0:
            raise Skip("only root gives root up")
        return function(wire)
    for wire in ("vhost", "veth"):
        CASES[f"{function.__name__}_{wire}"] = lambda wire=wire: with_wire(wire)


def end_all(side):
    for pid in inhabitants(side) if side.name != "kernel" else ():
        kill_one(pid)


def on_one(wire, scenario):
    """On a side of ours only."""
    with WIRES[wire][0]() as side:
        try:
            scenario(side)
        finally:
            end_all(side)


def compared(*steps):
    def scenario(side):
        try:
            return run(side, *steps)
        finally:
            end_all(side)
    return lambda wire: compare(scenario, WIRES[wire][0], uses_fast_path=False)


def steps(name, *which):
    function = compared(*which)
    function.__name__ = name
    case(function)


steps("listens", "listener", "closes", "forked")
steps("connects", "refused", "connects", "blocks")
steps("low_port", "low")


@case
def killed(wire):
    def scenario(side):
        def kill(server):
            side.wait_for(server, "kill")
            check(side.soon(lambda: "  relayed  " in side.why(), 5), side.why())
            relays = named(side, RELAY)
            check(len(relays) == 1, f"there are {len(relays)} relays")
            os.kill(relays[0], 9)
        _, said = run(side, "killed", during=kill)
        for line in ("accept EINVAL EINVAL", "connect ECONNREFUSED", "stands b'answer' done EADDRNOTAVAIL", "bye done"):
            check(line in said, f"no {line!r} in:\n{said}")
    on_one(wire, scenario)


@case
def hostile(wire):
    def scenario(side):
        _, said = run(side, "hostile", "elsewhere")
        for line in ("bad record 0 None", "bad record 1 EINVAL", "bad record 29 EINVAL", "bad record 5000 EINVAL",
                     "kinds ['EINVAL', 'EINVAL', 'EINVAL']", "listens EINVAL ENETUNREACH EADDRNOTAVAIL EADDRNOTAVAIL", "many 63 {'ENOBUFS'}",
                     "wrong ['EINVAL', 'EINVAL', 'EINVAL', 'EADDRNOTAVAIL', 'EADDRNOTAVAIL', 'EADDRNOTAVAIL', 'EINVAL']",
                     "goes on b'answer' done", "serves b'answer' done", "bye done"):
            check(line in said, f"no {line!r} in:\n{said}")
        check("elsewhere EINVAL" in said or "no namespaces" in said, said)
    on_one(wire, scenario)


@case
def confined(wire):
    """A child that forbids itself calls of the network has no relay that makes them."""
    def scenario(side):
        _, said = run(side, "confined")
        check("has 1 0 0" in said, said)
    on_one(wire, scenario)


if __name__ == "__main__":
    run_named(CASES, "as it is to be")
