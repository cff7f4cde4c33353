"""memcached's own tests, of Debian's source, with Debian's memcached."""
import glob
import os
import shlex

import sources
from unit import Programs, tap
from world import bend

# Without the word its tests would talk over Unix sockets.
SERVER = """#!/bin/sh
for word; do [ "$word" = -h ] && { /usr/bin/memcached -h | sed s/unix-mask/none/\\;/unix.socket/d; exit; }; done
exec env %s /usr/bin/memcached "$@"
"""
# About storage and expiry, which wait for seconds; the last for Unix sockets, which there are none of here.
LEFT_OUT = """64bit binary-extstore chunked-extstore error-extstore expirations extstore extstore-buckets extstore-jbod issue_67
    lru-crawler lru-maintainer misbehave restart slabhang slabs-reassign2 slabs_reassign slabs-reassign-chunked whitespace
    unixsocket""".split()


class Suite(Programs):
    name = "memcached"
    packages = ("dpkg-dev", "memcached", "perl", "gcc")
    timeout = 300
    library = False  # over a port the server is the library's and the client the kernel's

    def prepare(self):
        source = sources.source("memcached")

        def build(folder, address):
            sources.run("cp", "-a", f"{source}/.", folder)
            bend(os.path.join(folder, "t"), address, (".t", ".pm"))
            # An option of builds that drop privileges, which Debian's is not.
            sources.run("sed", "-i", "s/-o relaxed_privileges//", f"{folder}/t/lib/MemcachedTest.pm", f"{folder}/t/proxy.t")
            sources.run("cc", "-w", "-o", f"{folder}/timedrun", f"{folder}/timedrun.c")
        self.folders = sources.for_each_address("memcached", build)
        names = sorted(os.path.basename(path)[:-2] for path in glob.glob(f"{source}/t/*.t"))
        self.tests = [name for name in names if name not in LEFT_OUT]

    def folder(self, world):
        tree = world.copy(self.folders[world.address])
        server = os.path.join(tree, "memcached-debug")
        if not os.path.exists(server):
            with open(server, "w") as script:
                told = world.library() if world.bent else {}
                script.write(SERVER % " ".join(shlex.quote(f"{name}={value}") for name, value in told.items()))
            os.chmod(server, 0o755)
        return tree

    def command(self, world, test):
        return ["perl", "-It/lib", "-I.", f"t/{test}.t"]

    def unit_of(self, name):
        return name.rpartition(":")[0]

    def verdicts(self, test, status, said):
        return tap(test, status, said)
