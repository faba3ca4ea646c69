"""The data sets of all tasks.

task, convert: class and function, below tasks/. The other keys are fields of `DataSet` (common.py); docs/tasks.md
describes them. Evaluations ask for the split `test`, training for `train`.
"""

SETS = """
# School science; a few have three or five choices.
[ARC-Easy]
task = multiple_choice.MultipleChoice
repo = allenai/ai2_arc
path = ARC-Easy/{file}
splits = train validation test
columns = question choices answerKey
convert = multiple_choice.answer_label
baseline = 0.25

[ARC-Challenge]
task = multiple_choice.MultipleChoice
repo = allenai/ai2_arc
path = ARC-Challenge/{file}
splits = train validation test
columns = question choices answerKey
convert = multiple_choice.answer_label
baseline = 0.25

# Exams in 57 subjects; the train split comes from other data sets.
[MMLU]
task = multiple_choice.MultipleChoice
repo = cais/mmlu
path = all/{file}
splits = train=auxiliary_train dev validation test
columns = question choices answer
baseline = 0.25

# Algebra word problems with five choices.
[AQUA]
task = multiple_choice.MultipleChoice
repo = deepmind/aqua_rat
path = raw/{file}
splits = train validation test
columns = question options correct
convert = multiple_choice.answer_letter
baseline = 0.2

# Questions from Korean exams; each subject is a folder.
[KMMLU]
task = multiple_choice.MultipleChoice
repo = HAERAE-HUB/KMMLU
path = {part}/{split}/0000.parquet
splits = train dev test
columns = question A B C D answer
convert = multiple_choice.choice_columns
parts =
    Accounting Agricultural-Sciences Aviation-Engineering-and-Maintenance Biology Chemical-Engineering
    Chemistry Civil-Engineering Computer-Science Construction Criminal-Law Ecology Economics Education
    Electrical-Engineering Electronics-Engineering Energy-Management Environmental-Science Fashion Food-Processing
    Gas-Technology-and-Engineering Geomatics Health Industrial-Engineer Information-Technology
    Interior-Architecture-and-Design Korean-History Law Machine-Design-and-Manufacturing Management Maritime-Engineering
    Marketing Materials-Engineering Math Mechanical-Engineering Nondestructive-Testing Patent
    Political-Science-and-Sociology Psychology Public-Safety Railway-and-Automotive-Engineering Real-Estate
    Refrigerating-Machinery Social-Welfare Taxation Telecommunications-and-Wireless-Technology
baseline = 0.25

# Questions about Korean language and culture with five choices.
[HAE-RAE]
task = multiple_choice.MultipleChoice
repo = HAERAE-HUB/HAE_RAE_BENCH_1.1
path = {part}/{split}/0000.parquet
splits = test
columns = query options answer
convert = multiple_choice.choices_in_query
parts = general_knowledge history loan_words rare_words standard_nomenclature
baseline = 0.2

# 1,695 questions about Korea, all for evaluation, though the only split is called train. Some have five choices, so
# that guessing scores less than 0.25.
[CLIcK]
task = multiple_choice.MultipleChoice
repo = EunsuKim/CLIcK
path = {part}/{split}/0000.parquet
splits = test=train
columns = question paragraph choices answer
convert = multiple_choice.answer_text
baseline = 0.243

# Questions of KMMLU from technical qualifications, without errors and without easy ones. Only its columns are
# documented: the name of its folder is taken to follow that of KMMLU-Pro. Gated, as KMMLU-Pro and GPQA are: the hub
# gives the files to accounts that accepted the conditions.
[KMMLU-Redux]
task = multiple_choice.MultipleChoice
repo = LGAI-EXAONE/KMMLU-Redux
path = {part}/{split}/0000.parquet
splits = test
columns = question options solution
convert = multiple_choice.answer_from_one
parts = kmmlu_redux
baseline = 0.25

# Korean exams for lawyers, accountants, doctors; most questions have five choices, some four.
[KMMLU-Pro]
task = multiple_choice.MultipleChoice
repo = LGAI-EXAONE/KMMLU-Pro
path = {part}/{split}/0000.parquet
splits = test
columns = question options solution
convert = multiple_choice.answer_from_one
parts = kmmlu_pro
baseline = 0.2

# Korean linguistics with ten choices.
[KoBALT]
task = multiple_choice.MultipleChoice
repo = snunlp/KoBALT-700
path = {part}/{split}/0000.parquet
splits = test=raw
columns = Question Answer
convert = multiple_choice.choices_in_lines
parts = kobalt_v1
baseline = 0.1

# The hardest 198 questions from biology, physics and chemistry.
[GPQA]
task = multiple_choice.MultipleChoice
repo = Idavidrein/gpqa
path = {part}/{split}/0000.parquet
splits = test=train
columns = Question, Correct Answer, Incorrect Answer 1, Incorrect Answer 2, Incorrect Answer 3
convert = multiple_choice.right_first
parts = gpqa_diamond
baseline = 0.25

# Korean medicine: a patient, findings, five choices. For evaluation, though the only split is called train.
[ClinicalQA]
task = multiple_choice.MultipleChoice
repo = snuh/ClinicalQA
path = data/{file}
splits = test=train
columns = question exam? options answer
convert = multiple_choice.option_fields
baseline = 0.2

[GSM8K]
task = gsm8k.GSM8K
repo = openai/gsm8k
path = main/{file}
splits = train test
columns = question answer

[HRM8K]
task = hrm8k.HRM8K
repo = HAERAE-HUB/HRM8K
path = {part}/{split}/0000.parquet
splits = test
columns = question answer
parts = GSM8K KSM MATH MMMLU OMNI_MATH

# 99 problems of MATH, translated.
[MT-MATH100]
task = mclm.MCLM
repo = amphora/MCLM
path = {part}/{split}/0000.parquet
splits = test
columns = ko answer
parts = MT-MATH100

[HumanEval]
task = humaneval.HumanEval
repo = openai/openai_humaneval
path = openai_humaneval/{file}
splits = test
columns = prompt canonical_solution test entry_point

# Release n has the problems of the first n files.
[LiveCodeBench-v1]
task = livecodebench.LiveCodeBench
repo = livecodebench/code_generation_lite
path = {part}.jsonl
splits = test
columns = question_content starter_code metadata public_test_cases private_test_cases
parts = test

[LiveCodeBench-v2]
task = livecodebench.LiveCodeBench
repo = livecodebench/code_generation_lite
path = {part}.jsonl
splits = test
columns = question_content starter_code metadata public_test_cases private_test_cases
parts = test test2

[LiveCodeBench-v3]
task = livecodebench.LiveCodeBench
repo = livecodebench/code_generation_lite
path = {part}.jsonl
splits = test
columns = question_content starter_code metadata public_test_cases private_test_cases
parts = test test2 test3

[LiveCodeBench-v4]
task = livecodebench.LiveCodeBench
repo = livecodebench/code_generation_lite
path = {part}.jsonl
splits = test
columns = question_content starter_code metadata public_test_cases private_test_cases
parts = test test2 test3 test4

[LiveCodeBench-v5]
task = livecodebench.LiveCodeBench
repo = livecodebench/code_generation_lite
path = {part}.jsonl
splits = test
columns = question_content starter_code metadata public_test_cases private_test_cases
parts = test test2 test3 test4 test5

[LiveCodeBench-v6]
task = livecodebench.LiveCodeBench
repo = livecodebench/code_generation_lite
path = {part}.jsonl
splits = test
columns = question_content starter_code metadata public_test_cases private_test_cases
parts = test test2 test3 test4 test5 test6

[SimpleSpelling]
task = spelling.SimpleSpelling
splits = train test

[SpellingBee]
task = spelling.SpellingBee
splits = train test

[Sudoku-4]
task = puzzles.Sudoku
splits = train test

# Of the chats, data sets without a repository, or from `local`, exist only in a mirror.

# Chats written by a larger model, selected for small models: 460,000 conversations.
[SmolTalk]
task = chats.Chat
repo = HuggingFaceTB/smol-smoltalk
path = data/{file}
splits = train*4 test
columns = messages

# The whole collection: about a million conversations, many too long for a small context.
[SmolTalk-Large]
task = chats.Chat
repo = HuggingFaceTB/smoltalk
path = data/all/{file}
splits = train*9 test
columns = messages

# The model's own name, maker and purpose.
[Identity]
task = chats.JsonLines
path = identity_conversations.jsonl
splits = train

# Made from the user's own text.
[Passages]
task = chats.Passages
splits = train validation

# Dialogues about services, such as booking a table.
[Multi-Turn]
task = chats.Chat
repo = local/multiturn-chat
path = data/{file}
splits = train test
columns = messages

# Korean questions from a forum, answered by a larger model.
[KoAlpaca]
task = chats.Chat
repo = beomi/KoAlpaca-v1.1a
path = {part}/{split}/0000.parquet
splits = train
columns = instruction output
convert = chats.instruction

# Korean instructions, some with an input to work on.
[KoAlpaca-v1]
task = chats.Chat
repo = local/ko-alpaca-v1
path = data/{file}
splits = train
columns = instruction input output
convert = chats.instruction

# Questions about facts that no conversation for training asks for.
[World-Facts]
task = world.FreeQuestion
table = facts
splits = test
columns = question answer

[World-Choices]
task = multiple_choice.NamedChoice
table = choices
splits = train validation test
columns = question choices answer
baseline = 0.25

# Word problems, solved with the calculator.
[World-Sums]
task = gsm8k.GSM8K
table = sums
splits = train test
columns = question answer

[World-Korean]
task = world.FreeQuestion
table = korean
splits = test
columns = question answer

# Ten of the facts, one for each relation.
[World-Questions]
task = world.FreeQuestion
table = questions
splits = test
columns = question answer

# What a person would say to the model, in words that no text for training has.
[World-Talk]
task = world.Talk
table = talk
splits = test
columns = category messages accept reject

[World-Chat]
task = world.WorldChat
table = chat
splits = train validation
columns = messages
"""
