"""Node's tests of net, dgram and http, of Debian's source, with the machine's node."""
import glob
import os
import re

import sources
from unit import Programs
from world import bend


class Suite(Programs):
    name = "node"
    packages = ("dpkg-dev", "nodejs")
    timeout = 60

    def prepare(self):
        source = sources.source("nodejs")

        def build(folder, address):
            sources.run("mkdir", "-p", f"{folder}/test")
            for part in ("common", "fixtures", "parallel", "sequential"):
                sources.run("cp", "-a", f"{source}/test/{part}", f"{folder}/test")
            bend(f"{folder}/test", address, (".js", ".mjs"))
        self.folders = sources.for_each_address("node", build)
        paths = [path for part in ("parallel", "sequential") for kind in ("net", "dgram", "http")
                 for path in glob.glob(f"{source}/test/{part}/test-{kind}-*.js")]
        self.tests = sorted(re.sub(r".*/(\w+)/test-(.*)\.js", r"\1/\2", path) for path in paths)

    def environment(self, world):
        return {"NODE_TEST_DIR": "/tmp"}

    def folder(self, world):
        return self.folders[world.address]

    def command(self, world, test):
        part, _, name = test.partition("/")
        path = os.path.join(self.folder(world), "test", part, f"test-{name}.js")
        flags = re.search(r"^// Flags: (.*)$", open(path, errors="replace").read(), re.M)
        return ["/usr/bin/node", *(flags.group(1).split() if flags else []), path]

    def verdicts(self, test, status, said):
        return {test: "skipped"} if re.search(r"^1\.\.0 # Skipped", said, re.M) else super().verdicts(test, status, said)
