"""libevent's regression tests, of Debian's source, one process for each."""
import os
import re

import sources
from unit import Programs
from world import bend


class Suite(Programs):
    name = "libevent"
    packages = ("dpkg-dev", "cmake", "ninja-build", "libssl-dev")

    def prepare(self):
        source = sources.source("libevent")

        def build(folder, address):
            sources.run("cp", "-a", f"{source}/.", folder)
            bend(os.path.join(folder, "test"), address, (".c", ".h"))
            sources.run("cmake", "-S", folder, "-B", f"{folder}/build", "-G", "Ninja", "-DEVENT__DISABLE_BENCHMARK=ON",
                        "-DEVENT__DISABLE_SAMPLES=ON", "-DCMAKE_C_FLAGS=-w")
            sources.run("nice", "ninja", "-C", f"{folder}/build", "regress")
        self.folders = sources.for_each_address("libevent", build)
        told = sources.run(self.program(sources.ADDRESSES[0]), "--list-tests")
        self.tests = [line.split()[0] for line in told.splitlines() if re.match(r" +[a-z0-9_]+/[a-zA-Z0-9_]+", line)]

    def program(self, address):
        return f"{self.folders[address]}/build/bin/regress"

    def command(self, world, test):
        return [self.program(world.address), "--timeout", "60", test]

    def verdicts(self, test, status, said):
        if "SKIPPED" in said or "DISABLED" in said:
            return {test: "skipped"}
        return super().verdicts(test, status, said)
