"""libuv's own tests, of Debian's source: each in a process of its own, by its own runner."""
import os
import re

import sources
from unit import Programs
from world import bend

AS_ROOT = {"UV_RUN_AS_ROOT": "1"}  # what fails then fails on the kernel, too


class Suite(Programs):
    name = "libuv"
    packages = ("dpkg-dev", "cmake", "ninja-build")
    timeout = 60

    def prepare(self):
        source = sources.source("libuv1")

        def build(folder, address):
            sources.run("cp", "-a", f"{source}/.", folder)
            bend(os.path.join(folder, "test"), address, (".c", ".h"))
            sources.run("cmake", "-S", folder, "-B", f"{folder}/build", "-G", "Ninja", "-DBUILD_TESTING=ON")
            sources.run("nice", "ninja", "-C", f"{folder}/build", "uv_run_tests_a")
        self.folders = sources.for_each_address("libuv", build)
        told = sources.run(f"{self.folders[sources.ADDRESSES[0]]}/build/uv_run_tests_a", "--list", env=AS_ROOT)
        self.tests = [line.strip() for line in told.splitlines() if re.fullmatch(r"[a-z0-9_]+", line.strip())]

    def environment(self, world):
        return AS_ROOT

    def folder(self, world):
        return os.path.dirname(world.copy(f"{self.folders[world.address]}/test", "test"))

    def command(self, world, test):
        return [f"{self.folders[world.address]}/build/uv_run_tests_a", test]

    def verdicts(self, test, status, said):
        """One line of the Test Anything Protocol; without one, its runner has ended in the middle."""
        line = re.search(r"^(not ok|ok) 1 - .*", said, re.M)
        if status is None or line is None:
            return {test: {None: "hung", 0: "ok"}.get(status, "crashed")}
        return {test: "failed" if line.group(1) == "not ok" else "skipped" if "# SKIP" in line.group() else "ok"}
