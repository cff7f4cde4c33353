"""The tests of perl's socket modules, of Debian's source, with the machine's perl."""
import glob
import os

import sources
from unit import Programs, tap
from world import bend

FOLDERS = ("cpan/Socket", "cpan/IO-Socket-IP", "dist/IO")


class Suite(Programs):
    name = "perl"
    packages = ("dpkg-dev", "perl")

    def prepare(self):
        source = sources.source("perl")

        def build(folder, address):
            for part in FOLDERS:
                os.makedirs(os.path.join(folder, part))
                sources.run("cp", "-a", f"{source}/{part}/.", os.path.join(folder, part))
                bend(os.path.join(folder, part), address, (".t",))
        self.folders = sources.for_each_address("perl", build)
        self.tests = [os.path.relpath(path, source)[:-2] for part in FOLDERS for path in sorted(glob.glob(f"{source}/{part}/t/*.t"))]

    def folder(self, world):
        return world.copy(self.folders[world.address])

    def command(self, world, test):
        part, _, file = test.partition("/t/")
        return ["sh", "-c", 'cd "$0" && exec perl "t/$1.t"', part, file]

    def unit_of(self, name):
        return name.rpartition(":")[0]

    def verdicts(self, test, status, said):
        return tap(test, status, said)
