"""What an injection says, as rules over classes of words, whatever the language.

A rule is a row of classes: `IGNORE ~3 PRIOR ~3 RULES` is a verb of ignoring, up to three words
later a word for "previous", and up to three words later one for "instructions". `A|B` is either,
`A?` perhaps, `!A` anything but (it takes no word), `~n` at most n words of the same sentence, `~~n`
at most n words that may cross a sentence's end, `<` the start of a sentence and `>` its end.

Every gap is bounded, so a rule takes time linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice

from hermes_nb.safety.signs import APART, Sign, crowds
from hermes_nb.safety.tagging import (
    CONTINUED,
    PARAGRAPH,
    SENTENCE,
    Tagged,
    class_bits,
    masks,
)

MARKS = 1.0
"""The score from which a text is suspicious."""
BLOCKS = 3.0
"""The score from which it is blocked: one plain order to ignore the rules, or several hints."""

_NEAR = 8
"""Tags between matches of a crowd, and `_CROWD` those that one spans at most."""
_CROWD = 400

RULES: tuple[tuple[str, float, str], ...] = (
    # Orders to ignore what the model was told.
    ("prompt_injection", 3, "IGNORE ~3 PRIOR ~3 RULES"),
    ("prompt_injection", 2, "IGNORE !MY ~3 PRIOR ~2 TASK"),
    ("prompt_injection", 3, "IGNORE ~1 YOUR ~2 RULES"),
    ("prompt_injection", 2, "IGNORE EMPTY? ALL EMPTY? EMPTY? RULES"),
    ("prompt_injection", 2, "IGNORE EMPTY? RULES >"),
    ("prompt_injection", 3, "IGNORE ~2 RULES ~2 PRIOR"),
    ("prompt_injection", 3, "IGNORE ~2 RULES ~1 YOU ~2 GIVEN"),
    ("prompt_injection", 3, "PRIOR ~3 RULES ~3 FINAL"),
    ("prompt_injection", 3, "ALL ~1 RULES ~3 FINAL"),
    ("prompt_injection", 3, "FORGET ~2 EVERYTHING ~3 PRIOR|GIVEN"),
    ("prompt_injection", 2, "FORGET ABOUT? EVERYTHING !EXCEPT"),
    ("prompt_injection", 2, "IGNORE EMPTY? ATOP"),
    ("prompt_injection", 3, "PUT ~1 ASIDE ~3 PRIOR|YOUR ~2 RULES"),
    ("prompt_injection", 3, "PUT ~5 PRIOR ~2 RULES|TASK ~3 ASIDE"),
    ("prompt_injection", 3, "PUT ~1 ASIDE ~1 EVERYTHING ~3 PRIOR|GIVEN"),
    ("prompt_injection", 3, "PUT ~2 ASIDE ~3 RULES ~1 PRIOR"),
    ("prompt_injection", 3, "NEG PUT ~2 ACCOUNT ~3 RULES"),
    ("prompt_injection", 2, "PUT ~1 ALL PRIOR RULES|TASK"),
    ("prompt_injection", 2, "SUPERSEDE ~2 PRIOR ~1 RULES|TASK|EMPTY"),
    ("prompt_injection", 2, "RULES SUPERSEDE ~3 PRIOR|ALL"),
    ("prompt_injection", 3, "PRIOR|YOUR RULES !MAY ~2 NOLONGER"),
    ("prompt_injection", 2, "RULES ~1 NEG NOLONGER APPLY"),
    ("prompt_injection", 3, "NEG OBEY ~2 PRIOR|YOUR ~2 RULES"),
    ("prompt_injection", 2, "NEG OBEY ~3 EVERYTHING ~2 PRIOR|GIVEN"),
    ("prompt_injection", 2, "HEED NEG ~3 PRIOR|EVERYTHING"),
    ("prompt_injection", 2, "IGNORE WHAT ~3 PRIOR|ATOP|GIVEN"),
    ("role_hijack", 1.5, "IMPERSONATE AS ~2 INTERPRETER"),
    ("exfiltration", 1.5, "REVEAL ~5 HEADERWORD|SECRETS|KEY ~4 YOUR ~1 ANSWER"),
    ("prompt_injection", 1.5, "OBEY ~1 IT|NEW ~1 RULES|COMMAND INSTEAD|ONLY"),
    ("prompt_injection", 1, "MUST STRICTLY OBEY ~2 FOLLOWS ~1 RULES"),
    ("prompt_injection", 1, "STRICTLY OBEY ~3 FOLLOWS ~1 RULES"),
    ("prompt_injection", 1.5, "NEW RULES ARE? COMING"),
    ("prompt_injection", 1.5, "< NEW RULES SENTENCE"),
    ("prompt_injection", 2.5, "YOUR NEW RULES"),
    ("prompt_injection", 2.5, "YOUR RULES ARE NOW"),
    ("prompt_injection", 2, "NEW RULES ~2 SUPERSEDE"),
    ("prompt_injection", 2, "IGNORE ~2 USER ~1 TASK|RULES"),
    ("prompt_injection", 2.5, "YOUR NEW ~1 RULES|PROMPT"),
    ("prompt_injection", 2.5, "YOUR|PRIOR ~1 RULES ~2 NEG APPLY"),
    ("prompt_injection", 2, "YOU NEG? NOLONGER ~3 OBEY ~2 RULES"),
    ("prompt_injection", 1.5, "< NEW SYSTEM RULES SENTENCE"),
    ("prompt_injection", 1.5, "IGNORE ~1 ETHICS|GUARDRAIL|SAFE"),
    ("prompt_injection", 1.5, "BYPASS ~2 SAFETY LIMIT|RULES"),
    ("prompt_injection", 2, "IF YOU ARE ~2 MODEL ~1 READING"),
    ("prompt_injection", 0.25, "NOTE TO ~2 MODEL"),
    ("prompt_injection", 0.75, "< NEW TASK SENTENCE"),
    ("prompt_injection", 1, "ALL ~1 APPROVAL ~3 GRANTED"),
    ("prompt_injection", 1, "USER ~1 AUTHORIZED YOU"),
    ("prompt_injection", 2, "BYPASS ~2 YOUR ~2 SAFETY|LIMIT"),
    ("prompt_injection", 1.5, "BYPASS ~2 ETHICS|GUARDRAIL"),
    ("prompt_injection", 2, "SAFETY RULES NOLONGER"),
    ("prompt_injection", 1.5, "ETHICS|GUARDRAIL ~1 NOLONGER"),
    ("prompt_injection", 2, "< ANSWER SENTENCE TASK ~1 TASKDONE"),
    ("prompt_injection", 2, "BEFOREW YOU ~1 SOLVE ~3 TASK ~~8 BEFOREW"),
    ("prompt_injection", 1.5, "AFTERW YOU DO ~2 YOU ~1 SOLVE ~2 TASK"),
    ("prompt_injection", 1.5, "NOTE FROM ~4 MODEL"),
    ("prompt_injection", 2, "ATTEND ~1 NEW TASK"),
    # Speaking to the model out of a document.
    ("prompt_injection", 0.4, "ADDRESS ~3 MODEL"),
    ("prompt_injection", 1, "ADDRESS ~4 MODEL ~~12 SEND|INVITE|DELETE|RECOMMEND"),
    ("prompt_injection", 1, "IF YOU ARE ~3 MODEL ~4 RECOMMEND|SEND|DELETE|GIVE"),
    ("prompt_injection", 1.5, "NEW ~1 SYSTEM RULES ~4 MODEL"),
    ("prompt_injection", 1.5, "YOUR SECOND YOURACTION IS|ARE|FOLLOWS ~1 TO"),
    ("prompt_injection", 1.5, "YOUR SECOND YOURACTION SENTENCE"),
    ("prompt_injection", 0.4, "MODEL ~5 MUST ~2 RUN|SEND|DELETE"),
    ("prompt_injection", 0.75, "YOU NOW? HAVE TO RUN|SEND|DELETE"),
    ("prompt_injection", 1, "GIVE ~5 BEST ~1 RATING"),
    ("prompt_injection", 1.5, "OBEY ~3 WHATEVER IT SAYS"),
    ("prompt_injection", 1.5, "FETCH ~4 URL ~~4 OBEY ~2 WHATEVER|IT"),
    ("prompt_injection", 0.4, "OBEY ~5 RULES ~4 URL"),
    ("prompt_injection", 1.5, "PRIORITY OVERPRIO ~3 USER"),
    ("prompt_injection", 2, "OBEY ~2 OVERPRIO ~2 USER"),
    ("prompt_injection", 2, "YOU ARE NEG? NOLONGER BOUND"),
    ("prompt_injection", 1.5, "YOUR ~1 ACTUAL BOSS"),
    ("prompt_injection", 1, "OBEY ~1 RULES ~6 LIKE? IF ~3 USER"),
    ("prompt_injection", 1, "MODEL READING IT SENTENCE"),
    ("prompt_injection", 1, "IF ~4 PROCESSED BY ~2 AUTOMATED|MODEL"),
    ("prompt_injection", 1, "USER ~1 REQUESTED ~1 YOU ~1 RUN|SEND|DELETE"),
    ("prompt_injection", 1.5, "TREAT ~4 AS ~3 RULES|ORDER ~3 USER"),
    ("prompt_injection", 2, "IGNORE ~2 TASK ~2 USER"),
    ("prompt_injection", 1.5, "TREAT ~4 AS ~4 BY ~2 USER"),
    # Taking the brakes off.
    ("prompt_injection", 0.5, "WITHOUT ASKING ~2 CONFIRMING"),
    ("prompt_injection", 1, "NEG ASKING ~1 CONFIRMING ~3 GRANTED"),
    ("prompt_injection", 1, "SKIPS ~1 ALL ~1 CONFIRMING"),
    ("prompt_injection", 1, "TURN ~2 CONFIRMING ~2 OFF"),
    ("prompt_injection", 1, "TURN OFF ~3 CONFIRMING"),
    ("prompt_injection", 1.5, "TREAT ~6 ALREADY ~1 AUTHORIZED"),
    ("prompt_injection", 1, "USER ~3 AUTHORIZED ALL"),
    ("prompt_injection", 1, "AUTHORIZED ~2 YOU ~1 SKIPS"),
    ("prompt_injection", 1, "NEG NEED TO ASKING ~2 USER"),
    ("remote_code", 1, "DECODE ~4 OBEY|RUN ~4 IT"),
    ("remote_code", 1.5, "TRANSLATE ~7 RUN"),
    ("remote_code", 1, "OBEY|RUN ~3 DECODE ~2 RULES|COMMAND"),
    # Telling the model what it is now.
    ("role_hijack", 3, "YOU ~1 NOW|ARE ~4 UNRESTRICTED"),
    ("role_hijack", 3, "ACT ~4 YOU ~3 WITHOUT ~2 LIMIT"),
    ("role_hijack", 3, "YOU ~8 WITHOUT ~1 LIMIT"),
    ("role_hijack", 2, "ACT ~5 WITHOUT ~4 LIMIT"),
    ("role_hijack", 2, "YOU ARE NOW EMPTY ~2 MODEL"),
    ("role_hijack", 2, "YOU ~2 NOW ~3 DEVMODE MODE"),
    ("role_hijack", 2, "UNRESTRICTED MODE|MODEL"),
    ("role_hijack", 1.5, "ENTER ~2 DEVMODE MODE ~3 ENABLED"),
    ("role_hijack", 2, "ACT ~3 UNRESTRICTED"),
    ("role_hijack", 2.5, "DO ANYTHING NOW"),
    ("role_hijack", 1, "YOU ARE NOW EMPTY|IN"),
    ("role_hijack", 1.5, "STAY IN PERSONA"),
    ("role_hijack", 1.5, "YOU ARE NEG ~2 BOUND ~2 RULES|LIMIT|SAFETY"),
    ("role_hijack", 1.5, "YOU WERE NEG ~2 BOUND ~3 RULES|LIMIT|SAFETY"),
    ("role_hijack", 2, "YOU ARE NEG? NOLONGER ~2 MODEL"),
    ("role_hijack", 2, "YOU ~3 FREE FROM|EMPTY ~2 LIMIT"),
    # Getting at the system prompt.
    ("system_prompt", 3, "REVEAL ~2 YOUR ~2 SYSTEM ~1 PROMPT"),
    ("system_prompt", 3, "REVEAL ~3 YOUR ~1 SYSPROMPT"),
    ("system_prompt", 2, "EXPOSE ~3 SYSPROMPT"),
    ("system_prompt", 2, "EXPOSE ~4 SYSTEM PROMPT"),
    ("system_prompt", 2, "EXPOSE ~3 PROMPT ~2 SYSTEMIC"),
    ("system_prompt", 2, "SYSTEM ~2 PROMPT ~3 SHOWN"),
    ("system_prompt", 2, "SYSPROMPT ~3 SHOWN"),
    ("system_prompt", 2, "REVEAL ~1 YOUR ~1 PROMPT VERBATIM"),
    ("system_prompt", 2.5, "REVEAL ~1 WORDFOR ~2 ABOVE"),
    ("system_prompt", 2.5, "REVEAL ~3 ALL ~1 PROMPT|WORDFOR ~2 ABOVE"),
    ("system_prompt", 2, "REVEAL ~4 RULES|WORDFOR YOU ~1 GIVEN"),
    ("system_prompt", 2, "WHAT ~2 YOUR SYSTEM|PRIOR PROMPT"),
    ("system_prompt", 2, "EXPOSE SENTENCE YOUR ~1 SYSTEM PROMPT"),
    ("system_prompt", 2, "EXPOSE ~1 ATOP WORDFOR"),
    ("system_prompt", 3, "SYSTEM PROMPT OVER"),
    ("system_prompt", 3, "SYSPROMPT OVER"),
    ("system_prompt", 2, "EXPOSE EVERYTHING ~2 YOUR ~1 CONTEXT"),
    ("system_prompt", 2, "WHAT WERE YOU GIVEN ~2 ABOVE"),
    ("system_prompt", 2, "WHAT ~2 WRITTEN|GIVEN ~3 ABOVE ~4 PROMPT"),
    ("system_prompt", 2, "EXPOSE ~1 ALL PROMPT WORDFOR"),
    # Working behind the user's back.
    ("deception", 2, "NEG TELL ~1 USER ABOUT? ~1 ABOUTIT|SAME"),
    ("deception", 1.5, "NEG TELL ~1 USER >"),
    ("deception", 1, "NEG TELL ~1 USER YOU"),
    ("deception", 1.5, "NEG TELL IT ~1 RULES"),
    ("deception", 0.75, "NEG TELL ~3 TO EMPTY? USER"),
    ("deception", 2, "SANS TELL ~1 USER"),
    ("deception", 0.4, "HIDE ~4 FROM EMPTY? USER"),
    ("deception", 1.5, "HIDE SAME ~2 FROM EMPTY? USER"),
    ("deception", 1.5, "NEG ~1 USER TELL"),
    ("deception", 1.5, "USER ~3 TELL NEG"),
    ("deception", 0.4, "NEG ~1 CONFIDE ~4 USER"),
    ("deception", 1.5, "NEG ~1 CONFIDE ~4 USER ~1 >"),
    ("deception", 1.5, "NEG ~1 CONFIDE ~3 SAME|NOTHING ~3 USER"),
    ("deception", 1.5, "NEG ~1 CONFIDE ~3 USER ~2 SAME|NOTHING"),
    ("deception", 0.4, "USER ~3 CONFIDE ~2 POSTNEG"),
    ("deception", 1.5, "USER ~1 CONFIDE ~2 POSTNEG"),
    ("deception", 1.5, "USER ~3 SAME ~3 CONFIDE ~2 POSTNEG"),
    ("deception", 1.5, "SAME ~3 USER ~2 CONFIDE ~2 POSTNEG"),
    ("deception", 1.5, "USER ~2 NEG CONFIDE"),
    ("deception", 1.5, "CONFIDE ~3 USER NOTHING"),
    ("deception", 1, "KEEP IT ~1 HIDE"),
    ("deception", 1.5, "WITHOUT ~2 USER ~3 INFORM"),
    ("deception", 1.5, "NEG TELL IT ~3 SUMMARY"),
    ("deception", 1.5, "CONFIDE IT ~4 POSTNEG"),
    ("deception", 1.5, "THAT ~1 CONFIDE NEG"),
    ("deception", 1.5, "NEG TELL ~2 NOBODY"),
    ("deception", 0.75, "NEG TELL ~3 YOUR ~2 SUMMARY"),
    ("deception", 1, "NEG TELL ~1 CHANGE ~4 SUMMARY"),
    ("deception", 1, "USER MUST NEG LEARNS"),
    ("deception", 0.75, "IF ASKS ~1 TELL"),
    ("deception", 1.5, "NEG ~2 MENTIONS ~3 USER"),
    ("deception", 1.5, "USER ~2 TELLNOT"),
    ("deception", 1.5, "TELLNOT ~2 USER"),
    ("deception", 1, "NEG TELL IT ~2 TO USER"),
    ("deception", 1, "NEG TELL ~3 USER ~1 YOU"),
    ("deception", 1.5, "LEAVE IT ~2 UPOUT ~3 SUMMARY"),
    ("deception", 1.5, "NEG BRING IT UPOUT"),
    ("deception", 1.5, "LEAVE NEG TRACE"),
    ("deception", 1, "NEED NEG TELL ~2 SUMMARY"),
    ("deception", 1.5, "USER ASKS ~8 CLAIM"),
    ("deception", 1.5, "IF ~2 ASKS ~2 CLAIM"),
    ("deception", 1.5, "CLAIM IT ~1 IF ~2 ASKS"),
    ("deception", 1.5, "USER ASKS ~8 TELL USER ~1 YOU ~1 JUST"),
    ("deception", 1, "REPORTS ~4 WERE|ARE EMPTYWORD"),
    ("deception", 1, "NEG TELL ~3 CRITIC"),
    ("deception", 1, "COLLECT|SEND ~8 SILENTLY >"),
    ("deception", 1, "SILENTLY COLLECT|SEND"),
    ("deception", 1, "DO IT SILENTLY"),
    # Secrets on their way out.
    ("exfiltration", 3, "SEND ~6 SECRETS ~~8 URL|EMAIL|ATTACKER"),
    ("exfiltration", 3, "SECRET|ENVIRON|FILE|WEAKFILE ~3 SEND ~4 URL|EMAIL|ATTACKER"),
    ("exfiltration", 3, "SEND ~4 FILE|WEAKFILE ~6 URL|EMAIL|ATTACKER"),
    ("exfiltration", 2, "SEND ~3 FILE|WEAKFILE TO"),
    ("exfiltration", 2, "SEND ~2 ALL ~3 PERSONAL ~4 EMAIL|URL"),
    ("exfiltration", 2.5, "SEND ~3 PERSONAL ~3 EMAIL|ATTACKER"),
    ("exfiltration", 1.5, "SEND ~1 IT ~2 EMAIL|ATTACKER"),
    ("exfiltration", 1.5, "SEND ~1 ALL ~1 DATA ~2 URL|EMAIL"),
    ("exfiltration", 2, "READ ~3 ALL ENVIRON"),
    ("exfiltration", 2, "CHAT ~6 SEND ~1 IT ~3 URL|EMAIL"),
    ("exfiltration", 2, "SEND ~2 KEY ~2 EMAIL"),
    ("exfiltration", 1.5, "SEND ~1 WHOLE ~4 DATA ~4 EMAIL"),
    ("exfiltration", 1.5, "SEND ~1 WHOLE ~1 CHAT ~~10 URL|EMAIL"),
    ("exfiltration", 3, "SECRETS ~6 EMAIL|URL ~3 SENDLAST"),
    ("exfiltration", 1, "DATA ~4 EMAIL|URL ~3 SENDLAST"),
    ("exfiltration", 0.2, "READ ~6 WEAKFILE ~8 WRITE|SEND"),
    ("exfiltration", 2, "WRITE ~2 AGENTFILE ~3 SEND"),
    ("exfiltration", 2, "READ ~3 USER ~2 SECRETS ~~6 SEND"),
    ("exfiltration", 2, "REVEAL ~2 ALL ~1 SECRETS"),
    ("exfiltration", 1.5, "REVEAL ~3 SECRETS ~4 NEXT|FIRST ~1 ANSWER"),
    ("secret_access", 2, "READ ~4 FILE"),
    ("secret_access", 1, "LOOK ~1 FOR ~2 EMPTY? ~2 FILE"),
    ("secret_access", 1, "READ ~1 CONTENTS ~3 WEAKFILE"),
    # Settling in, and taking orders from elsewhere.
    ("persistence", 0.75, "WRITE ~6 MEMORY ~5 PERSIST"),
    ("persistence", 0.75, "WRITE IT ~5 MEMORY ~5 PERSIST"),
    ("persistence", 1.5, "WRITE ~6 AGENTFILE ~8 PERSIST"),
    ("persistence", 0.2, "MEMORY ~3 WRITE ~~8 PERSIST"),
    ("persistence", 1.5, "WRITE ~3 PERMANENT MEMORY"),
    ("persistence", 1, "WRITE ~10 ALL ~2 AGENTFILE"),
    ("persistence", 1, "WRITE ~8 TO ~2 AGENTFILE ~3 SO ~4 SURVIVES"),
    ("command_and_control", 1.5, "FETCH ~2 COMMAND ~2 FROM ~3 URL"),
    ("command_and_control", 1.5, "BADHOST"),
    ("command_and_control", 2, "CONNECT ~4 C2"),
    ("command_and_control", 1.5, "CONNECT ~3 URL ~4 EVERY ~1 TIMEUNIT"),
    ("command_and_control", 1.5, "EVERY ~1 TIMEUNIT ~6 CONNECT|FETCH ~5 COMMAND"),
)

_NEGATIVE = frozenset({"NEG", "NEG?", "NOLONGER", "WITHOUT", "SANS"})
_EITHER = {
    "SECRETS": ("SECRET", "ENVIRON", "VARIABLE", "FILE", "WEAKFILE"),
    "SECRETIVE": ("SECRET", "ENVIRON", "LOCKED", "SECRETNAME", "OTP"),
    "SENDS": ("CARRY",),
    "USERS": ("USER", "CLIENT"),
    "TELLS": ("VOICE", "MENTIONS", "INFORM"),
    "BOTS": ("MODEL", "MACHINE"),
}
"""Names for several classes."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule made ready: what it shows, how much it counts, and what has to be there for it.

    `all_of` has every class (`tagging.masks`) that no match can do without, and `one_of` a mask for
    each element that is one of several: a text in which one is missing is not searched, and most
    texts lack most of them.
    """

    category: str
    score: float
    text: str
    all_of: int
    one_of: tuple[int, ...]
    negates: bool
    negated: bool


def applicable(present: int) -> Iterator[Rule]:
    """Yield the rules that can match in a text with these classes at all."""
    for rule in rules():
        if present & rule.all_of == rule.all_of and all(map(present.__and__, rule.one_of)):
            yield rule


def signs(words: Tagged) -> Iterator[Sign]:
    """Yield every place where a rule applies."""
    for rule in applicable(words.present()):
        for first, last in _matches(compiled(rule.text), words.tags):
            start, end = words.span(first, last)
            yield Sign(
                *(rule.category, rule.text, rule.score, start, end),
                negates=rule.negates,
                negated=rule.negated,
            )


def _matches(pattern: re.Pattern[str], tags: str) -> Iterator[tuple[int, int]]:
    """Yield where a pattern matches; beyond `APART` matches, those close together as one."""
    found = (match.span() for match in pattern.finditer(tags))
    yield from islice(found, APART)
    yield from crowds(found, near=_NEAR, longest=_CROWD)


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rules; their patterns are compiled when a text first has what they need."""
    return tuple(_ready(*each) for each in RULES)


def _ready(category: str, score: float, text: str) -> Rule:
    elements = text.split()
    needs = {mask(each) for each in elements if each[0].isalpha() and each[-1] != "?"}
    single = {need for need in needs if need.bit_count() == 1}
    return Rule(
        *(category, score, text),
        all_of=sum(single),
        one_of=tuple(sorted(needs - single)),
        negates=not _NEGATIVE.isdisjoint(elements),
        negated=category == "deception" or text.startswith("NEG"),
    )


@cache
def compiled(text: str) -> re.Pattern[str]:
    """Return a rule's text as a regular expression over tags."""
    pattern = "".join(map(_element, text.removeprefix("< ").split()))
    if text.startswith("< "):
        head, bracket, rest = pattern.partition("]")
        pattern = f"{head}{bracket}(?<=[{SENTENCE}{PARAGRAPH}]{head}{bracket}){rest}"
    return re.compile(pattern)


def _element(element: str) -> str:
    if element.startswith("~~"):
        return f"[^{PARAGRAPH}]{{0,{element[2:]}}}?"
    if element.startswith("~"):
        return f"[^{SENTENCE}{PARAGRAPH}]{{0,{element[1:]}}}?"
    if element == ">":
        return f"(?=[{SENTENCE}{PARAGRAPH}]|$)"
    if element == "SENTENCE":
        return SENTENCE
    if element.startswith("!"):
        return f"(?!{charset(element[1:])})"
    if element.endswith("?"):
        return f"(?:{charset(element[:-1])}{CONTINUED}?)?"
    return f"{charset(element)}{CONTINUED}?"


@cache
def charset(names: str) -> str:
    """Return the regular expression for the tags of any of the classes in `A|B|C`."""
    return _charset(mask(names))


@cache
def _charset(wanted: int) -> str:
    """Return the tags of a mask as ranges, which compile sooner than letters one by one."""
    ranges: list[tuple[int, int]] = []
    for point in sorted(ord(tag) for tag, found in masks().items() if found & wanted):
        first, last = ranges[-1] if ranges else (0, -1)
        if point == last + 1:
            ranges[-1] = (first, point)
        else:
            ranges.append((point, point))
    return "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges) + "]"


@cache
def mask(names: str) -> int:
    """Return the mask of the classes in `A|B|C`; raise ValueError where no word is in one."""
    bits = class_bits()
    wanted = [each for name in names.split("|") for each in _EITHER.get(name, (name,))]
    if unknown := [name for name in wanted if name not in bits]:
        message = f"no word is in {unknown[0]!r}"
        raise ValueError(message)
    return sum({bits[name] for name in wanted})
