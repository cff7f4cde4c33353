"""The Linux Test Project's tests of network system calls, from a folder that the caller names."""
import os

import sources
from unit import Programs
from world import LOOPBACK, bend

CALLS = """accept accept4 bind connect epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_wait eventfd eventfd2 getpeername
    getsockname getsockopt listen pipe poll ppoll pselect recv recvfrom recvmmsg recvmsg select send sendfile sendmmsg sendmsg sendto
    setsockopt shutdown signalfd socket socketcall socketpair splice tee vmsplice""".split()
LEFT_OUT = ("bind06", "setsockopt06")  # they look for a race in the kernel, for minutes
VERDICTS = {0: "ok", 32: "skipped"}


class Suite(Programs):
    name = "ltp"
    packages = ("autoconf", "automake", "pkg-config", "gcc", "make")
    timeout = 60

    def prepare(self):
        def build(folder, address):
            sources.copy_given("ltp", "the Linux Test Project's work tree or Git directory", folder)
            calls = f"{folder}/testcases/kernel/syscalls"
            bend(calls, address, (".c", ".h"), numbers=True)
            sources.run("make", "autotools", cwd=folder)
            sources.run("./configure", "CFLAGS=-O1 -w", cwd=folder)
            for part in (f"{folder}/lib", *(f"{calls}/{call}" for call in CALLS)):
                sources.run("nice", "make", "-C", part, "-j2")
        self.folders = sources.for_each_address("ltp", build)
        self.programs = {}
        for call in CALLS:
            where = f"{self.folders[LOOPBACK]}/testcases/kernel/syscalls/{call}"
            for file in sorted(os.listdir(where)):
                if os.access(f"{where}/{file}", os.X_OK) and os.path.exists(f"{where}/{file}.c") and file not in LEFT_OUT:
                    self.programs[file] = f"testcases/kernel/syscalls/{call}/{file}"
        self.tests = list(self.programs)

    def environment(self, world):
        return {"LTP_TIMEOUT_MUL": "2", "PATH": f"{os.path.dirname(self.path(world, self.tests[0]))}:/usr/sbin:/usr/bin:/sbin:/bin"}

    def path(self, world, test):
        return os.path.join(self.folders[world.address], self.programs[test])

    def command(self, world, test):
        return [self.path(world, test)]

    def verdicts(self, test, status, said):
        return {test: "hung" if status is None else VERDICTS.get(status, "failed")}
