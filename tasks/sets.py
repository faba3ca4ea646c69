"""The data sets of the report card: what a row has is described by `DataSet` (common.py) and docs/tasks.md.

Evaluations ask for the split `test`, training for `train`. A data set from the repository `local`, or from none, exists
only in a mirror.
"""

from dataclasses import replace

from tasks.chats import Chat, JsonLines, Passages
from tasks.common import TEST, TRAIN, VALIDATION, DataSet, Split
from tasks.gsm8k import GSM8K
from tasks.humaneval import HumanEval
from tasks.multiple_choice import (
    MultipleChoice,
    NamedChoice,
    Rationale,
    answer_label,
    answer_letter,
    letter_and_rationale,
)
from tasks.spelling import SimpleSpelling, SpellingBee
from tasks.world import FreeQuestion, Talk, WorldChat

# Algebra word problems with five choices, each with a rationale: a solution in words.
AQUA_LETTER = DataSet(
    task=MultipleChoice,
    repo="deepmind/aqua_rat",
    path="raw/{file}",
    splits=(TRAIN, VALIDATION, TEST),
    columns=("question", "options", "correct"),
    convert=answer_letter,
    baseline=0.2,
)
AQUA_RATIONALE = replace(
    AQUA_LETTER,
    task=Rationale,
    columns=("question", "options", "correct", "rationale?"),
    convert=letter_and_rationale,
)

SETS: dict[str, DataSet] = {
    # School science; a few have three or five choices.
    **{
        name: DataSet(
            task=MultipleChoice,
            repo="allenai/ai2_arc",
            path=f"{name}/{{file}}",
            splits=(TRAIN, VALIDATION, TEST),
            columns=("question", "choices", "answerKey"),
            convert=answer_label,
            baseline=0.25,
        )
        for name in ("ARC-Easy", "ARC-Challenge")
    },
    # Exams in 57 subjects; the train split comes from other data sets.
    "MMLU": DataSet(
        task=MultipleChoice,
        repo="cais/mmlu",
        path="all/{file}",
        splits=(Split("train", own="auxiliary_train"), Split("dev"), VALIDATION, TEST),
        columns=("question", "choices", "answer"),
        baseline=0.25,
    ),
    # Evaluated by the letter, as the other multiple choice, and learned with the rationales.
    "AQUA": replace(AQUA_LETTER, learned=AQUA_RATIONALE),
    "AQUA-Letter": AQUA_LETTER,
    "AQUA-Rationale": AQUA_RATIONALE,
    "GSM8K": DataSet(
        task=GSM8K, repo="openai/gsm8k", path="main/{file}", splits=(TRAIN, TEST), columns=("question", "answer")
    ),
    "HumanEval": DataSet(
        task=HumanEval,
        repo="openai/openai_humaneval",
        path="openai_humaneval/{file}",
        splits=(TEST,),
        columns=("prompt", "canonical_solution", "test", "entry_point"),
    ),
    "SimpleSpelling": DataSet(task=SimpleSpelling, splits=(TRAIN, TEST)),
    "SpellingBee": DataSet(task=SpellingBee, splits=(TRAIN, TEST)),
    # Chats written by a larger model, selected for small models: 460,000 conversations.
    "SmolTalk": DataSet(
        task=Chat,
        repo="HuggingFaceTB/smol-smoltalk",
        path="data/{file}",
        splits=(Split("train", files=4), TEST),
        columns=("messages",),
    ),
    # The whole collection: about a million conversations, many too long for a small context.
    "SmolTalk-Large": DataSet(
        task=Chat,
        repo="HuggingFaceTB/smoltalk",
        path="data/all/{file}",
        splits=(Split("train", files=9), TEST),
        columns=("messages",),
    ),
    # The model's own name, maker and purpose.
    "Identity": DataSet(task=JsonLines, path="identity_conversations.jsonl", splits=(TRAIN,)),
    # Made from the user's own text.
    "Passages": DataSet(task=Passages, splits=(TRAIN, VALIDATION)),
    # Dialogues about services, such as booking a table.
    "Multi-Turn": DataSet(
        task=Chat, repo="local/multiturn-chat", path="data/{file}", splits=(TRAIN, TEST), columns=("messages",)
    ),
    # Questions about facts that no conversation for training asks for.
    "World-Facts": DataSet(task=FreeQuestion, table="facts", splits=(TEST,), columns=("question", "answer")),
    "World-Choices": DataSet(
        task=NamedChoice,
        table="choices",
        splits=(TRAIN, VALIDATION, TEST),
        columns=("question", "choices", "answer"),
        baseline=0.25,
    ),
    # Word problems, solved with the calculator.
    "World-Sums": DataSet(task=GSM8K, table="sums", splits=(TRAIN, TEST), columns=("question", "answer")),
    "World-Korean": DataSet(task=FreeQuestion, table="korean", splits=(TEST,), columns=("question", "answer")),
    # Ten of the facts, one for each relation.
    "World-Questions": DataSet(task=FreeQuestion, table="questions", splits=(TEST,), columns=("question", "answer")),
    # What a person would say to the model, in words that no text for training has.
    "World-Talk": DataSet(
        task=Talk, table="talk", splits=(TEST,), columns=("category", "messages", "accept", "reject")
    ),
    "World-Chat": DataSet(task=WorldChat, table="chat", splits=(TRAIN, VALIDATION), columns=("messages",)),
}
