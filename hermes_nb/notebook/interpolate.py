"""Values in a prompt.

A dollar sign followed by an expression in backticks inserts a value. Other braces, dollars and
backslashes are plain text. Two dollar signs escape the backtick.
"""

from __future__ import annotations

import difflib
import numbers
import re

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.notebook.execute.capture import text_of
from hermes_nb.notebook.interrupt import user_code
from hermes_nb.notebook.previews import HIDDEN, names_a_secret, preview
from hermes_nb.notebook.shell import Shell
from hermes_nb.notebook.variables import describe, user_variables
from hermes_nb.safety.redact import redact

TEXT_BUDGET = 50_000
"""Maximum characters of an inserted string."""
BUDGET = 4_000
"""Maximum characters of the description of any other value."""
_PLACE = re.compile(r"\$\$`|\$`([^`\n]+)`")


def interpolate(prompt: str, shell: Shell) -> str:
    """Return the prompt with each expression replaced by its value.

    Strings and numbers are inserted unchanged, other values as `inspect_variable` describes them.
    Raises `ConfigError`, so that nothing is sent, if an expression cannot be evaluated.
    """

    def replaced(match: re.Match[str]) -> str:
        return "$`" if match[1] is None else _value(match[1].strip(), shell)

    return _PLACE.sub(replaced, prompt)


def literal(text: str) -> str:
    """Escape text that the user did not type, so that `interpolate` leaves it unchanged."""
    return text.replace("$`", "$$`")


def _value(expression: str, shell: Shell) -> str:
    value = evaluate(expression, shell, shown=f"${one_line(expression, 60)!r} in the prompt")
    kind = type(value)  # a proxy's `__class__` would run its code
    if names_a_secret(expression, value):
        return HIDDEN
    if issubclass(kind, str):
        return redact(head_tail(str(value), TEXT_BUDGET))
    if issubclass(kind, int) and not issubclass(kind, bool):
        return preview(value)  # very long integers are summarised
    if value is None or issubclass(kind, numbers.Number):
        return str(value)
    return describe(expression, value, budget=BUDGET)


def evaluate(expression: str, shell: Shell, *, shown: str) -> object:
    """Return an expression's value in the user's namespace.

    Raises `ConfigError` if it has none; `shown` is the expression's name in the error.
    """
    try:
        with user_code():
            return shell.ev(expression)
    except NameError as error:
        names = list(user_variables(shell.user_ns, shell.user_ns_hidden))
        missing = getattr(error, "name", None) or expression
        near = difflib.get_close_matches(str(missing), names, n=3)
        hint = f"near it: {', '.join(near)}" if near else "%whos lists the variables"
        message = f"{shown}: there is no variable {missing!r}; {hint}. Nothing was sent"
    except SyntaxError as error:
        message = f"{shown} is not a Python expression ({error.msg}). Nothing was sent"
    except Exception as error:  # noqa: BLE001 - the user's expression may raise anything
        text = redact(one_line(f"{type(error).__name__}: {text_of(error)}", 200))
        message = f"{shown} raised {text}. Nothing was sent"
    raise ConfigError(message)
