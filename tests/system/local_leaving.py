"""Connections within a host, and calls that take a connection back to the kernel. Each such call is followed by each other one,
among random calls of both ends. Each step runs at once on a connection of the kernel's and on one of the library's. Both
must give the same result at once.   local_leaving.py NAME...   (no name: lists them)
BYPASS_TEST_SEED=N runs only that seed, STEPS=3,7,9 only those of its steps. BYPASS_TEST_LONG=1 adds random seeds."""
import contextlib
import functools
import os
import random
import select
import time

from agents import Agent
from harness import HERE, LONG, Failure, Side, check, run_named
from local_pairs import connected

ONLY = [int(i) for i in os.environ.get("STEPS", "").split(",") if i]
MOST = {"shell": 50}  # bytes at once; of others, 12000
SHALLOW = 40000  # so many unread bytes are in the kernel's receive buffer whole; of more, it depends


class End:
    """One end of a connection: an agent on each side, which get the same commands, and what is known of the end."""

    def __init__(self, sides, role):
        self.sides, self.role = sides, role
        self.start()

    def start(self):
        self.agents = [Agent(side, self.role) for side in self.sides]
        for agent in self.agents:
            agent(open(os.path.join(HERE, "peers", "leaving_steps.py")).read())

    def meet(self, peer, inline):
        self.peer, self.inline = peer, inline
        self.numbers, self.made = [0], 1
        self.sent = self.read = 0  # of its bytes, by itself and by the peer
        self.urgent = None  # where an unread one is
        self.behind = None  # the place behind such a byte, where the kernel's splice() finds nothing
        self.shut = self.deaf = False
        self.low_water = 1

    def answers(self):
        for agent in self.agents:
            try:
                yield agent.end(20)
            except Failure as why:
                raise Failure(f"{agent.side.name}: {why}") from None

    def hole(self):
        """The place of an urgent byte among those that it reads past; -1 if there is none."""
        return -1 if self.inline or self.peer.urgent is None else self.peer.urgent

    def unread(self):
        return self.peer.sent - self.peer.read - (self.hole() >= 0)

    def has_read(self, count):
        self.peer.read += count
        if 0 <= self.hole() <= self.peer.read:
            self.peer.read += 1
            self.behind = self.peer.read
        if self.peer.urgent is not None and self.peer.urgent < self.peer.read:
            self.peer.urgent = None

    def can_send(self, count=12000, limit=SHALLOW):
        return not self.shut and self.peer.unread() + count <= limit


class Walk:
    """One seed: a connection, and the commands for its ends, which are recorded."""

    def __init__(self, ends, seed):
        self.seed, self.ends, self.record = seed, ends, []
        self.begun = None  # or what is told at once
        self.start_step(0)
        for agents in zip(*(end.agents for end in ends)):
            connected(*agents)
        for end, peer in zip(ends, reversed(ends)):
            end.meet(peer, self.rng.random() < 0.5)
            self.tell(end, f"start({end.inline})")

    def start_step(self, number):
        """Each step has random numbers of its own, so that any step can be left out."""
        self.step, self.rng = number, random.Random(f"{self.seed} {number}")

    def begin(self, end, source):
        """In the source, {k} is any of the end's numbers for the connection, {other} is any number, and {new} is one that
        the step makes."""
        text = source.format(k=self.rng.choice(end.numbers), other=self.rng.choice(end.numbers), new=end.made)
        if "{new}" in source:
            end.numbers.append(end.made)
            end.made += 1
        self.record.append(f"{self.step}: {end.role}: {text}")
        for agent in end.agents:
            agent.begin(text)

    def tell(self, end, source, expected=None):
        self.begin(end, source)
        if self.begun is None:
            return self.agree(*end.answers(), expected)
        self.begun.append((end, expected))

    @contextlib.contextmanager
    def at_once(self):
        """Commands that are given meanwhile begin at once."""
        self.begun = []
        yield
        begun, self.begun = self.begun, None
        for end, expected in begun:
            self.agree(*end.answers(), expected)

    def agree(self, kernel, local, expected=None):
        check(kernel == local, f"the sides differ:\nkernel: {kernel}\nlocal:  {local}")
        check(expected in (None, kernel), f"both: {kernel} instead of {expected}")
        return kernel

    def look(self, end, source):
        """Both sides must soon find the same. No edge of the kernel's may be missing. One more does no harm: it reports
        room once more on a socket whose bytes have come and been read since."""
        seen, before, deadline = [0, 0], len(self.record), time.monotonic() + 0.5
        while True:
            del self.record[before:]
            self.begin(end, source)
            kernel, local = end.answers()
            if source == EDGES:
                seen = [seen[0] | kernel, seen[1] | local]
                kernel, local = seen[0] & ~select.POLLOUT, seen[0] & seen[1] & ~select.POLLOUT
            if kernel == local or time.monotonic() > deadline:
                return self.agree(kernel, local)


class Steps(Walk):
    """The steps that are more than a text for an agent."""

    def run(self):
        """Three leaving calls that the seed names, among others that the dice choose. By turns each is the first one, and a
        case has two distances in the list, from it to the second and on to the third."""
        at, distance = self.seed % len(LEAVES), self.seed // len(LEAVES) * 2
        plan = []
        for index in at, at + distance, at + distance + distance + 1:
            plan += [None] * self.rng.randint(0, 4) + [LEAVES[index % len(LEAVES)]]
        for number, planned in enumerate(plan + [None] * self.rng.randint(2, 6), 1):
            if ONLY and number not in ONLY:
                continue
            self.start_step(number)
            step, end = planned or self.rng.choices(list(STEPS), STEPS.values())[0], self.rng.choice(self.ends)
            self.tell(end, step) if isinstance(step, str) else step(self, end)
            for each in self.ends:
                if self.rng.random() < 0.5:
                    self.looks(each)
        self.start_step("end")
        self.finish(self.rng.choice(self.ends))

    def amount(self):
        return self.rng.choice((1, 7, self.rng.randint(1, 300), self.rng.randint(1, 12000)))

    def sends(self, end, hows=("send", "sendall", "sendmsg", "write", "sendfile", "child")):
        if end.can_send():
            how = self.rng.choice(hows)
            self.put(end, how, min(self.amount(), MOST.get(how, 12000)))

    def sends_much(self, end):
        """Sends more than the ring has room for, while nobody reads."""
        if end.can_send(300000, 400000) and not end.peer.deaf:
            self.put(end, self.rng.choice(("send", "sendmsg")), 300000)

    def put(self, end, how, count):
        self.tell(end, f"put({{k}}, {count}, '{how}', {end.sent})", count)
        end.sent += count

    def receives(self, end, hows=("recv", "recvmsg", "into", "peek", "waitall", "trunc", "read", "child")):
        """Reads no more than there is, and not beyond an urgent byte, where a call ends."""
        if end.deaf:
            return
        if end.unread() == 0:
            self.sends(end.peer)
        how, stop = self.rng.choice(hows), end.peer.sent
        if end.peer.urgent is not None and (how == "splice" or not end.inline):  # splice() never passes one
            stop = end.peer.urgent
        there = min(stop - end.peer.read, MOST.get(how, 12000))
        if there > 0 and (how != "splice" or end.peer.read != end.behind):
            self.get(end, how, self.rng.choice((there, self.rng.randint(1, there))))

    def get(self, end, how, count):
        self.tell(end, f"get({{k}}, {count}, '{how}', {end.peer.read}, {end.hole()})", count)
        end.has_read(count)

    def drains(self, end):
        count, _ = self.tell(end, f"drain({{k}}, {end.unread()}, {end.peer.read}, {end.hole()})")
        end.has_read(count)

    def looks(self, end):
        """Looks at the connection. With many bytes under way, the kernel's receive buffer may or may not have all of them,
        and its send buffer may or may not have room."""
        if max(end.unread(), end.peer.unread()) <= SHALLOW:
            self.look(end, self.rng.choice(LOOKS))

    def waits(self, end):
        """Waits until the peer, which may leave first, has sent."""
        if end.deaf or not end.peer.can_send():
            return
        self.drains(end)
        self.tell(end, BLOCKING)
        how, count = self.rng.choice(WAITS), max(self.amount(), end.low_water)
        with self.at_once():
            if how == "waitall":
                self.get(end, how, count)
            else:
                self.tell(end, how)
            if self.rng.random() < 0.5:
                self.tell(end.peer, self.rng.choice(QUIET))
            self.put(end.peer, self.rng.choice(("send", "sendmsg", "write", "sendfile", "splice", "aio")), count)

    def closes_one(self, end):
        if len(end.numbers) > 1:
            self.tell(end, f"n.pop({end.numbers.pop(self.rng.randrange(len(end.numbers)))}).close()")

    def sets_low_water(self, end):
        end.low_water = self.rng.choice((1, 1, 5, 1000))
        self.tell(end, f"n[{{k}}].setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, {end.low_water})")

    def shuts(self, end):
        how = self.rng.choice(("WR", "WR", "RD"))
        if how == "RD":
            self.drains(end)
        self.tell(end, f"n[{{k}}].shutdown(socket.SHUT_{how})")
        end.shut, end.deaf = end.shut or how == "WR", end.deaf or how == "RD"

    def sends_urgent(self, end):
        """Sends no second urgent byte while the first is unread: the first one would become a part of the stream."""
        if end.peer.deaf or not end.can_send():
            return
        self.drains(end.peer)
        if self.rng.random() < 0.7:
            self.sends(end)
        self.tell(end, f"n[{{k}}].send(pattern({end.sent}, 1), socket.MSG_OOB)")
        end.urgent = end.sent
        end.sent += 1
        self.looks(end.peer)
        if self.rng.random() < 0.5:
            self.sends(end)
        if self.rng.random() < 0.7:
            self.look(end.peer, "queued(n[{k}], 0x8905)")  # SIOCATMARK
            self.tell(end.peer, "n[{k}].recv(1, socket.MSG_OOB)")

    def both_at_once(self, end):
        """Both ends send in any way, read what there is, and leave."""
        with self.at_once():
            if end.unread() and not end.deaf and self.rng.random() < 0.3:
                self.receives(end, ("recv", "waitall", "splice", "aio"))
            self.sends(self.rng.choice(self.ends), ("send", "sendmsg", "sendfile", "splice", "aio"))
            for each in self.ends:
                if self.rng.random() < 0.7:
                    self.tell(each, self.rng.choice(QUIET))

    def finish(self, end):
        """The peer reads what there is, may leave then, and learns how the connection ended."""
        for each in (end, end.peer):
            if each.unread() > SHALLOW:
                self.drains(each)
        how = self.rng.choice(ENDS)
        if how == EXIT:
            self.begin(end, how)
            for agent in end.agents:
                agent.child.wait(10)
        else:
            self.tell(end, how)
        end.shut = True
        if self.rng.random() < 0.3:
            self.tell(end.peer, self.rng.choice(QUIET))
        self.looks(end.peer)
        if self.rng.random() < 0.3:
            self.receives(end.peer)
        self.drains(end.peer)
        self.tell(end.peer, "n[{k}].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)")
        self.tell(end.peer, "refused({k})")
        self.looks(end.peer)
        if how == EXIT:
            end.start()


QUIET = [
    "n[{new}] = socket.socket(fileno=passed({k}))",
    "fd = passed({k}); os.dup2(fd, n[{k}].fileno(), False); os.close(fd)",
    "os.close(passed({k}))",
    "program({k}, 'system')", "program({k}, 'spawn')", "program({k}, 'exec')",
    "n[{k}].setsockopt(socket.IPPROTO_TCP, 31, b'tls')",  # TCP_ULP
]
LEAVES = [
    *QUIET, Steps.sends_urgent,
    *(functools.partial(Steps.receives, hows=[how]) for how in ("splice", "aio", "shell")),
    *(functools.partial(Steps.sends, hows=[how]) for how in ("splice", "aio", "shell", "zerocopy")),
]
BLOCKING, NONBLOCKING = (f"fcntl.fcntl(n[{{k}}], fcntl.F_SETFL, {flag})" for flag in ("0", "os.O_NONBLOCK"))
STEPS = {
    Steps.sends: 8, Steps.receives: 6, Steps.looks: 6, Steps.waits: 4, Steps.drains: 3, Steps.both_at_once: 3,
    "n[{new}] = n[{k}].dup()": 2, Steps.closes_one: 2, "os.dup2(n[{k}].fileno(), n[{other}].fileno(), False)": 1,
    Steps.sets_low_water: 1, BLOCKING: 0.5, NONBLOCKING: 0.5, Steps.sends_much: 1, Steps.shuts: 0.3,
    **dict.fromkeys(LEAVES, 2 / len(LEAVES)),
}
EDGES = "sum(bits for _, bits in epolls['edge'].poll(0))"
LOOKS = [
    *["polled({k}, EVENTS), queued(n[{k}])"] * 2, "[bits for _, bits in epolls['level'].poll(0)]", EDGES,
    "[len(each) for each in select.select([n[{k}]], [n[{k}]], [n[{k}]], 0)]",
]
WAITS = ["waitall", "polled({k}, select.POLLIN, 5000)", "len(select.select([n[{k}]], [], [], 5)[0])", "wait_by_epoll({k})"]
EXIT = "os._exit(0)"
ENDS = [
    "over()", "over()", "over_beside_a_child()", "n[{k}].shutdown(socket.SHUT_RDWR)", EXIT,
    "n[{k}].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); over()",
]


def run_seeds(seeds):
    with Side("kernel") as kernel, Side("local") as local:
        ends = [End((kernel, local), role) for role in ("server", "client")]
        for seed in seeds:
            walk = Steps(ends, seed)
            try:
                walk.run()
            except Exception:
                print(f"seed {seed}:", *walk.record[-12:], sep="\n", flush=True)
                raise


def leaves_in_lock_step(number):
    seed = os.environ.get("BYPASS_TEST_SEED")
    run_seeds([int(seed)] if seed else range(number * len(LEAVES), (number + 1) * len(LEAVES)))
    if LONG:
        run_seeds(random.SystemRandom().randrange(1000, 10**9) for _ in range(300))


CASES = {f"leaves_in_lock_step_{number}": functools.partial(leaves_in_lock_step, number) for number in range(8)}

if __name__ == "__main__":
    run_named(CASES, "passed")
