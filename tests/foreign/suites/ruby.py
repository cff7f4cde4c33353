"""Ruby's tests of its socket library and net/http, of Debian's source, with Debian's ruby."""
import glob
import os
import re

import sources
from unit import Programs, by_status
from world import bend

WORDS = {"Failure": "failed", "Error": "failed", "Skipped": "skipped"}
TEST = r"([A-Z][\w:]*#test_\w+[?!]?)"


class Suite(Programs):
    name = "ruby"
    packages = ("dpkg-dev", "ruby", "ruby3.1")
    timeout = 300

    def prepare(self):
        source = sources.source("ruby3.1")

        def build(folder, address):
            for part in ("test", "tool"):
                sources.run("cp", "-a", f"{source}/{part}", folder)
            bend(os.path.join(folder, "test"), address, (".rb",))
        self.folders = sources.for_each_address("ruby", build)
        self.tests = [os.path.relpath(path, source) for part in ("socket", "net/http", "drb")
                      for path in sorted(glob.glob(f"{source}/test/{part}/test_*.rb"))]

    def folder(self, world):
        return world.copy(self.folders[world.address])

    def command(self, world, test):
        return ["ruby", "test/runner.rb", "-v", "--no-retry", "--seed=1", test]

    def run(self, world, names=None):
        self.units = getattr(self, "units", {})
        return super().run(world, names)

    def unit_of(self, name):
        return self.units.get(name, name)

    def verdicts(self, test, status, said):
        found = {f"{test}:end": by_status(status)}
        found.update(dict.fromkeys(re.findall(rf"^\[ *\d+/\d+\] {TEST} = ", said, re.M), "ok"))
        for word, name in re.findall(rf"^ +\d+\) (Failure|Error|Skipped):\n{TEST}", said, re.M):
            found[name] = WORDS[word]
        self.units.update(dict.fromkeys(found, test))
        return found
