"""What local_leaving.py tells an end of a connection. For an agent, whose `s` it is: `k` is one of its numbers, in `n`."""
import contextlib, errno, os, select, socket, struct, time

from kernel_io import Aio

DONTWAIT, PEEK, WAITALL, TRUNC = socket.MSG_DONTWAIT, socket.MSG_PEEK, socket.MSG_WAITALL, socket.MSG_TRUNC
ZEROCOPY, SO_ZEROCOPY = 0x4000000, 60
EVENTS = select.POLLIN | select.POLLOUT | select.POLLPRI | select.POLLRDHUP
PATIENCE = 5  # seconds
FILE = f"data.{os.getpid()}"

n, epolls = {}, {}


def start(inline):
    over()
    n[0] = s
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, inline)
    for name, flags in ("level", 0), ("edge", select.EPOLLET):
        epolls[name] = select.epoll()
        epolls[name].register(s, EVENTS | flags)


def over():
    for each in (*n.values(), *epolls.values()):
        each.close()
    n.clear()
    epolls.clear()


def polled(k, events, ms=0):
    p = select.poll()
    p.register(n[k], events)
    return sum(got for _, got in p.poll(ms))


@contextlib.contextmanager
def pipe():
    r, w = os.pipe()
    with open(r, "rb", 0), open(w, "wb", 0):
        yield r, w


def by_aio(opcode, k, data):
    result = Aio(opcode, n[k].fileno(), data).end()
    if isinstance(result, str):
        raise BlockingIOError(result)
    return result


def by_child(work):
    """The bytes that a forked child's work returns, or its error."""
    with pipe() as (r, w):
        pid = os.fork()
        if pid == 0:
            try:
                os.write(w, work())
            except OSError as error:
                os._exit(error.errno)
            finally:
                os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            raise OSError(code, "in a child")
        return os.read(r, 1 << 16)


@contextlib.contextmanager
def inheritable(k):
    n[k].set_inheritable(True)
    yield n[k].fileno()
    n[k].set_inheritable(False)


# --- Sending: the count that went

def send_by_shell(k, data):
    """Bash, as dash knows numbers of one digit only."""
    with open(FILE, "wb") as file:
        file.write(data)
    with inheritable(k) as fd:
        os.system(f"exec bash -c 'cat {FILE} >&{fd}'")
    return len(data)


def send_by_splice(k, data):
    with pipe() as (r, w):
        os.write(w, data)
        return os.splice(r, n[k].fileno(), len(data))


def send_a_file(k, data):
    with open(os.memfd_create("file"), "wb", 0) as file:
        file.write(data)
        return os.sendfile(n[k].fileno(), file.fileno(), 0, len(data))


def send_without_copies(k, data):
    """And is told that the memory may be used again."""
    n[k].setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    count = n[k].send(data, ZEROCOPY | DONTWAIT)
    polled(k, 0, PATIENCE * 1000)
    told = struct.unpack("IBBBBII", n[k].recvmsg(0, 100, socket.MSG_ERRQUEUE)[1][0][2][:16])
    if told[:3] != (0, 5, 0) or told[5] != told[6]:  # no error, of zero copies; the first and the last
        raise RuntimeError(f"told {told}")
    return count


PUT = {
    "send": lambda k, data: n[k].send(data, DONTWAIT),
    "sendall": lambda k, data: n[k].sendall(data) or len(data),
    "sendmsg": lambda k, data: n[k].sendmsg([data[:len(data) // 3], b"", data[len(data) // 3:]], [], DONTWAIT),
    "write": lambda k, data: os.write(n[k].fileno(), data),
    "child": lambda k, data: int(by_child(lambda: b"%d" % n[k].send(data, DONTWAIT))),
    "aio": lambda k, data: by_aio(Aio.WRITE, k, data),
    "sendfile": send_a_file, "splice": send_by_splice, "zerocopy": send_without_copies, "shell": send_by_shell,
}


def put(k, count, how, at):
    data = pattern(at, count)
    while data:
        try:
            data = data[PUT[how](k, data):]
        except BlockingIOError:
            if not polled(k, select.POLLOUT, PATIENCE * 1000):
                break
    return count - len(data)


# --- Receiving: the bytes that came, perhaps none

def receive_into(k, count):
    data = bytearray(count)
    return data[:n[k].recv_into(data, count, DONTWAIT)]


def receive_what_was_seen(k, count):
    seen = n[k].recv(count, PEEK | DONTWAIT)
    data = n[k].recv(len(seen), DONTWAIT)
    if not seen.startswith(data):
        raise RuntimeError("it is not what was seen")
    return data


def receive_by_splice(k, count):
    with pipe() as (r, w):
        return os.read(r, os.splice(n[k].fileno(), w, count))


def receive_by_shell(k, count):
    with inheritable(k) as fd:
        os.system(f"exec bash -c 'dd bs=1 count={count} <&{fd} >{FILE}' 2>/dev/null")
    with open(FILE, "rb") as file:
        return file.read()


GET = {
    "recv": lambda k, count: n[k].recv(count, DONTWAIT),
    "recvmsg": lambda k, count: n[k].recvmsg(count, 0, DONTWAIT)[0],
    "waitall": lambda k, count: n[k].recv(count, WAITALL),
    "trunc": lambda k, count: n[k].recv(count, TRUNC | DONTWAIT),
    "read": lambda k, count: os.read(n[k].fileno(), count),
    "child": lambda k, count: by_child(lambda: n[k].recv(count, DONTWAIT)),
    "aio": lambda k, count: by_aio(Aio.READ, k, bytes(count)),
    "into": receive_into, "peek": receive_what_was_seen, "splice": receive_by_splice, "shell": receive_by_shell,
}


def right(data, at, hole):
    """The count, if these are the stream's bytes from there on; the one at `hole` is not among them."""
    expected = pattern(at, len(data) + 1)
    if hole >= at:
        expected = expected[:hole - at] + expected[hole - at + 1:]
    if data != expected[:len(data)]:
        raise RuntimeError(f"other bytes among the {len(data)} from {at} on")
    return len(data)


def get(k, count, how, at, hole):
    """So many of those that are there, or come."""
    data, deadline = b"", time.monotonic() + PATIENCE
    while len(data) < count and time.monotonic() < deadline:
        part = b""
        with contextlib.suppress(BlockingIOError):
            part = GET[how](k, count - len(data))
        if not part:
            polled(k, select.POLLIN, 100)
        data += part
    return len(data) if how == "trunc" else right(data, at, hole)


def drain(k, wanted, at, hole):
    """All that is there, so many at least, and why there is no more."""
    data, part, why, deadline = b"", None, "end", time.monotonic() + PATIENCE
    while part != b"":
        try:
            part = n[k].recv(100000, DONTWAIT)
            data += part
        except OSError as error:
            why = errno.errorcode[error.errno]
            if why != "EAGAIN" or len(data) >= wanted or time.monotonic() > deadline:
                break
            polled(k, select.POLLIN, 5)
    return right(data, at, hole), "end" if part == b"" else why


def wait_by_epoll(k):
    with select.epoll() as e:
        e.register(n[k], select.EPOLLIN)
        return [bits for _, bits in e.poll(PATIENCE)]


def refused(k):
    """Which send() is, and how."""
    for count in range(1, 1000):
        try:
            n[k].send(b"x", DONTWAIT)
        except OSError as error:
            return count, errno.errorcode[error.errno]


# --- Leaving, and the end

def passed(k):
    """Another number, which came through a socket."""
    u, v = socket.socketpair(socket.AF_UNIX)
    with u, v:
        socket.send_fds(u, [b"x"], [n[k].fileno()])
        return socket.recv_fds(v, 1, 1)[1][0]


def program(k, how):
    with inheritable(k):
        if how == "system":
            return os.system("true")
        pid = os.posix_spawn("/bin/true", ["true"], os.environ) if how == "spawn" else os.fork()
        if pid == 0:
            os.execv("/bin/true", ["true"])
        return os.waitpid(pid, 0)[1]


def over_beside_a_child():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    over()
    os.waitpid(pid, 0)
