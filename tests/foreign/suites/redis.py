"""Those units of redis' tests that are about its connections, of Debian's source, with Debian's redis."""
import os
import re

import sources
from unit import Programs, by_status

UNITS = """unit/protocol unit/networking unit/auth unit/quit unit/multi unit/pubsub unit/pubsubshard unit/tracking unit/pause
    unit/querybuf unit/pendingquerybuf unit/replybufsize unit/obuf-limits unit/client-eviction unit/limits unit/introspection
    unit/info unit/wait unit/shutdown unit/latency-monitor unit/type/list unit/type/stream-cgroups integration/block-repl
    integration/replication integration/replication-psync integration/shutdown integration/redis-cli integration/redis-benchmark
    integration/psync2-pingoff""".split()
WORDS = {"ok": "ok", "err": "failed", "exception": "failed", "ignore": "skipped", "skip": "skipped", "timeout": "hung"}


class Suite(Programs):
    name = "redis"
    packages = ("dpkg-dev", "redis-server", "redis-tools", "tcl")
    wirings = ("preload", "local")
    not_bent = "a test's servers are processes of their own, which are no family, and each would need an address of its own"
    timeout = 400
    tests = UNITS

    def prepare(self):
        source = sources.source("redis")

        def build(folder):
            sources.run("cp", "-a", f"{source}/tests", folder)
            sources.run("cp", "-a", f"{source}/redis.conf", f"{source}/runtest", folder)
            os.mkdir(f"{folder}/src")
            for program in ("server", "cli", "benchmark", "check-aof", "check-rdb", "sentinel"):
                os.symlink(f"/usr/bin/redis-{program}", f"{folder}/src/redis-{program}")
        self.built = sources.made("redis", build)

    def folder(self, world):
        return world.copy(self.built)

    def command(self, world, test):
        return ["tclsh", "tests/test_helper.tcl", "--clients", "1", "--single", test]

    def unit_of(self, name):
        return name.partition(":")[0]

    def verdicts(self, test, status, said):
        found = {f"{test}:end": by_status(status)}
        said = re.sub(r"\x1b\[[0-9;]*m", "", said)
        for word, name in re.findall(r"^\[(ok|err|exception|ignore|skip|timeout)\]: (.*)$", said, re.M):
            name = re.sub(r"( \(\d+ ms\)| in tests/.*)$", "", name)
            name = f"{test}:" + re.sub(r"[^\w.,/:<>=+-]+", "_", re.sub(r"\d{4,}", "N", name))
            if found.get(name) != "failed":
                found[name] = WORDS[word]
        return found
