"""Two guests on one wire, whose kernels have rdma_rxe: connections of libbypass move to RC queue pairs of these devices.
two_guests.py CASE...   (no name: lists them)"""
import json

from card import long_form
from joined_guests import ADDRESSES, Joined
from harness import check, run_named

CASES = {}


class Guest(Joined):
    built = ("libbypass.so", "libbypass-packet.so", "libbypass-verbs.so", "libbypass-softverbs.so", "libbypass-crash.so",
             "libbypass-toml.so", "bypass", "bin/rc_two_processes")

    def build(self):
        super().build()
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

    def on_a_link():
        """Whether both ends have a link that has not failed: rxe may give one up by itself."""
        both = (server.counters(), client.counters())
        return all(each["rdma_links"] > each["rdma_links_failed"] and each["rdma_lanes"] > 0 for each in both) and both
    print(client.until(on_a_link, "the connection is on a queue pair", 120))
    await_answers(client, 50)
    before = client.until(on_a_link, "the connection is on a queue pair before the cut", 120)
    server.do("ip link set eth0 down")

    def one_failed():
        """The end that waits for no acknowledgement hears of the failure by TCP, once the cable is back."""
        return any(guest.counters()["rdma_links_failed"] > each["rdma_links_failed"] for guest, each in zip((server, client), before))
    client.until(one_failed, "a link has failed", 60)
    server.do("ip link set eth0 up")
    await_answers(client, 50)
    print(client.until(on_a_link, "the connection is on a queue pair again", 120))
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
