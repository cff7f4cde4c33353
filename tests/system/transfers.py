"""Transfers that are checked byte by byte, while something happens to the path beneath them."""
import re

from harness import LONG, check, free_port


def stream_then_compute(side, path):
    """Streams whose writer then makes no call. All bytes that it has written arrive. Over `path`, as `bypass ss` names
    it."""
    port, rounds = free_port(), 500 if LONG else 20
    server = side.start_python("server", "stream_then_compute.py", "server", side.address, port, side.dir, rounds, until="ready")
    client = side.start_python("client", "stream_then_compute.py", "client", side.address, port, side.dir, rounds, until="connected")
    side.until(lambda: {s["path"] for s in side.stat(client)["sockets"] if s["state"] == "ESTABLISHED"} == {path}, side.why())
    open(side.path("seen"), "w").close()
    for child, role in ((client, "writer"), (server, "reader")):
        check(side.end(child, 600 if LONG else 120) == 0, f"{role}: {side.output(child)}")


class Transfers:
    """Checked transfers over that many connections at once."""

    def __init__(self, side, count, workers=1, server=None, **client):
        self.side, self.count, self.stop, self.port = side, count, side.path("stop"), free_port()
        self.serve(workers, **(server or {}))
        self.client = side.start_python("client", "checked_transfers.py", side.address, self.port, count, self.stop, **client)
        side.until(lambda: self.said("serves") >= count, "all connections transfer", 60)

    def serve(self, workers=1, **environment):
        self.server = self.side.start_python("server", "many_workers.py", self.side.address, self.port, workers, **environment)
        self.side.until(lambda: self.side.output(self.server).count("worker") == workers, "all workers serve")

    def said(self, word):
        return len(re.findall(rf"^{word} ", self.side.output(self.client), re.M))

    def paths(self, child):
        """The paths of its connections, as `bypass ss` says."""
        return {s["path"] for s in self.side.stat(child)["sockets"] if s["state"] == "ESTABLISHED"}

    def until_paths(self, wanted, *children):
        for child in children or (self.server, self.client):
            self.side.until(lambda: self.paths(child) == wanted, f"all go over {wanted}: {self.paths(child)} {self.side.why()}", 30)

    def end(self, may_lose=False):
        open(self.stop, "w").close()
        check(self.side.end(self.client, 60) == 0, self.side.output(self.client))
        check(may_lose or self.said("lost") == 0, f"a connection ended: {self.side.output(self.client)}")
        check(self.side.output(self.client).splitlines()[-1] == "wrong 0", self.side.output(self.client))
