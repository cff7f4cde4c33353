"""Which room of src/ may include which (tools/lint layers). Dependencies point down: an edge that is not in the table
fails. docs/architecture.md prints the table.

    layers.py [FOLDER]    checks FOLDER/src, this repository's without one
    layers.py --table     prints the table as docs/architecture.md has it"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# A room, and the rooms below it.
ALLOWED = {
    "preload": ["runtime", "socket", "os", "stack", "observe"],
    "runtime": ["socket", "fastpath", "fastpath/shm", "config", "backends", "os", "stack", "observe"],
    "softverbs/abi": ["softverbs/engine", "softverbs/cm", "runtime", "config", "backends", "os", "stack"],
    "softverbs/engine": ["stack"],
    "softverbs/cm": ["stack"],
    "verbs_trace": [],
    "socket": ["fastpath", "fastpath/shm", "os", "stack", "observe"],
    "fastpath/shm": ["fastpath", "os", "stack"],
    "fastpath/sim": ["fastpath", "backends/sim", "stack"],
    "fastpath": ["stack"],
    "backends/dpdk": ["backends", "os", "stack"],
    "backends/packet": ["backends", "os", "stack"],
    "backends/verbs": ["backends", "backends/packet", "fastpath", "os", "stack"],
    "backends/sim": ["stack"],
    "backends": ["os", "stack"],
    "observe": ["os", "stack"],
    "config": ["backends", "os", "stack"],
    "os": ["stack"],
    "stack": [],
}
# Of these edges only these headers: values, which include nothing of ours but each other.
ONLY = {("os", "stack"): {"stack/address.h", "stack/copy.h", "stack/result.h", "stack/time.h"}}


def room(path):
    """The table's entry that `path` lies in: a folder that the table does not name is a part of its parent."""
    parts = path.split("/")
    folder = "/".join(parts[:2])
    return folder if folder in ALLOWED else parts[0]


def includes(source):
    """The path of each source below `source`, with each header that it includes from there."""
    for folder, _, names in os.walk(source):
        for name in sorted(names):
            if name.endswith((".h", ".cc")):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as file:
                    for header in re.findall(r'^#include "([^"]+)"', file.read(), re.M):
                        if os.path.exists(os.path.join(source, header)):
                            yield os.path.relpath(path, source), header


def check(source):
    problems = []
    for path, header in includes(source):
        above, below = room(path), room(header)
        if above == below or (below in ALLOWED.get(above, []) and header in ONLY.get((above, below), {header})):
            continue
        problems.append(f"src/{path} includes {header}: {above} may include {', '.join(ALLOWED.get(above, [])) or 'nothing'}")
    return problems


def table():
    rows = ["| room | may include |", "| --- | --- |"]
    rows += [f"| `{above}` | {', '.join(f'`{below}`' for below in rooms) or 'nothing'} |" for above, rooms in ALLOWED.items()]
    return "\n".join(rows)


def main():
    if sys.argv[1:] == ["--table"]:
        print(table())
        return 0
    root = sys.argv[1] if len(sys.argv) > 1 else ROOT
    problems = check(os.path.join(root, "src"))
    if root == ROOT:
        with open(os.path.join(ROOT, "docs/architecture.md"), encoding="utf-8") as file:
            if table() not in file.read():
                problems.append("docs/architecture.md does not have this table:\n" + table())
    print("\n".join(problems))
    return 1 if problems else 0


sys.exit(main())
