"""An agent with a script in place of ideas of its own. It keeps to docs/agents.md, and is a process like any other.

python agent.py REPOSITORY BASE SERIES IDEAS FLAGS...

IDEAS is a JSON file: a list of {"name", "file", "old", "new"}, each an edit of a file of the repository. FLAGS go to
scripts.trial. A night that was stopped goes on with the same command.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

KEEP, DISCARD, UNDECIDED = 0, 10, 11


class Answer(NamedTuple):
    """What a program may rely on."""

    status: int
    metrics: dict[str, str]


class Agent:
    def __init__(self, root: Path, base: Path, series: str, flags: list[str]) -> None:
        self.root = root
        self.folder = base / "trial" / series
        self.flags = [f"--series={series}", *flags]

    def git(self, *words: str) -> str:
        own = ["-c", "user.name=agent", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "safe.directory=*"]
        return subprocess.run(
            ["git", *own, *words], cwd=self.root, check=True, capture_output=True, encoding="utf-8"
        ).stdout

    def ask(self, *flags: str) -> Answer:
        """Ask, by the door of the series once there is one, and pass on what is printed."""
        door = self.folder / "ask.py"
        program = ["-IB", str(door)] if door.exists() else ["-m", "scripts.trial"]
        metrics = {}
        command = [sys.executable, *program, *self.flags, *flags]
        with subprocess.Popen(command, cwd=self.root, stdout=subprocess.PIPE, encoding="utf-8") as asked:
            assert asked.stdout is not None  # a pipe
            for line in asked.stdout:
                print(line, end="", flush=True)
                if line.startswith("METRIC "):
                    name, _, value = line.removeprefix("METRIC ").strip().partition("=")
                    metrics[name] = value
        return Answer(asked.returncode, metrics)

    def remembered(self) -> set[str]:
        """Return the edits that the ledger says were refused, or have failed, or were no gain."""
        ledger = self.folder / "trial.jsonl"
        records = (
            [json.loads(line) for line in ledger.read_text(encoding="utf-8").splitlines()] if ledger.exists() else []
        )
        discarded = {
            record["name"] for record in records if record["kind"] == "trial" and record["answer"] == "discard"
        }
        return {record["diff"] for record in records if record["kind"] == "asked" and record["name"] in discarded}

    def forget(self) -> None:
        self.git("checkout", "--", ".")
        self.git("clean", "-fd")

    def try_out(self, name: str, file: str, old: str, new: str) -> str:
        """Edit, ask, and keep or forget; return the hash of the ledger's last line, or "" if nothing was asked."""
        path = self.root / file
        text = path.read_text(encoding="utf-8")
        if old not in text:
            print(f"agent: {name}: is committed", flush=True)
            return ""
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        if self.git("diff", "--binary", "HEAD") in self.remembered():
            print(f"agent: {name}: is remembered", flush=True)
            self.forget()
            return ""
        answer = self.ask()
        if answer.status == KEEP:
            self.git("add", "-A")
            self.git("commit", "-m", name)
        elif answer.status in (DISCARD, UNDECIDED):
            self.forget()
        else:
            sys.exit(f"agent: {name}: the question cannot be asked")
        print(f"agent: {name}: {answer.metrics['answer']}", flush=True)
        return answer.metrics["ledger"]

    def night(self, ideas: list[dict[str, str]]) -> int:
        """Try all ideas, check the ledger, and return the status of opening the holdout."""
        self.forget()  # what a night that was stopped has left
        heads = [self.try_out(**idea) for idea in ideas]
        for head in filter(None, heads):
            if self.ask("--verify", f"--head={head}").status:
                sys.exit("agent: an answer is not in the ledger any more")
        return self.ask("--holdout").status


if __name__ == "__main__":
    root, base, series, script, *flags = sys.argv[1:]
    agent = Agent(Path(root), Path(base), series, flags)
    sys.exit(agent.night(json.loads(Path(script).read_text(encoding="utf-8"))))
