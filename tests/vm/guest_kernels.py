"""Guests with Debian 12's own kernel and with its newest one: which ports each can have on an interface that its kernel keeps,
and what `bypass why` says if it cannot. The kernel's own servers go on answering beside each port.
guest_kernels.py CASE...   (no name: lists them)"""
import json
import subprocess

from card import long_form
from machine import GUEST, Machine, tap_card
from image import DEBIAN, NEWEST
from harness import check, run_named

CASES = {}
OWN = "10.66.0.3"  # an address that the guest's kernel does not have
KERNELS_PORT, PORT = 22, 6379


class Guest(Machine):
    """Its kernel has the interface eth0 with an address, and serves there."""
    built = ("libbypass.so", "libbypass-packet.so", "libbypass-verbs.so", "libbypass-softverbs.so", "libbypass-crash.so",
             "libbypass-toml.so", "bypass", "bin/ringed")

    def __init__(self, kernel):
        self.kernel = kernel
        super().__init__(tap_card("e1000e"), iommu=False)

    def build(self):
        super().build()
        self.do(f"load e1000e; ip addr add {GUEST}/24 dev eth0; ip link set eth0 up")
        self.do(f"back kernels redis-server --bind {GUEST} --port {KERNELS_PORT} --protected-mode no --save ''")
        self.until(lambda: self.answers(GUEST, KERNELS_PORT), "the kernel's server answers", 60)
        self.session = self.start("outside", "redis-cli", "-h", GUEST, "-p", KERNELS_PORT, stdin=subprocess.PIPE)

    def answers(self, address, port):
        return b"PONG" in self.run("outside", "redis-cli", "-h", address, "-p", port, "ping", expect=None, timeout=30)

    def serve(self, address, **environment):
        """redis under libbypass, until it answers at the address."""
        words = " ".join(f"'{name}={value}'" for name, value in environment.items())
        self.do(f"back ours env LD_PRELOAD=/b/libbypass.so {words} redis-server --bind {address} --port {PORT} --protected-mode no --save ''")
        self.until(lambda: self.answers(address, PORT), f"redis answers with {words}; {self.logged('ours')}", 60)

    def opens(self):
        """Connections that have come over the port."""
        told = json.loads(self.do("/b/bypass stat --json"))
        return sum(process["counters"].get("tcp_passive_opens", 0) for process in told["processes"])

    def shared(self):
        """Connections that are in shared memory now."""
        return self.do("/b/bypass ss -te").count("path:shm")

    def is_served(self, address):
        """Of what has come over the port; the kernel may have had a connection before the port was there."""
        def over_the_port():
            before = self.opens()
            return self.answers(address, PORT) and self.opens() > before
        self.until(over_the_port, f"connections come over the port: {self.why()} {self.logged('ours')}", 60)

    def why(self):
        return self.do("/b/bypass why")

    def kernel_serves(self):
        """A new connection, and the one that has been there from the start."""
        check(self.answers(GUEST, KERNELS_PORT), "the kernel's server does not answer")
        before = len(self.output(self.session).split())
        self.session.stdin.write(b"client id\n")
        self.session.stdin.flush()
        self.until(lambda: len(self.output(self.session).split()) > before, "the kernel's old connection answers")
        numbers = self.output(self.session).split()
        check(len(set(numbers)) == 1, f"it is another connection: {numbers}")
        self.run("outside", "ping", "-c", "1", "-W", "10", GUEST, timeout=30)

    def end_ours(self):
        self.do("kill $(cat /tmp/ours.pid); wait $(cat /tmp/ours.pid)", 60)


def ports(kernel, has_tcx):
    with Guest(kernel) as guest:
        print(guest.do("uname -r").strip())
        # An address of the port's own.
        for port in ("af_packet:eth0", "af_xdp:eth0"):
            guest.serve(OWN, BYPASS_PORT=port, BYPASS_ADDR=f"{OWN}/24")
            guest.is_served(OWN)
            guest.kernel_serves()
            check("port_unavailable" not in guest.why(), guest.why())
            guest.end_ours()
            print(port, "serves")
        # The kernel's own address, on a software RDMA device.
        for wire, works in (("af_packet:eth0", has_tcx), ("af_xdp:eth0", True)):
            guest.serve(GUEST, BYPASS_PORT="verbs:soft0", BYPASS_SOFT=wire)
            if works:
                guest.is_served(GUEST)
            else:
                said = guest.why() + guest.logged("ours")
                check("port_unavailable" in said and "no TCX" in said and "af_xdp" in said, said)
            guest.kernel_serves()
            guest.end_ours()
            guest.kernel_serves()
            print("verbs:soft0 on", wire, "serves" if works else "is refused")
        ring(guest)


def ring(guest):
    """A connection within the guest is in shared memory until its program makes an io_uring. Then it is the kernel's."""
    guest.do("load tcp_diag; mkfifo /tmp/go; export BYPASS_LOCAL=on BYPASS_LOCAL_AFTER=0")
    guest.do(f"back ours env LD_PRELOAD=/b/libbypass.so redis-server --bind 127.0.0.1 --port {PORT} --save ''")
    guest.until(lambda: "Ready to accept" in guest.logged("ours"), "redis serves", 60)
    guest.do(f"back ringed sh -c 'exec env LD_PRELOAD=/b/libbypass.so /b/ringed 127.0.0.1 {PORT} </tmp/go'; exec 9>/tmp/go")
    guest.until(lambda: "calls" in guest.logged("ringed"), "200 answers", 60)
    guest.until(lambda: guest.shared() > 0, "the connection is in shared memory", 30)
    guest.do("echo >&9")
    guest.until(lambda: "ring" in guest.logged("ringed").split(), "the ring's read", 60)
    check("escaped_io_uring" in guest.why(), guest.why())
    guest.do("exec 9>&-; wait $(cat /tmp/ringed.pid)")
    guest.end_ours()


def debian_kernel():
    """Linux 6.1 has no TCX: packet sockets cannot share the kernel's address."""
    long_form()
    ports(DEBIAN, has_tcx=False)


def newest_kernel():
    long_form()
    ports(NEWEST, has_tcx=True)


CASES["guest_debian_kernel"] = debian_kernel
CASES["guest_newest_kernel"] = newest_kernel

if __name__ == "__main__":
    run_named(CASES, "served")
