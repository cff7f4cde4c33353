"""What a program's calls on /dev/infiniband/rdma_cm return, without librdmacm.   rdma_cm_calls.py with|without"""
import ctypes
import errno
import os
import select
import signal
import stat
import struct
import sys

DEVICE = "/dev/infiniband/rdma_cm"
CREATE_ID, DESTROY_ID, BIND_IP, RESOLVE_IP, GET_EVENT, JOIN, MIGRATE_ID = 0, 1, 2, 3, 12, 16, 18
TCP = 0x0106
EVENT_BYTES = 400
libc = ctypes.CDLL(None, use_errno=True)


def expect(value, wanted, what):
    if value != wanted:
        sys.exit(f"{what}: {value}, not {wanted}")


def fails(wanted, call, *arguments):
    try:
        result = call(*arguments)
    except OSError as error:
        expect(errno.errorcode[error.errno], errno.errorcode[wanted], f"{call.__name__}{arguments}")
        return
    sys.exit(f"{call.__name__}{arguments}: {result}, not {errno.errorcode[wanted]}")


def command(fd, number, body, room=0):
    return os.write(fd, struct.pack("<IHH", number, len(body), room) + body)


def create(fd, uid=1, space=TCP):
    answer = ctypes.c_uint32()
    command(fd, CREATE_ID, struct.pack("<QQHB5x", uid, ctypes.addressof(answer), space, 2), 4)
    return answer.value


def get_event(fd):
    event = ctypes.create_string_buffer(EVENT_BYTES)
    command(fd, GET_EVENT, struct.pack("<Q", ctypes.addressof(event)), EVENT_BYTES)
    return struct.unpack_from("<QIIi", event)  # uid, id, event, status


def address(text, port=7):
    return struct.pack("<HH4B20x", 2, port >> 8 | (port & 0xff) << 8, *map(int, text.split(".")))


def resolve(fd, number, text):
    command(fd, RESOLVE_IP, bytes(28) + address(text) + struct.pack("<II", number, 1000))


def is_readable(fd):
    return bool(select.select([fd], [], [], 0)[0])


def without():
    fails(errno.ENOENT, os.open, DEVICE, os.O_RDWR)


def the_descriptor():
    fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    expect(stat.S_ISCHR(os.fstat(fd).st_mode), True, "it is a character device")
    expect(is_readable(fd), False, "it is readable")
    fails(errno.EINVAL, os.write, fd, b"short")
    fails(errno.EINVAL, command, fd, 99, b"")
    fails(errno.EINVAL, os.write, fd, struct.pack("<IHH", CREATE_ID, 24, 4))
    expect((libc.write(fd, ctypes.c_void_p(8), 64), ctypes.get_errno()), (-1, errno.EFAULT), "a bad pointer")
    fails(errno.EFAULT, command, fd, CREATE_ID, struct.pack("<QQHB5x", 1, 8, TCP, 2), 4)
    fails(errno.ENOSPC, command, fd, CREATE_ID, struct.pack("<QQHB5x", 1, 8, TCP, 2), 2)
    fails(errno.EPROTONOSUPPORT, create, fd, 1, 0x77)
    fails(errno.ENOENT, resolve, fd, 4711, "10.9.0.2")
    fails(errno.ENOSYS, command, fd, JOIN, bytes(64))
    return fd


def ids_and_events(fd):
    number = create(fd, uid=77)
    other = os.open(DEVICE, os.O_RDWR)
    fails(errno.EINVAL, resolve, other, number, "10.9.0.2")
    os.set_blocking(fd, False)
    fails(errno.EAGAIN, get_event, fd)
    resolve(fd, number, "192.168.9.9")
    expect(is_readable(fd), True, "an event makes it readable")
    expect(get_event(fd), (77, number, 1, -errno.ENODEV), "the event")
    expect(is_readable(fd), False, "it is readable after the event")
    resolve(fd, number, "10.9.0.1")  # its own address
    expect(get_event(fd), (77, number, 0, 0), "the second event")
    answer = ctypes.c_uint32()
    command(other, MIGRATE_ID, struct.pack("<QII", ctypes.addressof(answer), number, fd), 4)
    expect(answer.value, 2, "events that were reported")
    fails(errno.EINVAL, command, fd, DESTROY_ID, struct.pack("<QII", ctypes.addressof(answer), number, 0), 4)
    command(other, DESTROY_ID, struct.pack("<QII", ctypes.addressof(answer), number, 0), 4)
    expect(answer.value, 2, "events that were reported")
    os.close(other)


def a_signal(fd):
    os.set_blocking(fd, True)

    class Alarm(Exception):
        pass

    def on_alarm(*_):
        raise Alarm

    signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        get_event(fd)
        sys.exit("a wait ended without an event")
    except Alarm:
        pass


def a_forked_child(fd):
    number = create(fd)
    child = os.fork()
    if child == 0:
        fails(errno.EIO, create, fd)
        own = os.open(DEVICE, os.O_RDWR)
        create(own)
        os.close(fd)
        os._exit(0)
    expect(os.waitpid(child, 0)[1], 0, "the child's end")
    os.set_blocking(fd, False)
    resolve(fd, number, "192.168.9.9")
    expect(get_event(fd)[1], number, "the parent's event")


def the_number_goes_to_others(fd):
    """A number of ours that the program gives to another file behind our back is that file's."""
    reader, writer = os.pipe()
    os.dup2(writer, fd)
    expect(os.write(fd, b"through"), 7, "a write to the other file")
    expect(os.read(reader, 100), b"through", "what came")
    expect(stat.S_ISFIFO(os.fstat(fd).st_mode), True, "the other file is a pipe")
    os.close(fd)
    again = os.open(DEVICE, os.O_RDWR)
    os.close(again)
    fails(errno.EBADF, os.write, again, b"nothing")
    expect(os.dup2(writer, again), again, "the number")
    expect(os.write(again, struct.pack("<IHH", 99, 0, 0)), 8, "a write to the other file")


if sys.argv[1] == "without":
    without()
else:
    channel = the_descriptor()
    ids_and_events(channel)
    a_signal(channel)
    a_forked_child(channel)
    the_number_goes_to_others(channel)
