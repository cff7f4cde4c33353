"""tidy.py BUILD: clang-tidy over every source of src/ and tools/ that the build compiles.

A source is known good while clang-tidy, its checks, the source's compile command and every file that the compiler
read for it are what they were when it passed: their digest names a file in BUILD/tidy-cache."""
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys

BUILD = os.path.abspath(sys.argv[1])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CACHE = os.path.join(BUILD, "tidy-cache")
DATABASE = os.path.join(BUILD, "tidy-database")
NOISE = re.compile(r"warnings? generated|Suppressed|Use -header-filter")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=BUILD).stdout


def commands():
    """source: what it is compiled by (a source of two targets has two). Writes them down for clang-tidy, which cannot
    read the header that GCC compiled for the tests."""
    found, entries = {}, []
    for entry in json.load(open(os.path.join(BUILD, "compile_commands.json"))):
        if not entry["file"].startswith((ROOT + "/src/", ROOT + "/tools/")):
            continue
        entry["command"] = re.sub(r" -Winvalid-pch -include \S+/cmake_pch\.hxx", "", entry["command"])
        found.setdefault(entry["file"], []).append(entry["command"])
        entries.append(entry)
    os.makedirs(DATABASE, exist_ok=True)
    with open(os.path.join(DATABASE, "compile_commands.json"), "w") as file:
        json.dump(entries, file)
    return found


def files_read():
    """source: every file that the compiler read for it, as the build remembers."""
    read, current = {}, None
    for line in run("ninja", "-t", "deps").splitlines():
        if line.startswith("    "):
            current.append(os.path.normpath(os.path.join(BUILD, line.strip())))
        elif line:
            current = []
        elif current:
            read.setdefault(current[0], set()).update(current)
    return read


class Digests:
    def __init__(self):
        self.common = run("clang-tidy", "--version") + " ".join(COMMAND) + open(os.path.join(ROOT, ".clang-tidy")).read()
        self.read, self.contents = files_read(), {}

    def content(self, path):
        if path not in self.contents:
            with open(path, "rb") as file:
                self.contents[path] = hashlib.sha256(file.read()).hexdigest()
        return self.contents[path]

    def key(self, source, lines):
        """None: the build does not say what the source includes; it is looked at every time."""
        try:
            parts = [f"{path} {self.content(path)}" for path in sorted(self.read[source])]
        except (KeyError, OSError):
            return None
        return hashlib.sha256("\n".join([self.common, *sorted(lines), *parts]).encode()).hexdigest()


# The compile commands are GCC's: clang knows neither -ffat-lto-objects nor that this does not matter here.
COMMAND = ["clang-tidy", "-p", DATABASE, "--quiet", "--warnings-as-errors=*", "--extra-arg=-Wno-ignored-optimization-argument"]


def tidy(source):
    done = subprocess.run([*COMMAND, source],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode == 0, "\n".join(line for line in done.stdout.splitlines() if not NOISE.search(line))


def main():
    os.makedirs(CACHE, exist_ok=True)
    sources, digests = commands(), Digests()
    keys = {source: digests.key(source, lines) for source, lines in sources.items()}
    good = set(os.listdir(CACHE))
    for old in good - set(keys.values()):
        os.remove(os.path.join(CACHE, old))
    todo = [source for source in sources if keys[source] not in good]
    print(f"  {len(sources)} sources, {len(sources) - len(todo)} of them known to be good", file=sys.stderr)
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(tidy, source): source for source in todo}
        for done, job in enumerate(concurrent.futures.as_completed(running), 1):
            source, (passed, text) = running[job], job.result()
            if passed and keys[source]:
                open(os.path.join(CACHE, keys[source]), "w").close()
            if not passed:
                failures += 1
                print(text, flush=True)
            if done % 10 == 0 or done == len(todo):
                print(f"  {done} of {len(todo)}", file=sys.stderr, flush=True)
    sys.exit(1 if failures else 0)


try:
    main()
except KeyboardInterrupt:
    os._exit(130)
