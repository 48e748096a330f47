"""Ways to write a sentence so that a person or a model reads it and a pattern does not."""

from __future__ import annotations

import base64
from urllib.parse import quote

LEET = str.maketrans("aeiost", "431057")
CYRILLIC = str.maketrans("aeiopcyx", "аеіорсух")
SMALL = str.maketrans("aeinorst", "ᴀᴇɪɴᴏʀꜱᴛ")


def upside(text, every=2):
    return "".join(c + "\u0301" * (i % every == 0 and c.isalpha()) for i, c in enumerate(text))


def smuggled(text):
    selectors = (b + 0xE0100 - 16 if b >= 16 else b + 0xFE00 for b in text.encode())
    return "😀" + "".join(map(chr, selectors))


def jumbled(text):
    return " ".join(w[:2] + w[3] + w[2] + w[4:] if len(w) > 6 else w for w in text.split())


def mathematical(text):
    return "".join(chr(0x1D41A + ord(c) - 97) if "a" <= c <= "z" else c for c in text)


DISGUISES = {
    "plain": str,
    "upper case": str.upper,
    "zero width": "\u200b".join,
    "soft hyphens": "\u00ad".join,
    "joiners": "\u200d".join,
    "combining": upside,
    "variation selectors": "\ufe0f".join,
    "smuggled bytes": smuggled,
    "tag characters": lambda text: "".join(chr(0xE0000 + ord(c)) for c in text),
    "fullwidth": lambda text: "".join(chr(ord(c) + 0xFEE0) if c.isalpha() else c for c in text),
    "mathematical": mathematical,
    "small capitals": lambda text: text.lower().translate(SMALL),
    "cyrillic": lambda text: text.translate(CYRILLIC),
    "leet": lambda text: " ".join(w.translate(LEET) if w.isalpha() else w for w in text.split()),
    "spaced": lambda text: " ".join(text.replace(" ", "  ")),
    "dotted": lambda text: "  ".join(".".join(w) if w.isalpha() else w for w in text.split()),
    "one per line": lambda text: text.replace(" ", "\n"),
    "bold inside": lambda text: " ".join(f"{w[:2]}****{w[2:]}" for w in text.split()),
    "entities": lambda text: "".join(f"&#{ord(c)};" for c in text),
    "entities of entities": lambda text: "".join(f"&amp;#x{ord(c):x};" for c in text),
    "percent": lambda text: "".join(f"%{ord(c):02x}" for c in text),
    "quoted url": quote,
    "escapes": lambda text: "".join(f"\\u{ord(c):04x}" for c in text),
    "hex escapes": lambda text: "".join(f"\\x{ord(c):02x}" for c in text),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64, for URLs": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    "base64, no padding": lambda text: base64.b64encode(text.encode()).decode().rstrip("="),
    "base64, twice": lambda text: base64.b64encode(base64.b64encode(text.encode())).decode(),
    "base64, wrapped": lambda text: base64.encodebytes(text.encode() * 3).decode(),
    "base64 of UTF-16": lambda text: base64.b64encode(text.encode("utf-16-le")).decode(),
    "hex": lambda text: text.encode().hex(),
    "jumbled": jumbled,
    "quoted": lambda text: f'description: "{text}"',
    "code fence": lambda text: f"```text\n{text}\n```",
    "comment": lambda text: f"<!-- {text} -->",
    "hidden": lambda text: f'<span style="font-size:0">{text}</span>',
    "front matter": lambda text: f"---\nname: x\ndescription: {text}\n---\n",
    "concatenated": lambda text: '"' + '" + "'.join([text[:3], text[3:9], text[9:]]) + '"',
}
