"""The check of layers fails on an include that points up, and on nothing else."""
import os
import subprocess
import sys
import tempfile


def verdict(checker, includes):
    """The output of the checker for a tree in which each file of `includes` includes the header beside its name."""
    with tempfile.TemporaryDirectory() as root:
        for path, header in includes.items():
            for name, line in ((header, ""), (path, f'#include "{header}"\n')):
                os.makedirs(os.path.dirname(f"{root}/src/{name}"), exist_ok=True)
                with open(f"{root}/src/{name}", "a", encoding="utf-8") as file:
                    file.write(line)
        done = subprocess.run([sys.executable, checker, root], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout


def main():
    checker = sys.argv[1]
    down = {"socket/wait/wait.cc": "stack/stack.h", "preload/poll.cc": "socket/api.h", "backends/verbs/port.cc": "fastpath/link/link.h"}
    assert verdict(checker, down)[0] == 0, verdict(checker, down)
    for path, header in (("os/clock.cc", "socket/api.h"), ("os/clock.cc", "stack/stack.h"),
                         ("stack/stack.cc", "socket/api.h"), ("fastpath/lane/lane.h", "os/os.h"),
                         ("backends/sim/wire.cc", "backends/backend.h"), ("softverbs/engine/qp/raw.cc", "softverbs/abi/adapter/setup.h")):
        code, said = verdict(checker, down | {path: header})
        assert code == 1 and f"src/{path} includes {header}" in said, (path, header, code, said)


main()
