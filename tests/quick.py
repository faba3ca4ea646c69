"""A python that is at work at once: a program that lets a server, which has imported the code, fork for its command.

The fork gets the program's arguments, folder, environment and standard streams. The program ends with the status of the
fork, and takes it along when it is killed. Each call imports the modules named here: they are light.
"""

import json
import os
import socket
import sys
from pathlib import Path

LARGEST = 2**17  # bytes of a message


def ask(address: str, words: list[str]) -> None:
    """Be the program: send the command, and end as it ends."""
    command = {"words": words, "folder": os.getcwd(), "variables": dict(os.environ)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.connect(address)
        socket.send_fds(link, [json.dumps(command).encode()], [0, 1, 2])
        sys.exit(int(link.recv(LARGEST)))


def fork_for_commands(address: str, program: str) -> None:
    import multiprocessing

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{address}.new")
        listener.listen()
        Path(f"{address}.new").rename(address)
        while True:
            link, _ = listener.accept()
            multiprocessing.get_context("fork").Process(target=_keep, args=(link, program)).start()
            link.close()


def _keep(link: socket.socket, program: str) -> None:
    """Fork for one command, and send its exit status."""
    import multiprocessing
    from multiprocessing.connection import wait

    message, streams, _, _ = socket.recv_fds(link, LARGEST, 3)
    process = multiprocessing.get_context("fork").Process(target=_work, args=(program, streams, json.loads(message)))
    process.start()
    for stream in streams:
        os.close(stream)
    if process.sentinel in wait([link, process.sentinel]):
        process.join()
        status = process.exitcode
        link.send(str(status if status >= 0 else 128 - status).encode())  # of a signal, as a shell reports it
    else:  # the program was killed
        process.kill()


def _work(program: str, streams: list[int], command: dict) -> None:
    """Be the process of the command."""
    import tempfile

    from forks import begin, run_module

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(command["folder"])
    os.environ.clear()
    os.environ.update(command["variables"])
    sys.executable, tempfile.tempdir = program, None
    begin()
    words = command["words"]
    if words[0] == "-u":  # as torchrun asks
        del words[0]
    option, text, *flags = words
    if option == "-m":
        run_module(None, text, *flags)
    else:
        assert option == "-c"
        sys.argv = ["-c", *flags]
        exec(text, {"__name__": "__main__"})


def write_program(folder: Path):
    """Return the path of a program, and the address of its server."""
    program, address = folder / "python", folder / "address"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -SE "{Path(__file__).resolve()}" "{address}" "$@"\n')
    program.chmod(0o755)
    return str(program), str(address)


if __name__ == "__main__":
    ask(sys.argv[1], sys.argv[2:])
