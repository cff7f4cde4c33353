"""What the scenarios of connections within a host use: connections between two agents."""
import base64
import contextlib
import os
import signal
import struct
import time

from agents import Agent
from harness import Failure, Side, Skip, check, free_port


def cases():
    """A file's cases, and two decorators: `case` makes a case of a function, and `same` makes a case whose result must be
    the kernel's."""
    found = {}

    def case(function):
        found[function.__name__] = function
        return function

    def same(scenario):
        def compared():
            with Side("kernel") as side:
                expected = scenario(side)
            with Side("local") as side:
                result = scenario(side)
            check(result == expected, f"the sides differ:\nkernel: {expected}\nlocal:  {result}")
        found[scenario.__name__] = compared
        return scenario

    return found, case, same


def listener(server, name="l", address="127.0.0.1", backlog=128):
    port = free_port()
    server(f"{name} = socket.socket(); {name}.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)")
    server(f"{name}.bind(('{address}', {port})); {name}.listen({backlog})")
    return port


def connected(server, client, shared=True, name="s", address="127.0.0.1"):
    """Makes one connection, `name` at both ends. If it can be, both directions go through shared memory at the end."""
    port = listener(server, address=address)
    client(f"{name} = bounded(socket.create_connection(('{address}', {port})))")
    server(f"{name} = bounded(l.accept()[0]); l.close()")
    warm(server, client, shared, name)
    return port


def warm(server, client, shared=True, name="s"):
    """Sends bytes both ways until the connection is paired, and once more, so that both directions have moved."""
    wanted = shared and server.side.name == "local"
    for _ in range(100):
        for one, other in ((client, server), (server, client)):
            one(f"{name}.sendall(b'warm')")
            check(other(f"take({name}, 4)") == "b:warm", "the warm-up's bytes are others")
        if not wanted or (moved(server) and moved(client)):
            return
        time.sleep(0.01)
    raise Failure(f"it did not move to shared memory: {server.sockets()} {client.sockets()} {server.side.why()}")


def moved(agent):
    return any(s["info"]["tx_bytes"] and s["info"]["rx_bytes"] for s in agent.shared())


@contextlib.contextmanager
def pair(side, shared=True, **extra):
    """A server's agent and a client's, and a connection `s` between them."""
    server, client = Agent(side, "server", **extra), Agent(side, "client", **extra)
    connected(server, client, shared)
    yield server, client


def memory_mapped(agent):
    """The mappings and descriptors of shared memory that a process has."""
    maps = open(f"/proc/{agent.pid}/maps").read().count("bypass-connection")
    numbers = 0
    for fd in os.listdir(f"/proc/{agent.pid}/fd"):
        with contextlib.suppress(OSError):
            numbers += "bypass-connection" in os.readlink(f"/proc/{agent.pid}/fd/{fd}")
    return [maps, numbers]


def kill(agent):
    os.kill(agent.pid, signal.SIGKILL)
    agent.child.wait()


def needs_root():
    if os.geteuid() != 0:
        raise Skip("it takes root")


def meeting_name(client, port, own):
    """The name that src/fastpath/shm/rendezvous/rendezvous.cc makes: a path, which exists while an end waits there."""
    network = client("socket.socket().getsockopt(socket.SOL_SOCKET, 71, 8).hex()")
    address = bytes(10) + b"\xff\xff\x7f\0\0\1"
    ends = b"".join(address + struct.pack(">H", p) for p in sorted((port, own)))
    digits = base64.urlsafe_b64encode(bytes.fromhex(network) + ends).decode().rstrip("=")
    return os.path.join(client.side.path("run"), "meet-" + digits)


def shared_ever(agent):
    return agent.side.stat(agent.child)["counters"].get("local_shared", 0)


def until_counted(agent, count):
    return agent.side.until(lambda: shared_ever(agent) >= count, f"{count} connections had shared memory: "
                            f"{agent.side.why()}", 5)
