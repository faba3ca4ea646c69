"""A python that is at work at once: a program that lets a server, which has imported the code, fork for its command.

The fork gets the program's arguments, folder, environment and open files. The program passes signals on, ends with the
status of the fork, and takes it along when it is killed. Each call imports the modules named here: they are light.
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

LARGEST, MOST_FILES = 2**17, 64  # of a message


def ask(address: str, words: list[str]):
    """Be the program: send the command, and end as it ends."""
    files = [int(name) for name in os.listdir("/proc/self/fd")]
    files = [file for file in files if Path(f"/proc/self/fd/{file}").exists()]  # without that of the list
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.connect(address)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: link.send(bytes([number])))
        command = {"words": words, "folder": os.getcwd(), "variables": dict(os.environ), "files": files}
        socket.send_fds(link, [json.dumps(command).encode()], files)
        status = int(link.recv(LARGEST))
    if status < 0:  # a signal ended it
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def fork_for_commands(address: str, program: str):
    """Fork for each command."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that keep a command
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{address}.new")
        listener.listen(MOST_FILES)
        Path(f"{address}.new").rename(address)
        while True:
            link, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                try:
                    _keep(link, program)
                finally:
                    os._exit(0)
            link.close()


def _keep(link: socket.socket, program: str):
    """Fork, pass signals on, and send the exit status."""
    import multiprocessing
    from multiprocessing.connection import wait

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, files, _, _ = socket.recv_fds(link, LARGEST, MOST_FILES)
    process = multiprocessing.get_context("fork").Process(target=_work, args=(program, files, json.loads(message)))
    process.start()
    for file in files:
        os.close(file)
    while process.sentinel not in wait([link, process.sentinel]):
        signals = link.recv(1)
        with suppress(ProcessLookupError):
            os.kill(process.pid, signals[0] if signals else signal.SIGKILL)
    process.join()
    link.send(str(process.exitcode).encode())


def _work(program: str, received: list[int], command: dict):
    """Be the process of the command."""
    import fcntl
    import tempfile

    from forks import begin, run_module

    high = [fcntl.fcntl(file, fcntl.F_DUPFD, 200) for file in received]  # out of the way of the numbers to be
    for file in received:
        os.close(file)
    for file, number in zip(high, command["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    os.chdir(command["folder"])
    os.environ.clear()
    os.environ.update(command["variables"])
    sys.executable, tempfile.tempdir = program, None
    begin()
    words = command["words"]
    if words[0] == "-u":  # as torchrun asks
        del words[0]
    option, text, *flags = words
    if option == "-c":
        sys.argv = ["-c", *flags]
        exec(text, {"__name__": "__main__"})
    else:
        run_module(None, text, *flags)


def write_program(folder: Path):
    """Return the path of a program, and the address of its server."""
    program, address = folder / "python", folder / "address"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -SE "{Path(__file__).resolve()}" "{address}" "$@"\n')
    program.chmod(0o755)
    return str(program), str(address)


if __name__ == "__main__":
    ask(sys.argv[1], sys.argv[2:])
