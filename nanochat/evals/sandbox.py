"""Run a program that a model wrote, contained: `run(program)` returns a verdict, true if the program reached its end.

A contained program sees the system's libraries and Python read-only, and an empty /tmp; no network, no other process,
nothing from the caller's environment or home. Linux namespaces do this; a system call filter and limits on time,
memory, files, processes and output come on top. To refuse one more call, add a row to CALLS.

This file also runs inside the sandbox (`_inside`), so it imports only the standard library.
"""

import contextlib
import ctypes
import errno
import json
import os
import platform
import secrets
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

MAX_AT_ONCE = 20  # programs side by side
NOBODY = 65534  # the program's user and group where the caller is not root
OWN_USERS = 2**30  # first user number, one per sandbox, where the caller is root
MAX_OPEN_FILES = 64


@dataclass(frozen=True)
class Limits:
    """Limits on a program; sizes in bytes."""

    seconds: float = 60.0  # wall time; generous, as other work on the machine slows the program down
    cpu_seconds: int = 10  # per process
    memory: int = 2**28  # address space per process
    file_bytes: int = 2**24  # per file, for all files together, and for the output
    processes: int = 6  # and threads


LIMITS = Limits()


class NoSandbox(ValueError):
    """Programs cannot be contained on this system."""


class Verdict(NamedTuple):
    """The result of running a program.

    A secret word, printed after the last line, proves that the program reached its end. The word is neither in the
    program nor in its file, arguments or environment; a program that searches the interpreter's memory could find it.
    """

    passed: bool  # the program ran to its last line
    output: str


def run_all(programs: Iterable[str], limits: Limits = LIMITS, unsafe: bool = False) -> list[Verdict]:
    """Run programs side by side, one per CPU of this rank."""
    cpus = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    with ThreadPoolExecutor(min(max(cpus, 1), MAX_AT_ONCE)) as pool:
        return list(pool.map(lambda program: run(program, limits, unsafe), programs))


def require(unsafe: bool) -> None:
    """Raise NoSandbox if programs cannot be contained here, unless they may run all the same."""
    if missing() and not unsafe:
        raise NoSandbox(f"programs cannot be contained here: {missing()}; --unsafe-exec runs them with limits alone")


@cache
def missing() -> str:
    """Return the protection that this system cannot give, found by a trial run; empty if it gives all."""
    if sys.platform != "linux" or platform.machine() not in AUDIT:
        return f"no namespaces, or no system call filter, for {platform.system()} on {platform.machine()}"
    verdict = run("", Limits(cpu_seconds=30))
    return "" if verdict.passed else verdict.output.strip()[-300:] or "a trial run failed"


# ---- outside ----


def run(program: str, limits: Limits = LIMITS, unsafe: bool = False) -> Verdict:
    """Run a Python program, contained; with `unsafe` under limits alone where that is impossible."""
    word = secrets.token_hex(16)
    with (
        tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True) as scratch,
        tempfile.TemporaryFile() as output_file,
    ):
        task = {
            "program": program,
            "word": word,
            "limits": asdict(limits),
            "contained": not (unsafe and missing()),
        }
        child = subprocess.Popen(
            [_python(), "-IS", __file__],
            stdin=subprocess.PIPE,
            stdout=output_file,
            stderr=subprocess.STDOUT,
            cwd=scratch,
            env={},
            start_new_session=True,
        )
        try:
            child.communicate(json.dumps(task).encode(), limits.seconds)
            passed = child.returncode == 0
        except subprocess.TimeoutExpired:
            passed = False
        finally:
            # The whole process group, so that the program does not outlive its helper.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        output_file.seek(0)
        text = output_file.read().decode(errors="replace")
    # Everything before the word is the program's output.
    before, found, _ = text.rpartition(f"\n{word}\n")
    return Verdict(passed and bool(found), before if found else text)


# ---- what a contained program may do ----

READABLE = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # the kernel's numbers for architectures
# System calls that fail, with their numbers on x86_64 and on aarch64. Only clone is allowed, without new namespaces.
CALLS = """
    clone               56  220
    clone3             435  435
    socket              41  198
    ptrace             101  117
    process_vm_readv   310  270
    process_vm_writev  311  271
    pidfd_getfd        438  438
    unshare            272   97
    setns              308  268
    pivot_root         155   41
    chroot             161   51
    mount              165   40
    umount2            166   39
    open_tree          428  428
    move_mount         429  429
    fsopen             430  430
    fsconfig           431  431
    fsmount            432  432
    fspick             433  433
    mount_setattr      442  442
    name_to_handle_at  303  264
    open_by_handle_at  304  265
    quotactl           179   60
    swapon             167  224
    swapoff            168  225
    shmget              29  194
    memfd_create       319  279
    memfd_secret       447  447
    add_key            248  217
    request_key        249  218
    keyctl             250  219
    personality        135   92
    perf_event_open    298  241
    bpf                321  280
    userfaultfd        323  282
    io_uring_setup     425  425
    init_module        175  105
    delete_module      176  106
    finit_module       313  273
    kexec_load         246  104
    kexec_file_load    320  294
    reboot             169  142
    sethostname        170  161
    acct               163   89
"""

# The kernel's constants, from linux/sched.h, sys/mount.h, linux/prctl.h, linux/filter.h, linux/seccomp.h.
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWTIME = 0x80
CLONE_OTHERS = 0x6E000000  # cgroup, uts, ipc, pid and net
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
MOUNT_ATTR_RDONLY = 1
MOUNT_ATTR_NOSUID = 2
AT_RECURSIVE = 0x8000
PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
# A filter's instructions, its results, and offsets in the data that it reads.
LOAD = 0x20
IF_EQUAL = 0x15
IF_AT_LEAST = 0x35
IF_ANY_BIT = 0x45
RETURN = 0x06
KILL_PROCESS = 0x80000000
ALLOW = 0x7FFF0000
FAIL_WITH = 0x00050000  # plus an error number
CALL_NUMBER = 0
ARCHITECTURE = 4
FIRST_ARGUMENT = 16
X32_CALLS = 0x40000000  # on x86_64 a second set of call numbers begins here


def _python() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _readable() -> list[str]:
    """Return the paths that a contained program may read."""
    paths = list(READABLE)
    prefix = os.path.realpath(sys.base_prefix)
    if not prefix.startswith("/usr"):
        paths.append(prefix)
    return [path for path in paths if os.path.lexists(path)]


def _call_numbers() -> dict[str, int]:
    column = 1 + list(AUDIT).index(platform.machine())
    rows = [line.split() for line in CALLS.strip().splitlines()]
    return {row[0]: int(row[column]) for row in rows}


# ---- inside ----

# The last process: reads the word, runs the program, and prints the word if the program has come to its last line.
LAUNCHER = """
def run():
    import runpy
    word = input()
    runpy.run_path("program.py", run_name="__main__")
    print(f"\\n{word}", flush=True)
run()
"""


def _inside() -> None:
    """Prepare the sandbox step by step, each giving up a right, and become the program."""
    task = json.load(sys.stdin)
    limits, contained = Limits(**task["limits"]), task["contained"]
    if contained:
        is_root = os.geteuid() == 0
        _enter_namespaces()
        # Two processes stay outside of the program: one to wait for the namespace's end, one as its first process.
        # The next child is the new namespace's first process; when it ends, the kernel kills all others in there.
        if first := os.fork():
            _exit_like(first)
        _call("end with the parent", "prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _change_root(os.getcwd(), limits.file_bytes)
        if second := os.fork():
            _exit_like(second)
        if is_root:
            # Become a user that no other sandbox has: the kernel counts processes by user.
            number = OWN_USERS + secrets.randbelow(2**24)
            os.setgroups([])
            os.setresgid(number, number, number)
            os.setresuid(number, number, number)
    home = os.getcwd()
    Path(home, "program.py").write_text(task["program"], encoding="utf-8")
    # The standard input has only the word, so that the program finds it empty.
    source, sink = os.pipe()
    os.write(sink, task["word"].encode())
    os.close(sink)
    os.dup2(source, 0)
    _set_limits(limits)
    if contained:
        _filter_calls()
    os.execve(_python(), [_python(), "-IB", "-c", LAUNCHER], {"HOME": home, "PATH": "/usr/bin:/bin"})


def _call(step: str, name: str, *arguments: Any) -> None:
    """Call a function of the C library; OSError with the step's name if it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{step}: {os.strerror(number)}")


def _exit_like(child: int) -> None:
    """Wait for a child, and end with its status."""
    while True:
        ended, status = os.wait()
        if ended == child:
            os._exit(os.waitstatus_to_exitcode(status) % 256)  # negative for a signal


def _enter_namespaces() -> None:
    user, group = os.geteuid(), os.getegid()
    flags = CLONE_NEWNS | CLONE_OTHERS
    if user:
        flags |= CLONE_NEWUSER  # without root only an own user namespace gives the right to mount
    _call("namespaces", "unshare", flags)
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{NOBODY} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{NOBODY} {group} 1")


def _change_root(root: str, size: int) -> None:
    """Change to a read-only file system with the readable paths and an empty /tmp for `size` bytes."""
    # Private: mounts in the sandbox do not show outside.
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=65536")
    for path in _readable():
        _bind(path, root, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID)
    for path in DEVICES:
        _bind(path, root, MOUNT_ATTR_NOSUID)
    Path(root, "tmp").mkdir()
    _mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={size}")
    # The old root is stacked on the new one, and then detached.
    os.chdir(root)
    _call("pivot_root", "syscall", _call_numbers()["pivot_root"], b".", b".")
    _call("old root", "umount2", b".", MNT_DETACH)
    _mount("none", "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY)
    os.chdir("/tmp")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() if kind else None)
    _call(f"mount of {target}", "mount", *words, ctypes.c_ulong(flags), data.encode())


def _bind(path: str, root: str, attributes: int) -> None:
    """Show a system path at the same place below the new root."""
    target = Path(root + path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.islink(path):
        target.symlink_to(os.readlink(path))  # such as /lib -> usr/lib
        return
    if os.path.isdir(path):
        target.mkdir()
    else:
        target.touch()
    _mount(path, str(target), None, MS_BIND | MS_REC)
    mount_attr = struct.pack("QQQQ", attributes, 0, 0, 0)  # to set, to clear, propagation, user namespace
    where = (-1, str(target).encode(), AT_RECURSIVE)
    number = _call_numbers()["mount_setattr"]
    _call(f"attributes of {path}", "syscall", number, *where, mount_attr, ctypes.c_size_t(len(mount_attr)))


def _set_limits(limits: Limits) -> None:
    """Limit this process and its children."""
    import resource

    bounds = {
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
    }
    if sys.platform == "linux":  # macOS does not limit the address space
        bounds[resource.RLIMIT_AS] = limits.memory
    for limit, bound in bounds.items():
        resource.setrlimit(limit, (bound, bound))


def _filter_calls() -> None:
    """Let the calls in CALLS fail from now on, in this process and its children."""
    numbers = _call_numbers()
    clone = numbers.pop("clone")
    # An instruction is (operation, jump if true, jump if false, operand); a jump skips so many instructions.
    code = [
        (LOAD, 0, 0, ARCHITECTURE),
        (IF_EQUAL, 1, 0, AUDIT[platform.machine()]),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, CALL_NUMBER),
        (IF_AT_LEAST, 0, 1, X32_CALLS),
        (RETURN, 0, 0, KILL_PROCESS),
    ]
    for name, number in numbers.items():
        # Where clone3 does not exist, the C library takes clone, with flags that a filter can read.
        error = errno.ENOSYS if name == "clone3" else errno.EPERM
        code.append((IF_EQUAL, 0, 1, number))
        code.append((RETURN, 0, 0, FAIL_WITH | error))
    # Threads and processes need clone: it fails only with flags for namespaces.
    code += [
        (IF_EQUAL, 0, 3, clone),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (IF_ANY_BIT, 0, 1, CLONE_NEWNS | CLONE_NEWUSER | CLONE_NEWTIME | CLONE_OTHERS),
        (RETURN, 0, 0, FAIL_WITH | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    packed = b"".join(struct.pack("HBBI", *instruction) for instruction in code)
    instructions = ctypes.create_string_buffer(packed)
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(instructions))
    # Without new privileges no program, such as sudo, can leave the filter.
    _call("no_new_privs", "prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("filter of system calls", "prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0)


if __name__ == "__main__":
    try:
        _inside()
    except OSError as error:
        sys.exit(str(error))
