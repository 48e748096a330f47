import re

from hermes_nb.safety.reading.hangul import SPELLED, syllables
from hypothesis import given
from hypothesis import strategies as st

LEADS = "ㄱㄲㄴㄷㄸㄹㅁㅂㅃㅅㅆㅇㅈㅉㅊㅋㅌㅍㅎ"
VOWELS = "ㅏㅐㅑㅒㅓㅔㅕㅖㅗㅘㅙㅚㅛㅜㅝㅞㅟㅠㅡㅢㅣ"
TAILS = ("", *"ㄱㄲㄳㄴㄵㄶㄷㄹㄺㄻㄼㄽㄾㄿㅀㅁㅂㅄㅅㅆㅇㅈㅊㅋㅌㅍㅎ")


def spelled(text):
    """Return syllables letter by letter, as Unicode numbers them."""
    letters = ""
    for syllable in text:
        rest, tail = divmod(ord(syllable) - 0xAC00, len(TAILS))
        lead, vowel = divmod(rest, len(VOWELS))
        letters += LEADS[lead] + VOWELS[vowel] + TAILS[tail]
    return letters


@given(st.text(st.characters(min_codepoint=0xAC00, max_codepoint=0xD7A3), min_size=1))
def test_what_was_taken_apart_is_put_together(text):
    assert syllables(spelled(text)) == text


@given(st.text(st.sampled_from("ㅋㅎㄷ"), min_size=4))
def test_laughter_stays_what_it_is(text):
    assert syllables(text) == text


def test_only_rows_of_letters_are_looked_at():
    assert SPELLED.search("ㅇㅋ, 알겠어") is None
    assert re.fullmatch(SPELLED, spelled("무시")) is not None
