"""Where a scenario, a function of a side, runs: the kinds of wire between its server and its client."""
from harness import LONG, Side, compare
from veth_wire import Shared, Veth


def vhost(server_port, **options):
    return lambda: Side("bypass", server_port=server_port, **options)


def veth(port, ours):
    return lambda: Veth(port, ours=ours)


def shared(wire, ours):
    return lambda: Shared(wire, ours=ours)


INTERFACES = ("netdev:veth-a", "af_xdp:veth-a") if LONG else ("netdev:veth-a",)
WIRES = {
    "local": [lambda: Side("local")],  # both ends are ours, and on one host
    "vhost": [vhost("vhost")],  # both ends are ours, the server's the one that is named
    "virtio": [vhost("virtio")],
    "verbs": [vhost("vhost", soft=True)],
    "shm": [vhost("vhost", shm=True)],  # their connections move to memory that both ends share
    "rc": [vhost("vhost", soft=True, rdma=True)],  # their connections move to RC queue pairs
    "veth": [veth(port, ours) for port in INTERFACES for ours in ("server", "client")],  # the other end is the kernel's
    "shared": [shared(wire, ours) for wire in (("af_packet", "af_xdp") if LONG else ("af_packet",)) for ours in ("server", "client")],
    "shared_server": [shared(wire, "server") for wire in ("af_packet", "af_xdp")],  # what is done to our server
}


def leaves_nobody_to_ask(function):
    """For a scenario of datagrams, or one whose processes have ended: at the end it cannot be seen any more whether they
    shared memory."""
    function.leaves_nobody_to_ask = True
    return function


def served_by_another_user(function):
    """For a scenario whose server runs as another user than its clients, as packaged servers do under root. Such processes
    share no memory."""
    function.leaves_nobody_to_ask = True
    return function


def on(cases, *wires):
    """Makes a case of the scenario for each of `wires`, with the names of the scenario and the wire."""
    def register(function):
        for wire in wires:
            asked = not getattr(function, "leaves_nobody_to_ask", False)
            cases[f"{function.__name__}_{wire}"] = lambda wire=wire: compare(function, *WIRES[wire], uses_fast_path=asked)
        return function
    return register
