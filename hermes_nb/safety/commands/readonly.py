"""What runs without a question: commands known to read, with arguments known to be harmless.

Everything here must hold for every file and every value of a variable: a command passes only if it
can write nothing, start nothing unknown, use no network and show no secret file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from hermes_nb.safety.commands import command_facts as facts
from hermes_nb.safety.commands.deeds import deed
from hermes_nb.safety.commands.git_facts import why_git_asks
from hermes_nb.safety.commands.shell_script import Redirect
from hermes_nb.safety.commands.shell_words import HOME, Word
from hermes_nb.safety.commands.unwrap import Unwrapped, tool_name
from hermes_nb.safety.commands.vital import absolute
from hermes_nb.safety.protected import why_secret

_BINARIES = ("/bin/", "/usr/bin/", "/usr/local/bin/")
_CODE_IN_TEXT = re.compile(r"\$\(|`|<\(|\[")
_SED_SCRIPT = re.compile(
    r"((\d+|\$)(,(\+?\d+|\$))?[pdq]|\d*q|=|s([/|#,])(?:(?!\5)[^\\\n]|\\[^\n])*\5"
    r"(?:(?!\5)[^\\\n]|\\[^\n])*\5[gpI\d]*)"
)
_AWK_BITES = re.compile(r"system|getline|[|>@]|close|ENVIRON")
_PASSED_DEVICES = frozenset({"/dev/null", "/dev/stdin", "/dev/fd/63", "/dev/stdout", "/dev/stderr"})


def why_not_readonly(inner: Unwrapped, directory: str | None) -> str:
    """Return why a command may not run unasked; "" if it only reads."""
    words = inner.words
    if not words:
        return ""
    if inner.serious:
        return f"{inner.serious[0]} runs it in another way or as somebody else"
    if set_badly := next(filter(facts.TAINTED_VARIABLES.fullmatch, inner.assigned), ""):
        return f"it sets {set_badly}"
    name = tool_name(words[0])
    if not words[0].known or words[0].glob:
        return "the name of a command is worked out only when it runs"
    if "/" in words[0].text and not words[0].text.startswith(_BINARIES):
        return f"it runs the program {words[0].text!r}"
    if inner.lookup:
        return ""
    if len(words) == 2 and words[1].text in facts.VERSION_OPTIONS:  # noqa: PLR2004
        return "" if name in facts.HAVE_VERSIONS else deed(name)
    return _judged(name, words[1:], directory, appended=inner.appended)


def why_redirect_asks(redirect: Redirect, directory: str | None) -> str:
    """Return why a redirect needs a question; "" if it writes nothing and reads no secret."""
    target = redirect.target
    if redirect.operator in ("<", "<&", ">&", ">&-", "<&-"):
        if re.fullmatch(r"\d*-?", target.text):
            return ""
        if redirect.operator == "<":
            return _reveals(target, directory)
    return "" if target.text == "/dev/null" else f"it writes to {target.text!r}"


def why_assignment_asks(name: str) -> str:
    """Return why setting a variable needs a question; "" if nothing reads it but the script."""
    return f"it sets {name}" if facts.TAINTED_VARIABLES.fullmatch(name) else ""


def _judged(name: str, arguments: Sequence[Word], directory: str | None, *, appended: bool) -> str:
    texts = [word.text for word in arguments]
    bites = facts.BITING.get(name)
    if bites and (bad := next(filter(bites.match, texts), None)) is not None:
        return f"with {bad}, {name} does more than read"
    if name in facts.CAREFUL and (why := _uncertain(name, arguments)):
        return why
    if name in facts.METADATA:
        return _metadata(name, arguments)
    if appended:
        return f"what {name} is given is worked out only when it runs"
    if name in facts.CONTENT or name in facts.CAREFUL:
        return _content(name, arguments, directory)
    if rule := _RULES.get(name):
        return rule(arguments, directory)
    if _is_reading_verb(name, texts) or (name in facts.BARE and not texts):
        return ""
    return deed(name, [word.text for word in arguments if word.known])


def _is_reading_verb(name: str, texts: list[str]) -> bool:
    for verb in facts.VERBS.get(name, ()):
        rest = texts[len(verb) :]
        if tuple(texts[: len(verb)]) == verb:
            return all(facts.VERB_OPTIONS.fullmatch(text) for text in rest)
    return False


def _metadata(name: str, arguments: Sequence[Word]) -> str:
    """Judge a command that shows no content; some evaluate code inside of what they are given."""
    if name in ("test", "[", "unset", "expr", "printf"):
        odd = (w.text for w in arguments if not w.tame or (name != "[" and _evaluates(name, w)))
        if (text := next(odd, None)) is not None:
            return f"{name} may evaluate {text!r}"
    return ""


def _evaluates(name: str, word: Word) -> bool:
    return name != "printf" and bool(_CODE_IN_TEXT.search(word.text)) and len(word.text) > 1


def _uncertain(name: str, arguments: Sequence[Word]) -> str:
    """Judge arguments that might turn out to be options: unknown ones, and `*` (a file `-o`)."""
    for word in arguments:
        if not word.known or (word.glob and word.text[:1] in "*?["):
            return f"{word.text!r} could turn out to be an option of {name}"
    return ""


def _content(name: str, arguments: Sequence[Word], directory: str | None) -> str:
    if name in ("grep", "egrep", "fgrep", "zgrep") and (why := _recursion(arguments)):
        return why
    return next(filter(None, (_reveals(word, directory) for word in arguments)), "")


def _recursion(arguments: Sequence[Word]) -> str:
    """Judge a recursive grep: below a plain subdirectory, or only in named kinds of files."""
    texts = [word.text for word in arguments]
    recursive = any(re.match(r"-[A-Za-z]*[rR]|--(de)?re|--directories", text) for text in texts)
    if not recursive or any(text.startswith("--include=*.") for text in texts):
        return ""
    places = [text for text in texts if not text.startswith("-")][1:]
    plain = all(re.fullmatch(r"[A-Za-z0-9_][\w.-]*(/[\w-][\w.-]*)*/?", place) for place in places)
    return (
        ""
        if places and plain
        else "searching all files may show secret ones; search_files leaves those out"
    )


def _reveals(word: Word, directory: str | None) -> str:
    """Return which secret an argument may name, whole or behind `=`, `:`, `@`."""
    if not word.tame:
        return "which file it reads is worked out only when it runs"
    for piece in {word.text, *re.split(r"[=:@,]", word.text), re.sub(r"^-\w", "", word.text)}:
        if not piece:
            continue
        path = absolute(piece, directory) or piece
        if word.glob and re.search(r"(^|/)\.[^/]*[*?\[]", piece):
            return f"{piece!r} may name secret files"
        if why := _secret(path):
            return f"it may show {why}"
    return ""


def _secret(path: str) -> str:
    if re.match(r"/proc/[^/]+/", path):
        return "the inside of a process"
    if path.startswith("/dev/") and path not in _PASSED_DEVICES:
        return "a device"
    return why_secret(PurePosixPath(path.replace(HOME, "/home/user", 1)))


def _find(arguments: Sequence[Word], _: str | None) -> str:
    for at, word in enumerate(arguments):
        if not word.known:
            return f"{word.text!r} could turn out to be an action of find"
        if word.text in ("-exec", "-execdir"):
            inner = arguments[at + 1].text if at + 1 < len(arguments) else ""
            if inner not in facts.METADATA or inner in facts.BITING:
                return f"find would run {inner!r}"
        elif re.match(r"-(delete|ok|fprint|fls|exec|files0)", word.text):
            return f"find {word.text} deletes, writes or runs something"
    return ""


def _sed(arguments: Sequence[Word], directory: str | None) -> str:
    options = [word.text for word in arguments if word.text.startswith("-")]
    operands = [word for word in arguments if not word.text.startswith("-")]
    if not set(options) <= {"-n", "-E", "-r", "-e", "-ne", "-nE", "--quiet", "--silent"}:
        return "with these options, sed may change files"
    if not operands or not _SED_SCRIPT.fullmatch(operands[0].text):
        return "this script of sed may write files or run something"
    return next(filter(None, (_reveals(word, directory) for word in operands[1:])), "")


def _awk(arguments: Sequence[Word], directory: str | None) -> str:
    rest = list(arguments)
    while rest and re.match(r"-[Fv]", rest[0].text):
        rest = rest[2 if len(rest[0].text) == 2 else 1 :]  # noqa: PLR2004 - a letter's option
    if not rest or rest[0].text.startswith("-") or not rest[0].known:
        return "this program of awk may write files or run something"
    if _AWK_BITES.search(rest[0].text):
        return "this program of awk may write files or run something"
    return next(filter(None, (_reveals(word, directory) for word in rest[1:])), "")


def _uniq(arguments: Sequence[Word], directory: str | None) -> str:
    operands = [word for word in arguments if not word.text.startswith("-")]
    if len(operands) > 1 or _uncertain("uniq", arguments):
        return "uniq may write to the file that is named last"
    return next(filter(None, (_reveals(word, directory) for word in operands)), "")


def _tar(arguments: Sequence[Word], _: str | None) -> str:
    listing = len(arguments) == 2 and re.fullmatch(r"-?t[vzjJ]*f", arguments[0].text)  # noqa: PLR2004
    return "" if listing and arguments[1].known else deed("tar")


def _set(arguments: Sequence[Word], _: str | None) -> str:
    plain = all(re.fullmatch(r"[-+][euxo]+|pipefail", word.text) for word in arguments)
    return "" if arguments and plain else "set changes how the shell takes the rest"


def _declare(arguments: Sequence[Word], _: str | None) -> str:
    return (
        ""
        if all(word.text.isidentifier() for word in arguments)
        else "it changes variables of the shell"
    )


def _git(arguments: Sequence[Word], directory: str | None) -> str:
    if any(not word.known or not word.tame for word in arguments):
        return "what git is told is worked out only when it runs"
    why = why_git_asks([word.text for word in arguments])
    return why or next(filter(None, (_reveals(word, directory) for word in arguments)), "")


def _python(arguments: Sequence[Word], directory: str | None) -> str:
    if [word.text for word in arguments[:2]] == ["-m", "pip"]:
        return _judged("pip", arguments[2:], directory, appended=False)
    return "it runs Python"


_RULES: dict[str, Callable[[Sequence[Word], str | None], str]] = {
    "awk": _awk,
    "declare": _declare,
    "export": _declare,
    "find": _find,
    "gawk": _awk,
    "git": _git,
    "local": _declare,
    "python": _python,
    "python3": _python,
    "readonly": _declare,
    "sed": _sed,
    "set": _set,
    "tar": _tar,
    "typeset": _declare,
    "uniq": _uniq,
}
