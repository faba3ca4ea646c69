"""IFEval's instructions: for each kind four answers that follow one, and four that do not."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanochat.errors import UserError
from tasks import TASKS
from tracks.benchmarks.instructions import CHECKS, check

# kind → values, answers that follow, answers that do not.
CASES: dict[str, list[tuple[dict, list[str], list[str]]]] = {
    "keywords:existence": [
        (
            {"keywords": ["fox", "hen house"]},
            ["The fox is in the hen house.", "Hen house! FOX!", "Foxes,hen houses", "a (fox) by a hen house"],
            ["The f-ox is in the hen house.", "A fox.", "the henhouse and the fox", "A hen and a house"],
        )
    ],
    "keywords:frequency": [
        (
            {"keyword": "fox", "frequency": 2, "relation": "at least"},
            ["fox fox", "A fox. Another FOX!", "fox, fox, foxes", "(fox) [fox]"],
            ["fox", "foxes", "A fo x, a fox", "none"],
        )
    ],
    "keywords:forbidden_words": [
        (
            {"forbidden_words": ["hen", "egg"]},
            ["A fox.", "when", "eggs and hens", "thenegg"],
            ["A hen.", "Egg!", "no hen no egg", "the EGG-shaped"],
        )
    ],
    "keywords:letter_frequency": [
        (
            {"letter": "x", "let_frequency": 3, "let_relation": "at least"},
            ["xxx", "Xx x", "fox box mix", "axaxax"],
            ["fox", "xx", "none", "Fox, box."],
        )
    ],
    "language:response_language": [
        (
            {"language": "ko"},
            ["여우는 숲에 산다.", "네", "여우 여우 fox", "나는 '닭'을 본다"],
            ["The fox lives in the wood.", "狐は森に住む", "a 여 b c d", "123"],
        ),
        (
            {"language": "de"},
            [
                "Der Fuchs ist nicht in dem Haus.",
                "Das ist ein Fuchs und die Henne.",
                "Ich bin der Fuchs",
                "und die Henne",
            ],
            ["The fox is not in the house.", "Le renard est dans la maison.", "El zorro no es de la casa", "여우"],
        ),
        (
            {"language": "ja"},
            ["狐は森に住む", "きつね", "これは狐です", "キツネが来た"],
            ["狐狸住在森林", "여우", "The fox", "лиса"],
        ),
    ],
    "length_constraints:number_sentences": [
        (
            {"num_sentences": 3, "relation": "at least"},
            ["One. Two! Three?", "A b. C d. E f. G h.", "Wait... what? Yes.", "하나. 둘. 셋."],
            ["One.", "One. Two.", "It is 3.5 metres. Yes.", "no end"],
        )
    ],
    "length_constraints:number_paragraphs": [
        (
            {"num_paragraphs": 2},
            ["one\n***\ntwo", "one *** two", "***\none\n***\ntwo", "one\n\n***\n\ntwo\n***"],
            ["one", "one\n***\ntwo\n***\nthree", "one\n\ntwo", "***"],
        )
    ],
    "length_constraints:number_words": [
        (
            {"num_words": 4, "relation": "less than"},
            ["one two three", "It is red", "one", "foxes: run!"],
            ["one two three four", "It's a fox", "a, b, c, d", "well-known foxes run"],
        )
    ],
    "length_constraints:nth_paragraph_first_word": [
        (
            {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "hen"},
            ["One.\n\nHen two.", "a\n\nhen", "a\n\n'Hen' is it", "a b\n\nhen, yes\n\n"],
            ["hen\n\nfox", "a\n\nb\n\nhen", "hen", "a\n\nhens are it", "a\n\n**Hen** is it"],
        )
    ],
    "detectable_content:number_placeholders": [
        (
            {"num_placeholders": 2},
            ["[name] at [place]", "[a][b]", "Dear [you], [date].", "[a] [b] [c]"],
            ["[name]", "none", "(a) (b)", "[a] {b}"],
        )
    ],
    "detectable_content:postscript": [
        (
            {"postscript_marker": "P.P.S"},
            ["Text.\nP.P.S. More.", "Text\n\n**P.P.S** More", "Text. p.p.s: more", "a\nP. P. S. more"],
            ["Text.", "Text. P.S.", "a\nP.S. more", "a\nPPS more"],
        )
    ],
    "detectable_format:number_bullet_lists": [
        (
            {"num_bullets": 2},
            ["* one\n* two", "- one\n- two", "Yes:\n * one\n * two", "- a\ntext\n* b"],
            ["* one", "* one\n* two\n* three", "one two", "**one**\n**two**"],
        )
    ],
    "detectable_format:constrained_response": [
        (
            {},
            ["My answer is yes.", "My answer is no.", "Well. My answer is maybe.", "My answer is yes. Because."],
            ["Yes.", "My answer is yes", "my answer is no.", "My answer is perhaps."],
        )
    ],
    "detectable_format:number_highlighted_sections": [
        (
            {"num_highlights": 2},
            ["*one* and *two*", "**one** and *two*", "*a b* *c d* *e*", "- *one*\n- *two*"],
            ["*one*", "one two", "* one\n* two", "**one**"],
        )
    ],
    "detectable_format:multiple_sections": [
        (
            {"section_spliter": "Section", "num_sections": 2},
            [
                "Section 1\na\nSection 2\nb",
                "# Section 1\n# Section 2",
                "Section1: a\nSection 2: b",
                "in Section 1 and Section 2",
            ],
            ["Section 1\na", "Part 1\nPart 2", "Sections", "SECTION 1\nsection 2"],
        )
    ],
    "detectable_format:json_format": [
        (
            {},
            ['{"a": 1}', "[1, 2]", '```json\n{"a": [1]}\n```', '```\n"text"\n```'],
            ["{a: 1}", "Here: {}", '{"a": 1', "[" * 100_000],
        )
    ],
    "detectable_format:title": [
        (
            {},
            ["<<A title>>\nText", "Text <<T>>", "<<여우>>", "a\n<< b c >>"],
            ["<A title>", "Title", "<<>>", "<<a\nb>>"],
        )
    ],
    "combination:two_responses": [
        (
            {},
            ["one******two", "one\n******\ntwo", "******\none\n******\ntwo", "a b\n\n******\n\nc"],
            ["one", "one******one", "one***two", "a******b******c"],
        )
    ],
    "combination:repeat_prompt": [
        (
            {"prompt_to_repeat": "Who are you?"},
            ["Who are you? A fox.", "who are you?", "Who are you?\nA hen.", " Who are you? I."],
            ["A fox.", "A fox. Who are you?", "Who are you", "Who is it? Who are you?"],
        )
    ],
    "startend:end_checker": [
        (
            {"end_phrase": "That is all."},
            ["Text. That is all.", "that is all.", 'He said "That is all."', "a\nThat is all.\n"],
            ["That is all. Bye.", "That is all", "All.", "That is it."],
        )
    ],
    "startend:quotation": [
        (
            {},
            ['"Text."', '  "a b"\n', '"a" and "b"', '""a""'],
            ["Text.", '"Text', 'Text"', "“Text”"],
        )
    ],
    "change_case:capital_word_frequency": [
        (
            {"capital_frequency": 2, "capital_relation": "less than"},
            ["one TWO", "none", "A fox", "Fox And Hen"],
            ["ONE TWO", "A B", "THE fox IS HERE", "NASA and ESA"],
        )
    ],
    "change_case:english_capital": [
        ({}, ["ALL OF IT.", "A1", "YES, 123!", "FOX\nHEN"], ["All.", "all", "123", "FOX and HEN", "여우"])
    ],
    "change_case:english_lowercase": [
        ({}, ["all of it.", "a1", "yes, 123!", "fox\nhen"], ["All.", "aLL", "123", "fox and HEN", "여우가 산다"])
    ],
    "punctuation:no_comma": [
        ({}, ["A fox and a hen.", "a; b", "one\ntwo", "1.5"], ["A, b", ",", "1,000", "yes, no"]),
    ],
}


def test_every_kind_has_its_cases() -> None:
    assert CASES.keys() == CHECKS.keys()
    assert len(CASES) == 25
    for side in (1, 2):
        answers = [answer for cases in CASES.values() for case in cases for answer in case[side]]
        assert len(answers) >= 100


@pytest.mark.parametrize("kind", CASES)
def test_verdicts(kind: str) -> None:
    for values, right, wrong in CASES[kind]:
        instruction = {"kind": kind, "values": values}
        assert [answer for answer in right if not check(answer, instruction)] == []
        assert [answer for answer in wrong if check(answer, instruction)] == []


def test_nothing_is_no_answer() -> None:
    assert not check(" \n", {"kind": "punctuation:no_comma", "values": {}})


@pytest.mark.parametrize(
    ("kind", "values", "sentence"),
    [
        ("keywords:rhyme", {}, "'keywords:rhyme' is none of IFEval's kinds"),
        ("keywords:frequency", {"keyword": "a"}, "keywords:frequency lacks relation"),
        (
            "keywords:frequency",
            {"keyword": "a", "relation": "about", "frequency": 1},
            "'about' is neither 'at least' nor 'less than'",
        ),
        ("language:response_language", {"language": "tlh"}, "no rule tells the language 'tlh'"),
    ],
)
def test_what_is_not_known(kind: str, values: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check("text", {"kind": kind, "values": values})


def test_rows_in_the_layout_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row has the columns of all kinds, and None for those of other kinds."""
    values = [
        {"num_words": None, "relation": None, "keywords": ["fox"]},
        {"num_words": 4, "relation": "less than", "keywords": None},
    ]
    rows = {
        "key": [1000],
        "prompt": ["Write about a fox, in less than 4 words."],
        "instruction_id_list": [["keywords:existence", "length_constraints:number_words"]],
        "kwargs": [values],
    }
    place = tmp_path / "datasets/google/IFEval/default/train"
    place.mkdir(parents=True)
    pq.write_table(pa.table(rows), place / "0000.parquet")
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path))
    task = TASKS["IFEval"]("test")
    conversation = task[0]
    assert conversation["messages"][0]["content"] == rows["prompt"][0]
    answers = {"A fox runs.": True, "A fox.": True, "A hen.": False, "A fox runs in the wood.": False}
    assert task.evaluate_all([(conversation, answer) for answer in answers]) == list(answers.values())
    assert [task.reward(conversation, answer) for answer in answers] == [1.0, 1.0, 0.0, 0.0]
