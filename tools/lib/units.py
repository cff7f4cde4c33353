"""Where each unit of src/socket and src/fastpath is tested (tools/lint units). A unit is a header with its source. It has a
test of its name (tests/.../NAME_test.cc), or a line "// Tests: tests/..." that names files which are there.

    units.py [FOLDER]    checks FOLDER, this repository without one"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROOMS = ("src/socket", "src/fastpath")


def files_below(folder):
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            yield os.path.join(place, name)


def units(root):
    """Each unit's path without its suffix, with its text."""
    texts = {}
    for room in ROOMS:
        for path in files_below(os.path.join(root, room)):
            stem, suffix = os.path.splitext(path)
            if suffix in (".h", ".cc"):
                with open(path, encoding="utf-8") as file:
                    texts[stem] = texts.get(stem, "") + file.read()
    return texts


def check(root):
    problems = []
    tested = {re.sub(r"_test\.cc$", "", os.path.basename(path)) for path in files_below(os.path.join(root, "tests")) if path.endswith("_test.cc")}
    for stem, text in units(root).items():
        said = re.search(r"^// Tests: (.*)$", text, re.M)
        named = re.findall(r"tests/[\w/]+\.(?:cc|c|py)\b", said[1]) if said else []
        problems += [f"{stem}: {name}, where it says that it is tested, is not there"
                     for name in named if not os.path.exists(os.path.join(root, name))]
        if not named and os.path.basename(stem) not in tested:
            problems.append(f"{stem}: no test of its name, and no line '// Tests: tests/...' says where it is tested")
    return problems


def main():
    problems = check(sys.argv[1] if len(sys.argv) > 1 else ROOT)
    print("\n".join(problems))
    return 1 if problems else 0


sys.exit(main())
