"""Unmodified programs of librdmacm on the software RDMA devices: Debian's rdmacm-utils, in two processes on one wire.
rdma_cm.py CASE...   (no name: lists them)"""
import contextlib
import os
import re
import shutil
import signal
import time

from harness import HERE, LONG, check, run_named
from softverbs import DropIn, Interfaces, Wire

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def addresses(role):
    number = {"server": 1, "client": 2}[role]
    return dict(BYPASS_ADDR=f"10.9.0.{number}/24,fd09::{number}/64")


class Managed(Wire):
    """Each end has an IPv4 and an IPv6 address."""

    def environment(self, role, **extra):
        return super().environment(role, **addresses(role) | extra)


class ManagedByDropIn(DropIn):
    """The same, with the libraries of our folder and without a preload."""

    def environment(self, role, **extra):
        return super().environment(role, **addresses(role) | extra)


def listens(wire, child):
    """Waits until the server has its device: the wire's socket is there, or its peer has come."""
    wire.until(lambda: child.poll() is not None or os.path.exists(wire.path("wire")), f"{child.args[0]} opens its device")


def refused(text):
    """Whether the peer had its device already, but did not listen yet."""
    return re.search("Connection refused|RDMA_CM_EVENT_REJECTED[,;] error:? 8", text) is not None


def asked_too_late(wire, child):
    """rping's thread for events may ask for one more after its main function has closed the channel, and then fails."""
    return child.args[0] == "rping" and "rdma_get_cm_event: Bad file descriptor" in wire.output(child)


def ask(wire, server, client, timeout=30):
    """Runs a client to its end, again if the server was not ready. Returns its exit code and its output."""
    while True:
        child = wire.start("client", *client)
        code = 0 if wire.end(child, timeout) == 0 or asked_too_late(wire, child) else child.returncode
        if code == 0 or not refused(wire.output(child)) or server.poll() is not None:
            return code, wire.output(child)


def converse(wire, server, client, timeout=30):
    """Runs both programs to their ends. Returns the output of both."""
    child = wire.start("server", *server)
    listens(wire, child)
    code, said = ask(wire, child, client, timeout)
    check(code == 0, f"{client}: the client failed with {code}")
    check(wire.end(child, timeout) == 0 or asked_too_late(wire, child), f"{server}: the server failed")
    return wire.output(child), said


@case
def rping():
    """Reads and writes of both ends, validated, over IPv4 and IPv6."""
    with Managed() as wire:
        for address in ("10.9.0.1", "fd09::1"):
            served, said = converse(wire, ["rping", "-s", "-v", "-C", 5, "-a", address], ["rping", "-c", "-V", "-v", "-C", 5, "-a", address])
            check(said.count("ping data: rdma-ping-") == 5, f"the client saw {said}")
            check(served.count("server ping data: rdma-ping-") == 5, f"the server saw {served}")


@case
def senders_that_are_not_there():
    """Answers to requests from addresses where nobody is wait for the address. The answers to others go past them."""
    with Interfaces("af_packet") as wire:
        server = wire.start("server", "stdbuf", "-oL", "rping", "-s", "-P", "-d", "-a", "10.9.0.1", until="rdma_listen")
        for _ in range(4):
            wire.python("client", "spoofed_requests.py", "veth-client", wire.macs["server"], "10.9.0.1", 200)
        # Each of so many addresses is asked for during 0.3 s: one behind the other they would take a minute.
        code, said = ask(wire, server, ["rping", "-c", "-V", "-v", "-C", 3, "-a", "10.9.0.1"], 20)
        check(code == 0 and said.count("ping data: ") == 3, f"the client ended with {code}: {said}")
        check(server.poll() is None, "the server has ended")


LOADED_LATER = """
import ctypes, os
library = ctypes.CDLL('librdmacm.so.1', mode=os.RTLD_LOCAL)
library.rdma_create_event_channel.restype = ctypes.c_void_p
channel, number = library.rdma_create_event_channel(), ctypes.c_void_p()
assert channel and library.rdma_create_id(ctypes.c_void_p(channel), ctypes.byref(number), None, 0x106) == 0
assert library.rdma_destroy_id(number) == 0
"""


@case
def drop_in_library():
    """librdmacm.so.1 of our folder: for programs that are linked with it, and for those that load it by dlopen()."""
    with ManagedByDropIn() as wire:
        loaded = wire.run("server", "ldd", shutil.which("rping")).decode()
        check(f"librdmacm.so.1 => {wire.folder}/" in loaded, loaded)
        converse(wire, ["rping", "-s", "-v", "-C", 5, "-a", "10.9.0.1"], ["rping", "-c", "-V", "-v", "-C", 5, "-a", "10.9.0.1"])
        converse(wire, ["rstream", "-S", 1024, "-C", 50], ["rstream", "-s", "10.9.0.1", "-S", 1024, "-C", 50])
        wire.run("server", "/usr/bin/python3", "-c", LOADED_LATER)


@case
def programs():
    """Connections and datagrams by events and by calls that wait, rsockets, and many connections at once."""
    with Managed() as wire:
        for server, client, word in (
                (["ucmatose", "-c", 4], ["ucmatose", "-c", 4, "-s", "10.9.0.1"], "data transfers complete"),
                (["ucmatose", "-c", 2, "-C", 5, "-S", 3000], ["ucmatose", "-c", 2, "-C", 5, "-S", 3000, "-s", "10.9.0.1"], "return status 0"),
                (["ucmatose", "-b", "fd09::1", "-m"], ["ucmatose", "-s", "fd09::1", "-m"], "return status 0"),
                (["udaddy", "-c", 2], ["udaddy", "-c", 2, "-s", "10.9.0.1"], "data transfers complete"),
                (["rdma_server"], ["rdma_client", "-s", "10.9.0.1"], "rdma_client: end 0"),
                (["rstream", "-S", 1024, "-C", 50], ["rstream", "-s", "10.9.0.1", "-S", 1024, "-C", 50], "custom"),
                (["riostream", "-S", 1024, "-C", 50], ["riostream", "-s", "10.9.0.1", "-S", 1024, "-C", 50], "custom")):
            said = converse(wire, server, client)[1]
            check(word in said, f"{client} said {said}")


@case
def copies():
    """rcopy's file is the same at the other end."""
    with Managed() as wire:
        content = os.urandom(300_000)
        with open(wire.path("in"), "wb") as file:
            file.write(content)
        server = wire.start("server", "rcopy")
        listens(wire, server)
        code, said = ask(wire, server, ["rcopy", wire.path("in"), f"10.9.0.1:{wire.path('out')}"])
        check(code == 0, said)
        wire.until(lambda: open(wire.path("out"), "rb").read() == content, "the copy is complete")


@case
def many_connections():
    """cmtime opens fifty at once; its server serves two clients after each other."""
    with Managed() as wire:
        server = wire.start("server", "cmtime", "-c", 50)
        listens(wire, server)
        for _ in range(2):
            code, said = ask(wire, server, ["cmtime", "-s", "10.9.0.1", "-c", 50])
            check(code == 0 and "disconnect" in said, said)


@case
def refusals():
    """Nobody listens; nobody answers; no device has the address; groups."""
    with Managed() as wire:
        server = wire.start("server", "rping", "-s", "-P")
        listens(wire, server)
        code, said = ask(wire, server, ["rping", "-c", "-a", "10.9.0.1", "-C", 1])
        check(code == 0, said)
        for address, port, answer in (("10.9.0.1", 4, "RDMA_CM_EVENT_REJECTED, error 8"), ("10.9.0.9", 4, "RDMA_CM_EVENT_ADDR_ERROR, error -110"),
                                      ("192.168.7.7", 4, "RDMA_CM_EVENT_ADDR_ERROR, error -19")):
            client = wire.start("client", "rping", "-c", "-a", address, "-p", port, "-C", 1)
            check(wire.end(client) != 0 and answer in wire.output(client), f"{address}: {wire.output(client)}")
        client = wire.start("client", "mckey", "-m", "239.1.1.1", "-b", "10.9.0.2")
        check(wire.end(client) != 0, "a group was joined")
        said = wire.output(client)
        check("failure joining: Function not implemented" in said and "no subnet manager" in said, said)


# Of a server without a client: main() and the thread for events.
RPINGS_THREADS = 2


def holdings(pid):
    """Number of a program's own threads, and of its process's descriptors."""
    own = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):  # it has ended since it was listed
            own += open(f"/proc/{pid}/task/{thread}/comm").read() == "rping\n"
    return own, len(os.listdir(f"/proc/{pid}/fd"))


@case
def killed_peers():
    """Clients that are killed leave nothing at a server that goes on, and a killed server nothing at its client."""
    with Managed() as wire:
        server = wire.start("server", "rping", "-s", "-P", "-v")
        listens(wire, server)

        def one_more():
            code, said = ask(wire, server, ["rping", "-c", "-a", "10.9.0.1", "-C", 2])
            check(code == 0, said)

        one_more()
        wire.until(lambda: holdings(server.pid)[0] == RPINGS_THREADS, "the first client's threads end")
        before = holdings(server.pid)
        for _ in range(3):
            client = wire.start("client", "rping", "-c", "-a", "10.9.0.1", "-v")
            wire.until(lambda: client.poll() is not None or "rdma-ping-3" in wire.output(client) or refused(wire.output(client)), "pings come")
            wire.kill(client, signal.SIGKILL)
            wire.until(lambda: holdings(server.pid) == before, f"the server has what it had: {before}, not {holdings(server.pid)}")
        one_more()
        wire.until(lambda: holdings(server.pid) == before, f"the server has what it had: {before}")
        client = wire.start("client", "rping", "-c", "-a", "10.9.0.1", "-v")
        wire.wait_for(client, "rdma-ping-3")
        wire.kill(server, signal.SIGKILL)
        check(wire.end(client) != 0 or "DISCONNECT" in wire.output(client), "the client does not know")


def gave_up(wire, server):
    """rping's server ends by itself if a client goes between its request and the connection (REJECTED, on Linux as well)."""
    return server.poll() is not None and "RDMA_CM_EVENT_REJECTED" in wire.output(server)


@case
def killed_at_any_moment():
    """Clients that are killed at moments spread over their life, from the start of the device to the end of the connection,
    leave nothing at the server. If the server is killed so and another one comes, the client ends: it knows of its loss, or
    its request reaches the other one. (Alone it would repeat the request for a minute, as on Linux.)"""
    moments = 100 if LONG else 10
    with Managed() as wire:
        def serve():
            server = wire.start("server", "rping", "-s", "-P")
            listens(wire, server)
            begun = time.monotonic()
            code, said = ask(wire, server, ["rping", "-c", "-a", "10.9.0.1", "-C", 2])
            check(code == 0, said)
            wire.until(lambda: holdings(server.pid)[0] == RPINGS_THREADS, "the client's threads end")
            return server, holdings(server.pid), time.monotonic() - begun

        server, before, life = serve()
        for moment in range(moments):
            client = wire.start("client", "rping", "-c", "-a", "10.9.0.1", "-C", 2)
            time.sleep(life * moment / moments)
            wire.kill(client, signal.SIGKILL)
            wire.until(lambda: gave_up(wire, server) or holdings(server.pid) == before, f"moment {moment}: the server has what it had")
            if server.poll() is not None:
                server, before, _ = serve()
        wire.kill(server, signal.SIGKILL)
        for moment in range(moments):
            server = wire.start("server", "rping", "-s", "-P")
            client = wire.start("client", "rping", "-c", "-a", "10.9.0.1", "-C", 2)
            time.sleep(life * moment / moments)
            wire.kill(server, signal.SIGKILL)
            server = wire.start("server", "rping", "-s", "-P")
            wire.end(client, 60)
            wire.kill(server, signal.SIGKILL)


@case
def calls():
    """What the calls beneath librdmacm return; descriptors that are given to others; forks; nothing without a device."""
    with Managed() as wire:
        wire.run("server", "/usr/bin/python3", os.path.join(HERE, "peers", "rdma_cm_calls.py"), "with")
        if not os.path.exists("/dev/infiniband/rdma_cm"):
            wire.run("server", "/usr/bin/python3", os.path.join(HERE, "peers", "rdma_cm_calls.py"), "without", BYPASS_SOFT=None)


if __name__ == "__main__":
    run_named(CASES, "shown")
