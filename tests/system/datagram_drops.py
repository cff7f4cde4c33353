"""Datagram sockets that a root master has bound, inherited by children that give root's rights up.
datagram_drops.py NAME...   (no name: lists them)"""
import os
import signal

from harness import Skip, check, children_of, free_port, run_named
from masters import check_apart
from rights import arena_descriptors, cases, drivers, user_of

CASES = {}
case = cases(CASES)


class Master:
    def __init__(self, side, how, *children):
        self.side, self.port, self.made = side, free_port(), 0
        self.child = side.start_python("server", "datagrams_beside.py", side.address, self.port, side.dir, how, *children, until="bound")

    def make(self):
        self.made += 1
        open(self.side.path(f"child{self.made}"), "w").close()
        self.side.wait_for(self.child, f"made {self.made}")

    def ask(self, count):
        return self.side.start_python("client", "asks_by_datagrams.py", self.side.address, self.port, count, until="asked")

    def await_link(self):
        """Waits until an answer comes. If another process has just opened the port, the link may not be up yet, and what is sent
        meanwhile is lost."""
        self.side.python("client", "udp_echo.py", "client", self.side.address, self.port, 3, timeout=60)

    def check_answered(self, client):
        check(self.side.end(client, 60) == 0, self.side.output(client))

    def send_while_nobody_receives(self, count):
        """When this returns, the datagrams have come to the library."""
        before = self.side.count("udp_in")
        client = self.ask(count)
        self.side.until(lambda: self.side.count("udp_in") >= before + count, "the datagrams have come")
        return client


@case("vhost", "veth")
def workers_have_memory_of_their_own(side):
    """Two workers share one socket and one driver. Datagrams that come while no worker lives wait for the next worker."""
    master = Master(side, "pause", "works", "works", "works")
    master.make()
    master.await_link()
    master.make()
    master.check_answered(master.ask(20))
    check(65534 in drivers(side), f"no driver serves the workers: {side.why()}")
    check_apart(side, master.child)
    for worker in children_of(master.child.pid):
        os.kill(worker, signal.SIGKILL)
    late = master.send_while_nobody_receives(5)
    master.make()
    master.check_answered(late)
    check_apart(side, master.child)


@case("veth")
def datagrams_wait_for_the_first_worker(side):
    """Datagrams that came before the worker gave root up are neither lost nor doubled."""
    master = Master(side, "pause", "works")
    early = master.send_while_nobody_receives(5)
    master.make()
    master.check_answered(early)
    check_apart(side, master.child)


@case("veth")
def master_gives_root_up_for_another_user(side):
    """The child is the only process of its family that is left. It has no way to the workers' memory."""
    master = Master(side, "leave", "works")
    master.make()
    side.wait_for(master.child, "left")
    check(user_of(master.child.pid) == 65533, "the master is root's")
    check(arena_descriptors(master.child.pid) == [], "the master has descriptors of the workers' memory")
    check_apart(side, master.child, user=65533)
    master.check_answered(master.ask(20))


def check_masters(side, master):
    """The master answers, through its own port."""
    side.until(lambda: not drivers(side), "the port is the master's")
    master.await_link()
    master.check_answered(master.ask(20))
    check(not drivers(side), f"the port has a driver: {drivers(side)}")
    check_apart(side, master.child)


@case("vhost", "veth")
def helper_beside_one_that_receives(side):
    master = Master(side, "receive", "pauses")
    master.make()
    side.wait_for(master.child, "serves")
    check_masters(side, master)


@case("vhost", "veth")
def helper_of_one_that_has_received(side):
    """The port never leaves the master."""
    master = Master(side, "receive once", "pauses")
    master.await_link()
    side.wait_for(master.child, "has received")
    master.make()
    side.wait_for(master.child, "serves")
    check_masters(side, master)


@case("veth")
def helper_beside_one_that_polls(side):
    master = Master(side, "poll", "pauses")
    master.make()
    side.wait_for(master.child, "serves")
    check_masters(side, master)


NSD = """
server:
  ip-address: {address}
  port: {port}
  server-count: 2
  username: nobody
  zonesdir: "{dir}"
  database: ""
  pidfile: ""
  xfrdfile: ""
  zonelistfile: "{dir}/zones"
  xfrdir: "{dir}"
remote-control:
  control-enable: no
zone:
  name: example.
  zonefile: zone
"""
ZONE = """$ORIGIN example.
$TTL 60
@ IN SOA a b 1 2 3 4 5
@ IN NS a
a IN A 192.0.2.7
"""


@case("vhost", "veth")
def nsd_serves(side):
    """nsd binds as root, gives root's rights up, and then makes its servers."""
    if not os.path.exists("/usr/sbin/nsd"):
        raise Skip("nsd is not installed")
    port, folder = free_port(), side.path("nsd")
    os.chmod(side.dir, 0o755)
    os.mkdir(folder)
    os.chmod(folder, 0o777)
    for name, text in (("nsd.conf", NSD.format(address=side.address, port=port, dir=folder)), ("zone", ZONE)):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    nsd = side.start("server", "/usr/sbin/nsd", "-d", "-c", os.path.join(folder, "nsd.conf"), until="nsd started")
    answers = side.python("client", "asks_name.py", side.address, port, 20, timeout=60)
    check(answers.decode().strip() == str(["192.0.2.7"] * 20), answers)
    check(all(user_of(pid) != 0 for pid in [nsd.pid, *children_of(nsd.pid)]), "nsd has not given root up")
    check("shares_with_less" not in side.why(), side.why())


if __name__ == "__main__":
    run_named(CASES, "shown")
