"""Programs that run what a scenario tells them, call by call (peers/agent.py)."""
import json
import os
import select
import subprocess
import time

from harness import BUILD, HERE, Failure, check


class Agent:
    """A Python program of one side that runs what it is told (peers/agent.py)."""

    def __init__(self, side, role, under=(), **extra):
        self.side = side
        self.errors = open(side.path(f"agent{len(side.children)}"), "wb")
        self.child = subprocess.Popen([*under, "/usr/bin/python3", "-u", os.path.join(HERE, "peers", "agent.py")],
                                      env=side.environment(role, **extra), cwd=side.dir, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=self.errors, start_new_session=True)
        self.child.log = self.errors.name
        self.pid = self.child.pid
        self.rest = b""
        side.children.append(self.child)

    def begin(self, source):
        self.child.stdin.write(json.dumps(source).encode() + b"\n")
        self.child.stdin.flush()

    def end(self, timeout=30):
        deadline = time.monotonic() + timeout
        while b"\n" not in self.rest:
            left = deadline - time.monotonic()
            check(left > 0 and select.select([self.child.stdout], [], [], left)[0], f"no answer within {timeout} s")
            part = os.read(self.child.stdout.fileno(), 1 << 16)
            check(part, f"an agent ended with {self.child.poll()}: {open(self.errors.name).read()[-1000:]}")
            self.rest += part
        line, self.rest = self.rest.split(b"\n", 1)
        answer = json.loads(line)
        check(not (isinstance(answer, str) and answer.startswith("Traceback")), answer)
        return answer

    def __call__(self, source, timeout=30):
        try:
            self.begin(source)
            return self.end(timeout)
        except Failure as why:
            raise Failure(f"{source[:300]}: {why}") from None

    def sockets(self):
        out = self.side.run("server", os.path.join(BUILD, "bypass"), "ss", "-i", "--json", self.pid, LD_PRELOAD="")
        return json.loads(out)["sockets"]

    def shared(self):
        """The connections whose bytes may go through shared memory now."""
        return [s for s in self.sockets() if s["path"] == "shm"]
