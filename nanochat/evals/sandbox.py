"""Run a program that a model wrote so that it can hurt nobody: `run(program)` says whether it came to its end.

A contained program sees a read-only copy of the system's libraries and of Python, an empty /tmp of its own, no network,
no other process, nothing of the caller's environment or home. Namespaces of the Linux kernel give that, through
bubblewrap where it is installed; a filter of system calls and limits on time, memory, files, processes and output come
on top. This file is also what runs inside, so it imports nothing but the standard library.
"""

import contextlib
import ctypes
import json
import os
import platform
import secrets
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

REFUSED, SETUP_FAILED = "--unsafe-exec runs it all the same, with limits alone", 125
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache")  # what a program may read, beside Python
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


@dataclass(frozen=True)
class Limits:
    seconds: float = 60.0  # of wall time: generous, for what else the machine does is no fault of the program
    cpu_seconds: int = 10  # of each process
    memory: int = 2**30  # bytes: of address space of each process, and in use by all together
    file_bytes: int = 2**24  # of one file, and of all together
    processes: int = 16
    output: int = 2**16  # bytes


LIMITS = Limits()


@dataclass(frozen=True)
class Verdict:
    """passed: it ran to its last line. reason: why not, in a word or two. output: what it printed.

    The ending is told by a word that stands neither in the program nor in its file, arguments or environment; a program
    that searches its own interpreter for it could still say it early, for no secret keeps from what runs beside it.
    """

    passed: bool
    reason: str
    output: str
    seconds: float


def run(program: str, limits: Limits = LIMITS, unsafe: bool = False) -> Verdict:
    """Run a Python program, contained; where that is impossible ValueError, or with `unsafe` under limits alone."""
    lacking = missing()
    if lacking and not unsafe:
        raise ValueError(f"a program cannot be contained here: {lacking}; {REFUSED}")
    return _run(program, limits, "limits" if lacking else _enclosure()[0])


def run_all(programs: Iterable[str], limits: Limits = LIMITS, unsafe: bool = False, at_once: int = 0) -> list[Verdict]:
    """Side by side; at_once: so many, 0: as many as there are CPUs for this rank, at most 20."""
    cpus = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    with ThreadPoolExecutor(at_once or min(max(cpus, 1), 20)) as pool:
        return list(pool.map(lambda program: run(program, limits, unsafe), programs))


def missing() -> str:
    """Which guarantee this system cannot give, found by trying; empty: none."""
    return _enclosure()[1]


@lru_cache(maxsize=1)
def _enclosure() -> tuple[str, str]:
    """The first that holds here, and what is missing if none does."""
    if sys.platform != "linux":
        lost = "no namespaces, no filter of system calls, and perhaps no limit on memory"
        return "limits", f"{platform.system()} has {lost}"
    if platform.machine() not in SYSTEM_CALLS:
        return "limits", f"no filter of system calls is written for {platform.machine()}"
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        return "limits", "the kernel does not list the children of a process, so their memory cannot be limited"
    faults = []
    for name in _enclosures():
        try:
            verdict = _run("", Limits(cpu_seconds=30), name)
        except OSError as error:
            faults.append(f"{name}: {error}")
            continue
        if verdict.passed:
            return name, ""
        faults.append(f"{name}: {verdict.reason} ({verdict.output.strip()[-300:]})")
    return "limits", "; ".join(faults)


def _enclosures() -> list[str]:
    """Root needs no bubblewrap, and would stay root in it, whom no limit on processes holds."""
    return ["bwrap", "namespaces"] if shutil.which("bwrap") and os.geteuid() else ["namespaces"]


def _python() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _visible() -> list[str]:
    """Paths a contained program may read."""
    prefix = os.path.realpath(sys.base_prefix)
    return [path for path in (*SYSTEM, *([] if prefix.startswith("/usr") else [prefix])) if os.path.lexists(path)]


# ---- outside ----


def _run(program: str, limits: Limits, enclosure: str) -> Verdict:
    start, end = time.monotonic(), secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True) as scratch:
        task = {"program": program, "end": end, "limits": asdict(limits), "enclosure": enclosure, "scratch": scratch}
        Path(scratch, "inside.py").write_bytes(Path(__file__).read_bytes())
        command = [_python(), "-IS", f"{scratch}/inside.py"]
        if enclosure == "bwrap":
            shown = [part for path in _visible() for part in ("--ro-bind", path, path)]
            shown += ["--ro-bind", scratch, "/inside", "--dev", "/dev", "--size", str(limits.file_bytes)]
            options = "--tmpfs /tmp --chdir /tmp --uid 65534 --gid 65534 --remount-ro /dev --remount-ro / --".split()
            apart = "--unshare-all --die-with-parent --new-session --clearenv".split()
            command = [shutil.which("bwrap"), *apart, *shown, *options, _python(), "-IS", "/inside/inside.py"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        child = subprocess.Popen(command, **pipes, cwd=scratch, env={}, start_new_session=True)
        try:
            with contextlib.suppress(BrokenPipeError), child.stdin as pipe:  # else what it printed says why it ended
                pipe.write(json.dumps(task).encode())
            output, reason = _watch(child, start + limits.seconds, limits)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            child.stdout.close()
    text = output.decode(errors="replace")
    body, found, _ = text.rpartition(f"\n{end}\n")
    if not reason and child.returncode:
        code = child.returncode - 128 if child.returncode > 128 else -child.returncode
        reason = f"killed by {signal.Signals(code).name}" if 0 < code < 65 else f"exit status {child.returncode}"
        reason = "it could not be set up" if child.returncode == SETUP_FAILED else reason
    reason = reason or ("" if found else "it ended early")
    return Verdict(not reason, reason, body if found else text, time.monotonic() - start)


def _watch(child: subprocess.Popen, deadline: float, limits: Limits) -> tuple[bytes, str]:
    """What it prints until it ends, and why it has to be killed, if so."""
    output, look = b"", 0.0
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            ended = child.poll() is not None  # asked before reading, so that nothing is left in the pipe
            if selector.select(0 if ended else min(left, 0.02)):
                chunk = os.read(child.stdout.fileno(), 65536)
                output += chunk
                if len(output) > limits.output:
                    return output[: limits.output], "too much output"
                ended = ended or not chunk
            if ended and child.poll() is not None:
                return output, ""
            if time.monotonic() >= look:
                if _memory(child.pid) > limits.memory:
                    return output, "too much memory"
                look = time.monotonic() + 0.05
            if ended:  # it closed its output and goes on
                time.sleep(0.02)
    return output, "out of time"


def _memory(process: int) -> int:
    """Bytes that a process and all that came of it hold; those of a namespace whose parent has ended, its first has."""
    pages, left = 0, [process]
    while left:
        place = Path(f"/proc/{left.pop()}")
        with contextlib.suppress(OSError):  # it has ended
            pages += int((place / "statm").read_text().split()[1])
            threads = [(thread / "children").read_text() for thread in (place / "task").iterdir()]
            left += map(int, " ".join(threads).split())
    return pages * os.sysconf("SC_PAGE_SIZE")


# ---- inside ----

# Says the word when the program has come to its last line, so that no early exit looks like success.
TO_THE_END = """
def run():
    import runpy
    end = input()
    runpy.run_path("program.py", run_name="__main__")
    print(f"\\n{end}", flush=True)
run()
"""

CLONE_NEWNS, CLONE_NEWUSER, CLONE_REST = 0x00020000, 0x10000000, 0x6E000000  # the rest: cgroup, uts, ipc, pid, net
CLONE_ANY = CLONE_NEWNS | CLONE_NEWUSER | CLONE_REST | 0x80
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 4096, 16384, 1 << 18, 2
READ_ONLY = 1 | 2  # MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
MOUNT_SETATTR, CLONE3, AT_RECURSIVE = 442, 435, 0x8000
# io_uring, the mounts, pidfd_getfd, memfd_secret: the same everywhere
NEW_CALLS = (425, 428, 429, 430, 431, 432, 433, 438, MOUNT_SETATTR, 447)
SYSTEM_CALLS = {  # machine → (its audit number, clone, pivot_root, calls that fail)
    "x86_64": (0xC000003E, 56, 155, """
        41 101 135 155 161 163 165 166 167 168 169 170 175 176 179 246 248 249 250 272 298 303 304 308 310 311 313 320
        321 323 29 319"""),
    "aarch64": (0xC00000B7, 220, 41, """
        198 117 92 41 51 89 40 39 224 225 142 161 105 106 60 104 217 218 219 97 241 264 265 268 270 271 273 294
        280 282 194 279"""),
}  # fmt: skip
# The calls, in order: socket ptrace personality pivot_root chroot acct mount umount2 swapon swapoff reboot sethostname
# init_module delete_module quotactl kexec_load add_key request_key keyctl unshare perf_event_open name_to_handle_at
# open_by_handle_at setns process_vm_readv process_vm_writev finit_module kexec_file_load bpf userfaultfd, and shmget
# memfd_create: memory that is no process's.


def _call(what: str, result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _filter_system_calls(libc: ctypes.CDLL) -> None:
    """Calls that reach out of the sandbox or into the kernel's corners fail; another architecture's kill."""
    audit, clone, _, refused = SYSTEM_CALLS[platform.machine()]
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    kill, allow, fails = 0x80000000, 0x7FFF0000, 0x00050000
    code = [(load, 0, 0, 4), (equal, 1, 0, audit), (give, 0, 0, kill), (load, 0, 0, 0)]
    code += [(at_least, 0, 1, 0x40000000), (give, 0, 0, kill)]  # x86's second set of numbers
    errors = dict.fromkeys((*map(int, refused.split()), *NEW_CALLS), 1) | {CLONE3: 38}  # ENOSYS: libc takes clone
    for number, error in errors.items():
        code += [(equal, 0, 1, number), (give, 0, 0, fails | error)]
    code += [(equal, 0, 3, clone), (load, 0, 0, 16), (any_bit, 0, 1, CLONE_ANY), (give, 0, 0, fails | 1)]
    code.append((give, 0, 0, allow))
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(instructions))
    _call("no_new_privs", libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _call("filter of system calls", libc.prctl(PR_SET_SECCOMP, 2, program, 0, 0))


def _enter_namespaces(libc: ctypes.CDLL) -> None:
    """Into new ones; the child that is forked next is the first process of its own."""
    user, group = os.geteuid(), os.getegid()
    _call("namespaces", libc.unshare(CLONE_NEWNS | CLONE_REST | (CLONE_NEWUSER if user else 0)))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"65534 {user} 1")
        Path("/proc/self/gid_map").write_text(f"65534 {group} 1")


def _change_root(libc: ctypes.CDLL, root: str, size: int) -> None:
    """The file system becomes a read-only view of what is visible, with an empty /tmp that can be written to."""

    def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
        text = [None if part is None else part.encode() for part in (source, target, kind, data)]
        _call(f"mount of {target}", libc.mount(*text[:3], ctypes.c_ulong(flags), text[3]))

    def bind(path: str, attributes: int) -> None:
        target = Path(root + path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.islink(path):
            target.symlink_to(os.readlink(path))
            return
        target.mkdir() if os.path.isdir(path) else target.touch()
        mount(path, str(target), None, MS_BIND | MS_REC)
        wanted = struct.pack("QQQQ", attributes, 0, 0, 0)
        given = (-1, str(target).encode(), AT_RECURSIVE, wanted, ctypes.c_size_t(32))
        _call(f"read-only {path}", libc.syscall(MOUNT_SETATTR, *given))

    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", 2 | 4, "mode=755,size=65536")  # nosuid, nodev
    for path in _visible():
        bind(path, READ_ONLY)
    for path in DEVICES:
        bind(path, 2)
    Path(root, "tmp").mkdir()
    mount("tmpfs", f"{root}/tmp", "tmpfs", 2 | 4, f"mode=1777,size={size}")
    os.chdir(root)
    _call("pivot_root", libc.syscall(SYSTEM_CALLS[platform.machine()][2], b".", b"."))
    _call("old root", libc.umount2(b".", MNT_DETACH))
    mount("none", "/", None, 32 | MS_BIND | 1)  # remount read-only
    os.chdir("/tmp")


def _become_nobody() -> None:
    """A number of its own for each sandbox: processes are counted by user."""
    number = 2**30 + secrets.randbelow(2**24)
    os.setgroups([])
    os.setresgid(number, number, number)
    os.setresuid(number, number, number)


def _limit(limits: dict, strict: bool) -> None:
    """strict: each has to hold; else what the system does not know (macOS: of memory) is done without."""
    import resource

    bounds = {"CPU": limits["cpu_seconds"], "AS": limits["memory"], "FSIZE": limits["file_bytes"], "CORE": 0}
    for name, bound in {**bounds, "NPROC": limits["processes"], "NOFILE": 64}.items():
        hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (bound, bound))
        except (ValueError, OSError) as error:
            if strict:
                raise OSError(f"limit {name}: {error}") from None


def _follow(child: int) -> None:
    """End as the child ended; what it left behind dies with the namespace."""
    while True:
        ended, status = os.wait()
        if ended == child:
            os._exit(os.waitstatus_to_exitcode(status) % 256 if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def _inside() -> None:
    """What runs between the caller and the program: each step gives something up."""
    task = json.load(sys.stdin)
    enclosure, limits, libc = task["enclosure"], task["limits"], ctypes.CDLL(None, use_errno=True)
    if enclosure == "namespaces":
        was_root = os.geteuid() == 0
        _enter_namespaces(libc)
        if first := os.fork():
            _follow(first)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _change_root(libc, task["scratch"], limits["file_bytes"])
        if program := os.fork():
            _follow(program)
        if was_root:
            _become_nobody()
    where = os.getcwd()
    Path(where, "program.py").write_text(task["program"], encoding="utf-8")
    source, sink = os.pipe()
    os.write(sink, task["end"].encode())
    os.close(sink)
    os.dup2(source, 0)  # which is at its end when the program begins
    _limit(limits, strict=enclosure != "limits")
    if enclosure != "limits":
        _filter_system_calls(libc)
    os.execve(_python(), [_python(), "-IB", "-c", TO_THE_END], {"HOME": where, "PATH": "/usr/bin:/bin"})


if __name__ == "__main__":
    try:
        _inside()
    except OSError as error:
        print(error, flush=True)
        os._exit(SETUP_FAILED)
