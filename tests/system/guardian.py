"""Clears up after a test that was killed. The guardian is a process of its own. It notices the end of the test, whatever the
cause, and knows what the test had made until then."""
import contextlib
import os
import shutil
import signal
import subprocess
import time

pipe = None


def start():
    """From here on everything that is entrusted to the guardian goes when this process ends."""
    global pipe
    heard, pipe = os.pipe()
    if os.fork() != 0:
        return os.close(heard)
    os.close(pipe)
    os.setsid()
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
    nothing = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):  # the reader of the test's output waits for the end of this process
        os.dup2(nothing, fd)
    with os.fdopen(heard) as made:
        entrusted = [line.rstrip("\n").split(" ", 1) for line in made]
    for kind in ("folder", "namespace"):  # processes first: those in a namespace have their folder
        for name in (name for what, name in entrusted if what == kind):
            with contextlib.suppress(Exception):
                CLEARS[kind](name)
    os._exit(0)


def entrust(kind, name):
    """`kind`: a "folder", with the processes that work in it, or a network "namespace"."""
    if pipe is not None:
        os.write(pipe, f"{kind} {name}\n".encode())


def inhabitants(folder):
    """The processes whose working directory lies in a folder, including those that have left their parent and session."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/cwd").startswith(folder):
                found.append(int(pid))
        except OSError:
            pass  # it has ended, or is another user's
    return found


def clear_folder(folder):
    while found := inhabitants(folder):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def clear_namespace(name):
    if os.path.exists(f"/run/netns/{name}"):
        subprocess.run(["ip", "netns", "del", name])


CLEARS = {"folder": clear_folder, "namespace": clear_namespace}
