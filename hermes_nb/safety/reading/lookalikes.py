"""Letters that look like others or stand for them, as data: lookalikes, "leet", a cipher."""

from __future__ import annotations

_LATIN = {
    "a": "аαɑᴀ∂ӑӓɐⲁ",
    "b": "вьβʙɓƅЬ",
    "c": "сϲᴄᏟⅽҫϹ",
    "d": "ԁɗᴅđժⅾ",
    "e": "еεєҽҿᴇəɛ",
    "f": "ƒꜰʄϝſ",
    "g": "ɡցɢɠԍ",
    "h": "һнհʜħћ",
    "i": "іιɩıɪⅰӏ",
    "j": "јϳᴊյʝ",
    "k": "кκᴋқƙ",
    "l": "ӏⅼʟłⲓɭ",
    "m": "мᴍⅿϻ",
    "n": "пηոɴռɳи",
    "o": "оοσօᴏøөஂ૦ⲟ",
    "p": "рρᴘթⲣ",
    "q": "ԛգզǫ",
    "r": "гʀᴦɾяꭇ",
    "s": "ѕꜱʂտ",
    "t": "тτᴛŧ",
    "u": "υսᴜцʋμ",
    "v": "νѵᴠⅴ",
    "w": "ωԝᴡшɯ",
    "x": "хχⅹ×",
    "y": "уγүʏყ",
    "z": "ᴢʐȥ",
    "ae": "æ",
    "oe": "œ",
}
"""Cyrillic, Greek, Armenian, phonetic and small-capital letters by the Latin one they resemble."""

LOOKALIKES: dict[int, str] = {
    ord(letter): latin for latin, letters in _LATIN.items() for letter in letters
}

CYRILLIC = str.maketrans("abceghikmnoprtuxy", "авседнікмпоргтиху")
"""Latin letters by the Cyrillic one that looks like them, for words that are mostly Cyrillic."""

_SIGNS = {
    **dict(zip("0345789", "oeastbg", strict=True)),
    **dict(zip("@$!+€", "asite", strict=True)),
}
SIGNS_FOR_LETTERS = (
    str.maketrans({**_SIGNS, "1": "i", "|": "i"}),
    str.maketrans({**_SIGNS, "1": "l", "|": "l"}),
)
"""The ways to read "leet": a stroke is an i or an l."""

_ABC = "abcdefghijklmnopqrstuvwxyz"
ATBASH = str.maketrans(_ABC + _ABC.upper(), _ABC[::-1] + _ABC[::-1].upper())
"""The alphabet reversed."""
