"""KMMLU-Redux, whose columns are known and whose folder on the hub is not.

Programs that read the data set name no configuration, so it has one, and its name is that of the folder with the
converted file: that of the data set's own file, as for KMMLU-Pro, or `default`, if the data set names none.
"""

from dataclasses import replace
from pathlib import Path

from nanochat.data.hub import HubError, fetch, is_here
from tasks.multiple_choice import MultipleChoice

OTHER_FOLDER = "default"


class Redux(MultipleChoice):
    """Multiple choice from one of two folders, whichever has the file."""

    def fetch_files(self) -> list[Path]:
        first = self.data.files(self.split)
        others = replace(self.data, parts=(OTHER_FOLDER,)).files(self.split)
        tries = [others, first] if is_here(others) and not is_here(first) else [first, others]
        reasons = []
        for files in tries:
            try:
                paths = fetch(files)
            except HubError as error:
                reasons.append(str(error))
                continue
            self.files = {str(file): path for file, path in zip(files, paths, strict=True)}
            return paths
        names = " or ".join(str(file) for file in (*first, *others))
        raise HubError(
            f"{self.data.name} cannot be read: its folder on the hub is not documented, and it is in neither of two; "
            "accept its conditions on its page and set HF_TOKEN, or put its file into a mirror as"
            f" {names} ({reasons[0]})"
        )
