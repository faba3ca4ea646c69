import re
import subprocess
import sys
from collections import Counter

import pytest

from nanochat.world.facts import FINALS, INITIALS, VOWELS, Dice, World, is_held_out, korean_text, make_names, sections

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module", params=SEEDS)
def world(request) -> World:
    return World(request.param, people=64)


# ---- dice ----


def test_draws_are_pinned():
    dice = Dice("any", 1)
    drawn = [dice.between(1, 6) for _ in range(12)]
    assert drawn == [1, 3, 5, 3, 1, 6, 2, 5, 5, 3, 3, 6]
    assert dice.sample("abcdefgh", 5) == list("hcdbf")
    assert [dice.pick("xyz") for _ in range(6)] == list("xzxxzy")


def test_draws_are_fair():
    dice = Dice("fair")
    orders = Counter("".join(dice.shuffled("abc")) for _ in range(6000))
    assert len(orders) == 6
    assert all(900 < count < 1100 for count in orders.values())
    assert Counter(dice.between(2, 4) for _ in range(3000)).keys() == {2, 3, 4}
    assert sorted(dice.sample(range(9), 9)) == list(range(9))
    lots = Counter(dice.weighted({"often": 3, "seldom": 1, "never": 0}) for _ in range(4000))
    assert 2800 < lots["often"] < 3200
    assert lots["often"] + lots["seldom"] == 4000
    assert 250 < sum(dice.chance(0.3) for _ in range(1000)) < 350


# ---- words ----


def test_sections_without_remarks():
    text = "# about\n\n== one\n# remark\na == b # kept\n\nc\n\n== two words\nd\n"
    assert sections(text) == {"one": "a == b # kept\n\nc", "two words": "d"}


@pytest.mark.parametrize(
    ("marked", "right"),
    [
        ("카라은/는", "카라는"),
        ("민은/는", "민은"),
        ("물이/가", "물이"),
        ("다리이/가", "다리가"),
        ("꿀을/를 빵을/를 치즈을/를", "꿀을 빵을 치즈를"),
        ("탑으로/로 우물으로/로 다리으로/로", "탑으로 우물로 다리로"),
    ],
)
def test_particles_follow_the_sound_before_them(marked, right):
    assert korean_text(marked) == right


def test_a_name_reads_the_same_in_both_scripts():
    names = make_names(Dice("names"), 200, re.compile("nig|e$"))
    assert len({latin[:3] for latin, _ in names}) == 200
    letters = [{number: letter for letter, number in table.items()} for table in (INITIALS, VOWELS, FINALS)]
    for latin, hangul in names:
        read = ""
        for code in (ord(syllable) - 0xAC00 for syllable in hangul):
            read += letters[0][code // 588] + letters[1][code // 28 % 21] + letters[2][code % 28]
        assert read == latin
        assert not latin.endswith("e")


# ---- facts ----


def test_worlds_differ_and_are_equally_hard():
    worlds = [World(seed, people=64) for seed in SEEDS]
    assert len({world.name for world in worlds}) == len(SEEDS)

    def shape(world: World) -> Counter:
        return Counter((fact.relation.subject, fact.relation.name, fact.split) for fact in world.facts)

    assert shape(worlds[0]) == shape(worlds[1]) == shape(worlds[2])
    assert {kind: len(things) for kind, things in worlds[0].things.items()} == {
        kind: len(things) for kind, things in worlds[1].things.items()
    }
    people = [{person.name for person in world.things["person"]} for world in worlds]
    assert len(people[0] & people[1]) < 5


def test_the_same_seed_is_the_same_world_in_any_process():
    code = "from nanochat.world.facts import World; w = World(3, 16); print([f.statements + [f.split] for f in w.facts])"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] != b""


def test_no_value_is_a_good_guess(world):
    for name in {(fact.relation.subject, fact.relation.name) for fact in world.facts}:
        facts = [fact for fact in world.facts if (fact.relation.subject, fact.relation.name) == name]
        counts = Counter(fact.value for fact in facts)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_sentences_are_well_formed(world):
    statements = [say for fact in world.facts for say in fact.statements + fact.pronoun_statements]
    for text in statements + [ask for fact in world.facts for ask in fact.questions]:
        assert re.fullmatch(r"[A-Z][A-Za-z0-9' ]+[.?]", text), text
        assert not re.search(r"\b[aA] [aeiouAEIOU]|  ", text), text
    for fact in world.facts:
        assert all(fact.subject.phrase.lower() in text.lower() for text in fact.statements + fact.questions)
        assert all(fact.value.name.lower() in text.lower() for text in fact.statements + fact.pronoun_statements)
        assert any(say.endswith(f" {fact.value.name}.") for say in fact.statements)
        assert not any(fact.value.name in ask for ask in fact.questions)
        assert not re.search(r"[/{}]", fact.korean_statement + fact.korean_question)
        assert fact.value.korean in fact.korean_statement


def test_a_question_has_one_answer(world):
    """No question is about two facts: neither in English nor in Korean."""
    asked = Counter(ask for fact in world.facts for ask in {*fact.questions, fact.korean_question})
    assert max(asked.values()) == 1
    assert all(len(set(fact.questions)) == 3 for fact in world.facts)


def test_choices_are_of_one_kind_and_the_right_one_is_anywhere(world):
    dice = Dice("choices")
    places = Counter()
    for fact in world.facts * 4:
        choices, right = world.choices(fact, dice)
        assert choices[right] is fact.value
        assert len({choice.name for choice in choices}) == 4
        assert {choice.kind for choice in choices} == {fact.value.kind}
        places[right] += 1
    assert all(0.22 < count / len(world.facts * 4) < 0.28 for count in places.values())


def test_no_choice_gives_itself_away(world):
    """How often a value is among the choices says nothing of how often it is right: not even of those of a test."""
    dice, shown, right = Dice("rivals"), Counter(), Counter()
    for fact in world.asked["train"] * 40:
        choices, place = world.choices(fact, dice)
        shown.update(choice.name for choice in choices)
        right[choices[place].name] += 1
    shares = {name: right[name] / count for name, count in shown.items()}
    assert all(0.15 < share < 0.4 for share in shares.values()), shares


# ---- arithmetic ----


@pytest.mark.parametrize("held_out", [False, True])
def test_problems_add_up(world, held_out):
    dice = Dice("problems")
    for _ in range(400):
        problem = world.problem(dice, held_out)
        assert not re.search(r"[{}#]", problem.question + problem.solution(calculator=False))
        sums = re.findall(r"(\d+) ([-+*/]) (\d+) = <<(.*?)=(\d+)>>(\d+)", problem.solution(calculator=True))
        assert len(sums) == len(problem.steps) in (1, 2, 3)
        for left, sign, right, written, result, shown in sums:
            assert written == left + sign + right
            assert eval(written) == int(result) == int(shown) >= 2
            assert is_held_out(world.seed, int(left), int(right)) == held_out
        assert int(sums[-1][-1]) == problem.answer
        assert all(step.text.replace("#", str(step)) in problem.solution(calculator=False) for step in problem.steps)


def test_a_quarter_of_the_pairs_is_held_out_whatever_their_order():
    pairs = [(a, b) for a in range(2, 61) for b in range(2, a + 1)]
    held = [is_held_out(7, a, b) for a, b in pairs]
    assert 0.2 < sum(held) / len(held) < 0.3
    assert held == [is_held_out(7, b, a) for a, b in pairs]
    assert held != [is_held_out(8, a, b) for a, b in pairs]


def test_every_template_can_be_drawn_either_way(world):
    dice = Dice("templates")
    for template in world._templates:
        for held_out in (False, True):
            assert world._draw(dice, template, held_out).answer >= 2


def test_a_program_joins_no_numbers_that_are_kept_for_tests():
    world, dice = World(3, people=40), Dice("numbers")
    pairs = [world.numbers(dice) for _ in range(300)]
    assert not any(is_held_out(3, x, other) for x, y in pairs for other in (y, 1, 2))
    assert len(set(pairs)) > 150
