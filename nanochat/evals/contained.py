"""The inside of the sandbox: this file runs as a process, contains itself step by step, and becomes the program.

nanochat.evals.sandbox runs it, with a task as JSON on the standard input. It uses the standard library only. To refuse
one more system call, add a row to CALLS.
"""

import contextlib
import ctypes
import errno
import json
import os
import platform
import re
import secrets
import signal
import struct
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NOBODY = 65534  # the program's user and group where the caller is not root
MAX_OPEN_FILES = 64
MAX_NAMES = 4096  # files and folders in one file system
MAX_SIGNALS = 64  # waiting signals and timers
POLL_SECONDS = 0.05  # between two looks at the processor time

# ---- what a contained program may do ----

# Devices can be written on a read-only mount.
READABLE = """
    /usr /bin /sbin /lib /lib64 /etc/ld.so.cache /dev/null /dev/zero /dev/urandom
""".split()

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # the kernel's numbers for architectures
# A filter's results, from linux/seccomp.h.
KILL_PROCESS = 0x80000000
ALLOW = 0x7FFF0000
FAIL_WITH = 0x00050000  # plus an error number
# System calls by result, with their numbers on x86_64 and on aarch64. Further numbers are the values of the second
# argument that count. Of clone, only flags for new namespaces are refused.
CALLS = {
    # The kernel would keep memory that no process's limit counts, or count for all users together. (aarch64 has no
    # inotify_init: the number is that of inotify_init1.)
    KILL_PROCESS: """
        shmget              29  194
        semget              64  190
        msgget              68  186
        mq_open            240  180
        inotify_init       253   26
        inotify_init1      294   26
        fanotify_init      300  262
        io_setup           206    0
        io_uring_setup     425  425
        landlock_create_ruleset 444 444
    """,
    FAIL_WITH | errno.EPERM: """
        clone               56  220
        socket              41  198
        socketpair          53  199
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
        memfd_create       319  279
        memfd_secret       447  447
        add_key            248  217
        request_key        249  218
        keyctl             250  219
        personality        135   92
        perf_event_open    298  241
        bpf                321  280
        userfaultfd        323  282
        init_module        175  105
        delete_module      176  106
        finit_module       313  273
        kexec_load         246  104
        kexec_file_load    320  294
        reboot             169  142
        sethostname        170  161
        acct               163   89
        setxattr           188    5
        lsetxattr          189    6
        fsetxattr          190    7
        setxattrat         463  463
        syslog             103  116
        prctl              157  167
        vmsplice           278   75
        flock               73   32
        fcntl               72   25   6 7 37 38 1024 1026 1031
    """,
    # The C library takes clone instead, with flags that a filter can read, and pwritev, which cannot write through.
    FAIL_WITH | errno.ENOSYS: """
        clone3             435  435
        pwritev2           328  287
    """,
    # Success without effect: these would make the host's disks work.
    FAIL_WITH: """
        sync               162   81
        syncfs             306  267
        fsync               74   82
        fdatasync           75   83
        sync_file_range    277   84
        msync               26  227
    """,
}
# fcntl's values above: locks (F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW), F_SETLEASE, F_NOTIFY,
# F_SETPIPE_SZ.

# The kernel's constants, from linux/sched.h, sys/mount.h, linux/prctl.h, linux/filter.h, linux/seccomp.h.
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWTIME = 0x80
CLONE_OTHERS = 0x6E000000  # cgroup, uts, ipc, pid and net
MOUNT_FLAGS = {"rdonly": 1, "nosuid": 2, "nodev": 4, "remount": 32, "bind": 4096, "rec": 16384, "private": 262144}
MOUNT_SETATTR = 442  # the call's number, as older C libraries do not know the call
AT_RECURSIVE = 0x8000
PR_SET_PDEATHSIG = 1
# A filter's instructions, and offsets in the data that it reads.
LOAD = 0x20
IF_EQUAL = 0x15
IF_AT_LEAST = 0x35
IF_ANY_BIT = 0x45
RETURN = 0x06
CALL_NUMBER = 0
ARCHITECTURE = 4
FIRST_ARGUMENT = 16
SECOND_ARGUMENT = 24
X32_CALLS = 0x40000000  # on x86_64 a second set of call numbers begins here


def refusals() -> list[tuple[str, int, int, list[int]]]:
    """Return (name, result, number on this machine, values) of each row of CALLS."""
    column = list(AUDIT).index(platform.machine())
    rows = []
    for result, table in CALLS.items():
        for line in table.strip().splitlines():
            name, *words = line.split()
            numbers = list(map(int, words))
            rows.append((name, result, numbers[column], numbers[2:]))
    return rows


# ---- steps ----


def _main() -> None:
    """Prepare the sandbox step by step, each giving up a right, and become the program."""
    task = json.load(sys.stdin)
    limits = SimpleNamespace(**task["limits"])  # sandbox.Limits
    contained = task["contained"]
    signal.alarm(int(limits.seconds) + 1)  # if the caller cannot watch the time any more
    is_root = os.geteuid() == 0
    if contained:
        _enter_namespaces()
        # Now, because a new user forgets it.
        _call("end with the caller", "prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != task["caller"]:
            sys.exit("the caller has ended")
        # Two processes stay outside of the program: one watches it, one is its namespace's first process. When the
        # first process ends, the kernel kills all others in there.
        if first := os.fork():
            _watch(first, limits.cpu_seconds)
        signal.alarm(int(limits.seconds) + 1)  # not inherited; the watching process may end first
        _call("end with the parent", "prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
        _call("own mounts", "unshare", CLONE_NEWNS)
        _change_root(limits.file_bytes, task["readable"])
        if second := os.fork():
            while True:
                ended, status = os.wait()
                if ended == second:
                    _exit_like(status)
        if is_root:
            # Become a user that no other sandbox has, from 2^30 on: the kernel counts processes by user.
            number = 2**30 + secrets.randbelow(2**24)
            os.setgroups([])
            os.setresgid(number, number, number)
            os.setresuid(number, number, number)
    Path("program.py").write_text(task["program"], encoding="utf-8")
    # The standard input has only the word, so that the program finds it empty.
    source, sink = os.pipe()
    os.write(sink, task["word"].encode())
    os.close(sink)
    os.dup2(source, 0)
    # Where all are one user, the kernel counts the sandbox's two processes too.
    own = 2 if contained and not is_root else 0
    _set_limits(limits, limits.processes + own)
    if contained:
        # A huge page stays whole while a byte of it is mapped: memory beyond the address space.
        # PR_SET_THP_DISABLE is 41.
        _call("no huge pages", "prctl", 41, 1, 0, 0, 0)
        _filter_calls()
    os.execve(
        sys.executable, [sys.executable, "-IB", "-c", task["launcher"]], {"HOME": "/tmp", "PATH": "/usr/bin:/bin"}
    )


def _call(step: str, name: str, *arguments: Any) -> None:
    """Call a function of the C library; OSError with the step's name if it fails."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{step}: {os.strerror(number)}")


def _exit_like(status: int) -> None:
    """End with a child's status."""
    os._exit(os.waitstatus_to_exitcode(status) % 256)  # negative for a signal


def _watch(first: int, cpu_seconds: float) -> None:
    """Wait for a process and end with its status; kill it if all below it have used up the processor time together."""
    os.stat(f"/proc/self/task/{os.getpid()}/children")  # OSError: this kernel does not list children
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    used: dict[int, float] = {}  # processor time by process
    created = 0  # how many processes and threads there were
    while True:
        ended, status = os.waitpid(first, os.WNOHANG)
        if ended:
            _exit_like(status)
        processes = [first]
        for process in processes:  # which grows
            with contextlib.suppress(OSError):  # it has ended
                used[process] = time.clock_gettime(~process << 3 | 2)  # the kernel's name for its clock
                status_text = Path(f"/proc/{process}/status").read_text()
                created = max(created, int(re.findall(r"^NSpid:.*\s(\d+)$", status_text, re.MULTILINE)[0]))
                for children in Path(f"/proc/{process}/task").glob("*/children"):
                    processes += map(int, children.read_text().split())
        # A process that lived and ended between two looks has used less than the time between them. Each one counts as
        # that much, so a program also ends after cpu_seconds / POLL_SECONDS processes.
        if sum(used.values()) + POLL_SECONDS * created > cpu_seconds:
            os.kill(first, signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], POLL_SECONDS)


def _enter_namespaces() -> None:
    user, group = os.geteuid(), os.getegid()
    # Without root only an own user namespace gives the right to mount.
    _call("namespaces", "unshare", CLONE_OTHERS | (CLONE_NEWUSER if user else 0))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{NOBODY} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{NOBODY} {group} 1")


def _change_root(size: int, readable: list[str]) -> None:
    """Change to a read-only file system with the readable paths and an empty /tmp for `size` bytes."""
    root = "/proc"  # any folder that exists everywhere: outside, it stays as it is
    # Private: mounts in the sandbox do not show outside.
    _mount("none", "/", None, "rec private")
    _mount("tmpfs", root, "tmpfs", "nosuid nodev", f"mode=755,size=65536,nr_inodes={MAX_NAMES}")
    # First: a readable path may lie below it.
    Path(root, "tmp").mkdir()
    _mount("tmpfs", f"{root}/tmp", "tmpfs", "nosuid nodev", f"mode=1777,size={size},nr_inodes={MAX_NAMES}")
    paths = [*READABLE, *readable]
    python = os.path.realpath(sys.base_prefix)
    if not python.startswith("/usr"):
        paths.append(python)
    for path in filter(os.path.lexists, paths):
        _bind(path, root)
    # The old root is stacked on the new one, and then detached.
    os.chdir(root)
    _call("new root", "pivot_root", b".", b".")
    _call("old root", "umount2", b".", 2)  # MNT_DETACH
    _mount("none", "/", None, "remount bind rdonly")
    os.chdir("/tmp")


def _mount(source: str, target: str, kind: str | None, flags: str, data: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() if kind else None)
    number = ctypes.c_ulong(sum(MOUNT_FLAGS[flag] for flag in flags.split()))
    _call(f"mount of {target}", "mount", *words, number, data.encode())


def _bind(path: str, root: str) -> None:
    """Show a system path, read-only, at the same place below the new root."""
    target = Path(root + path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.islink(path):
        target.symlink_to(os.readlink(path))  # such as /lib -> usr/lib
        return
    if os.path.isdir(path):
        target.mkdir()
    else:
        target.touch()
    _mount(path, str(target), None, "bind rec")
    # Attributes to set (MOUNT_ATTR_RDONLY is 1, MOUNT_ATTR_NOSUID is 2), to clear, propagation, user namespace.
    # A remount would leave out what is mounted below.
    mount_attr = struct.pack("QQQQ", 1 | 2, 0, 0, 0)
    where = (-1, str(target).encode(), AT_RECURSIVE)
    _call(f"attributes of {path}", "syscall", MOUNT_SETATTR, *where, mount_attr, ctypes.c_size_t(len(mount_attr)))


def _set_limits(limits: SimpleNamespace, processes: int) -> None:
    """Limit this process and its children."""
    import resource

    bounds = {
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_CORE: 1,  # no core file, and no program that takes one either, as with 0
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
    }
    if sys.platform == "linux":  # macOS does not limit the address space
        bounds[resource.RLIMIT_AS] = limits.memory
        bounds[resource.RLIMIT_SIGPENDING] = MAX_SIGNALS
    for limit, bound in bounds.items():
        resource.setrlimit(limit, (bound, bound))


def _filter_calls() -> None:
    """Apply CALLS from now on, in this process and its children."""
    # An instruction is (operation, jump if true, jump if false, operand); a jump skips so many instructions.
    code = [
        (LOAD, 0, 0, ARCHITECTURE),
        (IF_EQUAL, 1, 0, AUDIT[platform.machine()]),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, CALL_NUMBER),
        (IF_AT_LEAST, 0, 1, X32_CALLS),
        (RETURN, 0, 0, KILL_PROCESS),
    ]
    for name, result, number, values in refusals():
        argument = SECOND_ARGUMENT
        tests = [(IF_EQUAL, value) for value in values] or [(IF_AT_LEAST, 0)]  # without values: any
        # Threads and processes need clone: it fails only with flags for namespaces.
        if name == "clone":
            argument = FIRST_ARGUMENT
            tests = [(IF_ANY_BIT, CLONE_NEWNS | CLONE_NEWUSER | CLONE_NEWTIME | CLONE_OTHERS)]
        code += [(IF_EQUAL, 0, 2 * len(tests) + 2, number), (LOAD, 0, 0, argument)]
        for test, value in tests:
            code += [(test, 0, 1, value), (RETURN, 0, 0, result)]
        code.append((LOAD, 0, 0, CALL_NUMBER))
    code.append((RETURN, 0, 0, ALLOW))
    packed = b"".join(struct.pack("HBBI", *instruction) for instruction in code)
    instructions = ctypes.create_string_buffer(packed)
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(instructions))
    # Without new privileges no program, such as sudo, can leave the filter. PR_SET_NO_NEW_PRIVS is 38.
    _call("no_new_privs", "prctl", 38, 1, 0, 0, 0)
    # PR_SET_SECCOMP is 22, SECCOMP_MODE_FILTER is 2.
    _call("filter of system calls", "prctl", 22, 2, program)


if __name__ == "__main__":
    try:
        _main()
    except OSError as error:
        sys.exit(str(error))
