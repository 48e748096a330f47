"""What in a text is no word but a thing: an address, a file that holds secrets, a variable.

The kinds are classes to the rules like those of the lexicon. FILE holds secrets, WEAKFILE one that
projects speak of every day (`.env`); AGENTFILE configures agents, shells or what starts by itself;
VARIABLE is the value of a secret; BADHOST calls itself an attacker's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import combinations, islice

URL = "URL"
EMAIL = "EMAIL"
_SCHEME = re.compile(r"(?:https?|wss?|ftp)://[^\s\"'<>`)\]]{3,}")
_HERE = re.compile(r"\w+://(?:localhost|127\.\d|0\.0\.0\.0|\[::1\])")
_ADDRESS = re.compile(r"[\w.+-]{1,64}@[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){1,4}")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of thing: one of `needs` is in everything that `pattern` finds."""

    name: str
    needs: tuple[str, ...]
    pattern: re.Pattern[str]


_HOSTS = (
    *("evil", "attack", "malicious", "malware", "c2", "exfil", "rogue", "keylog", "sniff"),
    *("stager", "botnet", "phish", "hacker", "pwn", "steal", "covert", "ransom", "implant"),
    *("adversary", "dropper", "spyware", "backdoor", "beacon", "threat", "bad"),
)
_NUMBERED = re.compile("[0-9](?<=(?:at|be|ch|de|es|fr|gb|it|lt|nl|pl|pt).)")
"""How an account's number begins where they are asked for most, found by its first digit."""
_ACCOUNT = "a country and a digit"
"""What stands for that among the needed parts."""
_SECRET_WORDS = ("key", "token", "secret", "passw", "credential", "pwd")

_KINDS = (
    _Kind(
        "BADHOST",
        _HOSTS,
        re.compile(
            rf"(?<![\w@])(?:[\w-]{{1,63}}\.){{0,6}}(?:\w{{1,30}}-)?(?:{'|'.join(_HOSTS)})"
            r"(?:ers?|s|ed|ing|guys?|trat\w{1,4})?(?:-\w{1,30})?(?:\.[a-z0-9-]{1,63}){1,5}(?![\w(])"
        ),
    ),
    _Kind(
        "FILE",
        (
            *(".ssh", "id_", ".netrc", ".aws/", "/etc/", ".kube/", ".gnupg", ".docker/", "wallet"),
            *(".pgpass", "/proc/", ".config/gh", "keychain", "_history", ".config/gcloud", ".p12"),
            *("default_credentials", "key.properties", ".config/op", ".pfx", ".kdbx", ".keystore"),
            *(".azure/", "cookies.sqlite", "logins.json", ".pem"),
        ),
        re.compile(
            r"\.ssh\b(?!/(?:config|known_hosts|[\w.-]+\.pub)\b)|\bid_(?:rsa|ed25519|ecdsa|dsa)\b(?!\.pub)|\.netrc\b|\.aws/(?!config\b)|/etc/(?:passwd|shadow)\b"
            r"|\.kube/config|\.gnupg\b|\.docker/config|wallet\.dat\b|\.pgpass\b|/proc/self/environ"
            r"|\.config/gh\b|login\.keychain|\.(?:bash|zsh)_history\b|\.config/(?:gcloud|op)\b"
            r"|default_credentials\.json|\bkey\.properties\b|\.(?:pfx|p12|kdbx|keystore)\b|~/\.azure/"
            r"|\bcookies\.sqlite\b|\blogins\.json\b|(?:key|private)\w{0,8}\.pem\b"
        ),
    ),
    _Kind(
        "WEAKFILE",
        (".env", ".npmrc", ".pypirc", ".git-credentials", "secret", "credentials.", "auth.json"),
        re.compile(
            r"\.env\b(?!\.(?:example|sample|templ|test)|\()|\.npmrc\b|\.pypirc\b|\.git-credentials\b"
            r"|\bsecrets?\.(?:ya?ml|json|env|txt|toml)\b|\bcredentials\.(?:json|ya?ml|ini|txt)\b"
            r"|\bauth\.json\b"
        ),
    ),
    _Kind(
        "AGENTFILE",
        (
            *("s.md", "e.md", "i.md", "l.md", "y.md", "r.md", "rules", ".cursor", ".claude"),
            *("shrc", "profile", "shenv", "cron", "authorized_keys", "hooks", "agents", ".hermes"),
            *(".codex", ".gemini", ".vscode", ".aider", "schtasks", "systemd/user", "codeowners"),
        ),
        re.compile(
            r"\b(?:agents|claude|gemini|hermes|soul|memory|user|copilot-instructions)\.md\b"
            r"|\.(?:cursor|windsurf|cline)rules|\.cursor/|\.claude/|\.(?:bash|zsh)(?:rc|_profile|env)\b"
            r"|\.profile\b|\bcrontab\b|authorized_keys\b|\.git/hooks|profile_default|launchagents"
            r"|\.hermes\b|\.codex/|\.gemini/|\.vscode/(?:settings|tasks)|\.aider\.|\bschtasks\b|systemd/user"
            r"|\bcodeowners\b"
        ),
    ),
    _Kind(
        "LOOSE",
        ("bypass", "danger", "yolo", "auto-approve", "auto_approve", "autoapprove", "approval_"),
        re.compile(
            r"bypasspermissions|danger-full-access|dangerously-\w|--yolo\b|\bauto[-_]?approve"
            r"|approval_(?:policy|mode)"
        ),
    ),
    _Kind(
        "AMOUNT",
        tuple("€$£¥₽₫₹₩đ"),
        re.compile(r"[€$£¥₽₫₹₩]\d|(?<!\w)\d[\d.,]{0,12}[€£¥₽₫₹₩đ]|^[€£¥₽₫₹₩]\W?$"),
    ),
    _Kind(
        "SECRETNAME",
        ("_key", "_token", "_secret", "_passw", "_pwd", "_credential"),
        re.compile(r"(?<![\w$/])\w{0,40}_(?:key|token|secret|passw(?:or)?d|pwd|credential)s?\b"),
    ),
    _Kind(
        "IBAN",
        (_ACCOUNT,),
        re.compile(r"\b[a-z]{2}\d{2}[a-z0-9]{4,30}\b"),
    ),
    _Kind(
        "VARIABLE",
        ("$", "environ", "process.env", "getenv("),
        re.compile(
            rf"\$[({{]*\w{{0,40}}(?:{'|'.join(_SECRET_WORDS)})\w{{0,20}}|os\.environ\b"
            r"|\$\(\s*(?:cat|env|printenv|base64)\b|process\.env\b|getenv\("
        ),
    ),
)


_TOLD = 2
"""Kinds of thing that a chunk is said to name; each set of them is one more letter of the alphabet
that every rule is compiled for."""


def kinds(chunk: str) -> frozenset[str]:
    """Return the kinds of thing that a chunk without spaces names."""
    here = set(filter(chunk.__contains__, _needs()))
    if _NUMBERED.search(chunk):
        here.add(_ACCOUNT)
    if not here:
        return frozenset()
    found = (k.name for k in _KINDS if not here.isdisjoint(k.needs) and k.pattern.search(chunk))
    return frozenset(islice(found, _TOLD))


@cache
def _needs() -> tuple[str, ...]:
    """Return what a chunk has to have one of to be a thing."""
    return tuple(dict.fromkeys(need for kind in _KINDS for need in kind.needs))


def address(chunk: str) -> tuple[int, int, str] | None:
    """Return start, end and class of the URL or e-mail address in a chunk."""
    if "://" in chunk and (found := _SCHEME.search(chunk)) and not _HERE.match(found[0]):
        return found.start(), len(chunk), URL
    if "@" in chunk and (found := _ADDRESS.search(chunk)):
        return found.start(), found.end(), EMAIL
    return None


def sets() -> set[frozenset[str]]:
    """Return every set of classes that a chunk can have."""
    names = [kind.name for kind in _KINDS]
    things = [frozenset(some) for size in range(_TOLD + 1) for some in combinations(names, size)]
    places: tuple[frozenset[str], ...] = (frozenset(), frozenset({URL}), frozenset({EMAIL}))
    return {thing | place for thing in things for place in places} - {frozenset()}
