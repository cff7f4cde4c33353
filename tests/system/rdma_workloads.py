"""What is built on verbs, unmodified, over the software RDMA devices: UCX, libfabric, and perftest's connections by the
connection manager.   rdma_workloads.py CASE...   (no name: lists them)"""
import os
import re
import signal

from harness import check, free_port, run_named
from rdma_cm import Managed
from softverbs import LIBRARY, Wire, listens
from veth_wire import Namespaces, ip

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def ucx(transport, *tests):
    """Runs ucx_perftest for each (test, bytes, iterations). UCX's log must name the transport and the device."""
    choice = dict(UCX_TLS=f"{transport}_v", UCX_NET_DEVICES="soft0:1", UCX_LOG_LEVEL="info", BYPASS_MTU="")
    with Wire() as wire:
        numbered = {role: choice | dict(BYPASS_ADDR=f"10.9.0.{number}/24") for number, role in enumerate(("server", "client"), 1)}
        for test, size, count in tests:
            port = free_port()
            server = wire.start("server", "ucx_perftest", "-p", port, **numbered["server"])
            wire.until(lambda: server.poll() is not None or listens(port, server.pid), "ucx_perftest listens")
            client = wire.start("client", "ucx_perftest", "127.0.0.1", "-p", port, "-t", test, "-s", size, "-n", count, "-w", 10,
                                **numbered["client"])
            check(wire.end(client, 60) == 0, f"{test}: {wire.output(client)}")
            check(wire.end(server, 60) == 0, f"{test}: {wire.output(server)}")
            said = wire.output(client)
            check("Final:" in said and f"({transport}_verbs/soft0:1" in said, f"{test} over {transport}: {said}")


@case
def ucx_over_rc():
    """Small and large messages (eager, and by rendezvous with reads), writes, reads and atomics."""
    ucx("rc", ("tag_lat", 8, 500), ("tag_bw", 4096, 500), ("tag_bw", 1 << 20, 20), ("stream_bw", 65536, 50), ("ucp_put_bw", 4096, 500),
        ("ucp_get", 4096, 100), ("ucp_fadd", 8, 100), ("ucp_cswap", 8, 100))


@case
def ucx_over_ud():
    """UCX repairs losses on UD by itself; it drops datagrams whose completion does not tell of the peer's kind of header."""
    ucx("ud", ("tag_lat", 8, 500), ("tag_bw", 4096, 500), ("tag_bw", 1 << 20, 10))


class Kept(Namespaces):
    """Each role's device lies on an interface that its kernel keeps: libfabric looks for devices by the addresses of the
    kernel's interfaces."""
    preloaded = LIBRARY

    def __init__(self):
        super().__init__("", ["server", "client"])

    def place(self, role):
        return role

    def is_ours(self, _role):
        return True

    def address_of(self, role):
        return {"server": "10.9.0.1", "client": "10.9.0.2"}[role]

    def build(self):
        self.pair("server", "roce", "client", "roce")
        for role in self.namespaces:
            ip("-n", self.namespaces[role], "addr", "add", f"{self.address_of(role)}/24", "dev", "roce")
        for role in self.namespaces:
            self.until(lambda: " state UP " in ip("-n", self.namespaces[role], "link", "show", "roce"), f"the {role}'s carrier")

    def environment(self, role, **extra):
        env = super().environment(role)
        del env["BYPASS_PORT"], env["BYPASS_ADDR"]
        return env | dict(BYPASS_SOFT="af_packet:roce") | extra


def is_cut_off(kind, said):
    """ofi_rxm's thread for connections closes them when the peer has ended. fi_pingpong, which then waits for the peer's last word,
    may find its receives flushed. All measurements are complete by then."""
    return kind == "rdm" and "Work Request Flushed Error" in said


@case
def libfabric():
    """fi_pingpong checks what it receives: connections, datagrams, and the reliable datagrams that MPI libraries use."""
    with Kept() as wire:
        for provider, kind, rows in (("verbs", "msg", 6), ("verbs", "dgram", 3), ("verbs;ofi_rxm", "rdm", 6)):
            command = ("fi_pingpong", "-c", "-p", provider, "-e", kind, "-I", 20)
            server = wire.start("server", *command)
            wire.until(lambda: server.poll() is not None or listens(47592, server.pid), "fi_pingpong listens")
            client = wire.start("client", *command, "10.9.0.1")
            for end in (client, server):
                code, said = wire.end(end, 60), wire.output(end)
                check(said.count("=20") == rows and (code == 0 or is_cut_off(kind, said)), f"{provider} {kind}: {code}, {said}")


def manages_connections(pid):
    """Whether a process has the thread that serves librdmacm: it is about to listen."""
    try:
        return any(open(f"/proc/{pid}/task/{task}/comm").read() == "soft-cm\n" for task in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return False  # a thread or the process has ended meanwhile


def converse(wire, *command):
    """Runs both ends, again if the client came before the server listened: perftest then crashes (it goes on with an id that it
    has destroyed), and its server tells nobody that it listens."""
    while True:
        numbered = (*command, "-R", "-n", 100, "-p", free_port())
        server = wire.start("server", *numbered)
        wire.until(lambda: server.poll() is not None or manages_connections(server.pid), f"{command} is about to listen")
        client = wire.start("client", *numbered, "10.9.0.1")
        code, said = wire.end(client), wire.output(client)
        if code == 0 or not re.search("EVENT_(REJECTED|UNREACHABLE); error: [18]", said):
            break
        wire.kill(server, signal.SIGKILL)
    check(code == 0 and "rdma_cm QPs" in said, f"{command}: {code}, {said}")
    check(wire.end(server) == 0, f"{command}: {wire.output(server)}")


@case
def perftest_by_rdma_cm():
    """perftest's -R lets librdmacm connect the queue pairs: RC and UD, polling and by events."""
    with Managed() as wire:
        for command in (("ib_send_bw",), ("ib_write_lat",), ("ib_read_bw",), ("ib_atomic_lat",), ("ib_send_lat", "-c", "UD"),
                        ("ib_send_bw", "-e"), ("ib_write_bw", "-q", 4)):
            converse(wire, *command)


run_named(CASES, "shown")
