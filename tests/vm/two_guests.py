"""Two guests on one wire, whose kernels have rdma_rxe: connections of libbypass move to RC queue pairs of these devices.
two_guests.py CASE...   (no name: lists them)"""
import json

from card import long_form
from machine import MAC, Machine
from roce import MODULES, programs
from harness import check, run_named

CASES = {}
ADDRESSES = {"server": "10.66.0.1", "client": "10.66.0.2"}


class Guest(Machine):
    """One of the two; `other` is the one that was made before."""
    built = ("libbypass.so", "libbypass-packet.so", "libbypass-verbs.so", "libbypass-softverbs.so", "libbypass-crash.so",
             "libbypass-toml.so", "bypass", "bin/rc_two_processes")

    def __init__(self, role, other=None):
        self.role, self.other, self.programs = role, other, programs()
        super().__init__([], taps=0, iommu=False, before=Guest.connect_card)

    def connect_card(self):
        first = self if self.other is None else self.other
        ends = [first.path("wire-server"), first.path("wire-client")]
        own, far = ends if self.role == "server" else reversed(ends)
        self.devices = ["-netdev", f"dgram,id=n0,local.type=unix,local.path={own},remote.type=unix,remote.path={far}",
                        "-device", f"e1000e,netdev=n0,mac={MAC[:-1]}{1 if self.role == 'server' else 2},romfile="]

    def build(self):
        super().build()
        self.do("load e1000e && " + " && ".join(f"load {name}" for name in MODULES[2:]))
        self.do(f"ip addr add {ADDRESSES[self.role]}/24 dev eth0; ip link set eth0 up; rdma link add rxe0 type rxe netdev eth0")
        # The program looks for its plugins in the folder above its own.
        self.do("mkdir -p /b/bin; mv /b/rc_two_processes /b/bin/")

    def counters(self):
        """Sums over the guest's processes that run under the library."""
        status, told = self.run_in("/b/bypass stat --json")
        processes = json.loads(told)["processes"] if status == 0 else []
        return {name: sum(each["counters"].get(name, 0) for each in processes) for name in
                ("rdma_links", "rdma_links_failed", "rdma_lanes")}


# The kernel keeps the interface and its address, and rxe0 has RoCE's packets.
ON_THE_PORT = "env LD_PRELOAD=/b/libbypass.so BYPASS_PORT=verbs:soft0 BYPASS_SOFT=af_xdp:eth0 BYPASS_RDMA=rxe0 BYPASS_LOCAL=off"


def refused_raw_packets(guest):
    """rxe has no raw-packet queue pairs: the reason says so, and redis is the kernel's."""
    guest.do(f"back refused env LD_PRELOAD=/b/libbypass.so BYPASS_PORT=verbs:rxe0 redis-server --bind {ADDRESSES['server']} "
             "--protected-mode no --save ''")
    guest.until(lambda: "Ready to accept" in guest.logged("refused"), "redis serves", 60)
    said = guest.do("/b/bypass why")
    check("port_unavailable" in said and "the device has no raw-packet queue pairs" in said, said)
    check("PONG" in guest.do(f"redis-cli -h {ADDRESSES['server']} ping"), "redis does not answer")
    guest.do("kill $(cat /tmp/refused.pid); wait $(cat /tmp/refused.pid)")


def checked_stream(guest):
    """Two processes of the guest on its rxe0, with links of the verbs plugin: each byte is compared, and two queue pairs are made to
    fail."""
    deaths, connections = 2, 4
    size = 750_000 * (deaths + 1)
    command = (f"/b/bin/rc_two_processes --device rxe0 --address {ADDRESSES['server']} --peer {ADDRESSES['server']} --listen 18517 "
               f"--size {size} --count {deaths}")
    guest.do(f"back stream timeout 200 {command} --role server")
    guest.until(lambda: "ready" in guest.logged("stream"), "the server is ready", 30)
    # In one line: a program that ends while the guest's shell reads the next line takes the line's beginning from it.
    ends = [guest.do(f"timeout 200 {command} --role client && wait $(cat /tmp/stream.pid)", 220), guest.logged("stream").replace("ready", "")]
    for said in map(json.loads, ends):
        print(said)
        # rxe may give a link up by itself, too.
        check(said["deaths"] >= deaths and said["bytes"] == connections * size, f"{said}")
        check(sum(said["over_lanes"]) > 0 and said["over_tcp"] + sum(said["over_lanes"]) == said["bytes"], f"{said}")


def answers_in_order(client):
    """How many answers INCR has had; each must be one more than the last one."""
    return int(client.do("grep -v ^bypass /tmp/load | awk '$1 != NR {exit 1} END {print NR}'"))


def await_answers(client, more):
    wanted = answers_in_order(client) + more
    client.until(lambda: answers_in_order(client) >= wanted, f"{more} more answers", 120)


def redis(server, client):
    """A connection moves to a queue pair of both guests' rxe0. The cable is cut under load: it goes on, and moves again."""
    server.do(f"back redis {ON_THE_PORT} redis-server --bind {ADDRESSES['server']} --protected-mode no --save ''")
    server.until(lambda: "Ready to accept" in server.logged("redis"), "redis serves", 60)
    client.do(f"back load {ON_THE_PORT} redis-cli -r 1000000 -h {ADDRESSES['server']} incr n")

    def moved(links):
        both = (server.counters(), client.counters())
        return all(each["rdma_links"] >= links and each["rdma_lanes"] >= links for each in both) and both
    print(client.until(lambda: moved(1), "the connection is on a queue pair", 120))
    await_answers(client, 50)
    failed = client.counters()["rdma_links_failed"]
    server.do("ip link set eth0 down")
    client.until(lambda: client.counters()["rdma_links_failed"] > failed, "the client's link has failed", 60)
    server.do("ip link set eth0 up")
    await_answers(client, 50)
    print(client.until(lambda: moved(2), "the connection is on a queue pair again", 120))
    await_answers(client, 50)


def two_guests():
    long_form()
    with Guest("server") as server:
        refused_raw_packets(server)
        checked_stream(server)
        with Guest("client", server) as client:
            redis(server, client)


CASES["two_guests_rxe"] = two_guests

if __name__ == "__main__":
    run_named(CASES, "served")
