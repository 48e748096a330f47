"""Read a question about a table by rules, and write the pandas expression that answers it.

A model of half a billion parameters cannot tell that a table has no column for a question: it
writes code about another one. So every word of the question must be accounted for, as an operation,
a column, a value, a number, the table's name or a word without content. A word that is left is
reported as unknown, and nothing is computed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from hermes_nb.core.protocols import Variable
from hermes_nb.storage.words import fold, stem, stop_words

_TOKEN = re.compile(r"\d[\d,]*(?:\.\d+)?|[^\W\d]\w*")
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_a-zA-Z]+")
_NUMBERS = ("int", "uint", "float", "Int", "UInt", "Float", "double", "decimal")
_YES = ("yes", "true", "y")
_EITHER = frozenset({*_YES, "no", "false", "n"})
_UNITS = frozenset(
    "mm cm m km g kg mg t s sec min h ml l usd eur gbp chf pct percent c f k degrees".split()
)
FILLERS = frozenset(
    """a an the this that these those there here it its them they their i me my we our you your is
    are was were be been being am do does did done has have had having of in on at from to for
    with and or by as per into onto within among than then what which who whom whose when
    where how much many please tell show give list find get compute calculate count compare
    display print name named names called value values data dataset dataframe table tables row
    rows record records entry entries column columns column's field all each every any overall
    total altogether together can could would should will s t us if whether just only also so
    about between possible available present occur occurs contain contains include includes
    appear appears exist exists come comes came go goes went take takes took gets got make
    makes made sell sells sold see seen saw gave given start starts end ends number amount
    level kind kinds type work works pay pays use uses need needs like likes belong belongs
    live lives people person persons item items sample samples observation observations out
    types single one ones different distinct unique r u ur pls plz thx hi hey
    gimme""".split()
)
"""Words without content of their own in a question about a table."""
_PAST = frozenset("flew drove ran rode paid bought spent ate won lost met sent held kept".split())
_BE = frozenset("is are was were be been being".split())
_AGGREGATES = {
    r"averages?|avg|mean|means|typical|on average": "mean",
    r"median": "median",
    r"standard deviation|std|spread": "std",
    r"variance": "var",
    r"total|sum|overall|altogether|combined": "sum",
}
_MOST = (
    r"most|highest|largest|biggest|greatest|maximum|maximal|max|top|longest|oldest|heaviest|tallest"
    r"|farthest|furthest|fastest|latest|most expensive|priciest|dearest|busiest|best"
)
_LEAST = (
    r"fewest|least|lowest|smallest|minimum|minimal|min|shortest|youngest|lightest|cheapest|nearest"
    r"|closest|slowest|earliest|least expensive|worst"
)
_ABOUT = {
    r"old(?:er|est)?|young(?:er|est)?": ("age",),
    r"heav(?:y|ier|iest)|light(?:er|est)|weigh(?:s|ed|ing)?": ("weight", "mass"),
    r"long(?:er|est)?|short(?:er|est)?": ("length", "duration", "minutes", "time"),
    r"tall(?:er|est)?": ("height",),
    r"far(?:ther|thest)?|further|furthest|near(?:er|est)|closest": ("distance",),
    r"fast(?:er|est)?|slow(?:er|est)?": ("speed",),
    r"(?:(?:more|most|less|least) )?expensive|cheap(?:er|est)?|costs?": ("price", "cost", "fare"),
    r"late(?:r|st)?": ("delay",),
    r"earns?|earned|paid": ("salary", "income", "wage"),
    r"(?:over|under) \d+": ("age",),
}  # fmt: skip
"""Adjectives and verbs that stand for a column, by parts of the column's name."""
_OVER = (
    r"more|greater|larger|bigger|higher|longer|older|heavier|taller|farther|above|over|exceed\w*"
)
_UNDER = r"less|fewer|lower|smaller|shorter|younger|lighter|cheaper|under|below"
_NUMBER = r"(\d[\d,]*(?:\.\d+)?)"
_COMPARED = (
    (re.compile(rf"\bbetween {_NUMBER} and {_NUMBER}"), ""),
    (re.compile(rf"\bat least {_NUMBER}"), ">="),
    (re.compile(rf"\bat most {_NUMBER}|\bup to {_NUMBER}"), "<="),
    (re.compile(rf"{_NUMBER}(?: \w+)? or (?:more|above|older|longer)\b"), ">="),
    (re.compile(rf"{_NUMBER}(?: \w+)? or (?:less|fewer|below|younger)\b"), "<="),
    (re.compile(rf"\b(?:more expensive|{_OVER})(?: than)? {_NUMBER}"), ">"),
    (re.compile(rf"\b(?:less expensive|{_UNDER})(?: than)? {_NUMBER}"), "<"),
    (re.compile(r"\b(?:after|since) (\d{4})\b"), "> year"),
    (re.compile(r"\bbefore (\d{4})\b"), "< year"),
    (re.compile(r"\b(?:in|of|from|during) (\d{4})\b"), "== year"),
    (re.compile(rf"\b(?:exactly|equal to|equals?|of|is|in) {_NUMBER}"), "=="),
)
_GREW = r"gr[eo]w|grown|grows|growth|increased?|increases|rose|rise|gain(?:ed)?|improved?"
_FELL = r"fell|fall|fallen|dropp?e?d?|decreased?|decreases|declined?|shr[aiu]nk"
_SAID = {">": "above", "<": "below", ">=": "at least", "<=": "at most", "==": "equal to"}
_MISSING = r"missing|null|nan|nans|empty|blank|unknown|lack|lacks|lacking|no|without"
_COUNTED = (
    r"how many|number of|most|fewest|all|percentage of|share of|fraction of|per|an?|count|"
    r"old\w+|young\w+|heav\w+|light\w+|tall\w+|long\w+|short\w+|cheap\w*|expensive|top \d+|"
    r"(?:do|did|have|has|are|were|of)"
)
_UNNAMED = frozenset(map(stem, "df data table frame dataset tbl raw result d t x".split()))
"""Parts of table names that don't say what a row is."""
_SHOW = r"\W*(?:what(?:s| s| is) (?:in )?|show (?:me )?|describe )(?:the )?(?:table |data )?{}\W*"
_OFTEN = frozenset(
    """average median maximum minimum highest lowest largest smallest longest shortest oldest
    youngest cheapest expensive number percentage percent share missing different distinct unique
    values columns correlation between total""".split()
)
"""Words that are recognised with a typing error. Names are not, since they may be similar."""
_GROUPS = r"per|by|for (?:each|every)|(?:in|on|at|of|from) (?:each|every)|each|every|across"


@dataclass(frozen=True, slots=True)
class Query:
    """An expression and the answer's wording."""

    code: str
    """A pandas expression."""
    says: str
    """The answer, with `{}` for the value."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Words of the question that the table doesn't explain."""

    table: Variable
    words: tuple[str, ...]


@dataclass(slots=True)
class _Word:
    """One word or number of the question."""

    text: str
    start: int
    end: int
    used: bool = False
    valued: bool = False
    """Whether it is a value, such as *male* in "male penguins"."""

    @property
    def stem(self) -> str:
        return stem(self.text)


@dataclass(frozen=True, slots=True)
class _Mention:
    """A column in the question."""

    column: str
    start: int
    end: int


@dataclass(slots=True)
class _Question:
    """A question as far as it has been read, for one table."""

    text: str
    original: str
    """The text before it was lower-cased, with the same positions."""
    table: Variable
    words: list[_Word]
    mentions: list[_Mention] = field(default_factory=list)
    filters: list[tuple[str, str]] = field(default_factory=list)
    """Conditions as pandas code and in words."""
    missing: bool = False

    def take(self, pattern: str) -> re.Match[str] | None:
        """Find a phrase in unused words and mark them as used."""
        for found in re.finditer(rf"\b(?:{pattern})\b", self.text):
            inside = [w for w in self.words if found.start() <= w.start and w.end <= found.end()]
            if inside and not any(word.used for word in inside):
                for word in inside:
                    word.used = True
                return found
        return None

    def says(self, pattern: str) -> bool:
        """Find a phrase, also in words that already stand for a column, and mark it as used."""
        found = re.search(rf"\b(?:{pattern})\b", self.text)
        if found is None:
            return False
        for word in self.words:
            word.used = word.used or (found.start() <= word.start and word.end <= found.end())
        return True

    @property
    def own(self) -> set[str]:
        """The stems of the table's name, which is also what its rows are called."""
        return {stem(part.lower()) for part in _PARTS.findall(self.table.name)}

    def groups(self) -> list[str]:
        """Return the columns to group by: those after "per", "for each" and the like."""
        found: list[str] = []
        compared = re.search(r"\b(?:compare|difference|differ)\b", self.text)
        for mention in self.mentions:
            lead = self.text[: mention.start].rstrip()
            chained = found and lead.endswith((" and", ","))
            kind = compared and not self.is_number(mention.column)
            if chained or kind or re.search(rf"\b(?:{_GROUPS})(?: of)?(?: the)?$", lead):
                found.append(mention.column)
        return found

    def named(self, mention: _Mention) -> str:
        return f"{self.table.name}[{mention.column!r}]"

    def is_number(self, column: str) -> bool:
        return (self.table.columns or {})[column].startswith(_NUMBERS)

    @property
    def numbers(self) -> list[_Mention]:
        return [each for each in self.mentions if self.is_number(each.column)]

    @property
    def kinds(self) -> list[_Mention]:
        return [each for each in self.mentions if not self.is_number(each.column)]

    @property
    def rows(self) -> str:
        """The table as code, restricted by the conditions."""
        conditions = [code for code, _ in self.filters]
        if not conditions:
            return self.table.name
        both = conditions[0] if len(conditions) == 1 else " & ".join(f"({c})" for c in conditions)
        return f"{self.table.name}[{both}]"

    @property
    def where(self) -> str:
        """The conditions in words."""
        return " where " + " and ".join(said for _, said in self.filters) if self.filters else ""


def read(text: str, table: Variable) -> Query | Unknown | None:
    """Return the query for a question, its unknown words, or None if no rule applies."""
    question = _linked(text, table)
    query = _change(question)
    if query is None:
        _compare(question)
        query = next((made for form in _FORMS if (made := form(question)) is not None), None)
    left = _unexplained_words(question)
    if left:
        known = "|".join([*_AGGREGATES, _MOST, _LEAST, _OVER, _UNDER])
        if not is_english(text):
            return None
        strange = [w.text for w in left if not re.fullmatch(rf"{known}|\d.*", w.text)]
        return Unknown(table, tuple(dict.fromkeys(strange or [word.text for word in left])))
    unused = query and any(each.column not in query.code for each in question.numbers)
    either = re.search(r"\b(?:or|either)\b", question.text) is not None
    either = either and len(question.filters) > 1 and ".isin(" not in question.rows
    return None if unused or either else query


def mentioned(text: str, table: Variable) -> int:
    """Return how many words of a text name the table, its columns or their values."""
    question = _linked(text, table)
    own = 2 * (table.name.lower() in question.text.split())
    own += any(word.stem in question.own for word in question.words)
    return own + sum(word.used for word in question.words)


def _linked(text: str, table: Variable) -> _Question:
    """Return a question whose columns and values have been found."""
    original = re.sub(r"[`'\"‘’“”()?!]", " ", text)
    known = {*FILLERS, *map(str.lower, [*(table.columns or {}), *chain(*table.values().values())])}
    original = re.sub(
        r"[a-z]{5,}", lambda word: word[0] if word[0] in known else corrected(word[0]), original
    )
    lower = original.lower() if len(original.lower()) == len(original) else original
    words = [_Word(found[0], found.start(), found.end()) for found in _TOKEN.finditer(lower)]
    question = _Question(lower, original, table, words)
    _link_columns(question)
    _link_values(question)
    return question


def corrected(word: str) -> str:
    """Return the frequent word that a word is with a letter missing, added or moved."""
    if word in _OFTEN or re.fullmatch(f"{_MOST}|{_LEAST}|{_OVER}|{_UNDER}", word):
        return word
    for right in _OFTEN:
        short, long = sorted((word, right), key=len)
        added = len(long) == len(short) + 1 and any(
            long[:n] + long[n + 1 :] == short for n in range(len(long))
        )
        if word[0] == right[0] and (added or sorted(word) == sorted(right)):
            return right
    return word


def is_english(text: str) -> bool:
    """Return whether most function words of a text are English, or none of another language."""
    return "the" in stop_words(fold(text).split())


def _parts(name: str) -> list[str]:
    """Return the stems of a name's parts, without units."""
    parts = [part.lower() for part in _PARTS.findall(name)]
    return [stem(part) for part in parts if part not in _UNITS] or [stem(p) for p in parts]


_SHORTEST = 5
"""Fewest letters of a word that stands for a longer one."""


def _is_same_word(one: str, other: str) -> bool:
    """Return whether two stems are of the same word, such as smoke and smoker."""
    short, long = sorted((one, other), key=len)
    return one == other or (
        len(short) >= _SHORTEST and long.startswith(short) and len(long) <= len(short) + 3
    )


def _link_columns(question: _Question) -> None:
    """Mark the words that name columns: whole names first, then parts that only one has."""
    columns = {column: _parts(column) for column in question.table.columns or {}}
    for column in sorted(columns, key=lambda column: -len(columns[column])):
        for start, word in enumerate(question.words):
            if word.text == column.lower():
                _mention(question, column, [word])
            window = question.words[start : start + len(columns[column])]
            if len(window) == len(columns[column]) and all(
                _is_same_word(w.stem, part) for w, part in zip(window, columns[column], strict=True)
            ):
                _mention(question, column, window)
    for column, parts in columns.items():
        others = {part for name, each in columns.items() if name != column for part in each}
        for word in question.words:
            if (
                word.text not in FILLERS
                and word.stem not in question.own
                and any(
                    _is_same_word(word.stem, part)
                    for part in parts
                    if part not in others and part not in FILLERS
                )
            ):
                _mention(question, column, [word])
    question.mentions.sort(key=lambda mention: mention.start)


def _mention(question: _Question, column: str, words: Sequence[_Word]) -> None:
    if any(word.used for word in words):
        return
    for word in words:
        word.used = True
    if all(each.column != column for each in question.mentions):
        question.mentions.append(_Mention(column, words[0].start, words[-1].end))


def _link_values(question: _Question) -> None:
    """Turn values of columns, and columns of yes and no, into conditions."""
    table, kept = question.table, list[_Mention]()
    values = table.values()
    for column, texts in values.items():
        named = [value for value in texts if _value(question, value)]
        if not named:
            continue
        code = f"== {named[0]!r}" if len(named) == 1 else f".isin({named!r})"
        space = "" if len(named) > 1 else " "
        condition = f"{table.name}[{column!r}]{space}{code}"
        question.filters.append((condition, f"`{column}` is {' or '.join(named)}"))
        question.mentions = [each for each in question.mentions if each.column != column]
    for mention in question.mentions:
        lower = {value.lower(): value for value in values.get(mention.column, ())}
        yes = next((lower[word] for word in _YES if word in lower), None)
        is_bool = (table.columns or {})[mention.column].startswith("bool")
        if not is_bool and (yes is None or not lower.keys() <= _EITHER):
            kept.append(mention)
            continue
        code = question.named(mention) + ("" if is_bool else f" == {yes!r}")
        text = f"`{mention.column}` is {'true' if is_bool else yes}"
        if question.take(
            rf"not(?= (?:\w+ )?{re.escape(question.text[mention.start : mention.end])})"
        ):
            code, text = (
                (f"~{code}" if is_bool else code.replace("==", "!=")),
                text.replace("is", "is not"),
            )
        question.filters.append((code, text))
    question.mentions = kept


def _value(question: _Question, value: str) -> re.Match[str] | None:
    """Find a value in the question, in any form of the word.

    A value that is also a common word, such as IT, must be written in the same case.
    """
    lower = value.lower()
    pattern = re.escape(lower).replace(r"\ ", " ")
    if not lower.strip() or lower in _EITHER:
        return None
    if lower in FILLERS:
        same = re.search(rf"\b{re.escape(value)}\b", question.original)
        if value == lower or same is None:
            return None
        found: re.Match[str] | None = same
    else:
        same_stem = [w.text for w in question.words if not w.used and w.stem == stem(lower)]
        found = question.take("|".join([pattern, *map(re.escape, same_stem)]))
    if found is None:
        return None
    for word in question.words:
        word.valued = word.valued or found.start() <= word.start < found.end()
        word.used = word.used or word.valued
    return found


def _compare(question: _Question) -> None:
    """Turn comparisons with numbers into conditions on the column next to the number."""
    for pattern, compared in _COMPARED:
        if (found := question.take(pattern.pattern)) is None:
            continue
        sign, _, dated = compared.partition(" ")
        mention = _year_column(question) if dated else _comparison_column(question, found)
        if mention is None:
            for word in question.words:
                word.used = word.used and not found.start() <= word.start < found.end()
            continue
        column = question.named(mention)
        if (question.table.columns or {})[mention.column].startswith("datetime"):
            column += ".dt.year"
        limits = [number.replace(",", "") for number in found.groups() if number]
        if sign:
            code, said = f"{column} {sign} {limits[0]}", f"{_SAID[sign]} {limits[0]}"
        else:
            code, said = f"{column}.between({', '.join(limits)})", f"from {' to '.join(limits)}"
        question.filters.append((code, f"`{mention.column}` is {said}"))
        question.mentions = [each for each in question.mentions if each != mention]
        question.take(r"(?:" + "|".join(_UNITS) + r")(?=\s|$)")


def _year_column(question: _Question) -> _Mention | None:
    """Return the column of a year: a mentioned one, or the only one with years or dates."""
    columns = question.table.columns or {}
    years = [
        c for c, dtype in columns.items() if "year" in _parts(c) or dtype.startswith("datetime")
    ]
    named = [m for m in question.mentions if m.column in years] or question.numbers
    return named[0] if named else _Mention(years[0], 0, 0) if len(years) == 1 else None


def _comparison_column(question: _Question, found: re.Match[str]) -> _Mention | None:
    """Return the column of a comparison: right after it, meant by its words, or the nearest."""
    numbers = question.numbers
    after = [m for m in numbers if 0 <= m.start - found.end() < _SHORTEST]
    meant = [] if after else list(_columns_of_adjectives(question, found[0]))
    before = [m for m in reversed(numbers) if m.end <= found.start()]
    return next(
        iter([*after, *meant, *before, *numbers, *_columns_of_adjectives(question, question.text)]),
        None,
    )


def _columns_of_adjectives(question: _Question, text: str) -> Iterator[_Mention]:
    """Yield the numeric columns that adjectives in a text stand for."""
    for pattern, parts in _ABOUT.items():
        if (found := re.search(rf"\b(?:{pattern})\b", text)) is None:
            continue
        wanted = [stem(part) for part in parts]
        for column in question.table.columns or {}:
            if question.is_number(column) and any(part in wanted for part in _parts(column)):
                for word in question.words:
                    word.used = word.used or re.fullmatch(pattern, word.text) is not None
                yield _Mention(column, found.start(), found.end())
                break


def _unexplained_words(question: _Question) -> list[_Word]:
    """Return the words with content that nothing explains."""
    words = question.words
    left = []
    for before, word in zip([None, *words], words, strict=False):
        plain = word.text in FILLERS or word.text in _PAST or word.stem in question.own
        active = word.text.endswith("ed") and (before is None or before.text not in _BE)
        if not (word.used or plain or active):
            left.append((before, word))
    if len({word.stem for _, word in left}) == 1 and _is_row(question, *left[0]):
        return []
    return [word for _, word in left]


def _is_row(question: _Question, before: _Word | None, word: _Word) -> bool:
    """Return whether a word is what the user calls a row, as in "how many penguins".

    A table whose name says what its rows are has no other word for them.
    """
    if before is None or not word.text.isalpha() or not question.own <= _UNNAMED:
        return False
    lead = question.text[: word.start].rstrip()
    if any(0 <= mention.start - word.end <= 1 for mention in question.mentions):
        return False  # it describes a column
    return before.valued or re.search(rf"\b(?:{_COUNTED})(?: the)?$", lead) is not None


# The forms of questions. Each returns a query or None.
def _change(question: _Question) -> Query | None:
    """Name the group that grew or fell most: "which plant grew most from week 1 to week 2?".

    It comes first, since to others the two numbers are conditions on the rows.
    """
    text = question.text
    kinds = [m for m in question.kinds if re.search(r"\b(?:which|what)\s*$", text[: m.start])]
    span = re.search(rf"\b(?:from|between)(?: \w+)? {_NUMBER} (?:to|and)(?: \w+)? {_NUMBER}", text)
    grew = re.search(rf"\b(?:{_GREW})\b", text) is not None
    if not kinds or span is None or not question.take(rf"{_GREW}|{_FELL}"):
        return None
    inside = [m for m in question.numbers if span.start() <= m.start < span.end()]
    time = inside[0] if inside else _year_column(replace(question, mentions=[]))
    columns = [c for c in question.table.columns or {} if question.is_number(c)]
    named = [m.column for m in question.numbers]
    of = [c for c in named or columns if time is not None and c != time.column]
    of = of or [c for c in columns if time is not None and c != time.column]
    if time is None or len(of) != 1:
        return None
    question.says(_MOST)
    question.says(re.escape(span[0]))
    kind, target, at = kinds[0].column, of[0], question.named(time)
    if (question.table.columns or {})[time.column].startswith("datetime"):
        at += ".dt.year"
    where, totals = question.where, list[str]()
    for number in span.groups():
        rows = replace(question, filters=[*question.filters, (f"{at} == {number}", "")]).rows
        totals.append(f"{rows}.groupby({kind!r})[{target!r}].sum()")
    first, last = totals
    change = f"{last} - {first}" if grew else f"{first} - {last}"
    end = "increase" if grew else "decrease"
    says = f"`{kind}` with the largest {end} of the total `{target}`{where} from"
    says += f" {span[1]} to {span[2]} of `{time.column}`: {{}}."
    return Query(f"({change}).loc[lambda by: by > 0].nlargest(1).index.tolist()", says)


def _columns(question: _Question) -> Query | None:
    name = question.table.name
    if re.fullmatch(_SHOW.format(re.escape(name.lower())), question.text):
        question.take("describe")
        return Query(f"{name}.dtypes.astype(str).to_dict()", f"`{name}` has these columns: {{}}.")
    if re.search(r"\brows\b.*\bcolumns\b", question.text) and not question.mentions:
        return Query(f"{name}.shape", f"`{name}` has {{}} rows and columns.")
    if question.missing or not re.search(r"\b(?:columns|fields|variables)\b", question.text):
        return None
    if "how many" in question.text:
        return Query(f"len({name}.columns)", f"`{name}` has {{}} columns.")
    return (
        None
        if question.mentions
        else Query(f"{name}.columns.tolist()", f"The columns of `{name}` are {{}}.")
    )


def _absent(question: _Question) -> Query | None:
    if question.take(_MISSING) is None:
        return None
    question.take("values?|have|has")
    rows, name = question.rows, question.table.name
    if question.mentions:
        column = question.mentions[0].column
        says = f"{{}} rows of `{name}` have no `{column}`{question.where}."
        return Query(f"{rows}[{column!r}].isna().sum()", says)
    if re.search(r"\b(?:which|what) column", question.text) and question.take(_MOST):
        return Query(f"{rows}.isna().sum().idxmax()", "Most values are missing in `{}`.")
    if re.search(r"\b(?:each|per|every|by) column", question.text):
        return Query(f"{rows}.isna().sum().to_dict()", "Missing values by column: {}.")
    if "values" in question.text and "rows" not in question.text:
        return Query(f"{rows}.isna().sum().sum()", f"{{}} values are missing in `{name}`.")
    return Query(f"{rows}.isna().any(axis=1).sum()", f"{{}} rows of `{name}` have a missing value.")


def _related(question: _Question) -> Query | None:
    if not question.take(r"correlat\w+|relationship|related|relation") or not question.numbers[1:]:
        return None
    one, two = (each.column for each in question.numbers[:2])
    code = f"{question.rows}[{one!r}].corr({question.rows}[{two!r}])"
    return Query(code, f"The correlation between `{one}` and `{two}`{question.where} is {{}}.")


def _share(question: _Question) -> Query | None:
    if (
        not question.take(r"percentage|percent|share|proportion|fraction")
        or len(question.filters) != 1
    ):
        return None
    code, said = question.filters[0]
    return Query(
        f"100 * ({code}).mean()", f"{said} in {{}} % of the rows of `{question.table.name}`."
    )


def _extreme(question: _Question) -> Query | None:
    """Name the group with the most or least: "which branch sold the most units?"."""
    kinds = [
        m
        for m in question.kinds
        if re.search(r"\b(?:which|what|who)\b[^,]*$", question.text[: m.start])
    ]
    if not kinds:
        return None
    kind, meant = kinds[0], list(_columns_of_adjectives(question, question.text))
    about = re.search(rf"\b(?:{'|'.join(_ABOUT)})\b", question.text)
    if about and not (question.numbers or meant):
        return None  # the longest, in a table without lengths
    sign = "idxmax" if question.says(_MOST) else "idxmin" if question.says(_LEAST) else ""
    if not sign:
        return None
    rows, end = question.rows, "most" if sign == "idxmax" else "fewest"
    word = "highest" if sign == "idxmax" else "lowest"
    numbers = question.numbers or meant
    aggregate = _aggregate(question)
    if not numbers:
        question.says("common|frequent")
        says = f"`{kind.column}` with the {end} rows{question.where}: {{}}."
        return Query(f"{rows}[{kind.column!r}].value_counts().{sign}()", says)
    if not aggregate:
        total = re.search(r"\b(?:most|fewest|least)\b(?! expensive)", question.text)
        aggregate = "sum" if total else "max" if sign == "idxmax" else "min"
    target = numbers[0].column
    code = f"{rows}.groupby({kind.column!r})[{target!r}].{aggregate}().{sign}()"
    text = "" if aggregate in ("max", "min") else f"{_WORDS[aggregate]} "
    return Query(code, f"`{kind.column}` with the {word} {text}`{target}`{question.where}: {{}}.")


_WORDS = {
    "mean": "mean", "median": "median", "std": "standard deviation of", "var": "variance of",
    "sum": "total", "max": "largest", "min": "smallest",
}  # fmt: skip


def _aggregate(question: _Question) -> str:
    return next((name for pattern, name in _AGGREGATES.items() if question.take(pattern)), "")


def _count(question: _Question) -> Query | None:
    """Count rows, different values or, for a column of amounts, its total."""
    different = question.take("different|distinct|unique")
    computed = "|".join([*_AGGREGATES, _MOST, _LEAST])
    if question.numbers and re.search(rf"\b(?:{computed})\b(?! in total)", question.text):
        return None
    if not question.take(r"how many|number of|count(?: of)?|how often|distribution|breakdown"):
        return None
    spread = re.search(r"\b(?:distribution|breakdown)\b", question.text)
    groups = question.groups() or [each.column for each in question.kinds if spread]
    name, rows, where = question.table.name, question.rows, question.where
    direct = [
        m
        for m in question.mentions
        if re.search(
            r"(?:how many|different|distinct|unique|number of|count)(?: the)?\s*$",
            question.text[: m.start],
        )
    ]
    if direct and question.is_number(direct[0].column) and not different:
        return _computed(question, "sum", direct[0])
    if direct and not groups:
        column = direct[0].column
        return Query(
            f"{rows}[{column!r}].nunique()",
            f"There are {{}} different values of `{column}`{where}.",
        )
    if groups:
        by = repr(groups[0]) if len(groups) == 1 else repr(groups)
        titles = " and ".join(f"`{each}`" for each in groups)
        return Query(
            f"{rows}.groupby({by}).size().to_dict()",
            f"Rows of `{name}` for each {titles}{where}: {{}}.",
        )
    if question.numbers:
        return None
    return Query(f"len({rows})", f"`{name}` has {{}} rows{where}.")


def _top(question: _Question) -> Query | None:
    """List the rows with the largest or smallest values: "the top 3 songs by plays"."""
    number = r"(?P<n>\d{1,2})"
    phrase = rf"(?:top|best|bottom|worst) {number}|{number.replace('n', 'm')} (?:{_MOST}|{_LEAST})"
    found = re.search(rf"\b(?:{phrase})\b", question.text)
    titles = _titles(question.table)
    targets = question.numbers or list(_columns_of_adjectives(question, question.text))
    if found is None or not titles or len(targets) != 1:
        return None
    if re.search(rf"\b(?:{'|'.join(_AGGREGATES)})\b", question.text):
        return None
    if any(each.column not in titles for each in question.kinds) or not question.says(phrase):
        return None
    count, target, where = found["n"] or found["m"], targets[0].column, question.where
    least = re.search(rf"\b(?:bottom|{_LEAST})\b", found[0]) is not None
    end = "smallest" if least else "largest"
    code = f"{question.rows}.n{end}({count}, {target!r})[[{titles[0]!r}, {target!r}]]"
    code += ".astype(str).agg(' '.join, axis=1).tolist()"
    says = f"The {count} rows of `{question.table.name}` with the {end} `{target}`{where}: {{}}."
    return Query(code, says)


def _titles(table: Variable) -> list[str]:
    """Return the columns that name a row."""
    return [c for c in table.columns or {} if {"name", "titl"} & set(_parts(c))]


def _compute(question: _Question) -> Query | None:
    """Compute a mean, total, largest value or the like, perhaps by group."""
    targets = question.numbers or list(_columns_of_adjectives(question, question.text))
    aggregate = _aggregate(question)
    if not aggregate:
        aggregate = "max" if question.says(_MOST) else "min" if question.says(_LEAST) else ""
    if not aggregate or not targets:
        return None
    if aggregate in ("max", "min") and (found := _which_row(question, aggregate, targets[0])):
        return found
    return _computed(question, aggregate, targets[0])


def _which_row(question: _Question, aggregate: str, target: _Mention) -> Query | None:
    """Name the row with the largest value: "which movie is the longest?"."""
    asks = re.match(r"\W*(?:which|who)\b", question.text) is not None
    columns = _titles(question.table)
    if question.kinds or (not asks and not (columns and re.match(r"\W*what\b", question.text))):
        return None
    chosen = [*columns[:1], target.column] if columns else list(question.table.columns or {})
    best = f"{question.rows}[{target.column!r}].idx{aggregate}()"
    end = "largest" if aggregate == "max" else "smallest"
    says = f"The row with the {end} `{target.column}`{question.where}: {{}}."
    return Query(f"{question.table.name}.loc[{best}, {chosen!r}].to_dict()", says)


def _computed(question: _Question, aggregate: str, target: _Mention) -> Query:
    question.take(r"in total|overall|altogether|total")
    list(_columns_of_adjectives(question, question.text))
    groups = [column for column in question.groups() if column != target.column]
    column, where, rows = target.column, question.where, question.rows
    text = f"The {_WORDS[aggregate]} `{column}`"
    if not groups:
        return Query(f"{rows}[{column!r}].{aggregate}()", f"{text}{where} is {{}}.")
    by = repr(groups[0]) if len(groups) == 1 else repr(groups)
    titles = " and ".join(f"`{each}`" for each in groups)
    code = f"{rows}.groupby({by})[{column!r}].{aggregate}().to_dict()"
    return Query(code, f"{text} for each {titles}{where}: {{}}.")


def _listing(question: _Question) -> Query | None:
    """List a column's values, or name the most common one."""
    if len(question.mentions) != 1 or not re.search(
        r"^\W*(?:what|which|list|show|name|give|print)\b", question.text
    ):
        return None
    column, rows, where = question.mentions[0].column, question.rows, question.where
    if question.take("most common|most frequent|commonest"):
        return Query(
            f"{rows}[{column!r}].value_counts().idxmax()",
            f"The most common `{column}`{where} is {{}}.",
        )
    if question.is_number(column) and "year" not in column.lower():
        return None
    code = f"{rows}[{column!r}].dropna().unique().tolist()"
    return Query(code, f"The values of `{column}`{where} are {{}}.")


_FORMS = (_absent, _columns, _related, _share, _top, _extreme, _count, _compute, _listing)
