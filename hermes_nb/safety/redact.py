"""Take secrets out of text before it is stored, shown, exported or summarised.

Invariants: linear time on any input, idempotent, and quiet: a secret becomes `[redacted]`, all else
stays byte for byte. Known key formats go wherever they stand. A named secret (`PASSWORD=…`,
`"api_key": "…"`) goes when its value can be one: code that merely names a secret
(`token = tokenizer.next()`, `api_key=os.environ["KEY"]`), placeholders and prose are left alone.
"""

from __future__ import annotations

import re

STUB = "[redacted]"

_SHORTEST_TOKEN = 8
_LONGEST_PHRASE = 64
_DIGESTS = frozenset({32, 40, 56, 64, 96, 128})
"""How long digests are in hexadecimal: they are keys of caches more often than of doors."""

_FORMATS = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      sk-(?:ant|or|proj|svcacct|admin|lf)-[A-Za-z0-9_-]{10,}   # Anthropic, OpenRouter, OpenAI
    | AIza[A-Za-z0-9_-]{30,}                                   # Google
    | ya29\.[A-Za-z0-9_-]{20,}
    | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_[A-Za-z0-9_]{20,}
    | gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|oas|imt|ffct)-[A-Za-z0-9_-]{16,}  # GitLab
    | GOCSPX-[A-Za-z0-9_-]{20,}                                # Google OAuth
    | SK[0-9a-f]{32}(?![0-9A-Za-z])                            # Twilio
    | (?:dapi|key-)[0-9a-f]{32}(?![0-9A-Za-z])                 # Databricks, Mailgun
    | xox[abeoprs]-[A-Za-z0-9-]{10,} | xapp-[A-Za-z0-9-]{20,}  # Slack
    | hf_[A-Za-z0-9]{20,} | gsk_[A-Za-z0-9]{20,} | xai-[A-Za-z0-9]{20,}
    | nvapi-[A-Za-z0-9_-]{30,} | pplx-[A-Za-z0-9]{30,} | r8_[A-Za-z0-9]{30,}
    | tvly-[A-Za-z0-9-]{20,} | lsv2_(?:pt|sk)_[A-Za-z0-9_]{20,}
    | (?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])                 # AWS
    | npm_[A-Za-z0-9]{30,} | pypi-[A-Za-z0-9_-]{30,} | dop_v1_[a-f0-9]{40,}
    | [sr]k_(?:live|test)_[A-Za-z0-9]{16,} | whsec_[A-Za-z0-9]{20,}  # Stripe
    | SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}               # SendGrid
    | shp(?:at|ss|ca|pa)_[a-fA-F0-9]{32}
    | AGE-SECRET-KEY-1[0-9A-Z]{20,}
    )""",
    re.VERBOSE,
)
_TELEGRAM = re.compile(r"(?<!\d)(\d{8,10}:)AA[A-Za-z0-9_-]{30,}")
_HOOK = re.compile(
    r"(hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/\d{1,20}/)"
    r"([\w/-]{20,4096})"
)
_SIGNATURE = re.compile(r"([?&]sig=)([A-Za-z0-9%+/=_-]{30,4096})")
_LOGIN = re.compile(
    r"(\bcurl\b[^\n;|]{0,200}?\s(?:-u|--user)[ =][\"']?[^\s:\"'$]{1,100}:)([^\s\"'$]{1,4096})"
    r"|(\b(?:mysql|mysqldump|mysqladmin|mariadb)\b[^\n;|]{0,200}?\s-p)([^\s\"'$-][^\s\"'$]{3,4096})"
)
_COOKIE = re.compile(r"(?i)((?<![\w-])(?:set-)?cookie:\s{0,4}[^\s;=]{1,60}=)([^\s;\"']{16,4096})")
_GENERIC_SK = re.compile(r"(?<![A-Za-z0-9])sk-([A-Za-z0-9_-]{16,})")
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]*+")
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?:[^-]|-(?!----))*+-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"|(?:(?:\s|\\[rn])*+[A-Z][A-Za-z-]{2,20}: [^\n]{0,200})*+"  # cut off: headers, then lines
    r"(?:(?:\s|\\[rn])*+[A-Za-z0-9+/=]{40,}+)++)"
)
_AUTHORIZATION = re.compile(
    r"""(?ix)(?<![\w-])((?:proxy-)?authorization\\*["']?\s{0,4}[:=]\s{0,4}\\*["'`]?
        (?:(?:bearer|basic|token|digest)\s{1,4})?+)([^\s"'`\\,;<>(){}\[\]]{6,4096})"""
)
_SCHEME = re.compile(r"(?i)(?<![\w-])(bearer|basic)(\s{1,4})([A-Za-z0-9._~+/=-]{12,4096})")
_HEADER = re.compile(
    r"(?i)(?<![\w-])((?:x-)?(?:goog-)?(?:api-key|auth-token|access-token|subscription-key)"
    r"\s{0,4}:\s{0,4})([^\s\"'\\,;<>(){}\[\]]{6,4096})"
)
_URL = re.compile(
    r"(?i)(?<![a-z0-9+.-])([a-z][a-z0-9+.-]{0,40}+://[^\s:/@\"'<>]*+:)([^\s/\"'<>]{1,4096})@"
)
_FLAG = re.compile(
    r"(?i)(?<![\w-])(--[\w-]{0,40}?(?:password|passphrase|token|secret|api-?key)[ \t]{1,4})"
    r"([^\s\"'\\(){}\[\]<>$-][^\s\"'\\(){}\[\]<>]{5,4096})"
)
_NAMED = re.compile(
    r"""(?ix)(?<![A-Za-z0-9_.-])
    (?P<name>[A-Za-z0-9_.-]{0,60}?
      (?:password|passwd|passphrase|pwd|secret|token|key|credentials?|(?-i:_PASS)))
    (?P<between>\\*["']?\s{0,4}(?:=>|:=|[:=])\s{0,4})
    (?: (?P<quote>\\*["'])(?P<quoted>[^"'\n]{3,4096}?)(?P=quote)
      | (?P<bare>[^\s"'`,;&<>(){}\[\]\\]{3,4096})(?![(\[{"'\w]) )"""
)

_SIGNS = (
    *("key", "token", "secret", "passw", "passp", "pwd", "_pass", "cred", "auth", "bearer"),
    *("basic", "cookie", "curl", "mysql", "mariadb", "://", "eyj"),
)
_RUN = re.compile(r"[A-Za-z0-9_-]{15}")
"""A secret has a telling word beside it or in it, or is a run of this many letters and digits."""

_STRONG = re.compile(
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|credentials?"
    r"|(?:api|secret|access|private|account|auth|encryption|signing|master|subscription)key)$"
)
_PLACEHOLDER = re.compile(
    r"""(?ix) \[redacted\]? | <.* | \$.* | \{.* | %[({].* | (?:.*[-_])?(?:your|insert)[-_\s].*
    | .*\.\.\. | .*[-_]x{3,} | [*x.•-]+
    | (?:none|null|nil|true|false|undefined|string|str|text|bytes|int|optional|required|any
        |password|passwd|secret|token|key|api_?key|changeme|example|placeholder|prompt|ask) """
)
_CODE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|@?[A-Za-z_]+\d{0,3}")
_NAMES_A_SECRET = re.compile(r"(?i)pass|token|key|secret|cred|pwd")


def redact(text: str) -> str:
    """Return `text` with `[redacted]` in place of every secret in it."""
    folded = text.casefold()
    if not any(sign in folded for sign in _SIGNS) and not _RUN.search(text):
        return text
    return _redacted(text)


def _redacted(text: str) -> str:
    if "PRIVATE KEY" in text:
        text = _PEM.sub(STUB, text)
    text = _FORMATS.sub(STUB, text)
    text = _GENERIC_SK.sub(lambda m: STUB if _random(m[1], 12) else m[0], text)
    if "eyJ" in text:
        text = _JWT.sub(STUB, text)
    text = _TELEGRAM.sub(rf"\1{STUB}", text)
    if "http" in text or "hooks." in text or "discord" in text:
        text = _SIGNATURE.sub(_second, _HOOK.sub(_second, text))
    if "curl" in text or "mysql" in text or "mariadb" in text:
        text = _LOGIN.sub(_login, text)
    text = _COOKIE.sub(lambda m: m[1] + STUB if _random(m[2], 16) else m[0], text)
    text = _AUTHORIZATION.sub(_second, text)
    text = _SCHEME.sub(_scheme, text)
    text = _HEADER.sub(_second, text)
    if "://" in text:
        text = _URL.sub(lambda m: m[0] if _placeholder(m[2]) else f"{m[1]}{STUB}@", text)
    text = _FLAG.sub(_second, text)
    return _NAMED.sub(_named, text)


def _second(match: re.Match[str]) -> str:
    """Return the match with its second group redacted."""
    return match[0] if _placeholder(match[2]) else match[1] + STUB


def _login(match: re.Match[str]) -> str:
    """Redact the password behind `curl -u name:` and `mysql -p`."""
    before, value = (match[1], match[2]) if match[1] else (match[3], match[4])
    return match[0] if _placeholder(value) else before + STUB


def _scheme(match: re.Match[str]) -> str:
    """Redact `Bearer …` outside a header, where "basic functionality" may be meant."""
    shortest = 12 if match[1].lower() == "bearer" else 16
    if len(match[3]) < shortest or not _random(match[3], shortest):
        return match[0]
    return f"{match[1]}{match[2]}{STUB}"


def _named(match: re.Match[str]) -> str:
    name, quoted, bare = match["name"], match["quoted"], match["bare"]
    value = quoted if quoted is not None else bare
    if _placeholder(value) or name in ("PWD", "OLDPWD"):
        return match[0]
    strong = _STRONG.search(re.sub(r"[_.-]", "", name).lower()) is not None
    if quoted is not None:
        secret = _quoted_secret(name, value, strong=strong)
    else:
        secret = _bare_secret(name, value, strong=strong)
    if not secret:
        return match[0]
    quote = match["quote"] or ""
    return f"{name}{match['between']}{quote}{STUB}{quote}"


def _quoted_secret(name: str, value: str, *, strong: bool) -> bool:
    """Say whether a quoted value is a secret: a strong name needs no more than one word."""
    digits = any(c.isdigit() for c in value)
    if " " in value or "\t" in value:
        return strong and name.isupper() and digits and len(value) <= _LONGEST_PHRASE
    if strong:
        return True
    if name.isupper() and name.endswith("TOKEN") and digits:
        return len(value) >= _SHORTEST_TOKEN
    if name.lower().endswith("key"):  # "key": "…" is every mapping's word
        return name.isupper() and _random(value, 12)
    return _random(value, 12)


def _bare_secret(name: str, value: str, *, strong: bool) -> bool:
    """Say whether an unquoted value is a secret: in .env style nearly always, else if random."""
    if name.isupper():
        if strong:
            return not (value.startswith("/") and name.endswith("PWD"))
        if name.endswith("TOKEN"):
            return len(value) >= _SHORTEST_TOKEN and not value.isdigit()
        return _random(value, 12)
    if _CODE.fullmatch(value) and ("." in value or "@" in value or _NAMES_A_SECRET.search(value)):
        return False
    if not strong and len(value) in _DIGESTS and not value.strip("0123456789abcdef"):
        return False
    return _random(value, 6 if strong else 12)


def _placeholder(value: str) -> bool:
    return _PLACEHOLDER.fullmatch(value) is not None


def _random(value: str, run: int) -> bool:
    """Say whether `value` looks generated: letters and digits mixed, and at least `run` long.

    Words joined by hyphens (`sk-container-id-1` in scikit-learn's HTML) are not: without capitals
    a generated value has a long unbroken stretch.
    """
    if len(value) < run or not any(c.isdigit() for c in value):
        return False
    lower = any(c.islower() for c in value)
    if lower and any(c.isupper() for c in value):
        return True
    letters = lower or any(c.isupper() for c in value)
    stretch = max(map(len, re.split(r"[-_./]", value)))
    return letters and stretch >= min(run, 12)
