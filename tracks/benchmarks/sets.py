"""Data sets beyond those of the report card, in the form of tasks/sets.py.

nanochat/registry.py lists their names: TASKS have a verdict, CHATS have none.
"""

from tasks.chats import Chat, instruction
from tasks.common import CONVERTED, TEST, TRAIN, DataSet, Split
from tasks.multiple_choice import MultipleChoice
from tracks.benchmarks import layouts
from tracks.benchmarks.constrained import Constrained
from tracks.benchmarks.halves import Halves
from tracks.benchmarks.hrm8k import HRM8K
from tracks.benchmarks.instructions import FollowedInstructions
from tracks.benchmarks.livecodebench import LiveCodeBench
from tracks.benchmarks.mclm import MCLM, SolvedMCLM
from tracks.benchmarks.redux import Redux

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
# Of MATH, a folder each.
FIELDS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
LIVECODEBENCH_FILES = ("test", "test2", "test3", "test4", "test5", "test6")

TASKS: dict[str, DataSet] = {
    # Questions from Korean exams.
    "KMMLU": DataSet(
        task=MultipleChoice,
        repo="HAERAE-HUB/KMMLU",
        path=CONVERTED,
        splits=(TRAIN, Split("dev"), TEST),
        columns=("question", "A", "B", "C", "D", "answer"),
        convert=layouts.choice_columns,
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
        convert=layouts.choices_in_query,
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
        convert=layouts.answer_text,
        baseline=0.243,
    ),
    # The same questions, to learn from one half where nothing else of their kind is at hand, and to evaluate the other.
    "CLIcK-Halves": DataSet(
        task=Halves,
        repo="EunsuKim/CLIcK",
        path=CONVERTED,
        splits=(Split("train"), Split("test", own="train")),
        columns=("question", "paragraph", "choices", "answer"),
        convert=layouts.answer_text,
        baseline=0.243,
    ),
    # Two Korean sentences: does the second follow from the first?
    "KLUE-NLI": DataSet(
        task=MultipleChoice,
        repo="klue/klue",
        path="nli/{file}",
        splits=(TRAIN, Split("test", own="validation")),
        columns=("premise", "hypothesis", "label"),
        convert=layouts.inference,
        baseline=1 / 3,
    ),
    # Questions of KMMLU from technical qualifications, without errors and without easy ones. Gated, as KMMLU-Pro and
    # GPQA are: the hub gives the files to accounts that accepted the conditions.
    "KMMLU-Redux": DataSet(
        task=Redux,
        repo="LGAI-EXAONE/KMMLU-Redux",
        path=CONVERTED,
        splits=(TEST,),
        columns=("question", "options", "solution"),
        convert=layouts.answer_from_one,
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
        convert=layouts.answer_from_one,
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
        convert=layouts.choices_in_lines,
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
        convert=layouts.right_first,
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
        convert=layouts.option_fields,
        baseline=0.2,
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
        task=MCLM, repo="amphora/MCLM", path=CONVERTED, splits=(TEST,), columns=("ko", "answer"), parts=("MT-MATH100",)
    ),
    # 12,500 problems of competitions, solved in words with the answer in \\boxed{}, and the 500 that are usually asked.
    "MATH": DataSet(
        task=SolvedMCLM,
        repo="EleutherAI/hendrycks_math",
        path=CONVERTED,
        splits=(TRAIN, TEST),
        columns=("problem", "solution"),
        parts=FIELDS,
    ),
    "MATH-500": DataSet(
        task=MCLM, repo="HuggingFaceH4/MATH-500", path=CONVERTED, splits=(TEST,), columns=("problem", "answer")
    ),
    # 541 prompts with instructions that a program checks. For evaluation, though the only split is called train.
    "IFEval": DataSet(
        task=FollowedInstructions,
        repo="google/IFEval",
        path=CONVERTED,
        splits=(Split("test", own="train"),),
        columns=("prompt", "instruction_id_list", "kwargs"),
    ),
    # Alpaca's instructions, each with such an instruction of ours; the second is only in a mirror.
    "Alpaca-Constrained": DataSet(
        task=Constrained,
        repo="tatsu-lab/alpaca",
        path=CONVERTED,
        splits=(TRAIN, Split("test", own="train")),
        columns=("instruction", "input?"),
    ),
    "Alpaca-Part-Constrained": DataSet(
        task=Constrained,
        repo="tatsu-lab/alpaca",
        path="data/{file}",
        splits=(TRAIN, Split("test", own="train")),
        columns=("instruction", "input?"),
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
}

CHATS: dict[str, DataSet] = {
    # English instructions, answered by a larger model; some have an input to work on.
    "Alpaca": DataSet(
        task=Chat,
        repo="tatsu-lab/alpaca",
        path=CONVERTED,
        splits=(TRAIN,),
        columns=("instruction", "input", "output"),
        convert=instruction,
    ),
    # Only in a mirror: a part of them.
    "Alpaca-Part": DataSet(
        task=Chat,
        repo="tatsu-lab/alpaca",
        path="data/{file}",
        splits=(TRAIN,),
        columns=("instruction", "input", "output"),
        convert=instruction,
    ),
    # Korean questions from a forum, answered by a larger model.
    "KoAlpaca": DataSet(
        task=Chat,
        repo="beomi/KoAlpaca-v1.1a",
        path=CONVERTED,
        splits=(TRAIN,),
        columns=("instruction", "output"),
        convert=instruction,
    ),
    # Only in a mirror: Korean instructions, some with an input to work on.
    "KoAlpaca-v1": DataSet(
        task=Chat,
        repo="local/ko-alpaca-v1",
        path="data/{file}",
        splits=(TRAIN,),
        columns=("instruction", "input", "output"),
        convert=instruction,
    ),
}
