"""Every way in which a connection can end, at every moment of its move to another carrier and back. What the two programs
read, and what poll(), send() and SO_ERROR say, must be what a connection of the kernel gives.

Each run is drawn from a seed: what both ends do in turn (peers/endings.cc), how one of them ends, and what the other one
finds. BYPASS_TEST_SEED=n, or n-m, replays some runs. BYPASS_TEST_LONG=1 makes 1,000 of each case.

What the kernel gives can depend on when an acknowledgement comes. So each run is compared with several kernel runs, and
must give what one of them gives. One is as drawn. One has TCP_NODELAY, as if each acknowledgement came in time. One has
TCP_QUICKACK off before each send, as if each acknowledgement were held back for a program that answers. (Bytes that
MSG_MORE holds back leave with an acknowledgement, or with any segment that the kernel looks at for longer. None of these
runs shows that; local_held.py does.) Bytes that TCP_CORK holds back leave 200 ms later, on a busy machine in the middle
of a run. Such a run is made again."""
import os
import random
import select
import subprocess
import time

from harness import BUILD, LONG, Failure, Side, check, run_named
from local_pairs import cases

CASES, case, _ = cases()
WAYS = ("close", "shutdown 1", "shutdown 0", "shutdown 2", "linger 0", "linger 1", "exit", "_exit", "exit_group", "kill")
FAR_WAYS = ("close", "shutdown 1", "shutdown 2", "linger 0", "linger 1", "exit", "_exit")
GONE = ("exit", "_exit", "exit_group", "kill")
MOST_UNREAD = 30_000  # in each direction: the kernel's first window takes them, so that no send is cut short
CORKED_S = 0.15  # less than TCP_CORK holds back (tcp(7))
DRAIN_MS = 320  # longer than Linux delays an acknowledgement, and then the time of TCP_CORK


class End:
    """One process, which lives until a run ends it."""

    def __init__(self, side, role):
        self.side, self.role, self.child, self.peer = side, role, None, None
        self.drained = 0.0  # seconds

    def start(self):
        if self.child is not None and self.child.poll() is None:
            return
        command = [os.path.join(BUILD, "bin", "endings"), self.side.address]
        self.child = subprocess.Popen(command, env=self.side.environment(self.role, **self.side.extra), cwd=self.side.dir,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self.child.log = os.devnull
        self.side.children.append(self.child)

    def begin(self, words):
        self.child.stdin.write(f"{words}\n".encode())
        self.child.stdin.flush()

    def end(self, words):
        check(select.select([self.child.stdout], [], [], 30)[0], f"{words}: no answer within 30 s")
        answer = self.child.stdout.readline().decode().strip()
        check(answer, f"{words}: the process ended with {self.child.poll()}")
        return answer

    def __call__(self, words):
        begun = time.monotonic()
        self.begin(words)
        answer = self.end(words)
        if words.startswith("drain"):
            self.drained += time.monotonic() - begun
        return answer

    def stop(self, way):
        if way == "kill":
            self.child.kill()
        else:
            self.begin(way)
        self.child.wait(30)
        self.child.stdin.close()
        self.child.stdout.close()
        self.side.children.remove(self.child)
        self.child = None


class Plan:
    """What a seed stands for. `far`: what one end does reaches the other a moment later. So such runs do not look at what
    has come by then. They have no deaths either, because a wire tells nobody of a death."""

    def __init__(self, seed, warmest, far=False):
        r = self.random = random.Random(seed)
        self.far = far
        self.no_delay = [far or r.random() < 0.3, far or r.random() < 0.3]
        self.warm = r.choice((0, 1, 2, 3, 4, 6, warmest, warmest, warmest, warmest))
        self.steps = []
        self.sent = [0, 0]
        for _ in range(r.randrange(9)):
            self.draw_step()
        self.ender = r.randrange(2)
        self.way = r.choice(FAR_WAYS if far else WAYS)
        self.after = self.draw_look()
        self.waits = self.way != "shutdown 0" and r.random() < 0.3  # the other end is in a recv() then
        self.second = r.choice(("close", "linger 0", "_exit" if far else "kill"))
        self.second_ender = r.randrange(2)

    def draw_step(self):
        r, who = self.random, self.random.randrange(2)
        kinds = {"send": 8, "cork": 1.5, "recv": 5, "peek": 1, "urgent": 0 if self.far else 0.5, "poll": 1}
        what = r.choices(list(kinds), kinds.values())[0]
        if what == "cork":
            what = f"option {r.randrange(2)} cork"
        elif what == "send":
            bytes_ = min(r.choice((1, 2, 14, 100, 1000, 5000, 20000)), MOST_UNREAD - self.sent[who])
            if bytes_ == 0:
                return
            self.sent[who] += bytes_
            what = f"send {bytes_}"
        elif what in ("recv", "peek"):
            what = f"{what} {r.choice((1, 10, 100, 1000, 30000))}"
        else:
            what = f"{what} 0"
        self.steps.append((who, what))

    def looks_after(self, way):
        """Over a wire no process answers for one that has ended. Its peer is sent a reset 50 ms later. The kernel instead
        answers what the peer writes (docs/fork.md). The reset comes before the process is gone."""
        gone = self.far and way in GONE
        return [each for each in self.after if not (gone and each.startswith(("poll", "error")))]

    def draw_look(self):
        r = self.random
        if self.far:
            return ["await_end", f"drain {DRAIN_MS}", "poll 0", "error", "recv 1"]
        looks = r.sample(("poll 0", "send 1", "send 1000", "recv 10", "error", "peek 5"), r.randrange(1, 5))
        return [*looks, "poll 0", f"drain {DRAIN_MS}", "poll 0", "send 1", "send 1", "poll 0", "error", "recv 1"]


class LateEnd(End):
    """An end on which acknowledgements come late, on both sides. A socket leaves that mode by itself."""

    def __call__(self, words):
        if words.startswith("send"):
            for end in (self, self.peer):
                if end.child is not None:
                    End.__call__(end, "option 0 quickack")
        return super().__call__(words)


def prepare(ends, plan, no_delay):
    """Makes a connection, and brings it to the point where its carrier changes."""
    for end in ends:
        end.start()
    port = ends[1]("listen")
    check(ends[0](f"connect {port}") == "0" and ends[1]("accept") == "0", "no connection")
    for end, wish in zip(ends, plan.no_delay):
        if wish or no_delay:
            end("option 1 nodelay")
    if plan.warm:
        ends[0].begin(f"ping {plan.warm}")
        check(ends[1](f"pong {plan.warm}") == "0" and ends[0].end("ping") == "0", "the warm-up's bytes are others")


def run(ends, plan):
    """Returns what both ends found each time they looked, in order."""
    for who, what in plan.steps:
        if plan.far and what.startswith(("recv", "peek")):
            await_bytes(ends, plan, who)
        ends[who](what)
    if plan.far:
        for who in (0, 1):
            await_bytes(ends, plan, who)
    found = []
    if plan.waits:
        ends[1 - plan.ender].begin("drain 20000")
    finish(ends, plan.ender, plan.way)
    if plan.waits:
        found.append(("drain: " + ends[1 - plan.ender].end("drain"),))
    look(ends, 1 - plan.ender, plan.looks_after(plan.way), found)
    if plan.way.startswith("shutdown"):
        look(ends, plan.ender, plan.after, found)
        finish(ends, plan.second_ender, plan.second)
        look(ends, 1 - plan.second_ender, plan.looks_after(plan.second), found)
    for end in ends:
        if end.child is not None:
            end("close")
            end("unlisten")
    return found


def await_bytes(ends, plan, who):
    """Waits until all bytes that the other end has written by now are there."""
    sent = int(ends[1 - who]("written"))
    ends[who](f"await {sent}")


def finish(ends, who, way):
    if way in GONE:
        return ends[who].stop(way)
    if way.startswith("linger"):
        ends[who](f"option {way.split()[1]} linger")
        way = "close"
    ends[who](way)


def look(ends, who, looks, found):
    found.append(tuple(f"{what.split()[0]}: {ends[who](what)}" for what in looks))


class Pair:
    def __init__(self, side, kind=End):
        self.ends = [kind(side, "client"), kind(side, "server")]
        self.ends[0].peer, self.ends[1].peer = self.ends[1], self.ends[0]

    def drained(self):
        return sum(end.drained for end in self.ends)

    def __call__(self, plan, no_delay=False):
        corks = any("cork" in what for _, what in plan.steps)
        try:
            for _ in range(5):
                prepare(self.ends, plan, no_delay)
                begun, drained = time.monotonic(), self.drained()
                found = run(self.ends, plan)
                if not corks or time.monotonic() - begun - (self.drained() - drained) < CORKED_S:
                    break
            return found
        except (Failure, OSError) as why:
            for end in self.ends:
                if end.child is not None:
                    end.stop("kill")
            return [("failed", str(why))]


def differ(seeds, make, warmest, far):
    """The seeds whose runs give another result than the kernel's."""
    wrong = []
    with Side("kernel") as kernel, make() as side:
        kernel.extra = {}
        plain, late, ours = Pair(kernel), Pair(kernel, LateEnd), Pair(side)
        for seed in seeds:
            plan = Plan(seed, warmest, far)
            result = ours(plan)
            accepted = []
            for pair, no_delay in ((plain, False), (plain, True), (late, False), (plain, False)):
                accepted.append(pair(plan, no_delay))
                if result == accepted[-1]:
                    break
            else:
                wrong.append(describe(seed, plan, accepted, result))
    return wrong


def describe(seed, plan, accepted, result):
    steps = ", ".join(f"{'AB'[who]} {what}" for who, what in plan.steps)
    read = " of one that is read" if plan.waits else ""
    lines = [f"seed {seed}: no delay {plan.no_delay}, {plan.warm} rounds, {steps}; {'AB'[plan.ender]} {plan.way}{read}"
             f" (then {'AB'[plan.second_ender]} {plan.second})"]
    for name, looks in [*(("kernel", each) for each in accepted), ("ours  ", result)]:
        lines += [f"  {name} {'; '.join(each)}" for each in looks]
    return "\n".join(lines)


def check_same(make, count, warmest=40, far=False):
    wanted = os.environ.get("BYPASS_TEST_SEED")
    first, last = (wanted.split("-") * 2)[:2] if wanted else (0, (1000 if LONG else count) - 1)
    seeds = range(int(first), int(last) + 1)
    wrong = differ(seeds, make, warmest, far)
    check(not wrong, f"{len(wrong)} of {len(seeds)} end otherwise than the kernel's:\n" + "\n".join(wrong))


def local(after):
    side = Side("local")
    side.extra = {"BYPASS_LOCAL_AFTER": after}
    return side


def wired(**options):
    side = Side("bypass", **options)
    side.extra = {}
    return side


@case
def in_shared_memory_from_the_first_call_on(): check_same(lambda: local("1"), 25)


@case
def in_shared_memory_by_default(): check_same(lambda: local("32"), 20)


@case
def over_a_wire(): check_same(wired, 8, far=True)


@case
def over_a_wire_and_lanes_of_shared_memory(): check_same(lambda: wired(shm=True), 8, far=True)


@case
def over_a_wire_and_lanes_of_an_rdma_device(): check_same(lambda: wired(soft=True, rdma=True), 8, far=True)


if __name__ == "__main__":
    run_named(CASES, "as on the kernel")
