"""Errors that a user can do something about."""


class UserError(ValueError):
    """A setting or an input that is not possible; its message is one sentence that says what to change.

    A script ends with the sentence and exit code 2 (`config.run_script`). Any other ValueError is a defect of the code:
    its place is shown too.
    """


class TemplateError(UserError):
    """A chat template refuses a conversation, or fails for it; or none can write it."""
