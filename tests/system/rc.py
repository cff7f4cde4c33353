#!/usr/bin/env python3
"""Connections over RC queue pairs whose links fail: no byte is lost, and no connection ends. Named cases; without arguments
their list."""
import json
import os
import random
import re
import signal
import time

from harness import BUILD, LONG, Side, check, free_port, run_named
from transfers import Transfers, stream_then_compute
from veth_wire import Bridge, ip

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def rc_side():
    return Side("bypass", soft=True, rdma=True)


class Cables(Bridge):
    """A software device at each end of a path that can be cut: two veths and a bridge between them."""

    def __init__(self):
        super().__init__(["server", "client"], ["server", "client"], "verbs:soft0")
        self.address, self.client_address = (self.address_of(role) for role in ("server", "client"))

    def environment(self, role, **extra):
        return super().environment(role, **{"BYPASS_SOFT": "af_packet:veth", "BYPASS_RDMA": "soft0", **extra})

    def cables(self):
        """Each cable as the namespace and the interface where it is cut: the device's own interface, or the other end of
        its veth."""
        return [(self.namespaces[name], interface) for name, interface in
                (("server", "veth"), ("client", "veth"), ("bridge", "server"), ("bridge", "client"))]


class Routed(Cables):
    """The two ends on subnets of their own, and a kernel that forwards between them."""

    def __init__(self, mtu=1500, path_mtu=1500):
        self.mtu, self.path_mtu = mtu, path_mtu
        super().__init__()
        self.title = "routed"

    def build(self):
        for role, subnet in (("server", 77), ("client", 78)):
            self.addresses[role] = f"10.{subnet}.0.1"
            self.pair(role, "veth", "bridge", role)
            for name, interface in ((role, "veth"), ("bridge", role)):
                ip("-n", self.namespaces[name], "link", "set", interface, "mtu", self.mtu)
            ip("-n", self.namespaces["bridge"], "addr", "add", f"10.{subnet}.0.254/24", "dev", role)
            ip("-n", self.namespaces["bridge"], "route", "change", f"10.{subnet}.0.0/24", "dev", role, "mtu", "lock", self.path_mtu)
        self.run("bridge", "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward", LD_PRELOAD="")

    def environment(self, role, **extra):
        gateway = re.sub(r"\.1$", ".254", self.addresses.get(role, ""))
        return super().environment(role, **({"BYPASS_GATEWAY": gateway} if self.is_ours(role) else {}), **extra)


def processes(side):
    """The processes that have the ports of their family, by pid."""
    out = side.run("server", os.path.join(BUILD, "bypass"), "stat", "--json", LD_PRELOAD="")
    return {p["pid"]: p["counters"] for p in json.loads(out)["processes"] if p["counters"]}


def linked(side, after):
    """Waits until both ends have a link. Returns their counters by pid."""
    def both():
        now = processes(side)
        return len(now) == 2 and all(c.get("rdma_links", 0) > c.get("rdma_links_failed", 0) for c in now.values()) and now
    return side.until(both, f"both ends have a link after {after}: {side.why()}", 60)


def lost(side, before):
    """Whether an end has given the link up since `before`."""
    now = processes(side)
    return any(now[pid].get("rdma_links_failed", 0) > before[pid].get("rdma_links_failed", 0) for pid in now)


def drill(side, turns, strike, seed):
    """Calls `strike` that often for ends that have a link, with their counters. Returns the last counters."""
    rng = random.Random(seed)
    for turn in range(1000 if LONG else turns):
        strike(rng, linked(side, f"{turn} times"))
    return linked(side, "the last time")


@case
def link_down_under_load():
    """The cable is cut, at one of four places, until an end gives the link up."""
    with Cables() as side:
        transfers = Transfers(side, 64, workers=2)

        def cut(rng, before):
            namespace, interface = rng.choice(side.cables())
            ip("-n", namespace, "link", "set", interface, "down")
            side.until(lambda: lost(side, before), "an end has lost the link", 30)
            ip("-n", namespace, "link", "set", interface, "up")
        drill(side, 12, cut, seed=5)
        transfers.end()


@case
def server_killed_and_begun_again():
    """A server that has no keeper is killed and begins again. When its port opens, its address is announced. A client that waited for the old
    server then learns that it is gone, with a link and without one."""
    for rdma in ("soft0", "off"):
        with Cables() as side:
            port, count, settings = free_port(), 20, {"BYPASS_RDMA": rdma, "BYPASS_KEEPER": "off"}
            server = side.start_python("server", "idle_readers.py", "server", side.address, port, until="ready", **settings)
            client = side.start_python("client", "idle_readers.py", "client", side.address, port, count, until="waiting", **settings)
            lanes = side.stat(client)["counters"].get("rdma_lanes", 0)
            check(lanes >= count if rdma == "soft0" else lanes == 0, lanes)
            side.kill(server, signal.SIGKILL)
            side.start_python("server", "idle_readers.py", "server", side.address, port, until="ready", **settings)
            check(side.end(client, 10) == 0 and f"ConnectionResetError {count}" in side.output(client), side.output(client))


@case
def frozen_peer_under_load():
    """A process that has a device, and serves its family's ports, is stopped until the other end gives the link up. If that
    end has nothing to send, it is stopped for a second."""
    with rc_side() as side:
        transfers, losses = Transfers(side, 64), []

        def freeze(rng, before):
            victim, wakes = rng.choice(sorted(before)), time.monotonic() + 1
            os.kill(victim, signal.SIGSTOP)
            try:
                side.until(lambda: lost(side, before) or time.monotonic() > wakes, "it has stood still")
                losses.append(lost(side, before))
            finally:
                os.kill(victim, signal.SIGCONT)
        drill(side, 12, freeze, seed=7)
        check(any(losses), "no link was ever lost")
        transfers.end()


@case
def qp_errors_under_load():
    """Queue pairs are forced to error, at either end, under 64 connections."""
    with rc_side() as side:
        transfers = Transfers(side, 64, workers=2)

        def inject(rng, before):
            victim = rng.choice(sorted(before))
            said = side.run("server", os.path.join(BUILD, "bypass"), "set", victim, "inject=qp-error", LD_PRELOAD="").decode()
            check(re.search(r": 1 link to accelerated peers failed|has no link|sleeps", said), said)
        counters = drill(side, 25, inject, seed=3)
        check(all(c["rdma_links_failed"] >= (400 if LONG else 10) for c in counters.values()), counters)
        check(all(c["rdma_lanes"] > 64 for c in counters.values()), counters)
        check("rdma_lost" in side.why(), side.why())
        transfers.end()


@case
def stream_whose_writer_computes():
    with rc_side() as side:
        stream_then_compute(side, "rc")


@case
def low_water_beyond_the_ring():
    """Readers that wait for more bytes than a small ring holds get what the ring holds."""
    with rc_side() as side:
        port, count = free_port(), 60
        server = side.start_python("server", "low_water.py", "server", side.address, port, count, until="ready")
        side.python("client", "low_water.py", "client", side.address, port, count, timeout=120)
        check(side.end(server) == 0, side.output(server))


@case
def little_memory_suffices():
    """More is to be written at once than there is memory for, over TCP and over RC. Writers wait for their turn."""
    for side in (Side("bypass"), rc_side()):
        with side:
            little, port = {"BYPASS_MEMORY": "16M"}, free_port()
            side.start("server", "redis-server", "--bind", side.address, "--protected-mode", "no", "--port", port, "--save", "",
                       "--dir", side.dir, until="Ready to accept", **little)
            out = side.run("client", "redis-benchmark", "-h", side.address, "-p", port, "-t", "set,get", "-c", 500, "-d", 200000,
                           "-n", 5000 if LONG else 1000, "--csv", timeout=200, **little).decode()
            check(re.search('"SET",.*\n"GET",', out), out)


def ask_for_bytes(side, children, unread, read, size, client=None, **server):
    port = free_port()
    side.start_python("server", "asked_bytes.py", "server", side.address, port, children, until="ready", **server)
    out = side.python("client", "asked_bytes.py", "client", side.address, port, unread, read, size, timeout=120, **(client or {}))
    check(out == b"wrong 0\n", out)


@case
def unread_bytes_leave_buffers_to_others():
    """Unread bytes hold the ports' buffers. The buffers grow, and then the bytes move elsewhere."""
    for side in (Side("bypass"), rc_side()):
        with side:
            ask_for_bytes(side, 0, 400, 20, 200_000)


@case
def little_memory_suffices_who_reads():
    """Most connections of both ends are not read, and hold all memory. A connection that is read must not depend on its
    sender's timers. Both ends may also be one process."""
    with Side("bypass") as side:
        ask_for_bytes(side, 0, 150, 20, 1_000_000, client={"BYPASS_MEMORY": "16M"}, BYPASS_MEMORY="16M")
    with Side("bypass") as side:
        out = side.python("server", "asked_bytes.py", "both", side.address, free_port(), 60, 5, 1_000_000, timeout=120,
                          BYPASS_MEMORY="16M")
        check(out == b"wrong 0\n", out)


@case
def little_memory_suffices_a_family():
    """Acknowledgements free memory, and need some themselves, also in a family."""
    with Side("bypass") as side:
        ask_for_bytes(side, 3, 250, 20, 200_000, BYPASS_MEMORY="16M")


@case
def link_fails_with_all_memory_in_use():
    """Both ends have written all that they had memory for when the link fails, and begin to read. The first segments that
    are taken on each connection free memory."""
    with rc_side() as side:
        port, write, read, what = free_port(), side.path("write"), side.path("read"), (100, 300_000)
        ends = [side.start_python(role, "both_write_first.py", role, side.address, port, *what, write, read, until=said,
                                  BYPASS_MEMORY="16M") for role, said in (("server", "ready"), ("client", "connected"))]
        linked(side, "all connections are made")
        open(write, "w").close()
        for end in ends:
            side.wait_for(end, "full")
        before = processes(side)
        told = side.run("server", os.path.join(BUILD, "bypass"), "set", ends[1].pid, "inject=qp-error", LD_PRELOAD="").decode()
        side.until(lambda: lost(side, before), f"the link is lost: {told}")
        open(read, "w").close()
        for end in ends:
            check(side.end(end, 60) == 0 and side.output(end).endswith("wrong 0\n"), side.output(end))


@case
def clients_leave_while_they_are_written_to():
    """Hundreds of connections a second end in this way. It costs no other connection anything, and not the link."""
    with rc_side() as side:
        port, begin = free_port(), side.path("begin")
        server = side.start_python("server", "leaving_clients.py", "server", side.address, port, until="ready")
        client = side.start_python("client", "leaving_clients.py", "client", side.address, port, 30 if LONG else 2, begin)
        linked(side, "a connection is made")
        open(begin, "w").close()
        side.wait_for(client, "connections", 120)
        check(re.search(r"^connections [1-9][0-9]+ errors {}$", side.output(client), re.M), side.output(client))
        for child in (server, client):
            counters = side.stat(child)["counters"]
            check(counters["rdma_links"] == 1 and counters.get("rdma_links_failed", 0) == 0, counters)
            check(counters["rdma_lanes"] > 10, counters)
            check("rdma_lost" not in side.why(child), side.why(child))


@case
def one_end_without_links():
    """The client's setting is off: connections are plain TCP, and the server says why."""
    with rc_side() as side:
        transfers = Transfers(side, 4, BYPASS_RDMA="off")
        check(all(c.get("rdma_lanes", 0) == 0 for c in processes(side).values()), processes(side))
        check(re.search(f"{side.client_address} +peer_plain .*BYPASS_RDMA", side.why(transfers.server)), side.why())
        check(re.search(" - +no_rdma .*: BYPASS_RDMA=off", side.why(transfers.client)), side.why())
        transfers.end()


@case
def peers_behind_a_router_are_asked_where_a_rule_says_so():
    """Both ends need a rule. Without one, or with a rule at one end only, connections are plain TCP and say why."""
    rules = {"server": "rdma 10.78.0.0/24", "client": "rdma 10.77.0.1; kernel udp *"}
    for having in ([], ["server"], ["client"], ["server", "client"]):
        with Routed() as side:
            server, client = ({"BYPASS_RULES": rules[role]} if role in having else {} for role in ("server", "client"))
            transfers = Transfers(side, 4, server=server, **client)
            transfers.until_paths({"rc" if len(having) == 2 else "wire"})
            for role, child, peer in (("server", transfers.server, side.client_address),
                                      ("client", transfers.client, side.address)):
                text = side.why(child)
                if role not in having:
                    check(re.search(f" {peer} +no_rdma .*an rdma rule names", text), text)
                elif len(having) == 1:
                    check(re.search(f" {peer} +peer_plain .*the peer's rules have to name this end", text), text)
            transfers.end()


@case
def routed_path_of_smaller_packets():
    """A path with a smaller MTU than both ports gets no link, until the ports' MTU is as small. No program finds that out
    by losing bytes."""
    rules = {"BYPASS_RULES": "rdma 10.64.0.0/12"}
    for mtu in ({}, {"BYPASS_MTU": "1500"}):
        with Routed(mtu=9000, path_mtu=1500) as side:
            transfers = Transfers(side, 4, server={**rules, **mtu}, **rules, **mtu)
            if mtu:
                transfers.until_paths({"rc"})
            else:
                for child, peer in ((transfers.server, side.client_address), (transfers.client, side.address)):
                    side.until(lambda: re.search(f" {peer} +no_rdma .*BYPASS_MTU", side.why(child)), side.why(child))
                check(all(c.get("rdma_links", 0) == 0 for c in processes(side).values()), processes(side))
            transfers.end()


@case
def forgotten_settings_are_named():
    """An end whose setting does not name the software device says so. Its peer says that this end offers none."""
    forgotten = {"BYPASS_RDMA": "auto"}
    for roles in (["client"], ["server"], ["client", "server"]):
        with rc_side() as side:
            server, client = (forgotten if role in roles else {} for role in ("server", "client"))
            transfers = Transfers(side, 4, server=server, **client)
            transfers.until_paths({"wire"})
            for role, child, peer in (("server", transfers.server, side.client_address),
                                      ("client", transfers.client, side.address)):
                text = side.why(child)
                if role in roles:
                    check(re.search(r" - +no_rdma .*BYPASS_RDMA=auto takes .*verbs:soft0 is not: BYPASS_RDMA=NAME", text), text)
                else:
                    check(re.search(rf" {peer} +peer_plain .*BYPASS_RDMA", text), text)
            transfers.end()


@case
def shown_by_name():
    """bypass ss and bypass stat name the path. Without links it is the wire."""
    with rc_side() as side:
        transfers = Transfers(side, 2)
        transfers.until_paths({"rc"}, transfers.client)
        text = side.run("server", os.path.join(BUILD, "bypass"), "ss", "-e", LD_PRELOAD="").decode()
        check("path:rc" in text, text)
        for child in (transfers.server, transfers.client):
            check("nothing was left to the kernel" in side.why(child), side.why(child))
        transfers.end()


run_named(CASES, "as it should be")
