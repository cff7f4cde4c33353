"""The guest's kernel and its root folder, made once from Debian's packages and kept in a cache.

    image.py        prints the cache's folder, made if it is not there

What is kept: `vmlinux`, the package's kernel unpacked (QEMU starts it in half the time), and `root.cpio`, the programs and
kernel modules of a guest. A folder is named by what it is made of, and appears whole: runs side by side do not meet."""
import contextlib
import fcntl
import hashlib
import io
import lzma
import os
import re
import shutil
import struct
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.environ.get("BYPASS_VM_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "bypass-vm")
PACKAGES = ("qemu-system-x86", "busybox-static", "redis-server", "redis-tools", "iperf3", "nginx", "zstd")  # packages_vm of tools/lib/common.sh
# Debian 12's own kernel, and the newest one of its later kernels: packages that stand for a version.
KERNELS = DEBIAN, NEWEST = "linux-image-amd64", "linux-image-6.12-amd64"
PROGRAMS = ("redis-server", "redis-cli", "iperf3", "nginx")
MODULES = ("vfio-pci", "vfio_iommu_type1", "uio_pci_generic", "virtio_net", "virtio_pci", "e1000", "e1000e", "vmxnet3",
           # rdma_rxe asks for a CRC by its name, not by a symbol of that module.
           "crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm",
           # A kernel loads it by itself, by a program (modprobe) that the guest has not.
           "tcp_diag")
FOLDERS = ("proc", "sys", "dev", "tmp", "run", "root", "etc", "modules", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64")
GUEST_FILES = {"init": "init", "guest.sh": "guest.sh", "on": "usr/bin/on"}


class Missing(Exception):
    """What the machine has not, and cannot be given."""


class Archive:
    """A cpio archive as the kernel unpacks it (Documentation/driver-api/early-userspace/buffer-format.rst)."""

    def __init__(self, out):
        self.out, self.serial, self.names = out, 0, set()

    def _entry(self, name, mode, data=b""):
        if name in self.names:
            return
        self.names.add(name)
        self.serial += 1
        raw = name.encode() + b"\0"
        fields = (self.serial, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
        self.out.write(b"070701" + b"".join(b"%08X" % field for field in fields) + raw)
        self.out.write(b"\0" * (-(110 + len(raw)) % 4) + data + b"\0" * (-len(data) % 4))

    def folder(self, name):
        parts = name.split("/")
        for count in range(1, len(parts) + 1):
            self._entry("/".join(parts[:count]), 0o040755)

    def file(self, name, data, mode=0o755):
        if os.path.dirname(name):
            self.folder(os.path.dirname(name))
        self._entry(name, 0o100000 | mode, data)

    def link(self, name, to):
        self._entry(name, 0o120777, to.encode())

    def program(self, path, name=None, data=None):
        """A file of this machine's, and the libraries that it needs."""
        self.file(name or place(path), data if data is not None else read(path))
        told = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(?:=> |^\s*)(/\S+) \(", told, re.M):
            self.file(place(library), read(library))

    def end(self):
        self._entry("TRAILER!!!", 0)


def place(path):
    """Of a file in the guest: /lib and the like are links to folders of /usr there."""
    return re.sub(r"^/(bin|sbin|lib|lib64)/", r"/usr/\1/", path).lstrip("/")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def unpacked_kernel(image):
    """The ELF file in a bzImage whose payload is XZ's or Zstandard's (Documentation/arch/x86/boot.rst, 1.1 and 1.2)."""
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    payload = image[(setup_sectors + 1) * 512 + offset:][:length]
    if payload.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(payload)
    if not payload.startswith(b"\x28\xb5\x2f\xfd"):
        raise Missing("the kernel package's kernel is packed neither with XZ nor with Zstandard")
    # The unpacked size follows, four bytes.
    return subprocess.run(["zstd", "-dcq"], input=payload[:-4], capture_output=True, check=True).stdout


def kernel_package(name):
    """The package that one of KERNELS stands for."""
    told = subprocess.run(["apt-cache", "depends", name], capture_output=True, text=True, check=False).stdout
    found = re.search(r"Depends: (linux-image-\S+)", told)
    if found is None:
        raise Missing(f"apt-cache knows no package {name}: apt-get update")
    return found.group(1)


def fetch_kernel(package, folder):
    """The package's files below `folder`/files."""
    done = subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, capture_output=True, text=True, check=False)
    archives = [name for name in os.listdir(folder) if name.endswith(".deb")]
    if done.returncode != 0 or not archives:
        raise Missing(f"apt-get download {package}: {done.stderr.strip()[-200:]}")
    subprocess.run(["dpkg-deb", "-x", archives[0], "files"], cwd=folder, check=True)
    return os.path.join(folder, "files")


def loading_order(files, module):
    """Paths of a module's file and of those that it needs, in the order in which they are loaded."""
    paths = {}
    for folder, _, names in os.walk(os.path.join(files, "lib", "modules")):
        paths.update({module_name(name): os.path.join(folder, name) for name in names if re.search(r"\.ko(\.xz)?$", name)})
    order = []

    def add(name):
        path = paths.get(name.replace("-", "_"))
        if path is None or path in order:  # not a module of this kernel's: built in
            return
        needed = re.search(rb"\0depends=([^\0]*)\0", module_of(path))
        for other in filter(None, needed.group(1).decode().split(",") if needed else []):
            add(other)
        order.append(path)

    add(module)
    return order


def module_name(path):
    return re.sub(r"\.ko(\.xz)?$", "", os.path.basename(path)).replace("-", "_")


def module_of(path):
    """A module's file, unpacked."""
    return lzma.decompress(read(path)) if path.endswith(".xz") else read(path)


def write_root(path, files):
    with open(path, "wb") as out:
        archive = Archive(out)
        for folder in FOLDERS:
            archive.folder(folder)
        for name in ("bin", "sbin", "lib", "lib64"):
            archive.link(name, f"usr/{name}")
        busybox = shutil.which("busybox")
        archive.file("usr/bin/busybox", read(busybox))
        for applet in subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split():
            archive.link(f"usr/bin/{applet}", "busybox")
        for program in PROGRAMS:
            archive.program(shutil.which(program))
        for module in MODULES:
            order = loading_order(files, module)
            for each in order:
                archive.file(f"modules/{module_name(each)}.ko", module_of(each), 0o644)
            archive.file(f"modules/{module}.order", "".join(f"{module_name(each)}.ko\n" for each in order).encode(), 0o644)
        archive.file("etc/passwd", b"root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n", 0o644)
        archive.file("etc/group", b"root:x:0:\nnogroup:x:65534:\n", 0o644)
        for name, where in GUEST_FILES.items():
            archive.file(where, read(os.path.join(HERE, "guest", name)))
        archive.end()


def make(folder, package):
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        files = fetch_kernel(package, work)
        made = os.path.join(work, "made")
        os.mkdir(made)
        boot = os.path.join(files, "boot")
        kernel = next(name for name in os.listdir(boot) if name.startswith("vmlinuz-"))
        with open(os.path.join(made, "vmlinux"), "wb") as out:
            out.write(unpacked_kernel(read(os.path.join(boot, kernel))))
        write_root(os.path.join(made, "root.cpio"), files)
        os.rename(made, folder)


def place_of(kernel):
    """The folder of one of KERNELS, whether or not it is there, and the kernel's package."""
    package = kernel_package(kernel)
    versions = subprocess.run(["dpkg-query", "-W", *PACKAGES[1:]], capture_output=True, text=True, check=False).stdout
    digest = hashlib.sha256(f"{package} {versions}".encode())
    for name in ("image.py", *(f"guest/{name}" for name in GUEST_FILES)):
        digest.update(read(os.path.join(HERE, name)))
    return os.path.join(CACHE, digest.hexdigest()[:16]), package


def remove_others():
    """Folders of other versions: 85 MB each."""
    kept = []
    for kernel in KERNELS:
        with contextlib.suppress(Missing):
            kept.append(os.path.basename(place_of(kernel)[0]))
    for name in set(os.listdir(CACHE)) - set(kept):
        shutil.rmtree(os.path.join(CACHE, name), ignore_errors=True)


def ready(kernel=DEBIAN):
    """The folder with vmlinux and root.cpio."""
    programs = ("qemu-system-x86_64", "busybox", "zstd", *PROGRAMS)
    if missing := [name for name in programs if shutil.which(name) is None]:
        raise Missing(f"{', '.join(missing)} not installed: apt-get install {' '.join(PACKAGES)}")
    folder, package = place_of(kernel)
    os.makedirs(CACHE, exist_ok=True)
    with open(os.path.join(CACHE, "lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(folder):
            remove_others()
            make(folder, package)
    return folder


def overlay(path, built, programs=(), **texts):
    """A second archive, unpacked over the first one: this build's files (by their place in the guest), files of this
    machine's, and texts."""
    out = io.BytesIO()
    archive = Archive(out)
    with tempfile.TemporaryDirectory() as work:
        for file, name in built:
            stripped = os.path.join(work, "stripped")
            subprocess.run(["strip", "-g", "-o", stripped, file], check=True)
            archive.program(file, name, read(stripped))
    for file in programs:
        archive.program(file)
    for name, text in texts.items():
        archive.file(name, text.encode(), 0o644)
    archive.end()
    with open(path, "wb") as file:
        file.write(out.getvalue())


if __name__ == "__main__":
    print(ready())
