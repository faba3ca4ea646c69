"""Upload an export to the Hugging Face hub: after it was compared, private unless its owner says otherwise."""

import re
from pathlib import Path

from nanochat.data.hub import HubError, refusal
from nanochat.errors import UserError

REPO = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def check_repo(repo: str) -> None:
    """Raise a UserError for a name that is not like user/name."""
    if not REPO.fullmatch(repo):
        raise UserError(f"--push={repo} is not like user/name, with letters, digits, - and _ and .")


def check_access(repo: str) -> None:
    """Raise a HubError where nothing can be uploaded: without a token, or without a hub. The export may take long."""
    from huggingface_hub import get_token

    if not get_token():
        raise HubError(f"--push={repo} needs a token that may write: put it into HF_TOKEN, or run `hf auth login`")
    reason = refusal("")
    if reason:
        raise HubError(
            f"--push={repo}: {reason.replace(', or set NANOCHAT_HUB', '').replace('downloads are', 'the hub is')}"
        )


def push(folder: Path, repo: str, public: bool) -> str:
    """Upload the files of a folder in one commit, to a model repository that is made if it is missing.

    One that is there keeps its visibility: nothing is uploaded to a public one without `public`. Return the URL, and
    the visibility that the hub tells, as words.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    api = HfApi()
    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        url = api.create_repo(repo, private=not public, exist_ok=True)
        private = api.model_info(repo).private
        if not public and not private:
            raise HubError(f"--push={repo}: it is there and public, so the files would be too: add --public")
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message=f"Export of {folder.name}")
    except HubError:
        raise
    except Exception as error:  # from httpx, the hub or xet: the library has no common base class
        # The first line is that of HTTP, and the hub's own words are elsewhere.
        words = [str(error).partition("\n")[0] or type(error).__name__, getattr(error, "server_message", None) or ""]
        reason = ": ".join(" ".join(part.split()) for part in words if part)
        # Where there is no repository yet, the command would make a public one.
        command = f"hf upload {repo} {folder}" + ("" if public else " --private")
        again = f"the export is in {folder}, and `{command}` tries again"
        raise HubError(f"--push={repo}: {reason}; {again}") from None
    finally:
        if shown:
            enable_progress_bars()
    if not private:
        return f"{url} (public)"
    return f"{url} (private{': a repository that exists keeps its visibility' if public else ''})"
