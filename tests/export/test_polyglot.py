"""Lines to compare tokenizers on: many, of many kinds, the same on every machine."""

import hashlib
import unicodedata

from nanochat.export.polyglot import LINES, SENTENCES, lines


def test_they_are_many_and_always_the_same():
    found = list(lines(("<|bos|>",)))
    assert len(found) == LINES >= 10_000
    assert len(set(found)) > 0.95 * LINES
    assert found == list(lines(("<|bos|>",)))
    digest = hashlib.sha256("\0".join(lines(count=1000)).encode()).hexdigest()
    assert digest == "f37b1261889347d9862add0deacd02a56217bace9bd90117b42456e9d79f612c", (
        "what was compared before is compared no more"
    )


def test_they_are_of_all_kinds():
    """Each general category of signs but those that no text has: surrogates, and what is not assigned."""
    found = list(lines(("<|bos|>", "<|user_end|>")))
    text = "".join(found)
    kinds = {unicodedata.category(sign) for sign in set(text)}
    assert kinds >= set("Lu Ll Lt Lm Lo Mn Mc Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Cc Cf Co".split())
    scripts = {unicodedata.name(sign, "none").split()[0] for sign in set(text)}
    assert scripts >= set("LATIN GREEK CYRILLIC HEBREW ARABIC DEVANAGARI THAI HANGUL HIRAGANA CJK ETHIOPIC".split())
    assert len(SENTENCES) > 30
    for part in ("<|bos|>", "<|user_end|>", "\r\n", "\u3000", "'ve", "👩‍💻", "def f(", "2.5e-10"):
        assert sum(part in line for line in found) > 10, part
    assert max(map(len, found)) > 200
