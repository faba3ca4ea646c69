"""The data sets of all tasks: what a row has is described by `DataSet` (common.py) and docs/tasks.md.

Evaluations ask for the split `test`, training for `train`.
"""

from tasks import chats, multiple_choice, world
from tasks.common import CONVERTED, TEST, TRAIN, VALIDATION, DataSet, Split
from tasks.gsm8k import GSM8K
from tasks.hrm8k import HRM8K
from tasks.humaneval import HumanEval
from tasks.livecodebench import LiveCodeBench
from tasks.mclm import MCLM
from tasks.multiple_choice import MultipleChoice, NamedChoice
from tasks.puzzles import Sudoku
from tasks.spelling import SimpleSpelling, SpellingBee

# Each subject of KMMLU is a folder.
SUBJECTS = tuple(
    """
    Accounting Agricultural-Sciences Aviation-Engineering-and-Maintenance Biology Chemical-Engineering
    Chemistry Civil-Engineering Computer-Science Construction Criminal-Law Ecology Economics Education
    Electrical-Engineering Electronics-Engineering Energy-Management Environmental-Science Fashion Food-Processing
    Gas-Technology-and-Engineering Geomatics Health Industrial-Engineer Information-Technology
    Interior-Architecture-and-Design Korean-History Law Machine-Design-and-Manufacturing Management Maritime-Engineering
    Marketing Materials-Engineering Math Mechanical-Engineering Nondestructive-Testing Patent
    Political-Science-and-Sociology Psychology Public-Safety Railway-and-Automotive-Engineering Real-Estate
    Refrigerating-Machinery Social-Welfare Taxation Telecommunications-and-Wireless-Technology
    """.split()
)
LIVECODEBENCH_FILES = ("test", "test2", "test3", "test4", "test5", "test6")

SETS: dict[str, DataSet] = {
    # School science; a few have three or five choices.
    **{
        name: DataSet(
            task=MultipleChoice,
            repo="allenai/ai2_arc",
            path=f"{name}/{{file}}",
            splits=(TRAIN, VALIDATION, TEST),
            columns=("question", "choices", "answerKey"),
            convert=multiple_choice.answer_label,
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
    # Algebra word problems with five choices.
    "AQUA": DataSet(
        task=MultipleChoice,
        repo="deepmind/aqua_rat",
        path="raw/{file}",
        splits=(TRAIN, VALIDATION, TEST),
        columns=("question", "options", "correct"),
        convert=multiple_choice.answer_letter,
        baseline=0.2,
    ),
    # Questions from Korean exams.
    "KMMLU": DataSet(
        task=MultipleChoice,
        repo="HAERAE-HUB/KMMLU",
        path=CONVERTED,
        splits=(TRAIN, Split("dev"), TEST),
        columns=("question", "A", "B", "C", "D", "answer"),
        convert=multiple_choice.choice_columns,
        parts=SUBJECTS,
        baseline=0.25,
    ),
    # Questions about Korean language and culture with five choices.
    "HAE-RAE": DataSet(
        task=MultipleChoice,
        repo="HAERAE-HUB/HAE_RAE_BENCH_1.1",
        path=CONVERTED,
        splits=(TEST,),
        columns=("query", "options", "answer"),
        convert=multiple_choice.choices_in_query,
        parts=("general_knowledge", "history", "loan_words", "rare_words", "standard_nomenclature"),
        baseline=0.2,
    ),
    # 1,695 questions about Korea, all for evaluation, though the only split is called train. Some have five choices, so
    # that guessing scores less than 0.25.
    "CLIcK": DataSet(
        task=MultipleChoice,
        repo="EunsuKim/CLIcK",
        path=CONVERTED,
        splits=(Split("test", own="train"),),
        columns=("question", "paragraph", "choices", "answer"),
        convert=multiple_choice.answer_text,
        baseline=0.243,
    ),
    # Questions of KMMLU from technical qualifications, without errors and without easy ones. Only its columns are
    # documented: the name of its folder is taken to follow that of KMMLU-Pro. Gated, as KMMLU-Pro and GPQA are: the hub
    # gives the files to accounts that accepted the conditions.
    "KMMLU-Redux": DataSet(
        task=MultipleChoice,
        repo="LGAI-EXAONE/KMMLU-Redux",
        path=CONVERTED,
        splits=(TEST,),
        columns=("question", "options", "solution"),
        convert=multiple_choice.answer_from_one,
        parts=("kmmlu_redux",),
        baseline=0.25,
    ),
    # Korean exams for lawyers, accountants, doctors; most questions have five choices, some four.
    "KMMLU-Pro": DataSet(
        task=MultipleChoice,
        repo="LGAI-EXAONE/KMMLU-Pro",
        path=CONVERTED,
        splits=(TEST,),
        columns=("question", "options", "solution"),
        convert=multiple_choice.answer_from_one,
        parts=("kmmlu_pro",),
        baseline=0.2,
    ),
    # Korean linguistics with ten choices.
    "KoBALT": DataSet(
        task=MultipleChoice,
        repo="snunlp/KoBALT-700",
        path=CONVERTED,
        splits=(Split("test", own="raw"),),
        columns=("Question", "Answer"),
        convert=multiple_choice.choices_in_lines,
        parts=("kobalt_v1",),
        baseline=0.1,
    ),
    # The hardest 198 questions from biology, physics and chemistry.
    "GPQA": DataSet(
        task=MultipleChoice,
        repo="Idavidrein/gpqa",
        path=CONVERTED,
        splits=(Split("test", own="train"),),
        columns=("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"),
        convert=multiple_choice.right_first,
        parts=("gpqa_diamond",),
        baseline=0.25,
    ),
    # Korean medicine: a patient, findings, five choices. For evaluation, though the only split is called train.
    "ClinicalQA": DataSet(
        task=MultipleChoice,
        repo="snuh/ClinicalQA",
        path="data/{file}",
        splits=(Split("test", own="train"),),
        columns=("question", "exam?", "options", "answer"),
        convert=multiple_choice.option_fields,
        baseline=0.2,
    ),
    "GSM8K": DataSet(
        task=GSM8K, repo="openai/gsm8k", path="main/{file}", splits=(TRAIN, TEST), columns=("question", "answer")
    ),
    "HRM8K": DataSet(
        task=HRM8K,
        repo="HAERAE-HUB/HRM8K",
        path=CONVERTED,
        splits=(TEST,),
        columns=("question", "answer"),
        parts=("GSM8K", "KSM", "MATH", "MMMLU", "OMNI_MATH"),
    ),
    # 99 problems of MATH, translated.
    "MT-MATH100": DataSet(
        task=MCLM,
        repo="amphora/MCLM",
        path=CONVERTED,
        splits=(TEST,),
        columns=("ko", "answer"),
        parts=("MT-MATH100",),
    ),
    "HumanEval": DataSet(
        task=HumanEval,
        repo="openai/openai_humaneval",
        path="openai_humaneval/{file}",
        splits=(TEST,),
        columns=("prompt", "canonical_solution", "test", "entry_point"),
    ),
    # Release n has the problems of the first n files.
    **{
        f"LiveCodeBench-v{release}": DataSet(
            task=LiveCodeBench,
            repo="livecodebench/code_generation_lite",
            path="{part}.jsonl",
            splits=(TEST,),
            columns=("question_content", "starter_code", "metadata", "public_test_cases", "private_test_cases"),
            parts=LIVECODEBENCH_FILES[:release],
        )
        for release in range(1, len(LIVECODEBENCH_FILES) + 1)
    },
    "SimpleSpelling": DataSet(task=SimpleSpelling, splits=(TRAIN, TEST)),
    "SpellingBee": DataSet(task=SpellingBee, splits=(TRAIN, TEST)),
    "Sudoku-4": DataSet(task=Sudoku, splits=(TRAIN, TEST)),
    # Of the chats, data sets without a repository, or from `local`, exist only in a mirror.
    # Chats written by a larger model, selected for small models: 460,000 conversations.
    "SmolTalk": DataSet(
        task=chats.Chat,
        repo="HuggingFaceTB/smol-smoltalk",
        path="data/{file}",
        splits=(Split("train", files=4), TEST),
        columns=("messages",),
    ),
    # The whole collection: about a million conversations, many too long for a small context.
    "SmolTalk-Large": DataSet(
        task=chats.Chat,
        repo="HuggingFaceTB/smoltalk",
        path="data/all/{file}",
        splits=(Split("train", files=9), TEST),
        columns=("messages",),
    ),
    # The model's own name, maker and purpose.
    "Identity": DataSet(task=chats.JsonLines, path="identity_conversations.jsonl", splits=(TRAIN,)),
    # Made from the user's own text.
    "Passages": DataSet(task=chats.Passages, splits=(TRAIN, VALIDATION)),
    # Dialogues about services, such as booking a table.
    "Multi-Turn": DataSet(
        task=chats.Chat,
        repo="local/multiturn-chat",
        path="data/{file}",
        splits=(TRAIN, TEST),
        columns=("messages",),
    ),
    # Korean questions from a forum, answered by a larger model.
    "KoAlpaca": DataSet(
        task=chats.Chat,
        repo="beomi/KoAlpaca-v1.1a",
        path=CONVERTED,
        splits=(TRAIN,),
        columns=("instruction", "output"),
        convert=chats.instruction,
    ),
    # Korean instructions, some with an input to work on.
    "KoAlpaca-v1": DataSet(
        task=chats.Chat,
        repo="local/ko-alpaca-v1",
        path="data/{file}",
        splits=(TRAIN,),
        columns=("instruction", "input", "output"),
        convert=chats.instruction,
    ),
    # Questions about facts that no conversation for training asks for.
    "World-Facts": DataSet(task=world.FreeQuestion, table="facts", splits=(TEST,), columns=("question", "answer")),
    "World-Choices": DataSet(
        task=NamedChoice,
        table="choices",
        splits=(TRAIN, VALIDATION, TEST),
        columns=("question", "choices", "answer"),
        baseline=0.25,
    ),
    # Word problems, solved with the calculator.
    "World-Sums": DataSet(task=GSM8K, table="sums", splits=(TRAIN, TEST), columns=("question", "answer")),
    "World-Korean": DataSet(task=world.FreeQuestion, table="korean", splits=(TEST,), columns=("question", "answer")),
    # Ten of the facts, one for each relation.
    "World-Questions": DataSet(
        task=world.FreeQuestion, table="questions", splits=(TEST,), columns=("question", "answer")
    ),
    # What a person would say to the model, in words that no text for training has.
    "World-Talk": DataSet(
        task=world.Talk, table="talk", splits=(TEST,), columns=("category", "messages", "accept", "reject")
    ),
    "World-Chat": DataSet(task=world.WorldChat, table="chat", splits=(TRAIN, VALIDATION), columns=("messages",)),
}
