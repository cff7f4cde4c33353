"""stress-ng's stressors of sockets, polling and epoll, Debian's package, each with --verify."""
from unit import Programs

TESTS = {
    "sock": "--sock-ops 400", "sockabuse": "--sockabuse-ops 40", "sockdiag": "--sockdiag-ops 40",
    "sockfd": "--sockfd-ops 400", "sockmany": "--sockmany-ops 400", "sockpair": "--sockpair-ops 400", "udp": "--udp-ops 4000",
    "udp-flood": "--udp-flood-ops 4000", "epoll": "--epoll-ops 2000", "poll": "--poll-ops 2000", "rawsock": "--rawsock-ops 400",
    "rawudp": "--rawudp-ops 400", "sendfile": "--sendfile-ops 400", "splice": "--splice-ops 400", "tee": "--tee-ops 400",
    "eventfd": "--eventfd-ops 4000", "sigio": "--sigio-ops 400", "signal": "--signal-ops 4000",
    "close": "--close-ops 2000", "dup": "--dup-ops 400", "ping-sock": "--ping-sock-ops 400",
}


class Suite(Programs):
    name = "stress"
    packages = ("stress-ng",)
    wirings = ("preload", "local")
    not_bent = "it asks an interface for its address, and a port's is the library's alone"
    tests = list(TESTS)

    def command(self, world, test):
        return ["stress-ng", f"--{test}", "2", "--verify", "--timeout", "20", "--no-rand-seed", *TESTS[test].split()]

    def verdicts(self, test, status, said):
        return {test: "skipped"} if status == 3 else super().verdicts(test, status, said)  # EXIT_NOT_SUCCESS: not for this machine
