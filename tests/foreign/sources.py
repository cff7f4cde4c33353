"""Debian's packages and sources, and what is built from them: all of it in one folder outside of ours."""
import contextlib
import fcntl
import glob
import os
import shutil
import subprocess
import time

from world import LOOPBACK, OURS, ROOT, Failure, Skip

ADDRESSES = (LOOPBACK, OURS)  # of a suite's builds, where its addresses are compiled in


def cache():
    given = os.environ.get("FOREIGN_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.abspath(given or os.path.join(base, "bypass-foreign"))
    os.makedirs(folder, exist_ok=True)
    return folder


def log(suite, wiring, anew):
    folder = os.path.join(cache(), "logs")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{suite}-{wiring}.log")
    if anew:
        open(path, "w").close()
    return path


def run(*command, cwd=None, env=None, timeout=3600):
    """Of a build: its words are shown when it fails."""
    done = subprocess.run([str(word) for word in command], cwd=cwd or cache(), env=dict(os.environ, **(env or {})), timeout=timeout,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))[:200]}: exit {done.returncode}:\n{done.stdout.decode(errors='replace')[-2000:]}")
    return done.stdout.decode(errors="replace")


def install(*packages):
    """As tools/test does it: what is missing, and no service of it starts."""
    with alone("install"):
        run("bash", "-c", '. tools/lib/common.sh; install_packages "$@"', "install", *packages, cwd=ROOT)


def apt_options():
    """The machine's own lists of packages have no sources, as a rule: lists of our own with the same addresses have."""
    with alone("apt"):
        return fetch_lists(os.path.join(cache(), "apt"))


def fetch_lists(folder):
    options = ["-o", f"Dir::Etc::sourcelist={folder}/sources.list", "-o", "Dir::Etc::sourceparts=/dev/null",
               "-o", f"Dir::State::lists={folder}/lists", "-q"]
    complete = os.path.join(folder, "complete")
    if not os.path.exists(complete) or time.time() - os.path.getmtime(complete) > 86400:
        os.makedirs(os.path.join(folder, "lists", "partial"), exist_ok=True)
        told = run("apt-get", "indextargets", "Created-By: Packages", "--format", "$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)")
        # Without the security updates, whose sources are at times not to be had where their packages are.
        lines = sorted({line for line in told.split("\n") if line.startswith("Debian|") and "-security|" not in line})
        with open(os.path.join(folder, "sources.list"), "w") as out:
            for _, address, release, component in (line.split("|") for line in lines):
                out.write(f"deb-src {address} {release} {component}\ndeb {address} {release} {component}\n")
        run("apt-get", *options, "update")
        open(complete, "w").close()
    return options


@contextlib.contextmanager
def alone(name):
    """Two runs at once do not make the same."""
    with open(os.path.join(cache(), f".lock-{name}"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def made(name, make):
    """A folder of the cache that `make` fills; one that was left half done is made again."""
    folder = os.path.join(cache(), name)
    with alone(name):
        if not os.path.exists(os.path.join(folder, ".complete")):
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
            make(folder)
            open(os.path.join(folder, ".complete"), "w").close()
    return folder


def for_each_address(name, make):
    """A folder for each address that a suite is built for: {address: folder}."""
    return {address: made(f"{name}-{address}", lambda folder, address=address: make(folder, address)) for address in ADDRESSES}


def source(package):
    """The unpacked source of a Debian source package, with Debian's patches."""
    def fetch(folder):
        install("dpkg-dev")
        run("apt-get", *apt_options(), "source", package, cwd=folder)
        for file in glob.glob(os.path.join(folder, "*.tar.*")) + glob.glob(os.path.join(folder, "*.dsc")):
            os.unlink(file)
    folder = made(f"source-{package}", fetch)
    return next(path for path in glob.glob(os.path.join(folder, "*")) if os.path.isdir(path))


def given(name, what):
    """A folder of the caller's: a work tree, or a Git directory without one."""
    base = os.environ.get("FOREIGN_SOURCES")
    path = os.path.join(base or "", name)
    if not base or not os.path.isdir(path):
        raise Skip(f"FOREIGN_SOURCES names no folder that has {name}, {what}")
    return path


def copy_given(name, what, folder, *paths):
    """The given project's work tree, or `paths` of it, as a copy that can be built in."""
    path = given(name, what)
    if not os.path.exists(os.path.join(path, "HEAD")):
        for part in paths or ["."]:
            subprocess.run(["cp", "-a", "--parents", part, folder], cwd=path, check=True)
        return
    for part in paths or [""]:
        prefix = [f"--prefix={part}/"] if part else []  # of a part alone: other files may not be there
        archive = subprocess.Popen(["git", f"--git-dir={path}", "archive", *prefix, f"HEAD:{part}"], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder], stdin=archive.stdout, check=True)
        if archive.wait() != 0:
            raise Failure(f"git archive of {path} failed")
